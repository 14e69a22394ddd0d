"""Convolution as one matrix product over patches.

Unlike a native convolution, a matrix product supports a kernel for each of
several stacked clients.
"""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable('safl_tf')
class PatchConv2D(keras.layers.Conv2D):
  """`Conv2D`, computed as a matrix product; see `can_replace`."""

  def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Multiplies slices, concatenated by channel, with the kernel matrix."""
    kernel = tf.convert_to_tensor(kernel)
    (rows, columns), filters = self.kernel_size, kernel.shape[-1]
    (stride_y, stride_x), (step_y, step_x) = self.strides, self.dilation_rate
    x, sizes, paddings = inputs, [], [[0, 0]]
    for axis in (0, 1):
      length, stride = inputs.shape[1 + axis], self.strides[axis]
      reach = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
      if self.padding == 'same':
        size = -(-length // stride)
        missing = max((size - 1) * stride + reach - length, 0)
        paddings.append([missing // 2, missing - missing // 2])
      else:
        size = (length - reach) // stride + 1
        paddings.append([0, 0])
      sizes.append(size)
    paddings.append([0, 0])
    if any(sum(pair) for pair in paddings):
      x = tf.pad(x, paddings)
    height, width = (sizes[0] - 1) * stride_y + 1, (sizes[1] - 1) * stride_x + 1
    patches = [
      x[:, top : top + height : stride_y, left : left + width : stride_x]
      for top in range(0, rows * step_y, step_y)
      for left in range(0, columns * step_x, step_x)
    ]
    joined = tf.concat(patches, axis=3) if len(patches) > 1 else patches[0]
    features = joined.shape[-1]
    product = tf.matmul(
      tf.reshape(joined, [-1, features]), tf.reshape(kernel, [-1, filters])
    )
    return tf.reshape(product, [-1, *sizes, filters])


def can_replace(layer: keras.layers.Layer) -> bool:
  """Returns whether `PatchConv2D` can replace a layer."""
  return (
    type(layer) is keras.layers.Conv2D
    and layer.groups == 1
    and layer.data_format == 'channels_last'
    and layer.padding in ('same', 'valid')
    and None not in layer.input.shape[1:]
  )
