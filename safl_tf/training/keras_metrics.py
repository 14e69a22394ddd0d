"""Metrics of Keras in evaluations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import losses, task_resolution
from safl_tf.core import task as task_lib
from safl_tf.util import errors

_OWN = ('accuracy', 'acc')  # every evaluation has it


class Metric(NamedTuple):
  """A metric, and how it is computed.

  Attributes:
    name: in results.
    metric: of Keras.
    activation: what is applied to outputs, see `losses.activate`.
    weighted: whether examples have weights.
  """

  name: str
  metric: keras.Metric
  activation: str | None
  weighted: bool

  def update(
    self, y: Any, outputs: Any, valid: Any = None, weights: Any = None
  ) -> None:
    """Adds examples.

    Args:
      y: labels.
      outputs: of the model.
      valid: 1.0 for entries that count, else 0.0; None if all do.
      weights: of the examples.
    """
    factors = [valid] if not self.weighted else [valid, weights]
    factors = [f for f in factors if f is not None]
    sample_weight = None
    if factors:
      rank = max(f.ndim for f in factors)
      expand = lambda f: f.reshape(f.shape + (1,) * (rank - f.ndim))
      sample_weight = np.prod([expand(f) for f in factors], axis=0)
    predicted = losses.activate(tf.convert_to_tensor(outputs), self.activation)
    y = losses.like_outputs(y, predicted)
    self.metric.update_state(y, predicted, sample_weight=sample_weight)

  def result(self) -> dict[str, float]:
    """Returns the values by name: one, or one for each class."""
    value = self.metric.result()
    if isinstance(value, dict):
      return {f'{self.name}_{key}': float(v) for key, v in value.items()}
    values = np.asarray(value, np.float64)
    if values.ndim == 0:
      return {self.name: float(values)}
    return {f'{self.name}_{i}': float(v) for i, v in enumerate(values.ravel())}


def of_task(task: task_lib.Task) -> list[Metric]:
  """Returns the metrics of a task, or refuses them."""
  metrics: list[Metric] = []
  names = {'loss', 'top5_accuracy'}
  for weighted, given in (
    (False, task.options.metrics),
    (True, task.options.weighted_metrics),
  ):
    for metric in given or ():
      made = _create(task, metric, weighted)
      if made is None:
        continue
      if made.name in names:
        hint = 'is the name of another metric; give it a name of its own'
        raise errors.InputError('metrics', made.name, hint)
      names.add(made.name)
      metrics.append(made)
  return metrics


def check(
  metrics: Sequence[Metric], y: np.ndarray, outputs: np.ndarray
) -> list[str]:
  """Returns the names of results; refuses metrics that fail on examples."""
  names: list[str] = []
  for made in metrics:
    made.metric.reset_state()
    try:
      made.update(y, outputs)
      names += made.result()
    except Exception as error:  # a user's function may raise anything
      shapes = f'y {list(y.shape)} and outputs {list(outputs.shape)}'
      hint = f'cannot be computed for {shapes} ({errors.reason(error)})'
      raise errors.InputError('metrics', made.name, hint) from error
    made.metric.reset_state()
  return names


def lower_is_better(metrics: Sequence[Metric]) -> set[str]:
  """Returns the names of metrics that Keras knows to be errors."""
  return {
    made.name
    for made in metrics
    if getattr(made.metric, '_direction', None) == 'down'
  }


def _create(task: task_lib.Task, given: Any, weighted: bool) -> Metric | None:
  """Returns a metric; None for the accuracy, which evaluations have anyway."""
  if isinstance(given, str) and given in _OWN:
    if task.accuracy is None:
      hint = f'there is none with the loss {task.name}'
      raise errors.InputError('metrics', given, hint)
    return None
  metric = task_resolution.metric(given)
  if isinstance(given, str):
    name = given
  elif isinstance(metric, keras.Metric):
    name = metric.name
  else:
    name = getattr(metric, '__name__', type(metric).__name__)
  if any(c in ',"' or not c.isprintable() for c in name):
    hint = 'must have a name without commas and quotes'
    raise errors.InputError('metrics', name, hint)
  if not isinstance(metric, keras.Metric):
    metric = keras.metrics.MeanMetricWrapper(metric, name=name)
  activation = task.activation if isinstance(given, str) else None
  return Metric(name, metric, activation, weighted)
