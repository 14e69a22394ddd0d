"""Draws initial models with the layers' initializers."""

import contextlib
import copy
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.util import errors

if TYPE_CHECKING:
  from safl_tf.core import flat_model

# A seed [2] -> z
Draw = Callable[[np.ndarray], np.ndarray]

_GENERATORS = threading.RLock()  # a model function may train another model


def build(model: 'flat_model.FlatModel') -> Draw:
  """Returns a draw of z, compiled where initializers allow it."""
  initializers = _initializers(model)
  if initializers is None:
    return lambda seed: _draw_slowly(model, seed)
  generator = keras.random.SeedGenerator(0)
  dtype = generator.state.dtype
  constants = model.read(model.template)
  rows = list(
    zip(
      initializers,
      model.layout.tensors,
      [v.dtype for v in model.variables(model.template)],
      strict=True,
    )
  )

  @tf.function(input_signature=[tf.TensorSpec([2], tf.int32)], autograph=False)
  def draw(seed: tf.Tensor) -> tf.Tensor:
    state = tf.cast(tf.bitcast(seed, tf.uint32), dtype)
    values = []
    with keras.StatelessScope([(generator.state, state)]):
      for initializer, tensor, own_dtype in rows:
        if hasattr(initializer, 'seed'):
          seeded = copy.copy(initializer)
          seeded.seed = generator
          value = seeded(tensor.shape, dtype=own_dtype)
        else:  # a constant
          value = tf.constant(constants[tensor.place])
        values.append(tf.cast(tf.reshape(value, [-1]), model.dtype))
    return tf.concat(values, axis=0)

  return lambda seed: draw(tf.constant(seed)).numpy()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
  """Seeds Python and NumPy; restores their generators afterwards.

  One thread at a time, since the generators are global.
  """
  with _GENERATORS:
    states: Sequence[Any] = (random.getstate(), np.random.get_state())
    try:
      random.seed(seed)
      np.random.seed(seed)
      yield
    finally:
      random.setstate(states[0])
      np.random.set_state(states[1])


def _initializers(model: 'flat_model.FlatModel') -> list[Any] | None:
  """Returns each variable's initializer, or None if one is unknown.

  Inside a stateless scope Keras defers initialization, and each new variable
  holds its initializer. A variable that the model function then sets to the
  template's value, such as a pretrained weight, counts as a constant.
  """
  initializers: list[Any] = []
  again = None
  try:
    with keras.StatelessScope() as scope:
      again = model.make()
      variables = model.variables(again)
      templates = model.variables(model.template)
      for variable, template in zip(variables, templates, strict=True):
        value = scope.get_current_value(variable)
        if value is None:
          initializers.append(variable._initializer)
        elif np.array_equal(value, template.numpy()):
          initializers.append(keras.initializers.Constant())
        else:
          return None
  except Exception:  # a user's model may do what cannot be deferred
    return None
  finally:
    _check_new(again, model.template)
  return initializers if all(map(_is_keras, initializers)) else None


def _draw_slowly(model: 'flat_model.FlatModel', seed: np.ndarray) -> np.ndarray:
  number = int(seed.view(np.uint32)[0])
  with seeded(number):
    keras.utils.set_random_seed(number)  # TensorFlow's, too
    return model.read(model.make())


def _check_new(model: keras.Model | None, before: keras.Model) -> None:
  """Refuses a model that has weights of the one before."""
  known = {id(v) for v in before.trainable_variables}
  if model and any(id(v) in known for v in model.trainable_variables):
    raise errors.InputError(
      'model',
      model.name,
      'its function must return a new model with new weights on every call; '
      'to start from the weights of a model, pass the model itself',
    )


def _is_keras(initializer: Any) -> bool:
  own = isinstance(initializer, keras.Initializer)
  return own and type(initializer).__module__.startswith('keras.')
