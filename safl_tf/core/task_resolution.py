"""Resolves the task of a run.

The user's arguments come first, then what a model was compiled with, then what
its last layer and the labels say. Nothing is guessed from outputs.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import heads, losses
from safl_tf.core import task as task_lib
from safl_tf.util import choices, errors, validation

_REMEDY = (
  'pass from_logits=True or False, or compile the model with a categorical '
  'crossentropy'
)
_METRICS = ('metrics', 'weighted_metrics')
# Whether outputs are logits, by the loss's activation and the last layer's.
_LOGITS = {
  'softmax': {'linear': True, 'log_softmax': True, 'softmax': False},
  'sigmoid': {'linear': True, 'sigmoid': False, 'softmax': False},
}


def resolve(
  options: task_lib.Options,
  compiled: task_lib.Options,
  model: keras.Layer,
  outputs: tf.Tensor,
  y: np.ndarray,
  num_classes: int | None,
) -> task_lib.Task:
  """Returns the task, or refuses options that do not fit model and labels.

  Args:
    options: the user's.
    compiled: those of the user's model, see `of_compiled`.
    model: a built model.
    outputs: of the model, for the first examples.
    y: labels of all examples.
    num_classes: of single labels; None for other tasks.
  """
  head, layer = heads.find(model)
  kind, from_compiled = None, False
  if options.loss is not None:
    kind = losses.identify(options.loss)
  elif compiled.loss is not None:
    kind, from_compiled = losses.identify(compiled.loss), True
  if kind is None or kind.name in ('crossentropy', 'ce'):
    kind = _default(model.name, head, outputs, y, num_classes)
  as_classes = _are_classes(y, outputs)
  _check_shapes(kind, model.name, outputs, y, num_classes)
  given = options.from_logits
  if given is not None:
    validation.instance('from_logits', given, bool, 'True, False or None')
  if kind.activation is not None:
    said = kind.from_logits
    if said is None and from_compiled and kind.of not in choices.LOSSES:
      said = False  # as Keras reads names and functions
    given = _are_logits(model.name, head, layer, kind, given, said)
  elif given is None and head in ('softmax', 'sigmoid'):
    given = False
  accuracy = _accuracy(kind, head, as_classes, outputs, y)
  activation = None
  if given:
    activation = {'binary': 'sigmoid', None: None}.get(accuracy, 'softmax')
    if activation is None:
      hint = f'has no effect: with the loss {kind.name} outputs are no logits'
      raise errors.InputError('from_logits', True, hint)
  loss = losses.build(kind, given, as_classes)
  measured = compiled if options.metrics is None else options
  resolved = options._replace(
    loss=kind.loss,
    metrics=tuple(measured.metrics or ()),
    weighted_metrics=tuple(measured.weighted_metrics or ()),
    from_logits=given,
  )
  ignored = None
  if kind.of == 'SparseCategoricalCrossentropy':
    ignored = getattr(kind.loss, 'ignore_class', None)
  first = tf.convert_to_tensor(y[: len(outputs)])
  task = task_lib.Task(
    name=kind.name,
    options=resolved,
    loss=loss,
    score=None,
    accuracy=accuracy,
    activation=activation,
    shape=(),
    positions=False,
    ignored=ignored,
    example=(first, outputs),
  )
  task.check_labels(y, outputs)
  values = _probe('loss', kind.name, loss, first, outputs)
  mask = task.valid(first, task_lib.keras_mask(outputs))
  if mask is not None and mask.shape != values.shape:
    hint = f'its mask has shape {tuple(mask.shape)}, but losses have'
    hint = f'{hint} {tuple(values.shape)}'
    raise errors.InputError('model', model.name, hint)
  score = _score(task, options.score)
  if score is not None:
    name = str(options.score or 'accuracy')
    scores = _probe('score', name, score, first, outputs)
    if scores.shape != values.shape:
      argument, one, other = 'score', scores.shape, values.shape
      if options.score is None:
        argument, name, one, other = 'loss', kind.name, other, one
      hint = f'must return values of shape {tuple(other)}, not {tuple(one)}'
      raise errors.InputError(argument, name, hint)
  shape = tuple(values.shape[1:])
  positions = mask is not None or shape != ()
  return task._replace(score=score, shape=shape, positions=positions)


def to_json(task: task_lib.Task) -> dict[str, Any]:
  """Returns a task as JSON values, without the user's own functions."""
  options = task.options
  return {
    'loss': _serialize(options.loss, keras.losses),
    **{
      name: [_serialize(m, keras.metrics) for m in getattr(options, name) or ()]
      for name in _METRICS
    },
    'from_logits': options.from_logits,
    'activation': task.activation,
  }


def from_json(values: Mapping[str, Any]) -> task_lib.Options:
  """Returns the options that `to_json` has described."""
  metrics, weighted = (
    [_deserialize(m, keras.metrics) for m in values[name] if m is not None]
    for name in _METRICS
  )
  return task_lib.Options(
    loss=_deserialize(values['loss'], keras.losses),
    metrics=metrics,
    weighted_metrics=weighted,
    from_logits=values['from_logits'],
  )


def _serialize(given: Any, module: Any) -> Any:
  """Returns a name, a configuration, or None for what is not of Keras."""
  if given is None or isinstance(given, str):
    return given
  name = getattr(given, '__name__', '')
  if getattr(module, name, None) is given:
    return name
  if getattr(module, type(given).__name__, None) is type(given):
    return keras.saving.serialize_keras_object(given)
  return None


def _deserialize(value: Any, module: Any) -> Any:
  return module.deserialize(value) if isinstance(value, dict) else value


def class_weights(
  weights: Mapping[int, float], num_classes: int | None
) -> np.ndarray:
  """Returns `Options.class_weight` as an array, a value for each class."""
  takes = 'a dict of classes and weights, such as {0: 1.0, 1: 5.0}'
  validation.instance('class_weight', weights, Mapping, takes)
  if num_classes is None:
    hint = 'is for labels that are class numbers; use sample_weight'
    raise errors.InputError('class_weight', dict(weights), hint)
  values = np.ones(num_classes, np.float32)
  for label, weight in weights.items():
    k = validation.integer('class_weight', label, low=0, high=num_classes - 1)
    values[k] = validation.real(f'class_weight[{k}]', weight, low=0)
  return values


def metric(name_or_object: Any, argument: str = 'metrics') -> Any:
  """Returns a metric of Keras: a `keras.Metric` or a function."""
  if isinstance(name_or_object, str):
    try:
      return keras.metrics.get(name_or_object)
    except ValueError:
      known = [n for n in dir(keras.metrics) if n[0] != '_']
      validation.choice(argument, name_or_object, ['accuracy', *known])
  if not callable(name_or_object) or isinstance(name_or_object, type):
    takes = 'a name, a function (y, outputs) -> values, or a keras.Metric'
    kind = type(name_or_object).__name__
    raise errors.InputError(argument, kind, f'must be {takes}')
  return name_or_object


def _default(
  model: str,
  head: str,
  outputs: tf.Tensor,
  y: np.ndarray,
  num_classes: int | None,
) -> losses.Kind:
  """Returns the loss of a task with classes; refuses others."""
  if y.dtype.kind in 'iu':
    shape = losses.like_outputs(y[:1], outputs).shape[1:]
    same = tuple(shape) == tuple(outputs.shape[1:])
    if same and head == 'sigmoid' and y.max() <= 1:
      return losses.identify('binary_crossentropy')
    if same and head == 'softmax' and y.ndim > 1:
      return losses.identify('categorical_crossentropy')
    if num_classes is not None or _are_classes(y, outputs):
      return losses.identify('categorical')
  raise errors.InputError(
    'loss',
    None,
    f'y has {y.dtype} {list(y.shape[1:])} for each example, and the outputs of '
    f'{model} {list(outputs.shape[1:])}: pass a loss, such as mse or '
    'binary_crossentropy, or compile the model with one',
  )


def _are_classes(y: np.ndarray, outputs: tf.Tensor) -> bool:
  """Returns whether labels are numbers of outputs, not vectors like them."""
  shape = tuple(outputs.shape)
  same = shape[1:-1] == y.shape[1:] and len(shape) == y.ndim + 1
  return same and y.dtype.kind in 'iu' and (shape[-1] > 1 or y.max() == 0)


def _check_shapes(
  kind: losses.Kind,
  model: str,
  outputs: tf.Tensor,
  y: np.ndarray,
  num_classes: int | None,
) -> None:
  """Refuses outputs that do not fit the labels of a known loss."""
  shape = tuple(outputs.shape)
  if kind.activation == 'softmax' and num_classes is not None:
    if len(shape) != 2 or shape[1] < num_classes:
      hint = f'its outputs have shape {shape}, but {num_classes} classes need'
      hint = f'{hint} (batch, {num_classes})'
      if num_classes <= 2 and shape[1:] == (1,):
        hint += ', or the loss binary_crossentropy'
      raise errors.InputError('model', model, hint)
    return
  own = kind.of is None and not isinstance(kind.loss, str)
  if own and not type(kind.loss).__module__.startswith('keras.'):
    return
  labels = tuple(losses.like_outputs(y[:1], outputs).shape[1:])
  if kind.activation == 'softmax' and _are_classes(y, outputs):
    return
  if labels != shape[1:]:
    hint = f'its outputs have shape {(None, *shape[1:])}, but the loss'
    hint = f'{hint} {kind.name} needs that of y, {(None, *y.shape[1:])}'
    raise errors.InputError('model', model, hint.replace('None', 'batch'))


def _are_logits(
  model: str,
  head: str,
  layer: str,
  kind: losses.Kind,
  given: bool | None,
  said: bool | None,
) -> bool:
  """Returns whether outputs are logits, or refuses the model.

  Args:
    model: its name.
    head: the activation of its last layer.
    layer: the name of that layer.
    kind: of the loss.
    given: the user's word, if there is one.
    said: what the loss says, if it does.
  """
  if head == 'sigmoid' and kind.activation == 'softmax':
    raise errors.InputError(
      'model',
      model,
      f'its last layer, {layer}, has sigmoid outputs, which do not choose one '
      'class; use softmax or no activation, or the loss binary_crossentropy '
      'with labels 0 and 1 for each output',
    )
  of_head = _LOGITS[str(kind.activation)].get(head)
  chosen = next((v for v in (given, said, of_head) if v is not None), None)
  if chosen is None:
    raise errors.InputError(
      'model',
      model,
      f'whether its outputs are logits is unknown from {layer}; {_REMEDY}',
    )
  if of_head is not None and chosen != of_head:
    actual = 'no activation' if of_head else f'a {head}'
    hint = f'but its last layer, {layer}, has {actual}'
    if given is not None:
      hint = f'{hint[4:]}; leave from_logits out'
      raise errors.InputError('from_logits', given, hint)
    raise errors.InputError(
      'model',
      model,
      f'is compiled with from_logits={said}, {hint}; '
      f'pass from_logits={of_head}, or compile it so',
    )
  return chosen


def _accuracy(
  kind: losses.Kind,
  head: str,
  as_classes: bool,
  outputs: tf.Tensor,
  y: np.ndarray,
) -> str | None:
  """Returns the kind of accuracy that a task has, see `task.Task`."""
  if as_classes:
    return 'class'
  if kind.activation == 'softmax':
    return 'one_hot'
  like = losses.like_outputs(y[:1], outputs).shape[1:] == outputs.shape[1:]
  own = kind.of is None and head == 'sigmoid' and y.dtype.kind in 'iu'
  return 'binary' if like and (kind.activation == 'sigmoid' or own) else None


def _score(task: task_lib.Task, given: Any) -> losses.Loss | None:
  """Returns the function that scores examples in [0, 1]."""
  if given is None or given in ('accuracy', 'acc'):
    if given is not None and task.accuracy is None:
      hint = f'there is none with the loss {task.name}; name another score'
      raise errors.InputError('score', given, hint)
    return _accuracy_of(task)
  function = metric(given, 'score')
  if isinstance(function, keras.Metric):
    if not isinstance(function, keras.metrics.MeanMetricWrapper):
      hint = 'must be a mean over examples; pass a function (y, outputs)'
      raise errors.InputError('score', function.name, hint)
    wrapped, options = function._fn, function._fn_kwargs
    function = lambda y, outputs: wrapped(y, outputs, **options)
  activation = task.activation if isinstance(given, str) else None

  def score(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    y = tf.cast(losses.like_outputs(y, outputs), outputs.dtype)
    values = function(y, losses.activate(outputs, activation))
    return tf.cast(values, tf.float32)

  return score


def _accuracy_of(task: task_lib.Task) -> losses.Loss | None:
  """Returns the share of right outputs of each example, as a function."""
  threshold = 0.0 if task.activation else 0.5

  def of_class(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    chosen = tf.argmax(outputs, axis=-1, output_type=tf.int32)
    return tf.cast(chosen == tf.cast(y, tf.int32), tf.float32)

  def of_one_hot(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return of_class(tf.argmax(y, axis=-1, output_type=tf.int32), outputs)

  def of_binary(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    truth = tf.cast(losses.like_outputs(y, outputs), tf.float32) > 0.5
    right = tf.cast((outputs > threshold) == truth, tf.float32)
    return tf.reduce_mean(right, axis=-1) if len(right.shape) > 1 else right

  kinds = {'class': of_class, 'one_hot': of_one_hot, 'binary': of_binary}
  return kinds.get(str(task.accuracy))


def _probe(
  argument: str, name: str, function: losses.Loss, y: Any, outputs: tf.Tensor
) -> tf.Tensor:
  """Returns a function's values for the first examples."""
  try:
    values = tf.convert_to_tensor(function(y, outputs))
  except Exception as error:  # a user's function may raise anything
    shapes = f'y {list(y.shape)} and outputs {list(outputs.shape)}'
    hint = f'cannot be computed for {shapes} ({errors.reason(error)})'
    raise errors.InputError(argument, name, hint) from error
  if values.shape.rank == 0 or values.shape[0] != len(outputs):
    hint = f'must return a value for each example, not {list(values.shape)}'
    raise errors.InputError(argument, name, hint)
  alone = function(y[:1], outputs[:1])
  same = alone.shape[1:] == values.shape[1:]
  if not same or not np.allclose(alone, values[:1], 1e-3, 1e-5, equal_nan=True):
    shapes = f'y {list(y.shape)} and outputs {list(outputs.shape)}'
    hint = 'must not depend on other examples of the batch, but does with'
    raise errors.InputError(argument, name, f'{hint} {shapes}')
  return values
