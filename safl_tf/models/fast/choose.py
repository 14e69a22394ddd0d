"""How a model is best computed: folded layers, patches, XLA or neither.

A CPU runs XLA's own convolutions as plain loops, and native convolutions of few
channels far below what a matrix product reaches. So a chain of layers whose
convolutions are all small and followed by 2×2 pooling is folded, and compiled
if all its layers allow it; any other model with convolutions is left uncompiled
on a CPU. There, in a chain, wide convolutions with ReLU before 2×2 max-pooling
are rearranged.

Stacked clients have kernels of their own, which no native convolution takes:
there all convolutions become matrix products, which do.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from safl_tf.models.fast import folded_conv, patch_conv, wide_conv
from safl_tf.util import choices, validation

# Folding pays where a convolution has few channels; by measurement LeNet-5's
# 6 and 16 gain 4x and Light VGG's 64 and 128 lose.
_MOST_FILTERS = 32
# Layers known to compile under XLA and to treat each example by itself, so that
# padding a batch changes nothing; a model with any other is left alone. Dropout
# is not among them, as XLA draws random numbers slowly on a CPU.
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
# These, too, treat each example by itself. A random draw for a filled-up batch
# begins with the numbers of the draw for the short one.
_PER_EXAMPLE = (*_COMPILABLE, 'Conv2D', 'DepthwiseConv2D', 'Dropout')
# Activations that look at one element at a time, and so can be folded.
_POINTWISE = (
  'elu',
  'gelu',
  'hard_sigmoid',
  'leaky_relu',
  'linear',
  'relu',
  'relu6',
  'selu',
  'sigmoid',
  'silu',
  'softplus',
  'softsign',
  'tanh',
)


class Lowered(NamedTuple):
  """A model with the same variables and outputs, and how to run it.

  Attributes:
    model: the model to compute with.
    jit_compile: whether XLA compiles it.
    per_example: whether it is known to treat each example by itself.
  """

  model: keras.Model
  jit_compile: bool
  per_example: bool


def lower(
  model: keras.Model,
  jit_compile: str = 'auto',
  on_gpu: bool = False,
  stacked: bool = False,
) -> Lowered:
  """The faster way to compute a model on this kind of hardware.

  Args:
    model: a built Keras model.
    jit_compile: 'auto' to decide by the layers, 'true' or 'false' to force XLA.
    on_gpu: whether it will run on a GPU, where native convolutions are best.
    stacked: whether several clients' models will be computed as one.

  Returns:
    The model itself or its twin, and how to run it.
  """
  validation.choice('jit_compile', jit_compile, choices.JIT_COMPILES)
  twin = None if on_gpu and not stacked else fold(model, 'matmul')
  best = twin or (stacked and to_patches(model)) or model
  jit = jit_compile == 'true'
  if jit_compile == 'auto':
    jit = _consists_of(best, _COMPILABLE)
  if not (jit or stacked or on_gpu):
    best = fold(model, 'conv') or widen(model) or model
  return Lowered(best, jit, _consists_of(model, _PER_EXAMPLE))


def to_patches(model: keras.Model) -> keras.Model | None:
  """The model with its convolutions as matrix products, or None."""
  if not _is_graph(model) or not all(map(_is_keras, model.layers)):
    return None
  if not any(map(patch_conv.can_replace, model.layers)):
    return None

  def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
    replaced = patch_conv.can_replace(layer)
    kind = patch_conv.PatchConv2D if replaced else type(layer)
    return kind.from_config(layer.get_config())

  return keras.models.clone_model(model, clone_function=clone)


def fold(model: keras.Model, kernel: str = 'matmul') -> keras.Model | None:
  """The chain with every convolution folded, or None where that can't be."""
  chain = _chain(model)
  if chain is None or not any(_is_conv(layer) for layer in chain):
    return None
  if None in model.inputs[0].shape[1:]:
    return None
  if any(_is_conv(a) and not _foldable(a, b) for a, b in _pairs(chain)):
    return None
  return _replaced(
    model,
    chain,
    lambda a, b: _folded(a, b, kernel) if _is_conv(a) else None,
  )


def widen(model: keras.Model) -> keras.Model | None:
  """The chain with convolutions and poolings rearranged, or None."""
  chain = _chain(model)
  if chain is None or not any(wide_conv.can_replace(*p) for p in _pairs(chain)):
    return None

  def replace(
    conv: keras.layers.Layer, pool: keras.layers.Layer | None
  ) -> keras.layers.Layer | None:
    if not wide_conv.can_replace(conv, pool):
      return None
    return wide_conv.WideConvPool2D.from_config(conv.get_config())

  return _replaced(model, chain, replace)


def _pairs(chain: Sequence[keras.layers.Layer]) -> Iterator[Any]:
  """Each layer with the one that follows, if any."""
  return zip(chain, [*chain[1:], None], strict=True)


def _replaced(
  model: keras.Model,
  chain: Sequence[keras.layers.Layer],
  replace: Callable[[Any, Any], keras.layers.Layer | None],
) -> keras.Model:
  """The chain with one layer for two, where `replace` gives one."""
  layers: list[keras.layers.Layer] = []
  pairs = _pairs(chain)
  for layer, following in pairs:
    one = replace(layer, following)
    if one is not None:
      next(pairs)
    layers.append(layer if one is None else one)
  entry = model.inputs[0]
  return keras.Sequential(
    [keras.Input(entry.shape[1:], dtype=entry.dtype), *layers]
  )


def _chain(model: keras.Model) -> list[keras.layers.Layer] | None:
  """The layers of a model that is one chain, without its input layer."""
  if not _is_graph(model):
    return None
  if not isinstance(model, keras.Sequential):
    # Each step takes one tensor, and none is taken twice or by two.
    steps = list(model._nodes_by_depth.values())
    if any(len(nodes) != 1 for nodes in steps):
      return None
    if any(len(nodes[0].input_tensors) > 1 for nodes in steps):
      return None
    if not len(steps) == len(model.operations) == len(model.layers):
      return None
  layers = list(model.layers)
  if any(hasattr(layer, 'layers') for layer in layers):
    return None
  return [
    layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)
  ]


def _is_graph(model: keras.Model) -> bool:
  """Whether its layers tell all it computes: no `call` of the user's own."""
  graph = isinstance(model, keras.Sequential) or hasattr(model, 'operations')
  return graph and _is_keras(model)


def _is_keras(layer: keras.layers.Layer) -> bool:
  return type(layer).__module__.startswith(('keras.', 'safl_tf.'))


def _is_conv(layer: keras.layers.Layer) -> bool:
  return 'Conv' in type(layer).__name__


def _foldable(conv: keras.layers.Layer, pool: keras.layers.Layer) -> bool:
  pools = (keras.layers.AveragePooling2D, keras.layers.MaxPooling2D)
  if type(conv) is not keras.layers.Conv2D or type(pool) not in pools:
    return False
  square = conv.kernel_size[0] == conv.kernel_size[1]
  plain = (
    conv.strides == (1, 1)
    and conv.dilation_rate == (1, 1)
    and conv.groups == 1
    and conv.data_format == 'channels_last'
    and conv.kernel_regularizer is None
    and conv.bias_regularizer is None
    and conv.activity_regularizer is None
    and conv.kernel_constraint is None
    and conv.bias_constraint is None
    and conv.padding in ('valid', 'same')
    and conv.trainable
    and conv.activation in map(keras.activations.get, _POINTWISE)
  )
  halves = (
    tuple(pool.pool_size) == (2, 2)
    and tuple(pool.strides) == (2, 2)
    and pool.padding == 'valid'
  )
  small = conv.filters <= _MOST_FILTERS and conv.kernel_size[0] % 2 == 1
  return square and plain and halves and small


def _folded(
  conv: keras.layers.Layer, pool: keras.layers.Layer, kernel: str
) -> folded_conv.FoldedConvPool2D:
  average = isinstance(pool, keras.layers.AveragePooling2D)
  return folded_conv.FoldedConvPool2D(
    conv.filters,
    conv.kernel_size[0],
    pooling='average' if average else 'max',
    padding=conv.padding,
    activation=conv.activation,
    use_bias=conv.use_bias,
    lowering=kernel,
    dtype=conv.dtype_policy,
  )


def _consists_of(model: keras.Model, known: Sequence[str]) -> bool:
  return _is_graph(model) and all(
    _is_keras(layer) and type(layer).__name__ in known
    for layer in model._flatten_layers(include_self=False)
  )
