"""Light VGGNet, the paper's model for harder data sets (Table II, right)."""

from collections.abc import Sequence

import keras

from safl_tf.models import arguments


def light_vgg(
  input_shape: Sequence[int] = (32, 32, 3),
  num_classes: int = 10,
  activation: str = 'relu',
  input_dtype: str = 'uint8',
) -> keras.Model:
  """Returns Light VGGNet, which maps pixels or floats to logits.

  conv3-64, conv3-128, then three times max-pool-2 and conv3-128, max-pool-2,
  global average pooling, conv1-10. For 32×32×3 inputs and 10 classes the
  parameters are 1,792 + 73,856 + 3·147,584 + 1,290 = 519,690. The paper states
  1.76M, but the layers that it lists, and that are built here, have 0.52M.

  Convolutions and poolings have 'same' padding, so that small inputs can be
  pooled four times.

  Args:
    input_shape: height, width and channels of the images.
    num_classes: number of outputs.
    activation: activation of all hidden layers.
    input_dtype: 'uint8' for pixels, which the model scales to [0, 1]; a float
      type for inputs that need no scaling.

  Example:
    ```pycon
    >>> safl_tf.light_vgg().count_params()
    519690
    ```
  """
  arguments.check(input_shape, num_classes, activation, input_dtype)
  layers = keras.layers

  def conv(filters: int) -> keras.Layer:
    return layers.Conv2D(filters, 3, padding='same', activation=activation)

  def pool() -> keras.Layer:
    return layers.MaxPooling2D(2, padding='same')

  scaling = [layers.Rescaling(1.0 / 255.0)] if input_dtype == 'uint8' else []
  return keras.Sequential(
    [
      keras.Input(tuple(input_shape), dtype=input_dtype),
      *scaling,
      conv(64),
      *(layer for _ in range(4) for layer in (conv(128), pool())),
      layers.GlobalAveragePooling2D(keepdims=True),
      layers.Conv2D(num_classes, 1),
      layers.Flatten(),
    ],
    name='light_vgg',
  )
