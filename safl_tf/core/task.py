"""The task of a run: what models learn, and how a gate scores them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from safl_tf.util import errors

# (y [B, ...], outputs [B, ...] float32) -> values [B] or [B, T]
OfExamples = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Options(NamedTuple):
  """What a user says of a task.

  Attributes:
    loss: one of `choices.LOSSES` or any loss of Keras: a name, an object or a
      function (y, outputs) -> losses of examples. None takes that of a compiled
      model; or else cross-entropy, if the labels are classes.
    metrics: metrics of Keras for evaluations: names, objects, or functions
      (y, outputs) -> values of examples. None takes those of a compiled model.
      Names get probabilities where outputs are logits; objects and functions
      get outputs, as in Keras.
    weighted_metrics: the same, weighted by the examples' weights.
    score: h in [0, 1], which gates compare: a metric that is a mean over
      examples, given as in `metrics`. None is the accuracy, if there is one.
    class_weight: class number -> weight of its examples' losses in training; 1
      for classes that it leaves out.
    from_logits: whether outputs are logits rather than probabilities. None
      takes it from the loss or the last layer.
  """

  loss: Any = None
  metrics: Iterable[Any] | None = None
  weighted_metrics: Iterable[Any] | None = None
  score: Any = None
  class_weight: Mapping[int, float] | None = None
  from_logits: bool | None = None


class Task(NamedTuple):
  """What models learn.

  Attributes:
    name: of the loss.
    options: what gives this task with any model of the same outputs.
    loss: (y, outputs) -> losses [B], or [B, T] for positions of sequences.
    score: (y, outputs) -> scores in [0, 1] of the same shape; None if there is
      no accuracy and the user gave none.
    accuracy: 'class' if labels are class numbers, 'one_hot' if they are
      vectors like the outputs, 'binary' if each output is a yes or no; None if
      the task has no accuracy.
    activation: 'softmax' or 'sigmoid' if outputs are logits; else None.
    shape: of the losses of an example: () or that of its positions.
    positions: whether losses are of positions, or some of them do not count.
    ignored: the label of positions that do not count.
    example: labels and outputs of the first examples.
  """

  name: str
  options: Options
  loss: OfExamples
  score: OfExamples | None
  accuracy: str | None
  activation: str | None
  shape: tuple[int, ...]
  positions: bool
  ignored: int | None
  example: tuple[tf.Tensor, tf.Tensor]

  @property
  def has_probabilities(self) -> bool:
    """Whether outputs after `activation` are known to be probabilities."""
    return self.options.from_logits is not None

  def compiles(self) -> bool:
    """Returns whether XLA compiles the loss and the score.

    Those of Keras are known to; a user's function is tried.
    """
    own = [
      (argument, given, function)
      for argument, given, function in (
        ('loss', self.options.loss, self.loss),
        ('score', self.options.score, self.score),
      )
      if callable(given) and not type(given).__module__.startswith('keras.')
    ]
    for argument, given, function in own:
      try:
        y, outputs = map(tf.zeros_like, self.example)
        tf.function(function, jit_compile=True)(y, outputs)
      except Exception as error:  # a user's function may raise anything
        logging.info(
          '%s=%s: XLA cannot compile it (%s); jit_compile is off',
          argument,
          getattr(given, '__name__', type(given).__name__),
          errors.reason(error),
        )
        return False
    return True

  def valid(self, y: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor | None:
    """Returns 1.0 for entries of losses that count and 0.0 for others.

    Args:
      y: labels.
      mask: of the model's outputs, if it has one.

    Returns:
      None if all count.
    """
    if self.ignored is not None:
      known = y != self.ignored
      mask = known if mask is None else mask & known
    return None if mask is None else tf.cast(mask, tf.float32)

  def check_labels(self, y: np.ndarray, outputs: Any, place: str = 'y') -> None:
    """Refuses labels that do not fit the outputs, of any number of rows."""
    shape = tuple(outputs.shape[1:])
    if self.accuracy == 'class':
      low = 0 if self.ignored is None else min(0, self.ignored)
      wrong, high = (y < low) | (y >= shape[-1]), shape[-1] - 1
      takes = f'a class number in [0, {high}]'
    elif self.accuracy == 'binary' and y.dtype.kind in 'iu':
      wrong, takes = (y < 0) | (y > 1), f'0 or 1 for the loss {self.name}'
    else:
      return
    if wrong.any():
      row = int(np.argmax(wrong.reshape(len(y), -1).any(axis=1)))
      value = y[row][wrong[row]].ravel()[0]
      raise errors.InputError(
        place, f'{value} in row {row}', f'must be {takes}'
      )


def of_compiled(model: keras.Model) -> Options:
  """Returns the loss and the metrics of a compiled model."""
  if not getattr(model, 'compiled', False):
    return Options()
  [loss, *others] = keras.tree.flatten(model.loss) or [None]
  if others:
    hint = 'is compiled with several losses; models have one output here'
    raise errors.InputError('model', model.name, hint)
  if getattr(model._compile_loss, '_user_loss_weights', None):
    hint = 'is compiled with loss_weights, which are not supported'
    raise errors.InputError('model', model.name, hint)
  compiled = model._compile_metrics
  kinds = [
    keras.tree.flatten(getattr(compiled, name, None) or [])
    for name in ('_user_metrics', '_user_weighted_metrics')
  ]
  metrics, weighted = ([m for m in k if m is not None] for k in kinds)
  return Options(loss, metrics, weighted)


def keras_mask(outputs: Any) -> tf.Tensor | None:
  """Returns the mask that Keras's layers gave a tensor, if they did."""
  return getattr(outputs, '_keras_mask', None)
