"""Checks of the arguments of models."""

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
  check_shape(input_shape, '(height, width, channels)', 3)
  for size, low in zip(input_shape, (smallest, smallest, 1), strict=True):
    validation.integer('input_shape', size, low=low)
  validation.integer('num_classes', num_classes, low=1)
  check_activation(activation, input_dtype)


def check_shape(input_shape: Any, takes: str, rank: int) -> None:
  """Refuses what is not the shape of an example."""
  validation.instance('input_shape', input_shape, (tuple, list), takes)
  if len(input_shape) != rank:
    raise errors.InputError('input_shape', input_shape, f'must be {takes}')
  for size in input_shape:
    validation.integer('input_shape', size, low=1)


def check_activation(activation: Any, input_dtype: Any) -> None:
  """Refuses what Keras does not know."""
  takes = "text, such as 'uint8'"
  validation.instance('input_dtype', input_dtype, str, takes)
  try:
    keras.activations.get(activation)
  except ValueError as error:
    hint = "must be an activation of Keras, such as 'relu'"
    raise errors.InputError('activation', activation, hint) from error
