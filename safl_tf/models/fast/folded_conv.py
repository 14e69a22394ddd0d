"""Convolution, activation and 2×2 pooling as one matrix product.

A k×k convolution (k odd, stride 1), a pointwise activation and a 2×2 pooling of
stride 2 are the same as: space-to-depth by 2 on the input; one convolution with
a ((k+1)/2)×((k+1)/2) kernel that computes the four pooling phases as 4·filters
channels; the activation; the mean (or maximum) over the four phases. The folded
kernel is the k×k kernel, padded with zeros to (k+1)×(k+1) at the four offsets
and rearranged, so it is linear in the kernel and gradients come by themselves.
It costs a little more arithmetic on a quarter of the patches, in the shape that
matrix units like: much faster for few channels on a CPU.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from safl_tf.util import validation

_SWAP = [3, 1, 2, 0]  # [batch, h, w, c] <-> [c, h, w, batch]


@keras.saving.register_keras_serializable('safl_tf')
class FoldedConvPool2D(keras.layers.Layer):
  """`Conv2D` + activation + 2×2 pooling, with the weights of the `Conv2D`.

  Args:
    filters: number of output channels.
    kernel_size: an odd number.
    pooling: 'average' or 'max'.
    padding: of the convolution, 'valid' or 'same'. Pooling drops an odd last
      row and column, as Keras's 'valid' pooling does.
    activation: any pointwise activation.
    use_bias: whether the convolution has a bias.
    kernel_initializer: of the kernel.
    bias_initializer: of the bias.
    lowering: 'matmul' (slices and one product; the fast one under XLA) or
      'conv' (one native convolution; the fast one without).
    **kwargs: of `keras.layers.Layer`.
  """

  def __init__(
    self,
    filters: int,
    kernel_size: int,
    pooling: str = 'average',
    padding: str = 'valid',
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = 'glorot_uniform',
    bias_initializer: Any = 'zeros',
    lowering: str = 'matmul',
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.filters = validation.integer('filters', filters, low=1)
    self.kernel_size = validation.integer('kernel_size', kernel_size, low=1)
    if kernel_size % 2 == 0:
      raise ValueError(f'kernel_size={kernel_size}: must be odd')
    self.pooling = validation.choice('pooling', pooling, ('average', 'max'))
    self.padding = validation.choice('padding', padding, ('valid', 'same'))
    self.lowering = validation.choice('lowering', lowering, ('matmul', 'conv'))
    self.activation = keras.activations.get(activation)
    self.use_bias = use_bias
    self.kernel_initializer = keras.initializers.get(kernel_initializer)
    self.bias_initializer = keras.initializers.get(bias_initializer)

  def build(self, input_shape: Sequence[int]) -> None:
    """Makes the kernel [k, k, channels, filters] and the bias [filters]."""
    k = self.kernel_size
    self.kernel = self.add_weight(
      shape=(k, k, input_shape[-1], self.filters),
      initializer=self.kernel_initializer,
      name='kernel',
    )
    self.bias = (
      self.add_weight(
        shape=(self.filters,), initializer=self.bias_initializer, name='bias'
      )
      if self.use_bias
      else None
    )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """[batch, height, width, channels] -> pooled activations."""
    rows, columns = self._pooled_size(inputs.shape[1:3])
    x = self._crop_or_pad(inputs, rows, columns)
    kernel = fold_kernel(tf.convert_to_tensor(self.kernel))
    lower = _by_matmul if self.lowering == 'matmul' else _by_conv
    phases = lower(x, kernel, rows, columns)
    if self.bias is not None:
      bias = tf.convert_to_tensor(self.bias)
      if self.lowering == 'matmul':
        bias = tf.reshape(bias, [self.filters, 1, 1, 1])
      phases = [phase + bias for phase in phases]
    phases = [self.activation(phase) for phase in phases]
    if self.pooling == 'max':
      y = functools.reduce(tf.maximum, phases)
    else:
      y = tf.add_n(phases) * 0.25
    return tf.transpose(y, _SWAP) if self.lowering == 'matmul' else y

  def compute_output_shape(self, input_shape: Sequence[int]) -> tuple:
    """The shape after convolution and pooling."""
    return (
      input_shape[0],
      *self._pooled_size(input_shape[1:3]),
      self.filters,
    )

  def get_config(self) -> dict[str, Any]:
    """As of `Conv2D`, with `pooling` and `lowering`."""
    return {
      **super().get_config(),
      'filters': self.filters,
      'kernel_size': self.kernel_size,
      'pooling': self.pooling,
      'padding': self.padding,
      'activation': keras.activations.serialize(self.activation),
      'use_bias': self.use_bias,
      'kernel_initializer': keras.initializers.serialize(
        self.kernel_initializer
      ),
      'bias_initializer': keras.initializers.serialize(self.bias_initializer),
      'lowering': self.lowering,
    }

  def _pooled_size(self, size: Sequence[int]) -> list[int]:
    lost = 0 if self.padding == 'same' else self.kernel_size - 1
    return [(length - lost) // 2 for length in size]

  def _crop_or_pad(self, x: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """The part of the (padded) input that reaches the output; even sizes."""
    before = self.kernel_size // 2 if self.padding == 'same' else 0
    paddings, sizes = [[0, 0]], []
    for pooled, length in zip((rows, columns), x.shape[1:3], strict=True):
      needed = 2 * pooled + self.kernel_size - 1
      after = max(needed - length - before, 0)
      paddings.append([before, after])
      sizes.append(needed)
    paddings.append([0, 0])
    if any(sum(pair) for pair in paddings):
      x = tf.pad(x, paddings)
    return x[:, : sizes[0], : sizes[1], :]


def fold_kernel(kernel: tf.Tensor) -> tf.Tensor:
  """[k, k, c, f] -> [(k+1)/2, (k+1)/2, 4c, 4f], the four phases last."""
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


def _by_conv(
  x: tf.Tensor, kernel: tf.Tensor, rows: int, columns: int
) -> list[tf.Tensor]:
  """The four phases, each [batch, rows, columns, f], by one convolution."""
  del rows, columns
  x = tf.nn.space_to_depth(x, 2)
  y = tf.nn.conv2d(x, kernel, strides=1, padding='VALID')
  return tf.split(y, 4, axis=3)


def _by_matmul(
  x: tf.Tensor, kernel: tf.Tensor, rows: int, columns: int
) -> list[tf.Tensor]:
  """The four phases, each [f, rows, columns, batch], by one product.

  Channels come first and the batch last, so that slices, sums and the four
  phases are contiguous runs; XLA drops the transpositions between two layers.
  """
  size, _, depth, f4 = kernel.shape
  c, height, width = depth // 4, x.shape[1] // 2, x.shape[2] // 2
  batch = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
  x = tf.reshape(tf.transpose(x, _SWAP), [c, height, 2, width, 2, batch])
  x = tf.transpose(x, [2, 4, 0, 1, 3, 5])  # space to depth
  x = tf.reshape(x, [depth, height, width, batch])
  patches = tf.concat(
    [
      x[:, i : i + rows, j : j + columns]
      for i in range(size)
      for j in range(size)
    ],
    axis=0,
  )
  features = size * size * depth
  y = tf.matmul(
    tf.reshape(kernel, [features, f4]),
    tf.reshape(patches, [features, rows * columns * batch]),
    transpose_a=True,
  )
  return tf.unstack(tf.reshape(y, [4, f4 // 4, rows, columns, batch]))
