"""Chooses the fastest implementation of a model for the hardware.

On a CPU, XLA fuses small operations, which dominate in small dense networks and
in recurrent ones. But it compiles native convolutions to plain loops, generates
random numbers slowly, and gains nothing from large matrix products. These are
the rules, measured with `benchmarks.zoo`:

- A chain of layers whose convolutions all have few channels and are followed by
  2×2 pooling is folded into matrix products and compiled.
- A chain whose 3×3 convolutions are wide computes them by Winograd's algorithm
  and is compiled. Batches are computed in parts, so that a short batch takes
  less time than a full one although XLA's shapes are fixed.
- Any other model with convolutions is not compiled. If TensorFlow computes with
  oneDNN, native layers are fastest; otherwise in a chain, convolutions and 2×2
  poolings are merged where that is faster, and 2×2 max-pooling is computed by
  comparisons.
- A model without convolutions is compiled unless it has very many parameters.
- Layers that XLA is not known to compile well, and layers that look across a
  batch, are not compiled.

On a GPU, native convolutions and recurrent layers are fastest. Stacked models
compute all convolutions as matrix products, as native convolutions do not
support a kernel per client.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from safl_tf.models.fast import (
  folded_conv,
  max_pool,
  patch_conv,
  wide_conv,
  winograd_conv,
)
from safl_tf.util import choices, hardware, validation

_Pair = tuple[keras.layers.Layer, keras.layers.Layer | None]
_LayerFn = Callable[[keras.layers.Layer], keras.layers.Layer]

# Layers that XLA compiles well and that process each example independently, so
# that padding a batch has no effect. Dropout is not among them: XLA generates
# random numbers slowly on a CPU.
_COMPILABLE = (
  'Activation',
  'Add',
  'AveragePooling2D',
  'Concatenate',
  'Dense',
  'Embedding',
  'Flatten',
  'FoldedConvPool2D',
  'GlobalAveragePooling1D',
  'GlobalAveragePooling2D',
  'GlobalMaxPooling1D',
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
  'WinogradConvPool2D',
  'ZeroPadding2D',
)
# Recurrent layers, whose steps are many small operations; a GPU has cuDNN's.
_RECURRENT = (
  'Bidirectional',
  'GRU',
  'GRUCell',
  'LSTM',
  'LSTMCell',
  'SimpleRNN',
  'SimpleRNNCell',
)
# Layers that process each example independently. The random numbers of a padded
# batch begin with those of the batch without padding.
_PER_EXAMPLE = (
  *_COMPILABLE,
  *_RECURRENT,
  'Conv2D',
  'DepthwiseConv2D',
  'Dropout',
)
# Measured with dense networks: with 1M parameters XLA takes 0.8 to 0.9 times as
# long, with 5M 1.02 to 1.07 times on an Intel Xeon and 0.93 on an AMD EPYC.
_MAX_PARAMETERS = 2_000_000
# Measured: Winograd's algorithm speeds up Light VGG's 64 and 128 filters by 1.4
# to 2 and slows down a residual network's 16, 32 and 64 by 1.5.
_MIN_WIDE = 64
# Measured with Light VGG on an AMD EPYC: parts of 25, 10 and 5 of a full batch
# take as long as the whole within noise; with 256 examples, the last 6 of which
# are a batch, a round takes 0.8 times as long.
_MICRO_BATCH = 10


class FastModel(NamedTuple):
  """A model with the same variables and outputs, and how to run it.

  Attributes:
    model: the model to compute with.
    jit_compile: whether to compile it with XLA.
    per_example: whether it is known to process each example independently.
    micro_batch: the number of examples to compute at a time under XLA; None for
      whole batches.
  """

  model: keras.Model
  jit_compile: bool
  per_example: bool
  micro_batch: int | None


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
  best = model
  if stacked:
    best = fold(model, 'matmul') or to_patches(model) or model
  elif not on_gpu:
    best = fold(model, 'matmul') or to_winograd(model) or model
    if jit_compile == 'true' and best is model:
      best = to_patches(model) or model
  jit = jit_compile == 'true'
  if jit_compile == 'auto':
    jit = _is_compiled(best, on_gpu)
  if not (jit or stacked or on_gpu):
    best = model
    if not hardware.uses_onednn():
      best = fold(model, 'conv') or replace_pools(widen(model) or model)
  wide = any(
    isinstance(layer, winograd_conv.WinogradConvPool2D) for layer in best.layers
  )
  return FastModel(
    best,
    jit,
    _consists_of(model, _PER_EXAMPLE),
    _MICRO_BATCH if jit and wide else None,
  )


def _is_compiled(model: keras.Model, on_gpu: bool) -> bool:
  """Returns whether XLA is faster for a model."""
  if on_gpu:
    return _consists_of(model, _COMPILABLE)
  if not _consists_of(model, (*_COMPILABLE, *_RECURRENT)):
    return False
  layers = model._flatten_layers(include_self=False)
  rates = ('dropout', 'recurrent_dropout')
  if any(getattr(layer, rate, 0) for layer in layers for rate in rates):
    return False
  # An embedding's parameters are looked up, not multiplied.
  multiplied = [w for w in model.layers if type(w).__name__ != 'Embedding']
  return sum(w.count_params() for w in multiplied) <= _MAX_PARAMETERS


def to_patches(model: keras.Model) -> keras.Model | None:
  """Replaces convolutions by matrix products; None if there are none."""
  return _clone(
    model,
    patch_conv.can_replace,
    lambda layer: patch_conv.PatchConv2D.from_config(layer.get_config()),
  )


def replace_pools(model: keras.Model) -> keras.Model:
  """Replaces 2×2 max-pooling, if there is any, by comparisons."""
  pooled = _clone(
    model,
    max_pool.can_replace,
    lambda layer: max_pool.MaxPool2x2.from_config(layer.get_config()),
  )
  return pooled or model


def _clone(
  model: keras.Model, can_replace: Callable[..., bool], replace: _LayerFn
) -> keras.Model | None:
  """Replaces layers; None if there are none, or some cannot be copied."""
  if not _is_graph(model) or not all(map(_is_keras, model.layers)):
    return None
  if not any(map(can_replace, model.layers)):
    return None

  def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
    if can_replace(layer):
      return replace(layer)
    if any(hasattr(part, 'adapt') for part in layer._flatten_layers()):
      return layer  # what it has learned is not in its configuration
    return type(layer).from_config(layer.get_config())

  try:
    return keras.models.clone_model(model, clone_function=clone)
  except Exception:  # of a user's function in a layer's configuration
    return None


def fold(model: keras.Model, lowering: str = 'matmul') -> keras.Model | None:
  """Folds all convolutions of a chain; None if that is not possible."""
  convs = [pair for pair in _pairs(model) if _is_conv(pair[0])]
  if not convs or None in model.inputs[0].shape[1:]:
    return None
  if not all(folded_conv.can_replace(*pair) for pair in convs):
    return None
  return _merge(
    model,
    folded_conv.can_replace,
    lambda conv, pool: folded_conv.from_layers(conv, pool, lowering),
  )


def to_winograd(model: keras.Model) -> keras.Model | None:
  """Computes the convolutions of a chain by Winograd's algorithm.

  Returns None if there are none, or some that are narrow or not followed by
  pooling; but the first one may be any, and 1×1 convolutions are products.
  """
  convs = [pair for pair in _pairs(model) if _is_conv(pair[0])]
  wide = [c for c in convs[1:] if c[0].kernel_size != (1, 1)]
  if not wide or not all(patch_conv.can_replace(conv) for conv, _ in convs):
    return None
  if not all(
    winograd_conv.can_replace(conv, pool) and conv.filters >= _MIN_WIDE
    for conv, pool in wide
  ):
    return None
  merged = _merge(
    model,
    winograd_conv.can_replace,
    lambda conv, _: winograd_conv.WinogradConvPool2D.from_config(
      conv.get_config()
    ),
  )
  return to_patches(merged) or merged


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


def _is_conv(layer: keras.layers.Layer) -> bool:
  return 'Conv' in type(layer).__name__


def _is_keras(layer: keras.layers.Layer) -> bool:
  return type(layer).__module__.startswith(('keras.', 'safl_tf.'))


def _consists_of(model: keras.Model, names: Sequence[str]) -> bool:
  return _is_graph(model) and all(
    _is_keras(layer) and type(layer).__name__ in names
    for layer in model._flatten_layers(include_self=False)
  )
