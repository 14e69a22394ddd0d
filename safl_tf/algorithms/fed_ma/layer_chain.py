"""The chain of weight layers of a Keras model that FedMA matches.

A chain has N weight layers, Conv2D and Dense, with L_0, L_1, ..., L_N units:
filters or neurons; L_0 are the input's channels or features. Layers between two
of them keep the units separate and in order, on the last axis:

- channels of an image, one element each (convolution, pooling);
- after flattening (H, W, C), element (h·W + w)·C + c belongs to unit c.

So every kernel, reshaped to [q, L_(l-1), L_l], has the units of the layer below
on its second axis: q is kh·kw for a convolution, H·W for a dense layer after
Flatten, and 1 for a dense layer after a dense one or after global pooling.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from safl_tf.util import errors

_WEIGHTED = (keras.layers.Conv2D, keras.layers.Dense)
# Layers without weights that process every channel independently and alike.
_BETWEEN = (
  'Activation',
  'ActivityRegularization',
  'AlphaDropout',
  'AveragePooling2D',
  'Cropping2D',
  'Dropout',
  'ELU',
  'GaussianDropout',
  'GaussianNoise',
  'GlobalAveragePooling2D',
  'GlobalMaxPooling2D',
  'Identity',
  'LeakyReLU',
  'MaxPooling2D',
  'ReLU',
  'Rescaling',
  'SpatialDropout2D',
  'UpSampling2D',
  'ZeroPadding2D',
)
_RESHAPING = ('Flatten', 'Reshape')


class Link(NamedTuple):
  """A weight layer.

  Attributes:
    name: of the Keras layer.
    positions: q, the number of weights from a unit below to a unit.
    biased: whether its units have a bias.
  """

  name: str
  positions: int
  biased: bool


class Chain(NamedTuple):
  """The weight layers of a model, from the input on.

  Attributes:
    links: the N layers.
    widths: L_0, ..., L_N.
  """

  links: tuple[Link, ...]
  widths: tuple[int, ...]

  @property
  def hidden(self) -> tuple[int, ...]:
    """L_1, ..., L_(N-1): the widths of layers that are matched."""
    return self.widths[1:-1]

  @property
  def size(self) -> int:
    """P, the number of parameters."""
    return sum(self.layer_size(i) for i in range(len(self.links)))

  def resized(self, hidden: Iterable[int]) -> 'Chain':
    """Returns the chain with other widths of its hidden layers."""
    inner = (int(width) for width in hidden)
    return Chain(self.links, (self.widths[0], *inner, self.widths[-1]))

  def kernel_shape(self, i: int) -> tuple[int, int, int]:
    """Returns [q, L_i, L_(i+1)] of the i-th layer, counted from 0."""
    return self.links[i].positions, self.widths[i], self.widths[i + 1]

  def layer_size(self, i: int) -> int:
    """Returns the number of parameters of the i-th layer."""
    q, incoming, units = self.kernel_shape(i)
    return (q * incoming + self.links[i].biased) * units

  def tensors_below(self, i: int) -> int:
    """Returns the number of trainable tensors before the i-th layer."""
    return sum(1 + link.biased for link in self.links[:i])


def find(model: keras.Model) -> Chain:
  """Returns the chain of a built model.

  Raises:
    errors.InputError: the model has a layer that FedMA cannot match.
  """
  try:
    return _find(model)
  except _CannotMatchError as error:
    reason = f'FedMA needs a chain of Conv2D and Dense layers, but {error}'
    raise errors.InputError('model', model.name, reason) from None


def rebuild(model: keras.Model, hidden: Iterable[int]) -> keras.Model:
  """Returns a new model with other widths of the hidden layers."""
  chain = find(model)
  old, new = (
    dict(zip((link.name for link in chain.links), widths, strict=True))
    for widths in (chain.widths[1:], chain.resized(hidden).widths[1:])
  )
  below: dict[str, str] = {}  # a layer -> the weight layer it follows
  last = None
  for layer in _walk(model):
    if last is not None:
      below[layer.name] = last
    last = layer.name if layer.name in old else last

  def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
    config = layer.get_config()
    # Keras cannot find a user's own functions by name.
    own = {key: getattr(layer, key, None) for key in config}
    config |= {key: value for key, value in own.items() if callable(value)}
    if layer.name in new:
      kind = 'filters' if 'filters' in config else 'units'
      config[kind] = new[layer.name]
    elif _kind(layer) == 'Reshape' and layer.name in below:
      *front, width = layer.target_shape
      unit = below[layer.name]
      if width != -1:
        width = width // old[unit] * new[unit]
      config['target_shape'] = (*front, width)
    return type(layer).from_config(config)

  entry = None
  if not isinstance(
    model, keras.Sequential
  ):  # Sequential keeps the input's name
    name = model.layers[0].name
    entry = keras.tree.map_structure(
      lambda t: keras.Input(batch_shape=t.shape, dtype=t.dtype, name=name),
      model.input,
    )
  return keras.models.clone_model(model, entry, clone_function=clone)


class _CannotMatchError(Exception):
  """A model is not a chain; the message says why."""


def _find(model: keras.Model) -> Chain:
  links: list[Link] = []
  widths: list[int] = []
  # The last weight layer and the layers that followed it.
  last: list[keras.layers.Layer] = []
  for layer in _walk(model):
    if type(layer) not in _WEIGHTED:
      if layer.weights:
        _refuse(layer, 'has weights that are not matched')
      if links:  # before, nothing is permuted
        _check_between(layer, widths[-1])
        last.append(layer)
      continue
    _check_weighted(layer)
    for before in last:
      _check_pointwise(before)
    shape = layer.kernel.shape
    if not widths:
      widths.append(int(shape[-2]))
    units = int(shape[-1])
    positions = int(np.prod(shape)) // (widths[-1] * units)
    links.append(Link(layer.name, positions, bool(layer.use_bias)))
    widths.append(units)
    last = [layer]
  outputs = model.outputs[0].shape[-1]
  if outputs != widths[-1]:
    _refuse(last[0], f'has {widths[-1]} units for {outputs} outputs')
  return Chain(tuple(links), tuple(widths))


def _walk(model: keras.Model) -> Iterator[keras.layers.Layer]:
  """Yields the layers of a chain in order, without the input layer."""
  is_graph = isinstance(model, keras.Sequential) or hasattr(model, 'operations')
  if not is_graph or not _is_keras(model):
    raise _CannotMatchError(
      f'{type(model).__name__} is neither Sequential nor functional'
    )
  if isinstance(model, keras.Sequential):
    layers = list(model.layers)
  else:
    layers = list(_graph_walk(model))
  for layer in layers:
    if hasattr(layer, 'layers'):
      _refuse(layer, 'is a nested model')
    if not isinstance(layer, keras.layers.InputLayer):
      yield layer


def _graph_walk(model: keras.Model) -> Iterator[keras.layers.Layer]:
  """Yields the layers of a functional model, which must not branch."""
  names = set()
  depths = sorted(model._nodes_by_depth.items(), reverse=True)
  for _, nodes in depths:
    layer = nodes[0].operation
    if len(nodes) > 1:
      _refuse(layer, 'is on one of several branches')
    if len(nodes[0].input_tensors) > 1:
      _refuse(layer, 'joins branches')
    if not isinstance(layer, keras.layers.Layer):
      _refuse(layer, 'is not a layer')
    if layer.name in names:
      _refuse(layer, 'is used twice')
    names.add(layer.name)
    yield layer


def _check_weighted(layer: keras.layers.Layer) -> None:
  """Refuses Conv2D and Dense layers that are not plain ones."""
  if getattr(layer, 'groups', 1) != 1:
    _refuse(layer, f'has {layer.groups} groups')
  _check_format(layer)
  trained = len(layer.trainable_weights)
  if trained < len(layer.weights):
    _refuse(layer, 'is frozen')
  if trained != 1 + layer.use_bias:
    _refuse(layer, 'has more weights than a kernel and a bias')


def _check_between(layer: keras.layers.Layer, width: int) -> None:
  """Refuses a layer that may not follow a weight layer of that width."""
  _check_format(layer)
  kind = _kind(layer)
  if kind in _RESHAPING:
    size = layer.output.shape[-1]
    if size is None or size % width:
      _refuse(layer, f'splits the {width} channels')
  elif kind not in (*_BETWEEN, 'Softmax'):
    _refuse(layer, 'is not known to keep channels separate')
  elif kind == 'Rescaling' and np.ndim(layer.scale) + np.ndim(layer.offset):
    _refuse(layer, 'scales channels differently')


def _check_format(layer: keras.layers.Layer) -> None:
  if getattr(layer, 'data_format', 'channels_last') != 'channels_last':
    _refuse(layer, "has the data format 'channels_first'; use 'channels_last'")


def _check_pointwise(layer: keras.layers.Layer) -> None:
  """Refuses activations that look across units."""
  activation = getattr(layer, 'activation', None)
  rank = len(layer.output.shape)
  if _kind(layer) == 'Softmax' or not _is_pointwise(activation, rank):
    _refuse(layer, 'has an activation that looks across units')


def _is_pointwise(activation: Any, rank: int) -> bool:
  """Returns whether changing one unit changes only this unit."""
  if activation is None:
    return True
  units = 6
  x = np.linspace(-2, 2, units, dtype=np.float32)
  changed = np.concatenate([x[None], x + np.eye(units, dtype=np.float32)])
  shape = (units + 1, *(1,) * (rank - 2), units)
  y = activation(keras.ops.convert_to_tensor(changed.reshape(shape)))
  if tuple(y.shape) != shape:
    return False
  before, *after = np.asarray(y).reshape(changed.shape)
  others = ~np.eye(units, dtype=bool)
  return bool(np.allclose((after - before)[others], 0, atol=1e-6))


def _is_keras(layer: keras.layers.Layer) -> bool:
  return type(layer).__module__.startswith('keras.')


def _kind(layer: keras.layers.Layer) -> str:
  """Returns a Keras layer's class name; '' for a user's own class."""
  return type(layer).__name__ if _is_keras(layer) else ''


def _refuse(layer: Any, why: str) -> None:
  raise _CannotMatchError(
    f'layer {layer.name!r} ({type(layer).__name__}) {why}'
  )
