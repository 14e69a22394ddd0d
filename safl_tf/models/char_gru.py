"""A recurrent network that predicts the next character."""

from collections.abc import Sequence

import keras

from safl_tf.models import arguments
from safl_tf.util import validation


def char_gru(
  input_shape: Sequence[int],
  num_outputs: int,
  activation: str = 'tanh',
  input_dtype: str = 'int32',
  units: int = 96,
) -> keras.Model:
  """Returns an embedding, a GRU and a dense layer at each position.

  Args:
    input_shape: (T,), the number of characters of an example. Characters are
      numbers below `num_outputs`; 0 is masked.
    num_outputs: number of characters; outputs are logits [T, num_outputs].
    activation: activation of the GRU.
    input_dtype: of the characters' numbers.
    units: of the GRU.

  Example:
    ```pycon
    >>> model = safl_tf.char_gru((20,), num_outputs=30, units=8)
    >>> model.output_shape
    (None, 20, 30)
    ```
  """
  arguments.check_shape(input_shape, '(characters,)', 1)
  validation.integer('num_outputs', num_outputs, low=2)
  validation.integer('units', units, low=1)
  arguments.check_activation(activation, input_dtype)
  layers = keras.layers
  return keras.Sequential(
    [
      keras.Input(tuple(input_shape), dtype=input_dtype),
      layers.Embedding(num_outputs, 16, mask_zero=True),
      layers.GRU(units, activation, return_sequences=True),
      layers.Dense(num_outputs),
    ],
    name='char_gru',
  )
