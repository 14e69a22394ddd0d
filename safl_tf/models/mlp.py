"""A multi-layer perceptron for tables."""

from collections.abc import Sequence

import keras

from safl_tf.models import arguments
from safl_tf.util import validation


def mlp(
  input_shape: Sequence[int],
  num_outputs: int,
  activation: str = 'relu',
  input_dtype: str = 'float32',
  hidden: Sequence[int] = (64, 32),
) -> keras.Model:
  """Returns dense layers that map features to numbers or logits.

  Args:
    input_shape: the shape of an example's features.
    num_outputs: number of outputs, which have no activation.
    activation: activation of the hidden layers.
    input_dtype: of the features.
    hidden: the numbers of units of the hidden layers.

  Example:
    ```pycon
    >>> safl_tf.mlp((8,), num_outputs=3, hidden=(16,)).count_params()
    195
    ```
  """
  arguments.check_shape(input_shape, '(features,)', 1)
  validation.integer('num_outputs', num_outputs, low=1)
  arguments.check_activation(activation, input_dtype)
  for units in hidden:
    validation.integer('hidden', units, low=1)
  layers = keras.layers
  return keras.Sequential(
    [
      keras.Input(tuple(input_shape), dtype=input_dtype),
      *(layers.Dense(units, activation) for units in hidden),
      layers.Dense(num_outputs),
    ],
    name='mlp',
  )
