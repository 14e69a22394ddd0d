"""Scores of a model's outputs: loss, accuracies and metrics of Keras."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import losses
from safl_tf.core import task as task_lib
from safl_tf.training import keras_metrics

_TOP = 5


class Scores(NamedTuple):
  """Scores of a model's outputs.

  Attributes:
    loss: mean loss.
    accuracy: share of right outputs; None if the task has no accuracy.
    top5_accuracy: share of labels among the five largest outputs; None unless
      there are more than five classes.
    metrics: the user's metrics by name.
    class_accuracy: accuracy on each class's examples [C], NaN without examples;
      None unless examples have one label.
    class_counts: number of examples of each class [C], or None.
  """

  loss: float
  accuracy: float | None
  top5_accuracy: float | None
  metrics: dict[str, float]
  class_accuracy: np.ndarray | None
  class_counts: np.ndarray | None

  def named(self) -> dict[str, float]:
    """Returns the numbers that there are, by name."""
    numbers = {
      'accuracy': self.accuracy,
      'top5_accuracy': self.top5_accuracy,
      'loss': self.loss,
      **self.metrics,
    }
    return {name: v for name, v in numbers.items() if v is not None}


class Scorer:
  """Adds up scores over parts of the examples.

  Of classes with equal outputs the lower one ranks first, as in argmax, so that
  constant outputs are not rewarded. Non-finite outputs count as wrong.

  Args:
    task: the loss and the kind of accuracy.
    metrics: of Keras.
  """

  def __init__(
    self,
    task: task_lib.Task,
    metrics: Sequence[keras_metrics.Metric] = (),
  ):
    self._task = task
    self._metrics = metrics
    self._totals = dict.fromkeys(('loss', 'count', 'right', 'top5'), 0.0)
    self._per_class: list[np.ndarray] | None = None
    self._has_top5 = False
    for made in metrics:
      made.metric.reset_state()

  def update(
    self,
    outputs: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray | None = None,
    weights: np.ndarray | None = None,
  ) -> None:
    """Adds examples.

    Args:
      outputs: of the model.
      y: labels.
      mask: of the outputs' positions, if they have one.
      weights: of the examples, in the loss and in weighted metrics.
    """
    task = self._task
    values = task.loss(tf.constant(y), tf.constant(outputs)).numpy()
    values = values.astype(np.float64)
    known = task.valid(y, mask)
    valid = None if known is None else np.asarray(known)
    counted = np.ones_like(values) if valid is None else valid
    if weights is not None:
      missing = (1,) * (values.ndim - weights.ndim)
      values *= weights.reshape(weights.shape + missing)
    self._totals['loss'] += float((values * counted).sum())
    self._totals['count'] += float(counted.sum())
    if task.accuracy == 'binary':
      self._totals['right'] += float((self._binary(outputs, y) * counted).sum())
    elif task.accuracy is not None:
      self._add_ranks(outputs, y, counted > 0)
    for made in self._metrics:
      made.update(y, outputs, valid, weights)

  def result(self) -> Scores:
    """Returns the scores of all examples."""
    totals, count = self._totals, self._totals['count'] or np.nan
    class_accuracy, class_counts = None, None
    if self._per_class is not None:
      right, class_counts = self._per_class
      with np.errstate(invalid='ignore', divide='ignore'):
        class_accuracy = right / class_counts
    metrics: dict[str, float] = {}
    for made in self._metrics:
      metrics |= made.result()
    own = metrics.pop('accuracy', None)  # under the name that it has
    accuracy = None if self._task.accuracy is None else totals['right'] / count
    return Scores(
      loss=totals['loss'] / count,
      accuracy=accuracy if own is None else own,
      top5_accuracy=totals['top5'] / count if self._has_top5 else None,
      metrics=metrics,
      class_accuracy=class_accuracy,
      class_counts=class_counts,
    )

  def _binary(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the share of right outputs of each example."""
    threshold = 0.0 if self._task.activation else 0.5
    truth = losses.like_outputs(y, outputs) > 0.5
    right = ((outputs > threshold) == truth) & np.isfinite(outputs)
    return right.mean(axis=-1) if right.ndim > 1 else right.astype(np.float64)

  def _add_ranks(
    self, outputs: np.ndarray, y: np.ndarray, counted: np.ndarray
  ) -> None:
    """Adds the examples or positions whose label has one of the top ranks."""
    labels = y.argmax(axis=-1) if self._task.accuracy == 'one_hot' else y
    single = labels.ndim == 1
    labels, outputs = labels[counted], outputs[counted]
    classes = outputs.shape[1]
    of_label = outputs[np.arange(len(labels)), labels][:, None]
    lower = np.arange(classes) < labels[:, None]
    ahead = (outputs > of_label) | ((outputs == of_label) & lower)
    rank = ahead.sum(axis=1)
    finite = np.isfinite(outputs).all(axis=1)
    right = (rank == 0) & finite
    self._totals['right'] += float(right.sum())
    self._has_top5 = classes > _TOP
    self._totals['top5'] += float(((rank < _TOP) & finite).sum())
    if single:
      both = [
        np.bincount(labels, weights=right, minlength=classes),
        np.bincount(labels, minlength=classes),
      ]
      before = self._per_class or [np.zeros(classes), np.zeros(classes, int)]
      self._per_class = [a + b for a, b in zip(before, both, strict=True)]


def mean(several: Iterable[Scores]) -> Scores:
  """Returns the mean of several models' scores on the same labels."""
  rows = list(several)

  def average(values: Iterable[Any]) -> Any:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None

  per_class = [r.class_accuracy for r in rows if r.class_accuracy is not None]
  return Scores(
    loss=average(r.loss for r in rows),
    accuracy=average(r.accuracy for r in rows),
    top5_accuracy=average(r.top5_accuracy for r in rows),
    metrics={n: average(r.metrics[n] for r in rows) for n in rows[0].metrics},
    class_accuracy=np.mean(per_class, axis=0) if per_class else None,
    class_counts=rows[0].class_counts,
  )
