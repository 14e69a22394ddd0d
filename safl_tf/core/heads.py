"""The activation of a model's last layer.

Whether outputs are logits is never guessed from outputs.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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


def find(model: keras.Layer) -> tuple[str, str]:
  """Returns the activation that gives a model's outputs, and its layer.

  The activation is 'linear', 'softmax', 'log_softmax', 'sigmoid' or 'unknown'.
  """
  reshaped = False
  for operation in _backwards(model):
    activation = _activation(operation)
    if activation is not None:
      name = f'{operation.name} ({type(operation).__name__})'
      if activation == 'softmax' and not _sums_to_one(operation, reshaped):
        activation = 'unknown'
      return activation, name
    reshaped |= type(operation).__name__ in _RESHAPING
  return 'unknown', f'its class, {type(model).__name__}'


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
