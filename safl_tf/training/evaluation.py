"""Evaluates models: loss and accuracy."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import flat_model, losses

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
