"""Light VGGNet, the paper's model for the harder data (Table II, right)."""

from collections.abc import Sequence

import keras


def light_vgg(
  input_shape: Sequence[int] = (32, 32, 3),
  num_classes: int = 10,
  activation: str = 'relu',
  input_dtype: str = 'uint8',
) -> keras.Model:
  """Light VGGNet: raw pixels, or numbers as they are, in; logits out.

  conv3-64, conv3-128, then three times max-pool-2 and conv3-128, max-pool-2,
  global average pooling, conv1-10. For 32×32×3 inputs and 10 classes the
  parameters are 1,792 + 73,856 + 3·147,584 + 1,290 = 519,690. The paper prints
  1.76M; the layers it lists have 0.52M, and they are what is built here.

  Convolutions and poolings are padded ('same'), so that small inputs survive
  four poolings.

  Args:
    input_shape: height, width and channels of the images.
    num_classes: the number of outputs.
    activation: of all hidden layers.
    input_dtype: 'uint8' for pixels, which are scaled to [0, 1] inside; a float
      type for inputs that are taken as they are.

  Returns:
    An ordinary Keras model.
  """
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
      conv(128),
      pool(),
      conv(128),
      pool(),
      conv(128),
      pool(),
      conv(128),
      pool(),
      layers.GlobalAveragePooling2D(keepdims=True),
      layers.Conv2D(num_classes, 1),
      layers.Flatten(),
    ],
    name='light_vgg',
  )
