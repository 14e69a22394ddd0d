"""A Keras model as pure functions of one vector.

The paper writes a model as one vector, and so do the rules: z concatenates
`model.trainable_variables` and those floating-point non-trainable variables
that a training step changes (moving statistics and the like), in Keras's order.
Everything else, such as frozen layers, is fixed: all clients have the
template's values. Seed generators are neither: they are reset for every (seed,
round, client). Variables of other types that a step changes start every round
from the template's values.
"""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import layout, task
from safl_tf.util import errors, validation

ModelFn = Callable[[], keras.Model]

_TEMPLATE_SEED = 1_618_033_988  # not one that a user's script would set
# Layers with a vocabulary, which is not a weight.
_LOOKUPS = ('IntegerLookup', 'StringLookup', 'TextVectorization')
_TAKES = 'a keras.Model, or a function that returns one'


class Parts(NamedTuple):
  """A model's tensors, in Keras's order.

  Attributes:
    trainable: what is trained.
    non_trainable: what a training step changes beside it, and the states of
      seed generators.
  """

  trainable: list[tf.Tensor]
  non_trainable: list[tf.Tensor]


class Applied(NamedTuple):
  """What a model computes.

  Attributes:
    outputs: float32 [B, ...].
    mask: of positions in the outputs; None if no layer gives one.
    extra: the layers' own losses, summed.
    non_trainable: the new `Parts.non_trainable`.
  """

  outputs: tf.Tensor
  mask: tf.Tensor | None
  extra: tf.Tensor
  non_trainable: list[tf.Tensor]


class Portable(NamedTuple):
  """A model for other processes, without the values of z.

  Attributes:
    model_fn: builds a model of its architecture.
    untrained: the values of its non-trainable variables.
  """

  model_fn: ModelFn
  untrained: list[np.ndarray]


class FlatModel:
  """The functional side of a Keras model.

  Attributes:
    template: the user's model, with its own initial values.
    size: P, the length of z.
    layout: the positions of tensors in z.
    dtype: of z; float32 unless the model has float64 variables.
    given: z of the model if the user passed a model, None for a function.
    compiled: the loss and the metrics that the model was compiled with.
  """

  def __init__(
    self,
    model: keras.Model | ModelFn | Portable,
    example: Any,
  ):
    """Builds the template and prepares the draw of initial models.

    The template is built with Python's and NumPy's generators at a fixed seed,
    from which Keras's initializers take theirs: random weights that a function
    freezes are the same in every process.

    Args:
      model: a function that returns a new model, or a model, which is then
        rebuilt from its configuration. Non-trainable values (frozen weights,
        adapted statistics) of a given model are kept. Or what `portable`
        returned in another process.
      example: a batch of inputs, to build the model with.
    """
    from safl_tf.core import initial_draw

    self._example = example
    given = isinstance(model, keras.Model)
    self._untrained = _untrained_values(model) if given else None
    if isinstance(model, Portable):
      model, self._untrained = model
    with _rebuilding(model), initial_draw.seeded(_TEMPLATE_SEED):
      self._model_fn = _model_fn(model)
      self.template = self.make()
    name = self.template.name
    if not self.template.trainable_variables:
      raise errors.InputError('model', name, 'has no trainable weights')
    self._compute = self.template
    variables = self.template.non_trainable_variables
    self._seeds = [i for i, v in enumerate(variables) if is_seed(v)]
    self._changing = self._find_changing()
    self._averaged = [
      i
      for i in self._changing
      if _is_float(variables[i]) and i not in self._seeds
    ]
    flat_variables = self.variables(self.template)
    self._shapes = [tuple(v.shape) for v in flat_variables]
    self._sizes = [int(np.prod(shape)) for shape in self._shapes]
    self._dtypes = [v.dtype for v in flat_variables]
    self.dtype = np.float64 if 'float64' in self._dtypes else np.float32
    self.layout = self._find_layout()
    self.size = self.layout.size
    brought: keras.Model = model if given else self.template
    z = self.read(brought)
    fixed = [v.numpy() for v in brought.non_trainable_variables if _is_float(v)]
    if not all(np.isfinite(values).all() for values in (z, *fixed)):
      raise errors.InputError('model', name, 'has weights that are not finite')
    self.given = z if given else None
    self.compiled = task.of_compiled(brought)
    self._init = initial_draw.build(self)

  @property
  def fixed(self) -> dict[int, np.ndarray]:
    """The values that are neither in z nor of seed generators.

    They are named by their positions in `template.non_trainable_variables`.
    """
    variables = self.template.non_trainable_variables
    return {
      i: variable.numpy()
      for i, variable in enumerate(variables)
      if i not in self._averaged and i not in self._seeds
    }

  @property
  def input_spec(self) -> Any:
    """The structure of the inputs, with shape and dtype of each array."""
    return keras.tree.map_structure(
      lambda a: {'shape': list(a.shape[1:]), 'dtype': a.dtype.name},
      self._example,
    )

  def make(self) -> keras.Model:
    """Returns a new, built model."""
    model = self._model_fn()
    validation.instance('model', model, keras.Model, _TAKES)
    if not model.built or not model.variables:
      model(self._example)
    if self._untrained is not None:
      _assign_untrained(model, self._untrained)
    return model

  def portable(self) -> Portable:
    """Returns what builds this model in another process."""
    model_fn = self._model_fn
    if isinstance(model_fn, _Rebuild):
      model_fn = model_fn.with_own_classes()
    return Portable(model_fn, _untrained_values(self.template))

  def to_model(self, z: np.ndarray) -> keras.Model:
    """Returns a new plain Keras model with the weights z."""
    model = self.make()
    _assign_untrained(model, _untrained_values(self.template))
    values = np.split(z, np.cumsum(self._sizes)[:-1])
    for variable, value in zip(self.variables(model), values, strict=True):
      variable.assign(value.reshape(variable.shape).astype(variable.dtype))
    _finalize(model)
    return model

  def read(self, model: keras.Model) -> np.ndarray:
    """Returns the vector z of a Keras model of this architecture."""
    values = [np.asarray(v, self.dtype).ravel() for v in self.variables(model)]
    return np.concatenate(values)

  def variables(self, model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of z, of a Keras model of this architecture."""
    variables = model.non_trainable_variables
    return [
      *model.trainable_variables,
      *(variables[i] for i in self._averaged),
    ]

  def init(self, seed: np.ndarray) -> np.ndarray:
    """Draws an initial model with the layers' initializers, from a seed."""
    return self._init(seed)

  def lower(self, compute: keras.Model) -> None:
    """Replaces the computation by a model with the same variables."""
    if _shapes(compute) != _shapes(self.template):
      raise ValueError('the lowered model has other variables')
    if compute is not self.template:
      _assign_untrained(compute, _untrained_values(self.template))
    self._compute = compute

  def unflatten(self, z: tf.Tensor, seed: tf.Tensor) -> Parts:
    """Converts z to tensors.

    Args:
      z: the model [P].
      seed: for the model's seed generators.
    """
    values = self._split(z, len(self._sizes))
    count = len(self.template.trainable_variables)
    variables = self.template.non_trainable_variables
    known = dict(zip(self._averaged, values[count:], strict=True))
    for n, i in enumerate(self._seeds):
      state = tf.bitcast(seed, tf.uint32) + tf.constant([n, 0], tf.uint32)
      known[i] = tf.cast(state, variables[i].dtype)
    non_trainable = [
      known[i] if i in known else tf.convert_to_tensor(variables[i].value)
      for i in self._changing
    ]
    return Parts(values[:count], non_trainable)

  def split_trainable(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """Splits a vector into one tensor for each trainable variable.

    Args:
      vector: as long as z, or as its trainable part.
    """
    count = len(self.template.trainable_variables)
    size = self.layout.trainable_size
    if vector.shape[0] not in (self.size, size):
      hint = f'must have the length of z, {self.size}, or of what is trained'
      place = f'{vector.dtype.name} {list(vector.shape)}'
      raise errors.InputError('client_work.start', place, f'{hint}, {size}')
    return self._split(vector[:size], count)

  def flatten(self, parts: Parts) -> tf.Tensor:
    """Converts tensors to z."""
    changed = dict(zip(self._changing, parts.non_trainable, strict=True))
    averaged = [changed[i] for i in self._averaged]
    values = [*parts.trainable, *averaged]
    # As rows: XLA copies them. Vectors it joins element by element, in a fused
    # loop that took 20 ms instead of 2 for 0.6M parameters.
    rows = [tf.cast(tf.reshape(v, [1, -1]), self.dtype) for v in values]
    return tf.concat(rows, axis=1)[0]

  def apply(self, parts: Parts, x: Any, training: bool) -> Applied:
    """Returns the outputs, and what a training step changes beside them.

    Unlike `keras.Model.stateless_call` it goes through `__call__`, so a `call`
    without the argument `training` still passes it on to its layers.
    """
    variables = self._compute.non_trainable_variables
    changing = [variables[i] for i in self._changing]
    mapping = [
      *zip(self._compute.trainable_variables, parts.trainable, strict=True),
      *zip(changing, parts.non_trainable, strict=True),
    ]
    with keras.StatelessScope(mapping, collect_losses=True) as scope:
      outputs = self._compute(x, training=training)
      losses = self._compute.losses
    extra = tf.add_n([tf.cast(loss, tf.float32) for loss in losses] or [0.0])
    non_trainable = [scope.get_current_value(v) for v in changing]
    mask = task.keras_mask(outputs)
    return Applied(tf.cast(outputs, tf.float32), mask, extra, non_trainable)

  def _split(self, vector: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Splits the elements of the first tensors of z; numbers are cast."""
    vector, dtypes = tf.convert_to_tensor(vector), self._dtypes[:count]
    if not vector.dtype.is_floating:  # a mask
      dtypes = [vector.dtype] * count
    parts = tf.split(vector, self._sizes[:count])
    rows = zip(parts, self._shapes[:count], dtypes, strict=True)
    return [tf.cast(tf.reshape(v, shape), dtype) for v, shape, dtype in rows]

  def _find_changing(self) -> list[int]:
    """Returns the non-trainable variables in `Parts`, from a traced step.

    If the model cannot be traced, these are all.
    """
    variables = self.template.non_trainable_variables
    self._changing = [*range(len(variables))]  # for `apply`
    if len(self._seeds) == len(variables):
      return self._changing
    changed = set(self._seeds)

    def step(x: Any) -> None:
      kinds = (self.template.trainable_variables, variables)
      parts = Parts(
        *([tf.convert_to_tensor(v.value) for v in kind] for kind in kinds)
      )
      after = self.apply(parts, x, training=True).non_trainable
      pairs = zip(parts.non_trainable, after, strict=True)
      changed.update(i for i, (old, new) in enumerate(pairs) if new is not old)

    try:
      spec = tf.nest.map_structure(_batch_spec, self._example)
      tf.function(step, autograph=False).get_concrete_function(spec)
    except Exception:  # what a user's model refuses here is reported elsewhere
      return self._changing
    return sorted(changed)

  def _find_layout(self) -> layout.Layout:
    starts = np.cumsum([0, *self._sizes]).tolist()[:-1]
    trained = len(self.template.trainable_variables)
    variables = self.variables(self.template)
    rows = zip(variables, self._shapes, starts, strict=True)
    return layout.Layout(
      tuple(
        layout.Tensor(variable.path, shape, start, i < trained)
        for i, (variable, shape, start) in enumerate(rows)
      ),
      np.dtype(self.dtype),
    )


def architecture(model: keras.Model) -> dict[str, Any]:
  """Returns what Keras needs to rebuild a model, as JSON values."""
  config = keras.saving.serialize_keras_object(model)
  config.pop('compile_config', None)
  layers = {layer.name: layer for layer in model._flatten_layers()}
  _add_vocabularies(config, layers)
  return config


def _add_vocabularies(config: Any, layers: Mapping[str, Any]) -> None:
  """Adds the vocabularies that layers have learnt to a configuration."""
  if isinstance(config, list | tuple):
    for item in config:
      _add_vocabularies(item, layers)
  if not isinstance(config, dict):
    return
  for item in config.values():
    _add_vocabularies(item, layers)
  if config.get('class_name') not in _LOOKUPS or 'config' not in config:
    return
  own = config['config']
  layer = layers.get(own.get('name'))
  if layer is None or own.get('vocabulary') is not None:
    return
  own['vocabulary'] = [
    str(word) if isinstance(word, str | bytes) else int(word)
    for word in layer.get_vocabulary(include_special_tokens=False)
  ]
  lookup = getattr(layer, '_lookup_layer', layer)
  if lookup.output_mode == 'tf_idf':
    start = lookup._token_start_index()
    own['idf_weights'] = lookup.idf_weights.numpy()[start:].tolist()


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
  return _Rebuild(architecture(model), {})


class _Rebuild:
  """Rebuilds a model from its configuration.

  Args:
    config: see `architecture`.
    own: classes and functions that Keras would not find elsewhere, by name.
  """

  def __init__(self, config: dict[str, Any], own: dict[str, Any]):
    self._config = config
    self._own = own

  def __call__(self) -> keras.Model:
    return keras.saving.deserialize_keras_object(
      copy.deepcopy(self._config), custom_objects=self._own
    )

  def with_own_classes(self) -> '_Rebuild':
    """Returns the same with all objects that are not Keras's own."""
    return _Rebuild(self._config, dict(_own_objects(self._config)))


def _own_objects(config: Any) -> Iterator[tuple[str, Any]]:
  """Yields the user's classes and functions in a configuration, by name."""
  if isinstance(config, list | tuple):
    for item in config:
      yield from _own_objects(item)
  if not isinstance(config, dict):
    return
  for item in config.values():
    yield from _own_objects(item)
  name, module = config.get('class_name'), config.get('module')
  names = [name, config.get('registered_name')]
  if name == 'function':
    names = [config.get('config')]
  for key in filter(None, names):
    if not isinstance(key, str) or str(module).split('.')[0] == 'keras':
      continue
    found = keras.saving.get_registered_object(key)
    if found is None and isinstance(module, str):
      found = getattr(sys.modules.get(module), key, None)
    if found is not None:
      yield key, found


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


def _untrained_values(model: keras.Model) -> list[np.ndarray]:
  """Returns the values that a model does not train."""
  return [v.numpy() for v in model.non_trainable_variables]


def _assign_untrained(model: keras.Model, values: Sequence[np.ndarray]) -> None:
  """Assigns `_untrained_values` to a model, except to seed generators."""
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


def is_seed(variable: keras.Variable) -> bool:
  """Returns whether a variable is the state of a seed generator."""
  return variable.name == 'seed_generator_state'


def _shapes(model: keras.Model) -> list[list[tuple[int, ...]]]:
  kinds = (model.trainable_variables, model.non_trainable_variables)
  return [[tuple(variable.shape) for variable in kind] for kind in kinds]


def _batch_spec(array: Any) -> tf.TensorSpec:
  """Describes batches of any size of inputs like these."""
  tensor = tf.convert_to_tensor(array)
  return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _is_float(variable: keras.Variable) -> bool:
  return 'float' in str(variable.dtype)
