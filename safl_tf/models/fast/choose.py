"""Chooses the fastest implementation of a model for the hardware.

On a CPU, XLA compiles convolutions to plain loops, and native convolutions with
few channels are far slower than a matrix product. Therefore:

- A chain of layers whose convolutions all have few channels and are followed by
  2×2 pooling is folded, and compiled if XLA supports all its layers.
- Any other model with convolutions is not compiled on a CPU; in a chain, wide
  convolutions with ReLU and 2×2 max-pooling are merged.
- Stacked models compute all convolutions as matrix products, as native
  convolutions do not support a kernel per client.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from safl_tf.models.fast import folded_conv, patch_conv, wide_conv
from safl_tf.util import choices, validation

_Pair = tuple[keras.layers.Layer, keras.layers.Layer | None]

# Layers that XLA compiles well and that process each example independently, so
# that padding a batch has no effect. Dropout is not among them: XLA generates
# random numbers slowly on a CPU.
_COMPILABLE = (
  'Activation',
  'Add',
  'AveragePooling2D',
  'Concatenate',
  'Dense',
  'Flatten',
  'FoldedConvPool2D',
  'GlobalAveragePooling2D',
  'GlobalMaxPooling2D',
  'InputLayer',
  'LayerNormalization',
  'LeakyReLU',
  'MaxPooling2D',
  'PatchConv2D',
  'ReLU',
  'Rescaling',
  'Reshape',
  'Softmax',
  'ZeroPadding2D',
)
# Layers that process each example independently. The random numbers of a padded
# batch begin with those of the batch without padding.
_PER_EXAMPLE = (*_COMPILABLE, 'Conv2D', 'DepthwiseConv2D', 'Dropout')


class FastModel(NamedTuple):
  """A model with the same variables and outputs, and how to run it.

  Attributes:
    model: the model to compute with.
    jit_compile: whether to compile it with XLA.
    per_example: whether it is known to process each example independently.
  """

  model: keras.Model
  jit_compile: bool
  per_example: bool


def fast_model(
  model: keras.Model,
  jit_compile: str = 'auto',
  on_gpu: bool = False,
  stacked: bool = False,
) -> FastModel:
  """Returns the fastest equivalent of a model for the hardware.

  Args:
    model: a built Keras model; returned itself if nothing is faster.
    jit_compile: 'auto' to decide by the layers, 'true' or 'false' to force XLA.
    on_gpu: whether it will run on a GPU, where native convolutions are fastest.
    stacked: whether the models of several clients will be computed as one.
  """
  validation.choice('jit_compile', jit_compile, choices.JIT_COMPILES)
  folded = None if on_gpu and not stacked else fold(model, 'matmul')
  best = folded or (stacked and to_patches(model)) or model
  jit = jit_compile == 'true'
  if jit_compile == 'auto':
    jit = _consists_of(best, _COMPILABLE)
  if not (jit or stacked or on_gpu):
    best = fold(model, 'conv') or widen(model) or model
  return FastModel(best, jit, _consists_of(model, _PER_EXAMPLE))


def to_patches(model: keras.Model) -> keras.Model | None:
  """Replaces convolutions by matrix products; None if there are none."""
  if not _is_graph(model) or not all(map(_is_keras, model.layers)):
    return None
  if not any(map(patch_conv.can_replace, model.layers)):
    return None

  def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
    replaced = patch_conv.can_replace(layer)
    kind = patch_conv.PatchConv2D if replaced else type(layer)
    return kind.from_config(layer.get_config())

  return keras.models.clone_model(model, clone_function=clone)


def fold(model: keras.Model, lowering: str = 'matmul') -> keras.Model | None:
  """Folds all convolutions of a chain; None if that is not possible."""
  convs = [pair for pair in _pairs(model) if 'Conv' in type(pair[0]).__name__]
  if not convs or None in model.inputs[0].shape[1:]:
    return None
  if not all(folded_conv.can_replace(*pair) for pair in convs):
    return None
  return _merge(
    model,
    folded_conv.can_replace,
    lambda conv, pool: folded_conv.from_layers(conv, pool, lowering),
  )


def widen(model: keras.Model) -> keras.Model | None:
  """Merges wide convolutions and poolings of a chain; None if it has none."""
  if not any(wide_conv.can_replace(*pair) for pair in _pairs(model)):
    return None
  return _merge(
    model,
    wide_conv.can_replace,
    lambda conv, _: wide_conv.WideConvPool2D.from_config(conv.get_config()),
  )


def _merge(
  model: keras.Model,
  can_merge: Callable[..., bool],
  merge: Callable[..., keras.layers.Layer],
) -> keras.Model:
  """Replaces pairs of consecutive layers of a chain by one layer each."""
  layers: list[keras.layers.Layer] = []
  pairs = iter(_pairs(model))
  for layer, following in pairs:
    if can_merge(layer, following):
      layers.append(merge(layer, following))
      next(pairs)
    else:
      layers.append(layer)
  entry = model.inputs[0]
  return keras.Sequential(
    [keras.Input(entry.shape[1:], dtype=entry.dtype), *layers]
  )


def _pairs(model: keras.Model) -> list[_Pair]:
  """Returns each layer of a chain with its successor, if any.

  The input layer is left out. A model that is not a chain has no pairs.
  """
  if not _is_graph(model) or any(hasattr(w, 'layers') for w in model.layers):
    return []
  if not isinstance(model, keras.Sequential):
    # Each step has one input tensor, and no tensor is used twice.
    steps = list(model._nodes_by_depth.values())
    if any(len(nodes) != 1 for nodes in steps):
      return []
    if any(len(nodes[0].input_tensors) > 1 for nodes in steps):
      return []
    if not len(steps) == len(model.operations) == len(model.layers):
      return []
  is_input = lambda layer: isinstance(layer, keras.layers.InputLayer)
  chain = [layer for layer in model.layers if not is_input(layer)]
  return list(zip(chain, [*chain[1:], None], strict=True))


def _is_graph(model: keras.Model) -> bool:
  """Returns whether the layers define the model, without a custom `call`."""
  graph = isinstance(model, keras.Sequential) or hasattr(model, 'operations')
  return graph and _is_keras(model)


def _is_keras(layer: keras.layers.Layer) -> bool:
  return type(layer).__module__.startswith(('keras.', 'safl_tf.'))


def _consists_of(model: keras.Model, names: Sequence[str]) -> bool:
  return _is_graph(model) and all(
    _is_keras(layer) and type(layer).__name__ in names
    for layer in model._flatten_layers(include_self=False)
  )
