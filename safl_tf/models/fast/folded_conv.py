"""Convolution, activation and 2×2 pooling as one matrix product.

A k×k convolution (k odd, stride 1), a pointwise activation and a 2×2 pooling of
stride 2 equal: space-to-depth by 2 of the input; one convolution with a
((k+1)/2)×((k+1)/2) kernel that computes the four pooling phases as 4·filters
channels; the activation; the mean (or maximum) over the four phases. The folded
kernel is the k×k kernel, zero-padded to (k+1)×(k+1) at the four offsets and
rearranged. Folding takes slightly more arithmetic on a quarter of the patches,
in a shape that fits matrix units: with few channels it is much faster on a CPU.

Gradients of the matrix product are written by hand: the bias is a row of the
kernel's matrix, so that its gradient comes with the kernel's, and autodiff's
long chains of sums, which XLA computes several times, are not needed.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from safl_tf.util import validation

_SWAP = [3, 1, 2, 0]  # [batch, h, w, c] <-> [c, h, w, batch]
# Measured: folding speeds up LeNet-5's 6 and 16 filters by 4x and slows down
# Light VGG's 64 and 128.
_MAX_FILTERS = 32
# Elementwise activations, which commute with folding.
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


@keras.saving.register_keras_serializable('safl_tf')
class FoldedConvPool2D(keras.layers.Conv2D):
  """`Conv2D` + activation + 2×2 pooling, with the weights of the `Conv2D`.

  Pooling drops an odd last row and column, as Keras's 'valid' pooling does.
  `FederatedProcess` computes convolutions of a model this way where that is
  faster; the layer is for models that are trained without it.

  Args:
    filters: number of output channels.
    kernel_size: an odd number.
    pooling: 'average' or 'max'.
    lowering: 'matmul' (slices and one product; faster with XLA) or 'conv' (one
      native convolution; faster without XLA).
    **kwargs: arguments of `Conv2D`, of stride 1 with an elementwise activation.

  Example:
    ```pycon
    >>> model = keras.Sequential([
    ...   keras.Input((28, 28, 1)),
    ...   safl_tf.FoldedConvPool2D(6, 5, activation='tanh'),
    ...   keras.layers.Flatten(),
    ...   keras.layers.Dense(10)])
    >>> model.layers[0].output.shape
    (None, 12, 12, 6)
    ```
  """

  def __init__(
    self,
    filters: int,
    kernel_size: int,
    pooling: str = 'average',
    lowering: str = 'matmul',
    **kwargs: Any,
  ):
    super().__init__(filters, kernel_size, **kwargs)
    k, width = self.kernel_size
    if k != width or k % 2 == 0:
      raise ValueError(f'kernel_size={kernel_size}: must be odd')
    if not self.strides == self.dilation_rate == (self.groups,) * 2 == (1, 1):
      raise ValueError('strides, dilation_rate and groups must be 1')
    self.pooling = validation.choice('pooling', pooling, ('average', 'max'))
    self.lowering = validation.choice('lowering', lowering, ('matmul', 'conv'))

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [batch, height, width, channels] to pooled activations."""
    rows, columns = self._pooled_size(inputs.shape[1:3])
    x = self._crop_or_pad(inputs, rows, columns)
    kernel = tf.convert_to_tensor(self.kernel)
    bias = tf.zeros([self.filters], kernel.dtype)
    if self.bias is not None:
      bias = tf.convert_to_tensor(self.bias)
    if self.lowering == 'conv':
      return self._pool(tf.split(_by_conv(x, kernel, bias), 4, axis=3))
    y = _by_matmul(tf.transpose(x, _SWAP), kernel, bias)
    return tf.transpose(self._pool(tf.unstack(y)), _SWAP)

  def _pool(self, phases: Sequence[tf.Tensor]) -> tf.Tensor:
    """Applies the activation and pools the four phases."""
    phases = [self.activation(phase) for phase in phases]
    if self.pooling == 'max':
      return functools.reduce(tf.maximum, phases)
    return tf.add_n(phases) * 0.25

  def compute_output_shape(self, input_shape: Sequence[int]) -> tuple:
    """Returns the shape after convolution and pooling."""
    size = self._pooled_size(input_shape[1:3])
    return (input_shape[0], *size, self.filters)

  def get_config(self) -> dict[str, Any]:
    """Returns the configuration: that of `Conv2D`, `pooling` and `lowering`."""
    own = {'pooling': self.pooling, 'lowering': self.lowering}
    return {**super().get_config(), **own}

  def _pooled_size(self, size: Sequence[int]) -> list[int]:
    lost = 0 if self.padding == 'same' else self.kernel_size[0] - 1
    return [(length - lost) // 2 for length in size]

  def _crop_or_pad(self, x: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Crops or pads the input to what the output depends on; even sizes."""
    k = self.kernel_size[0]
    before = k // 2 if self.padding == 'same' else 0
    height, width = (2 * n + k - 1 for n in (rows, columns))
    below = max(height - x.shape[1] - before, 0)
    right = max(width - x.shape[2] - before, 0)
    if before or below or right:
      x = tf.pad(x, [[0, 0], [before, below], [before, right], [0, 0]])
    return x[:, :height, :width, :]


def fold_kernel(kernel: tf.Tensor) -> tf.Tensor:
  """Maps [k, k, c, f] to [(k+1)/2, (k+1)/2, 4c, 4f], the four phases last."""
  k, _, c, f = kernel.shape
  half = (k + 1) // 2
  phases = [
    tf.pad(kernel, [[i, 1 - i], [j, 1 - j], [0, 0], [0, 0]])
    for i in (0, 1)
    for j in (0, 1)
  ]
  stacked = tf.stack(phases, axis=3)  # [k+1, k+1, c, 4, f]
  split = tf.reshape(stacked, [half, 2, half, 2, c, 4, f])
  return tf.reshape(
    tf.transpose(split, [0, 2, 1, 3, 4, 5, 6]), [half, half, 4 * c, 4 * f]
  )


def unfold_kernel(folded: tf.Tensor) -> tf.Tensor:
  """Sums a folded kernel's phases: the gradient of `fold_kernel`."""
  half, _, c4, f4 = folded.shape
  k, c, f = 2 * half - 1, c4 // 4, f4 // 4
  split = tf.reshape(folded, [half, half, 2, 2, c, 4, f])
  split = tf.transpose(split, [0, 2, 1, 3, 4, 5, 6])
  stacked = tf.reshape(split, [k + 1, k + 1, c, 4, f])
  phases = [
    stacked[i : i + k, j : j + k, :, 2 * i + j] for i in (0, 1) for j in (0, 1)
  ]
  return tf.add_n(phases)


def _by_conv(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
  """Returns the four phases [batch, rows, columns, 4f]."""
  x = tf.nn.space_to_depth(x, 2)
  y = tf.nn.conv2d(x, fold_kernel(kernel), strides=1, padding='VALID')
  return tf.nn.bias_add(y, tf.tile(bias, [4]))


@tf.custom_gradient
def _by_matmul(
  x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
  """Maps [c, height, width, batch] to phases [4, f, rows, columns, batch].

  With the channels first and the batch last, slices, sums and the four phases
  are contiguous; XLA removes the transpositions between two layers.
  """
  k, _, c, f = kernel.shape
  size, height, width = (k + 1) // 2, x.shape[1] // 2, x.shape[2] // 2
  rows, columns = height - size + 1, width - size + 1
  batch = tf.shape(x)[3] if x.shape[3] is None else x.shape[3]
  offsets = [(i, j) for i in range(size) for j in range(size)]
  depth = tf.reshape(x, [c, height, 2, width, 2, batch])
  depth = tf.transpose(depth, [2, 4, 0, 1, 3, 5])  # space to depth
  depth = tf.reshape(depth, [4 * c, height, width, batch])
  slices = [depth[:, i : i + rows, j : j + columns] for i, j in offsets]
  ones = tf.ones([1, rows, columns, batch], x.dtype)
  patches = tf.reshape(
    tf.concat([*slices, ones], axis=0),
    [len(offsets) * 4 * c + 1, rows * columns * batch],
  )
  folded = tf.reshape(fold_kernel(kernel), [-1, 4 * f])
  with_bias = tf.concat([folded, tf.tile(bias, [4])[tf.newaxis]], axis=0)
  y = tf.matmul(with_bias, patches, transpose_a=True)

  def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    dy = tf.reshape(dy, [4 * f, rows * columns * batch])
    d_folded = tf.matmul(patches, dy, transpose_b=True)
    d_bias = tf.reduce_sum(tf.reshape(d_folded[-1], [4, f]), axis=0)
    d_kernel = tf.reshape(d_folded[:-1], [size, size, 4 * c, 4 * f])
    d_slices = tf.reshape(
      tf.matmul(folded, dy), [size, size, 4 * c, rows, columns, batch]
    )
    # A sum over rows, then one over columns: XLA repeats the last sum for each
    # phase of the layer before.
    after = size - 1
    d_columns = [
      tf.add_n(
        [
          tf.pad(d_slices[i, j], [[0, 0], [i, after - i], [0, 0], [0, 0]])
          for i in range(size)
        ]
      )
      for j in range(size)
    ]
    padded = [
      tf.pad(d_column, [[0, 0], [0, 0], [j, after - j], [0, 0]])
      for j, d_column in enumerate(d_columns)
    ]
    dx = tf.reshape(tf.add_n(padded), [2, 2, c, height, width, batch])
    dx = tf.transpose(dx, [2, 3, 0, 4, 1, 5])
    return tf.reshape(dx, tf.shape(x)), unfold_kernel(d_kernel), d_bias

  return tf.reshape(y, [4, f, rows, columns, batch]), gradient


def is_conv_pool(
  conv: keras.layers.Layer, pool: keras.layers.Layer | None
) -> bool:
  """Returns whether two layers are a plain convolution and 2×2 pooling.

  The convolution has stride 1 and odd kernel sizes.
  """
  pools = (keras.layers.AveragePooling2D, keras.layers.MaxPooling2D)
  return (
    type(conv) is keras.layers.Conv2D
    and pool is not None
    and type(pool) in pools
    and all(size % 2 == 1 for size in conv.kernel_size)
    and conv.strides == conv.dilation_rate == (1, 1)
    and conv.groups == 1
    and conv.data_format == pool.data_format == 'channels_last'
    and conv.activity_regularizer is None
    and tuple(pool.pool_size) == tuple(pool.strides) == (2, 2)
  )


def can_replace(
  conv: keras.layers.Layer, pool: keras.layers.Layer | None
) -> bool:
  """Returns whether folding the two layers is possible, and faster."""
  return (
    pool is not None
    and is_conv_pool(conv, pool)
    and conv.filters <= _MAX_FILTERS
    and conv.kernel_size[0] == conv.kernel_size[1]
    and conv.kernel_regularizer is None
    and conv.bias_regularizer is None
    and conv.kernel_constraint is None
    and conv.bias_constraint is None
    and conv.trainable
    and conv.activation in map(keras.activations.get, _POINTWISE)
    and pool.padding == 'valid'
  )


def from_layers(
  conv: keras.layers.Layer, pool: keras.layers.Layer, lowering: str
) -> FoldedConvPool2D:
  """Returns the folded layer that replaces a convolution and a pooling."""
  average = isinstance(pool, keras.layers.AveragePooling2D)
  return FoldedConvPool2D(
    conv.filters,
    conv.kernel_size[0],
    pooling='average' if average else 'max',
    padding=conv.padding,
    activation=conv.activation,
    use_bias=conv.use_bias,
    lowering=lowering,
    dtype=conv.dtype_policy,
  )
