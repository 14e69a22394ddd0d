"""Wide convolution, 2×2 max-pooling and ReLU, optimised for a CPU without XLA.

Faster than the native layers, with the same results, for three reasons:

- The input gradient of a padded convolution of stride 1 is itself such a
  convolution, of the output gradient with the rotated and transposed kernel;
  computed as one, it is faster than TensorFlow's backward operation.
- ReLU and a bias per channel are monotonic, so that the maximum can be taken
  first; the later operations have a quarter of the elements.
- Pairwise comparisons compute the maximum, see `max_pool`.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from safl_tf.models.fast import folded_conv, max_pool


@keras.saving.register_keras_serializable('safl_tf')
class WideConvPool2D(keras.layers.Conv2D):
  """`Conv2D` with 'same' padding, `MaxPooling2D(2)`, then bias and activation.

  Weights and configuration are those of the `Conv2D`. The activation must be
  ReLU or linear, and the input's height and width even.
  """

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [batch, height, width, channels] to half the height and width."""
    y = convolve(inputs, tf.convert_to_tensor(self.kernel))
    y = max_pool.max_pool(y)
    if self.use_bias:
      y = tf.nn.bias_add(y, self.bias)
    return self.activation(y)

  def compute_output_shape(self, input_shape: Sequence[int]) -> tuple:
    """Returns the shape after pooling."""
    batch, height, width, _ = input_shape
    return batch, height // 2, width // 2, self.filters


@tf.custom_gradient
def convolve(
  x: tf.Tensor, kernel: tf.Tensor
) -> tuple[tf.Tensor, max_pool.Gradient]:
  """Computes a padded convolution of stride 1 with an odd kernel."""

  def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rotated = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
    dx = tf.nn.conv2d(dy, rotated, strides=1, padding='SAME')
    dk = tf.raw_ops.Conv2DBackpropFilter(
      input=x,
      filter_sizes=kernel.shape,
      out_backprop=dy,
      strides=[1, 1, 1, 1],
      padding='SAME',
    )
    return dx, dk

  return tf.nn.conv2d(x, kernel, strides=1, padding='SAME'), gradient


def can_replace(
  conv: keras.layers.Layer, pool: keras.layers.Layer | None
) -> bool:
  """Returns whether `WideConvPool2D` can replace the two layers."""
  return (
    folded_conv.is_conv_pool(conv, pool)
    and type(pool) is keras.layers.MaxPooling2D
    and conv.padding == 'same'
    and conv.activation in map(keras.activations.get, ('relu', 'linear'))
    and all(n is not None and n % 2 == 0 for n in conv.input.shape[1:3])
  )
