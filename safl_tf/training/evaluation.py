"""Evaluates models: loss and accuracy."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import client_trainer, flat_model, losses
from safl_tf.core import process as process_lib

_BATCH = 250  # measured: with LeNet-5 on a CPU twice as fast as 1,000

# (z [P], rows [r]) -> outputs [r, C]
Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Scores(NamedTuple):
  """Scores of a model's outputs.

  Attributes:
    loss: mean loss.
    accuracy: top-1 accuracy.
    top5_accuracy: top-5 accuracy.
    class_accuracy: accuracy on each class's examples [C]; NaN without examples.
    class_counts: number of examples of each class [C].
  """

  loss: float
  accuracy: float
  top5_accuracy: float
  class_accuracy: np.ndarray
  class_counts: np.ndarray


def score(
  outputs: np.ndarray,
  y: np.ndarray,
  loss: str = 'categorical',
  from_logits: bool = True,
) -> Scores:
  """Scores outputs [N, C] against labels [N].

  Of classes with equal outputs the lower one ranks first, as in argmax, so that
  constant outputs are not rewarded. Non-finite outputs count as wrong.
  """
  loss_fn = losses.get(loss, from_logits)
  values = loss_fn(tf.constant(y, tf.int32), tf.constant(outputs)).numpy()
  of_label = outputs[np.arange(len(y)), y][:, None]
  lower = np.arange(outputs.shape[1]) < y[:, None]
  ahead = (outputs > of_label) | ((outputs == of_label) & lower)
  rank = ahead.sum(axis=1)
  finite = np.isfinite(outputs).all(axis=1)
  correct = (rank == 0) & finite
  counts = np.bincount(y, minlength=outputs.shape[1])
  class_correct = np.bincount(y, weights=correct, minlength=outputs.shape[1])
  with np.errstate(invalid='ignore', divide='ignore'):
    class_accuracy = class_correct / counts
  return Scores(
    loss=float(np.mean(values, dtype=np.float64)),
    accuracy=float(correct.mean()),
    top5_accuracy=float(((rank < 5) & finite).mean()),
    class_accuracy=class_accuracy,
    class_counts=counts,
  )


def mean(scores: Iterable[Scores]) -> Scores:
  """Returns the mean of several models' scores on the same labels."""
  *numbers, class_accuracy, class_counts = zip(*scores, strict=True)
  loss, accuracy, top5 = (float(np.mean(values)) for values in numbers)
  per_class = np.mean(class_accuracy, axis=0)
  return Scores(loss, accuracy, top5, per_class, class_counts[0])


def build_predict(
  model: flat_model.FlatModel,
  x: Any,
  jit_compile: bool,
  device: str | None = None,
) -> Predict:
  """Compiles a function (z, rows of x) -> outputs [len(rows), C].

  It runs on the TensorFlow device, by default on TensorFlow's choice.
  """
  with tf.device(device):
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
  size = min(_BATCH, len(tf.nest.flatten(x)[0]))

  @tf.function(
    input_signature=[
      tf.TensorSpec([model.size], model.dtype),
      tf.TensorSpec([size], tf.int32),
    ],
    jit_compile=jit_compile,
    autograph=False,
  )
  def predict_batch(z: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    inputs = tf.nest.map_structure(lambda a: tf.gather(a, rows), x)
    parts = model.unflatten(z, tf.zeros([2], tf.int32))
    outputs, _, _ = model.apply(parts, inputs, training=False)
    return outputs

  def predict(z: np.ndarray, rows: np.ndarray) -> np.ndarray:
    batches = -(-len(rows) // size)
    padded = np.resize(rows, batches * size).astype(np.int32)
    with tf.device(device):
      outputs = [predict_batch(z, b).numpy() for b in np.split(padded, batches)]
    return np.concatenate(outputs)[: len(rows)]

  return predict


def build_evaluate(
  process: process_lib.FederatedProcess, test_data: tuple[Any, Any] | None
) -> Callable[[process_lib.FederatedState], Scores | None]:
  """Builds a function that evaluates a state's z̄ on the test data.

  If clients train alone, it returns the mean scores of all clients' models.
  """
  if test_data is None:
    return lambda state: None
  x, y = test_data
  rows = np.arange(len(y))

  @functools.lru_cache(maxsize=2)  # the shape of z̄ rarely changes
  def predictor(trainer: client_trainer.ClientTrainer) -> Predict:
    return build_predict(trainer.model, x, trainer.jit_compile, trainer.device)

  def evaluate(state: process_lib.FederatedState) -> Scores:
    trainer = process.trainer_of(state)
    predict, from_logits = predictor(trainer), trainer.model.from_logits
    models: Iterable[Any] = [state.z_bar]
    if process.algorithm.alone:
      ids = range(process.clients.num_clients)
      models = (state.client_models[k] for k in ids)
    return mean(
      score(predict(z, rows), y, process.config.loss, from_logits)
      for z in models
    )

  return evaluate


def client_table(
  process: process_lib.FederatedProcess, state: process_lib.FederatedState
) -> list[dict[str, Any]]:
  """Returns the rows of clients.csv: each client's data and accuracies.

  Both the client's own and the global model are evaluated on its data. The own
  model is left out if clients keep none, as in FedSGD.
  """
  clients = process.clients
  trainer = process.trainer_of(state)
  predict = build_predict(
    trainer.model, clients.x, trainer.jit_compile, trainer.device
  )
  malicious = set() if process.algorithm.pooled else set(process.malicious)
  table = []
  for k, name in enumerate(clients.client_ids):
    rows = clients.indices(k)
    y = clients.y[rows]
    row = {
      'client': name,
      'examples': len(rows),
      'labels': len(np.unique(y)),
      'malicious': int(k in malicious),
    }
    models = {'global_accuracy': state.z_bar}
    if len(state.client_models):
      models = {'own_accuracy': state.client_models[k], **models}
    for column, z in models.items():
      if z is not None:
        row[column] = score(predict(z, rows), y).accuracy
    table.append(row)
  return table
