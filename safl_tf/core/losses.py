"""Per-example losses of logits or probabilities, and which of them a model has.

Whether outputs are logits is never guessed from outputs. It is said by the
user, by the loss of a compiled model, or by the activation of the last layer.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.util import choices, errors, validation

_CLIP = 1e-7
_REMEDY = (
  'pass from_logits=True or False, or compile the model with a categorical '
  'crossentropy'
)
# Operations of Keras by name: those that do not change the outputs, but for
# their shape or during training, and those with weights and an activation.
_RESHAPING = frozenset(
  {'ExpandDims', 'Flatten', 'Permute', 'Reshape', 'Squeeze', 'Transpose'}
)
_UNCHANGING = _RESHAPING | {
  'ActivityRegularization',
  'AlphaDropout',
  'Cast',
  'Dropout',
  'GaussianDropout',
  'GaussianNoise',
  'Identity',
  'SpatialDropout1D',
  'SpatialDropout2D',
  'SpatialDropout3D',
}
_WEIGHTED = frozenset(
  {'Dense', 'EinsumDense'}
  | {
    f'{kind}{rank}D{end}'
    for kind in ('Conv', 'DepthwiseConv', 'SeparableConv')
    for rank in (1, 2, 3)
    for end in ('', 'Transpose')
  }
)

# (labels [B] int32, outputs [B, C] float32) -> losses [B]
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def get(name: str, from_logits: bool) -> Loss:
  """Returns a loss by name.

  Args:
    name: 'categorical', -ln ŷ_label; or 'paper', the two-term cross-entropy
      that the paper prints, equation (27):
      -Σ_i (y_i ln ŷ_i + (1 - y_i) ln(1 - ŷ_i)).
    from_logits: whether the model's outputs are logits.
  """
  validation.choice('loss', name, choices.LOSSES)
  if name == 'paper':
    return lambda y, outputs: _two_term(y, probabilities(outputs, from_logits))
  if from_logits:
    return lambda y, outputs: tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=y, logits=outputs
    )
  return _negative_log


def probabilities(outputs: tf.Tensor, from_logits: bool) -> tf.Tensor:
  """Returns a model's outputs as class probabilities ŷ."""
  return tf.nn.softmax(outputs) if from_logits else outputs


def are_logits(
  model: keras.Model, given: bool | None = None, compiled: bool | None = None
) -> bool:
  """Returns whether a model's outputs are logits, or refuses the model.

  Args:
    model: a built model.
    given: the user's word, if there is one.
    compiled: `compiled_from_logits` of the model that the user brought.
  """
  activation, layer = _head(model)
  if activation == 'sigmoid':
    raise errors.InputError(
      'model',
      model.name,
      f'its last layer, {layer}, has sigmoid outputs, which do not choose one '
      'class; use softmax or no activation (there are no binary tasks yet)',
    )
  if given is not None:
    validation.instance('from_logits', given, bool, 'True, False or None')
  known = {'linear': True, 'log_softmax': True, 'softmax': False}
  of_head = known.get(activation or 'unknown')
  chosen = next((v for v in (given, compiled, of_head) if v is not None), None)
  if chosen is None:
    raise errors.InputError(
      'model',
      model.name,
      f'whether its outputs are logits is unknown from {layer}; {_REMEDY}',
    )
  if of_head is not None and chosen != of_head:
    actual = 'no activation' if of_head else 'a softmax'
    hint = f'but its last layer, {layer}, has {actual}'
    if given is not None:
      hint = f'{hint[4:]}; leave from_logits out'
      raise errors.InputError('from_logits', given, hint)
    raise errors.InputError(
      'model',
      model.name,
      f'is compiled with from_logits={compiled}, {hint}; '
      f'pass from_logits={of_head}, or compile it so',
    )
  return chosen


def compiled_from_logits(model: keras.Model) -> bool | None:
  """Returns `from_logits` of the loss of a compiled model, if it has one."""
  if not getattr(model, 'compiled', False):
    return None
  [loss, *others] = keras.tree.flatten(model.loss) or [None]
  if others:
    return None
  of = keras.losses
  kinds = (of.CategoricalCrossentropy, of.SparseCategoricalCrossentropy)
  functions = (of.categorical_crossentropy, of.sparse_categorical_crossentropy)
  if isinstance(loss, str):
    known = {f.__name__: False for f in functions}
    return (known | {kind.__name__: False for kind in kinds}).get(loss)
  if isinstance(loss, kinds):
    return bool(loss.get_config()['from_logits'])
  if isinstance(loss, functools.partial) and loss.func in functions:
    return bool(loss.keywords.get('from_logits', False))
  return False if loss in functions else None


def _head(model: keras.Model) -> tuple[str | None, str]:
  """Returns the activation that gives the outputs, if known, and its layer."""
  reshaped = False
  for operation in _backwards(model):
    activation = _activation(operation)
    if activation is not None:
      name = f'{operation.name} ({type(operation).__name__})'
      if activation == 'softmax' and not _sums_to_one(operation, reshaped):
        activation = 'unknown'
      return activation, name
    reshaped |= type(operation).__name__ in _RESHAPING
  return None, f'its class, {type(model).__name__}'


def _backwards(model: Any) -> Iterator[Any]:
  """Yields the operations of a model from the output on, while it is a chain.

  Yields nothing for a model with a `call` of its own or several outputs.
  """
  if not type(model).call.__module__.startswith('keras.'):
    return
  if isinstance(model, keras.Sequential):
    for layer in reversed(model.layers):
      yield from _inside(layer)
    return
  outputs = keras.tree.flatten(getattr(model, 'outputs', None) or [])
  while len(outputs) == 1 and hasattr(outputs[0], '_keras_history'):
    operation, node, _ = outputs[0]._keras_history
    if isinstance(operation, keras.layers.InputLayer):
      return
    yield from _inside(operation)
    outputs = operation._inbound_nodes[node].input_tensors


def _inside(operation: Any) -> Iterator[Any]:
  """Yields an operation, or the operations of a nested model."""
  inner = []
  if isinstance(operation, keras.Model):
    inner = list(_backwards(operation))
  yield from inner or [operation]


def _activation(operation: Any) -> str | None:
  """Returns an operation's activation; None if it passes its input on."""
  if not type(operation).__module__.startswith('keras.'):
    return 'unknown'
  kind = type(operation).__name__
  if kind in _UNCHANGING:
    return None
  own = {'Softmax': 'softmax', 'LogSoftmax': 'log_softmax'}
  if kind in own or kind == 'Sigmoid':
    return own.get(kind, 'sigmoid')
  if kind != 'Activation' and kind not in _WEIGHTED:
    return 'unknown'
  function = operation.activation
  if isinstance(function, keras.Operation):
    return _activation(function)
  for name in ('linear', 'softmax', 'log_softmax', 'sigmoid'):
    homes = (keras.activations, keras.ops, tf.nn)
    if any(function is getattr(home, name, None) for home in homes):
      passes = kind == 'Activation' and name == 'linear'
      return None if passes else name
  return 'unknown'


def _sums_to_one(operation: Any, reshaped: bool) -> bool:
  """Returns whether a softmax is over the classes, also if reshaped later."""
  if getattr(operation, 'axis', -1) not in (-1, 1):
    return False
  try:
    return not reshaped or np.prod(operation.output.shape[1:-1]) == 1
  except (AttributeError, ValueError):  # a layer that is used twice
    return False


def _negative_log(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  chosen = tf.gather(y_hat, y, batch_dims=1)
  return -tf.math.log(tf.clip_by_value(chosen, _CLIP, 1.0))


def _two_term(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  y_hat = tf.clip_by_value(y_hat, _CLIP, 1.0 - _CLIP)
  truth = tf.one_hot(y, tf.shape(y_hat)[1], on_value=True, off_value=False)
  terms = tf.where(truth, tf.math.log(y_hat), tf.math.log1p(-y_hat))
  return -tf.reduce_sum(terms, axis=1)
