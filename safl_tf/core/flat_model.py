"""A Keras model as pure functions of one vector.

The paper writes a model as one vector, and so do the rules: z concatenates
`model.trainable_variables` and the floating-point non-trainable variables
(moving statistics and the like), in Keras's order. Seed generators are not part
of z: they are reset for every (seed, round, client). Variables of other types
keep the template's value.
"""

import contextlib
import copy
import functools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import layout, losses
from safl_tf.util import errors, validation

ModelFn = Callable[[], keras.Model]

_GLOBAL_SEED = threading.Lock()
_TAKES = 'a keras.Model, or a function that returns one'


class Parts(NamedTuple):
  """A model's tensors, in Keras's order."""

  trainable: list[tf.Tensor]
  non_trainable: list[tf.Tensor]


class FlatModel:
  """The functional side of a Keras model.

  Attributes:
    template: the user's model, with its own initial values.
    size: P, the length of z.
    layout: the positions of tensors in z.
    dtype: of z; float32 unless the model has float64 variables.
    given: z of the model if the user passed a model, None for a function.
  """

  def __init__(
    self,
    model: keras.Model | ModelFn,
    example: Any,
    from_logits: bool | None = None,
  ):
    """Builds the template and prepares the draw of initial models.

    Args:
      model: a function that returns a new model, or a model, which is then
        rebuilt from its configuration. Non-trainable values (frozen weights,
        adapted statistics) of a given model are kept.
      example: a batch of inputs, to build the model with.
      from_logits: whether outputs are logits rather than probabilities; None
        takes it from a compiled loss or the last layer.
    """
    self._example = example
    self._from_logits = from_logits
    given = isinstance(model, keras.Model)
    self._fixed = _fixed_values(model) if given else None
    with _rebuilding(model):
      self._model_fn = _model_fn(model)
      self.template = self.make()
    name = self.template.name
    if not self.template.trainable_variables:
      raise errors.InputError('model', name, 'has no trainable weights')
    self._compute = self.template
    variables = self.template.non_trainable_variables
    self._seeds = [i for i, v in enumerate(variables) if is_seed(v)]
    self._averaged = [
      i for i, v in enumerate(variables) if _is_float(v) and not is_seed(v)
    ]
    flat_variables = self._flat_variables(self.template)
    self._shapes = [tuple(v.shape) for v in flat_variables]
    self._sizes = [int(np.prod(shape)) for shape in self._shapes]
    self._dtypes = [v.dtype for v in flat_variables]
    self.dtype = np.float64 if 'float64' in self._dtypes else np.float32
    self.layout = self._find_layout()
    self.size = self.layout.size
    brought = model if given else self.template
    z = self.read(brought)
    if not np.isfinite(z).all():
      raise errors.InputError('model', name, 'has weights that are not finite')
    self.given = z if given else None
    self._compiled = losses.compiled_from_logits(brought)
    self._init = self._find_init()

  @functools.cached_property
  def from_logits(self) -> bool:
    """Whether outputs are logits rather than probabilities."""
    return losses.are_logits(self.template, self._from_logits, self._compiled)

  @property
  def input_spec(self) -> Any:
    """The structure of the inputs, with shape and dtype of each array."""
    return keras.tree.map_structure(
      lambda a: {'shape': list(a.shape[1:]), 'dtype': str(a.dtype)},
      self._example,
    )

  def make(self) -> keras.Model:
    """Returns a new, built model."""
    model = self._model_fn()
    validation.instance('model', model, keras.Model, _TAKES)
    if not model.built or not model.variables:
      model(self._example)
    if self._fixed is not None:
      _assign_fixed(model, self._fixed)
    return model

  def to_model(self, z: np.ndarray) -> keras.Model:
    """Returns a new plain Keras model with the weights z."""
    model = self.make()
    _assign_fixed(model, _fixed_values(self.template))
    values = np.split(z, np.cumsum(self._sizes)[:-1])
    for variable, value in zip(
      self._flat_variables(model), values, strict=True
    ):
      variable.assign(value.reshape(variable.shape).astype(variable.dtype))
    _finalize(model)
    return model

  def read(self, model: keras.Model) -> np.ndarray:
    """Returns the vector z of a Keras model of this architecture."""
    values = [
      np.asarray(v, self.dtype).ravel() for v in self._flat_variables(model)
    ]
    return np.concatenate(values)

  def init(self, seed: np.ndarray) -> np.ndarray:
    """Draws an initial model with the layers' initializers, from a seed."""
    return self._init(seed)

  def lower(self, compute: keras.Model) -> None:
    """Replaces the computation by a model with the same variables."""
    shapes = [tuple(v.shape) for v in self._flat_variables(compute)]
    if shapes != self._shapes:
      raise ValueError('the lowered model has other variables')
    self._compute = compute

  def unflatten(self, z: tf.Tensor, seed: tf.Tensor) -> Parts:
    """Converts z to tensors.

    Args:
      z: the model [P].
      seed: for the model's seed generators.
    """
    values = [
      tf.cast(tf.reshape(value, shape), dtype)
      for value, shape, dtype in zip(
        tf.split(z, self._sizes), self._shapes, self._dtypes, strict=True
      )
    ]
    count = len(self.template.trainable_variables)
    non_trainable = [
      tf.convert_to_tensor(v.value)
      for v in self.template.non_trainable_variables
    ]
    for i, value in zip(self._averaged, values[count:], strict=True):
      non_trainable[i] = value
    for n, i in enumerate(self._seeds):
      state = tf.bitcast(seed, tf.uint32) + tf.constant([n, 0], tf.uint32)
      dtype = self.template.non_trainable_variables[i].dtype
      non_trainable[i] = tf.cast(state, dtype)
    return Parts(values[:count], non_trainable)

  def split_trainable(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """Splits a vector [P] into one tensor for each trainable variable."""
    count = len(self.template.trainable_variables)
    values = tf.split(vector, self._sizes)[:count]
    return [
      tf.cast(tf.reshape(v, shape), dtype if v.dtype.is_floating else v.dtype)
      for v, shape, dtype in zip(
        values, self._shapes[:count], self._dtypes[:count], strict=True
      )
    ]

  def flatten(self, parts: Parts) -> tf.Tensor:
    """Converts tensors to z."""
    averaged = [parts.non_trainable[i] for i in self._averaged]
    values = [*parts.trainable, *averaged]
    return tf.concat(
      [tf.cast(tf.reshape(v, [-1]), self.dtype) for v in values], axis=0
    )

  def apply(
    self, parts: Parts, x: Any, training: bool
  ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Returns the outputs, the layers' own losses and new non-trainables.

    Unlike `keras.Model.stateless_call` it goes through `__call__`, so a `call`
    without the argument `training` still passes it on to its layers.
    """
    variables = self._compute.non_trainable_variables
    mapping = [
      *zip(self._compute.trainable_variables, parts.trainable, strict=True),
      *zip(variables, parts.non_trainable, strict=True),
    ]
    with keras.StatelessScope(mapping, collect_losses=True) as scope:
      outputs = self._compute(x, training=training)
      losses = self._compute.losses
    extra = tf.add_n([tf.cast(loss, tf.float32) for loss in losses] or [0.0])
    non_trainable = [scope.get_current_value(v) for v in variables]
    return tf.cast(outputs, tf.float32), extra, non_trainable

  def _find_layout(self) -> layout.Layout:
    starts = np.cumsum([0, *self._sizes]).tolist()[:-1]
    trained = len(self.template.trainable_variables)
    variables = self._flat_variables(self.template)
    rows = zip(variables, self._shapes, starts, strict=True)
    return layout.Layout(
      tuple(
        layout.Tensor(variable.path, shape, start, i < trained)
        for i, (variable, shape, start) in enumerate(rows)
      ),
      np.dtype(self.dtype),
    )

  def _flat_variables(self, model: keras.Model) -> list[keras.Variable]:
    variables = model.non_trainable_variables
    return [
      *model.trainable_variables,
      *(variables[i] for i in self._averaged),
    ]

  def _find_init(self) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a compiled draw where initializers allow it."""
    initializers = self._initializers()
    if initializers is None:
      return self._slow_init
    generator = keras.random.SeedGenerator(0)
    dtype = generator.state.dtype
    constants = self.read(self.template)
    starts = np.cumsum([0, *self._sizes])

    @tf.function(
      input_signature=[tf.TensorSpec([2], tf.int32)], autograph=False
    )
    def draw(seed: tf.Tensor) -> tf.Tensor:
      state = tf.cast(tf.bitcast(seed, tf.uint32), dtype)
      values = []
      with keras.StatelessScope([(generator.state, state)]):
        for i, initializer in enumerate(initializers):
          if hasattr(initializer, 'seed'):
            seeded = copy.copy(initializer)
            seeded.seed = generator
            value = seeded(self._shapes[i], dtype=self._dtypes[i])
          else:  # a constant
            value = tf.constant(constants[starts[i] : starts[i + 1]])
          values.append(tf.cast(tf.reshape(value, [-1]), self.dtype))
      return tf.concat(values, axis=0)

    return lambda seed: draw(tf.constant(seed)).numpy()

  def _initializers(self) -> list[Any] | None:
    """Returns each variable's initializer, or None if one is unknown.

    Inside a stateless scope Keras defers initialization, and each new variable
    holds its initializer. A variable that the model function then sets to the
    template's value, such as a pretrained weight, counts as a constant.
    """
    initializers: list[Any] = []
    again = None
    try:
      with keras.StatelessScope() as scope:
        again = self.make()
        variables = self._flat_variables(again)
        templates = self._flat_variables(self.template)
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
      _check_new(again, self.template)
    return initializers if all(map(_is_keras, initializers)) else None

  def _slow_init(self, seed: np.ndarray) -> np.ndarray:
    with _global_seed(int(seed.view(np.uint32)[0])):
      return self.read(self.make())


def architecture(model: keras.Model) -> dict[str, Any]:
  """Returns what Keras needs to rebuild a model, as JSON values."""
  config = keras.saving.serialize_keras_object(model)
  config.pop('compile_config', None)
  return config


def map_spec(function: Callable[[dict[str, Any]], Any], spec: Any) -> Any:
  """Maps over an `input_spec`, whose leaves are {'shape', 'dtype'}."""
  if isinstance(spec, dict) and set(spec) == {'shape', 'dtype'}:
    return function(spec)
  if isinstance(spec, dict):
    return {name: map_spec(function, part) for name, part in spec.items()}
  return [map_spec(function, part) for part in spec]


def zeros_like_spec(spec: Any) -> Any:
  """Returns a batch of two zero inputs."""
  return map_spec(lambda s: np.zeros((2, *s['shape']), s['dtype']), spec)


def _model_fn(model: keras.Model | ModelFn) -> ModelFn:
  """Returns a function that builds untrained models of one architecture."""
  if not isinstance(model, keras.Model):
    if not callable(model):
      validation.instance('model', model, keras.Model, _TAKES)
    return model
  if not model.built:
    raise errors.InputError(
      'model', model.name, 'is not built; pass a function that returns it'
    )
  config = architecture(model)
  return lambda: keras.saving.deserialize_keras_object(copy.deepcopy(config))


@contextlib.contextmanager
def _rebuilding(model: keras.Model | ModelFn) -> Iterator[None]:
  """Explains Keras's errors about a given model of a user's own class."""
  try:
    yield
  except errors.InputError:
    raise
  except Exception as error:
    if not isinstance(model, keras.Model):
      raise
    raise errors.InputError(
      'model',
      model.name,
      f'cannot be rebuilt by Keras ({errors.reason(error)}); pass a function '
      'that returns it',
    ) from error


def _fixed_values(model: keras.Model) -> list[np.ndarray]:
  """Returns the values that a model does not train."""
  return [v.numpy() for v in model.non_trainable_variables]


def _assign_fixed(model: keras.Model, values: Sequence[np.ndarray]) -> None:
  """Assigns `_fixed_values` to a model, except to seed generators."""
  for variable, value in zip(
    model.non_trainable_variables, values, strict=True
  ):
    if not is_seed(variable):
      variable.assign(value)
  _finalize(model)


def _finalize(model: keras.Model) -> None:
  """Recomputes the constants that `Normalization` derives from variables."""
  for layer in model._flatten_layers():
    if isinstance(layer, keras.layers.Normalization):
      layer.finalize_state()


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


def is_seed(variable: keras.Variable) -> bool:
  """Returns whether a variable is the state of a seed generator."""
  return variable.name == 'seed_generator_state'


def _is_keras(initializer: Any) -> bool:
  own = isinstance(initializer, keras.Initializer)
  return own and type(initializer).__module__.startswith('keras.')


def _is_float(variable: keras.Variable) -> bool:
  return 'float' in str(variable.dtype)


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
  """Seeds Python, NumPy and TensorFlow; restores the first two afterwards.

  One thread at a time, since the generators are global.
  """
  with _GLOBAL_SEED:
    states: Sequence[Any] = (random.getstate(), np.random.get_state())
    try:
      keras.utils.set_random_seed(seed)
      yield
    finally:
      random.setstate(states[0])
      np.random.set_state(states[1])
