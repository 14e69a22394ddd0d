"""LeNet-5, the paper's model for MNIST (Table II, left)."""

from collections.abc import Sequence

import keras

from safl_tf.models import arguments


def lenet5(
  input_shape: Sequence[int] = (28, 28, 1),
  num_classes: int = 10,
  activation: str = 'tanh',
  input_dtype: str = 'uint8',
) -> keras.Model:
  """Returns LeNet-5, which maps pixels or floats to logits.

  conv5-6, avg-pool-2, conv5-16, avg-pool-2, FC-120, FC-84, FC-10. For 28×28×1
  inputs and 10 classes the parameters are 156 + 2,416 + 30,840 + 10,164 + 850 =
  44,426, the 0.04M of the paper; only unpadded convolutions and stride 2 in the
  second pooling give that number.

  Args:
    input_shape: height, width and channels of the images.
    num_classes: number of outputs.
    activation: activation of all hidden layers. The paper names none; LeCun's
      tanh reproduces its curves.
    input_dtype: 'uint8' for pixels, which the model scales to [0, 1]; a float
      type for inputs that need no scaling.

  Example:
    ```pycon
    >>> safl_tf.lenet5().count_params()
    44426
    >>> model_fn = lambda: safl_tf.lenet5((32, 32, 3), num_classes=100)
    >>> model_fn().output_shape
    (None, 100)
    ```
  """
  arguments.check(input_shape, num_classes, activation, input_dtype, 16)
  layers = keras.layers
  scaling = [layers.Rescaling(1.0 / 255.0)] if input_dtype == 'uint8' else []
  return keras.Sequential(
    [
      keras.Input(tuple(input_shape), dtype=input_dtype),
      *scaling,
      layers.Conv2D(6, 5, activation=activation),
      layers.AveragePooling2D(2),
      layers.Conv2D(16, 5, activation=activation),
      layers.AveragePooling2D(2),
      layers.Flatten(),
      layers.Dense(120, activation=activation),
      layers.Dense(84, activation=activation),
      layers.Dense(num_classes),
    ],
    name='lenet5',
  )
