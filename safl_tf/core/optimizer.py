"""Keras optimizers as pure functions of tensors.

The arithmetic is Keras's own. Its TensorFlow optimizers write to `tf.Variable`s
through `tf.distribute`; here the same update rules write to a stateless scope,
so that many clients can train in parallel, each with fresh slots.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from safl_tf.util import choices, errors, validation


def get(
  optimizer: str | keras.optimizers.Optimizer, learning_rate: float
) -> keras.optimizers.Optimizer:
  """Returns a Keras optimizer by name, or the one passed in."""
  if isinstance(optimizer, keras.optimizers.Optimizer):
    return optimizer
  validation.choice('optimizer', optimizer, choices.OPTIMIZERS)
  optimizers = keras.optimizers
  if optimizer == 'momentum':
    return optimizers.SGD(learning_rate, momentum=0.9)
  if optimizer == 'nesterov':
    return optimizers.SGD(learning_rate, momentum=0.9, nesterov=True)
  return optimizers.get(
    {'class_name': optimizer, 'config': {'learning_rate': learning_rate}}
  )


class PureOptimizer:
  """A stateless optimizer for one list of variables.

  Attributes:
    initial: the initial slots.

  Args:
    optimizer: any Keras optimizer; it is not modified.
    variables: the variables to train, for their shapes.
  """

  def __init__(
    self,
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[keras.Variable],
  ):
    if getattr(optimizer, 'gradient_accumulation_steps', None):
      raise errors.InputError(
        'optimizer', optimizer.name, 'must not accumulate gradients'
      )
    if getattr(optimizer, 'use_ema', False):
      raise errors.InputError(
        'optimizer', optimizer.name, 'must not average weights (use_ema)'
      )
    self._variables = list(variables)
    self._optimizer = _copy(optimizer)
    pattern = '_exclude_from_weight_decay_pattern'  # not in the configuration
    setattr(self._optimizer, pattern, getattr(optimizer, pattern, None))
    self._optimizer.build(self._variables)
    self.initial = [tf.constant(v.numpy()) for v in self._optimizer.variables]

  def starting_at(self, iteration: tf.Tensor) -> list[tf.Tensor]:
    """Returns the initial slots with another step counter."""
    counter = self._optimizer.iterations
    return [
      tf.cast(iteration, slot.dtype) if variable is counter else slot
      for variable, slot in zip(
        self._optimizer.variables, self.initial, strict=True
      )
    ]

  def apply(
    self,
    slots: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Takes one step: (slots, gradients, values) -> (slots, values)."""
    mapping = [
      *zip(self._variables, values, strict=True),
      *zip(self._optimizer.variables, slots, strict=True),
    ]
    with keras.StatelessScope(mapping) as scope:
      self._optimizer.apply(gradients, self._variables)
    return (
      [scope.get_current_value(v) for v in self._optimizer.variables],
      [scope.get_current_value(v) for v in self._variables],
    )


def _copy(optimizer: keras.optimizers.Optimizer) -> Any:
  """Returns a scoped copy; own schedules need not be registered with Keras."""
  schedule = type(getattr(optimizer, '_learning_rate', None))
  try:
    with keras.saving.CustomObjectScope({schedule.__name__: schedule}):
      return _scoped(type(optimizer)).from_config(optimizer.get_config())
  except Exception as error:  # a user's class may raise anything
    raise errors.InputError(
      'optimizer',
      optimizer.name,
      f'cannot be copied from its get_config ({errors.reason(error)})',
    ) from error


def _scoped(cls: type) -> Any:
  """Returns the optimizer class, writing through `keras.Variable.assign`."""
  return type(f'Scoped{cls.__name__}', (cls, _Scoped), {})


class _Scoped(keras.optimizers.Optimizer):
  """Restores the methods that Keras's TensorFlow optimizers override.

  In the method resolution order it comes after the optimizer's own class and
  before the classes that all optimizers share, so an optimizer's own overrides
  stay in effect.
  """

  def assign(self, variable: keras.Variable, value: Any) -> None:
    variable.assign(value)

  def assign_add(self, variable: keras.Variable, value: Any) -> None:
    variable.assign(variable + value)

  def assign_sub(self, variable: keras.Variable, value: Any) -> None:
    variable.assign(variable - value)

  def _var_key(self, variable: keras.Variable) -> int:
    return id(variable)

  def _backend_update_step(
    self, grads: Any, trainable_variables: Any, learning_rate: Any
  ) -> None:
    for gradient, variable in zip(grads, trainable_variables, strict=True):
      self.update_step(gradient, variable, learning_rate)

  def _apply_weight_decay(self, variables: Any) -> None:
    decay = self.weight_decay
    if decay is None:
      return
    rate = self.learning_rate
    for variable in variables:
      if self._use_weight_decay(variable):
        variable.assign(variable - variable * decay * rate)
