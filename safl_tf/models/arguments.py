"""Checks of the arguments of the paper's models."""

from typing import Any

import keras

from safl_tf.util import errors, validation


def check(
  input_shape: Any,
  num_classes: Any,
  activation: Any,
  input_dtype: Any,
  smallest: int = 1,
) -> None:
  """Refuses arguments that are not those of a model for images.

  Args:
    input_shape: height, width and channels.
    num_classes: number of outputs.
    activation: of the hidden layers.
    input_dtype: of the inputs.
    smallest: the least height and width.
  """
  takes = '(height, width, channels)'
  validation.instance('input_shape', input_shape, (tuple, list), takes)
  if len(input_shape) != 3:
    raise errors.InputError('input_shape', input_shape, f'must be {takes}')
  for size, low in zip(input_shape, (smallest, smallest, 1), strict=True):
    validation.integer('input_shape', size, low=low)
  validation.integer('num_classes', num_classes, low=1)
  takes = "text, such as 'uint8'"
  validation.instance('input_dtype', input_dtype, str, takes)
  try:
    keras.activations.get(activation)
  except ValueError as error:
    hint = "must be an activation of Keras, such as 'relu'"
    raise errors.InputError('activation', activation, hint) from error
