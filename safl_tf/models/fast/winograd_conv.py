"""3×3 convolution by Winograd's algorithm F(4×4, 3×3), as matrix products.

A tile of 4×4 outputs Y depends on a tile of 6×6 inputs X and on the kernel K:
Y = Aᵀ[(G K Gᵀ) ⊙ (Bᵀ X B)]A, with constant matrices A, B and G. The product ⊙
is one matrix product over channels for each of the 36 elements, with a quarter
of the multiplications of a direct convolution. The transformations are products
with 36×36, 16×36 and 36×9 matrices. Gradients are the transposed products; both
use the same transformed output gradient, and the kernel's uses the transformed
input of the forward pass.

Rounding errors are larger than those of a direct convolution, since B, A and G
have elements from 1/24 to 8: with 64 channels outputs and gradients differ from
float64 by about 2e-6 of their norm, 12 times as much as native ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.models.fast import max_pool, wide_conv

_B = [
  [4, 0, -5, 0, 1, 0],
  [0, -4, -4, 1, 1, 0],
  [0, 4, -4, -1, 1, 0],
  [0, -2, -1, 2, 1, 0],
  [0, 2, -1, -2, 1, 0],
  [0, 4, 0, -5, 0, 1],
]
_G = [
  [1 / 4, 0, 0],
  [-1 / 6, -1 / 6, -1 / 6],
  [-1 / 6, 1 / 6, -1 / 6],
  [1 / 24, 1 / 12, 1 / 6],
  [1 / 24, -1 / 12, 1 / 6],
  [0, 0, 1],
]
_A = [
  [1, 1, 1, 1, 1, 0],
  [0, 1, -1, 2, -2, 0],
  [0, 1, 1, 4, 4, 0],
  [0, 1, -1, 8, -8, 1],
]
# The transformations of rows and columns in one, of tiles as vectors.
_INPUT, _KERNEL, _OUTPUT = (np.kron(m, m) for m in map(np.array, (_B, _G, _A)))


@keras.saving.register_keras_serializable('safl_tf')
class WinogradConvPool2D(wide_conv.WideConvPool2D):
  """`WideConvPool2D` with a 3×3 kernel.

  The maximum of 2×2 elements is taken within tiles.
  """

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [batch, height, width, channels] to half the height and width."""
    _, height, width, filters = self.compute_output_shape(inputs.shape)
    rows, columns = -(-height // 2), -(-width // 2)  # of tiles
    # One element before, and whole blocks of four, one more than tiles.
    paddings = [
      [1, 4 * (tiles + 1) - n - 1]
      for tiles, n in zip((rows, columns), inputs.shape[1:3], strict=True)
    ]
    x = tf.pad(inputs, [[0, 0], *paddings, [0, 0]])
    tiles = convolve(x, tf.convert_to_tensor(self.kernel))
    y = tf.reshape(tiles, [2, 2, 2, 2, -1, filters])
    halves = [max_pool.maximum(y[:, i, :, 0], y[:, i, :, 1]) for i in (0, 1)]
    y = max_pool.maximum(*halves)
    if self.use_bias:
      y += tf.convert_to_tensor(self.bias)
    y = tf.reshape(self.activation(y), [2, 2, -1, rows, columns, filters])
    y = tf.transpose(y, [2, 3, 0, 4, 1, 5])
    y = tf.reshape(y, [-1, 2 * rows, 2 * columns, filters])
    return y[:, :height, :width]


@tf.custom_gradient
def convolve(
  x: tf.Tensor, kernel: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
  """Convolves blocks of inputs to tiles of outputs.

  Args:
    x: inputs [batch, 4(h + 1), 4(w + 1), c].
    kernel: [3, 3, c, f].

  Returns:
    Tiles [16, batch·h·w, f].
  """
  rows, columns = x.shape[1] // 4 - 1, x.shape[2] // 4 - 1
  c, f = kernel.shape[2:]
  blocks = tf.reshape(x, [-1, rows + 1, 4, columns + 1, 4, c])
  tiles = _to_tiles(tf.transpose(blocks, [2, 4, 0, 1, 3, 5]))
  v = _transform(_INPUT, tiles, [36, -1, c])
  u = _transform(_KERNEL, kernel, [36, c, f])
  y = _transform(_OUTPUT, tf.matmul(v, u), [16, -1, f])

  def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    dm = _transform(_OUTPUT.T, dy, [36, -1, f])
    du = tf.matmul(v, dm, transpose_a=True)
    dk = _transform(_KERNEL.T, du, kernel.shape)
    dv = tf.matmul(dm, u, transpose_b=True)
    d_tiles = _transform(_INPUT.T, dv, [6, 6, -1, rows, columns, c])
    dx = tf.transpose(_to_blocks(d_tiles), [2, 3, 0, 4, 1, 5])
    return tf.reshape(dx, tf.shape(x)), dk

  return y, gradient


def _transform(
  matrix: np.ndarray, tiles: tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
  """Multiplies tiles, as vectors along the first axis, with a matrix."""
  vectors = tf.reshape(tiles, [matrix.shape[1], -1])
  product = tf.matmul(tf.constant(matrix, vectors.dtype), vectors)
  return tf.reshape(product, shape)


def _to_tiles(blocks: tf.Tensor) -> tf.Tensor:
  """Maps 4×4 blocks to 6×6 tiles, which overlap with the next blocks.

  Args:
    blocks: [4, 4, batch, h + 1, w + 1, c].

  Returns:
    Tiles [6, 6, batch, h, w, c].
  """
  rows, columns = blocks.shape[3] - 1, blocks.shape[4] - 1
  tiles = tf.concat([blocks[:, :, :, :rows], blocks[:2, :, :, 1:]], axis=0)
  return tf.concat(
    [tiles[:, :, :, :, :columns], tiles[:, :2, :, :, 1:]], axis=1
  )


def _to_blocks(tiles: tf.Tensor) -> tf.Tensor:
  """Sums the elements of overlapping tiles: the gradient of `_to_tiles`."""
  for axis in (0, 1):
    own, following = tf.split(tiles, [4, 2], axis=axis)
    after, before = np.zeros([2, 6, 2], np.int32)
    after[3 + axis] = 0, 1
    before[3 + axis] = 1, 0
    before[axis] = 0, 2
    tiles = tf.pad(own, after) + tf.pad(following, before)
  return tiles


def can_replace(
  conv: keras.layers.Layer, pool: keras.layers.Layer | None
) -> bool:
  """Returns whether `WinogradConvPool2D` can replace the two layers."""
  return wide_conv.can_replace(conv, pool) and conv.kernel_size == (3, 3)
