"""A convolution as one matrix product over its patches.

A product takes a kernel for each of several stacked clients; a native
convolution does not.
"""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable('safl_tf')
class PatchConv2D(keras.layers.Conv2D):
  """`Conv2D` in all but the way it is computed, see `can_replace`."""

  def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Slices, concatenated on channels, times the kernel as a matrix."""
    kernel = tf.convert_to_tensor(kernel)
    (rows, columns), filters = self.kernel_size, kernel.shape[-1]
    x, sizes = inputs, []
    paddings = [[0, 0]]
    for axis in (0, 1):
      length, stride = inputs.shape[1 + axis], self.strides[axis]
      reach = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
      if self.padding == 'same':
        size = -(-length // stride)
        lacking = max((size - 1) * stride + reach - length, 0)
        paddings.append([lacking // 2, lacking - lacking // 2])
      else:
        size = (length - reach) // stride + 1
        paddings.append([0, 0])
      sizes.append(size)
    paddings.append([0, 0])
    if any(sum(pair) for pair in paddings):
      x = tf.pad(x, paddings)
    spans = [(n - 1) * s + 1 for n, s in zip(sizes, self.strides, strict=True)]
    found = []
    for i in range(rows):
      for j in range(columns):
        top, left = i * self.dilation_rate[0], j * self.dilation_rate[1]
        found.append(
          x[
            :,
            top : top + spans[0] : self.strides[0],
            left : left + spans[1] : self.strides[1],
          ]
        )
    joined = tf.concat(found, axis=3) if len(found) > 1 else found[0]
    features = joined.shape[-1]
    product = tf.matmul(
      tf.reshape(joined, [-1, features]), tf.reshape(kernel, [-1, filters])
    )
    return tf.reshape(product, [-1, *sizes, filters])


def can_replace(layer: keras.layers.Layer) -> bool:
  """Whether a layer is a convolution that can be computed so."""
  return (
    type(layer) is keras.layers.Conv2D
    and layer.groups == 1
    and layer.data_format == 'channels_last'
    and layer.padding in ('same', 'valid')
    and None not in layer.input.shape[1:]
  )
