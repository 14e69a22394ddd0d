"""How good a model is on data it was not trained on."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import flat_model, losses

_BATCH = 250  # measured: with LeNet-5 on a CPU twice as fast as 1,000

# (z [P], rows [r]) -> outputs [r, C]
Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Scores(NamedTuple):
  """Of a model's outputs against the labels.

  Attributes:
    loss: mean loss.
    accuracy: share of examples whose class is ranked first.
    top5_accuracy: share of examples whose class is among the first five.
    class_accuracy: accuracy among each class's examples [C]; NaN for none.
    class_counts: examples of each class [C].
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
  """Scores of outputs [N, C] for labels [N].

  Of classes with equal outputs the lower one ranks first, as in argmax, so that
  a model that can't tell classes apart is not rewarded. Outputs that are not
  numbers are wrong.
  """
  loss_fn = losses.get(loss, from_logits)
  values = loss_fn(tf.constant(y, tf.int32), tf.constant(outputs)).numpy()
  chosen = outputs[np.arange(len(y)), y][:, None]
  earlier = np.arange(outputs.shape[1]) < y[:, None]
  ahead = (outputs > chosen) | ((outputs == chosen) & earlier)
  rank = ahead.sum(axis=1)
  valid = np.isfinite(outputs).all(axis=1)
  first = (rank == 0) & valid
  counts = np.bincount(y, minlength=outputs.shape[1])
  right = np.bincount(y, weights=first, minlength=outputs.shape[1])
  with np.errstate(invalid='ignore', divide='ignore'):
    class_accuracy = right / counts
  return Scores(
    loss=float(np.mean(values, dtype=np.float64)),
    accuracy=float(first.mean()),
    top5_accuracy=float(((rank < 5) & valid).mean()),
    class_accuracy=class_accuracy,
    class_counts=counts,
  )


def mean(scores: Iterable[Scores]) -> Scores:
  """The mean of several models' scores on the same labels."""
  found = list(scores)
  if len(found) == 1:
    return found[0]
  columns = (np.mean(column, axis=0) for column in zip(*found, strict=True))
  loss, accuracy, top5_accuracy, class_accuracy, _ = columns
  return Scores(
    loss=float(loss),
    accuracy=float(accuracy),
    top5_accuracy=float(top5_accuracy),
    class_accuracy=class_accuracy,
    class_counts=found[0].class_counts,
  )


def build_predict(
  model: flat_model.FlatModel, x: Any, jit_compile: bool
) -> Predict:
  """A compiled function (z, rows of x) -> outputs [len(rows), C]."""
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
    outputs = [
      predict_batch(z, part).numpy() for part in np.split(padded, batches)
    ]
    return np.concatenate(outputs)[: len(rows)]

  return predict
