"""Rules with checks: a mistake in a user's rule is named, not TensorFlow's."""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, client_store
from safl_tf.core import layout as layout_lib
from safl_tf.util import errors, validation


def rules(algorithm: algorithm_lib.Algorithm) -> algorithm_lib.Algorithm:
  """Returns the algorithm with rules that check what a user's rules return."""
  for name in 'select', 'mix':
    if not callable(rule := getattr(algorithm, name)):
      _refuse(name, rule, f'must be a function, such as those of rules.{name}')
  gate, aggregate = algorithm.gate, algorithm.aggregate
  validation.instance('gate', gate, algorithm_lib.Gate, 'a rules.gate.Gate')
  validation.instance(
    'aggregate',
    aggregate,
    algorithm_lib.Aggregator,
    'a rules.aggregate.Aggregator',
  )
  _check_functions('gate', gate, ['decide'])
  fields = ['apply', 'init', 'uploads', 'broadcast']
  _check_functions('aggregate', aggregate, fields)
  for name, rule in ('gate', gate), ('aggregate', aggregate):
    if not _are_names(rule.needs):
      hint = "must be a tuple of names, such as ('loss',)"
      _refuse(f'{name}.needs', rule.needs, hint)
  work = algorithm.client_work
  validation.instance(
    'client_work',
    work,
    algorithm_lib.ClientWork,
    'a rules.client_work.ClientWork',
  )
  _check_functions('client_work', work, ['init', 'receives'])
  fields = ['start', 'gradient', 'project', 'end']
  _check_functions('client_work', work, fields, optional=True)
  if algorithm.driver is not None:
    work = algorithm.driver.adapt(work)
  new = copy.copy(algorithm)  # not `replace`: it is valid already
  vars(new).update(
    select=lambda *args: _ids(algorithm.select(*args), args[-1]),
    mix=lambda *args: _mixed(algorithm.mix(*args), args[-1]),
    client_work=_work(work),
    gate=gate._replace(decide=lambda *args: _decision(gate, *args)),
    aggregate=aggregate._replace(
      apply=lambda *args: _aggregated(aggregate, *args),
      init=lambda layout: _memory(aggregate.init(layout)),
      uploads=lambda layout, t: _uploads(aggregate.uploads(layout, t), layout),
      broadcast=lambda memory: _arrays(
        'aggregate.broadcast', aggregate.broadcast(memory)
      ),
    ),
  )
  return new


def check_needs(algorithm: algorithm_lib.Algorithm, own: Iterable[str]) -> None:
  """Refuses rules that need metrics that clients do not have.

  Args:
    algorithm: the rules.
    own: the names of the metrics that the client work returns.
  """
  names = (*algorithm_lib.METRICS, *own)
  for rule in 'gate', 'aggregate':
    for name in getattr(algorithm, rule).needs:
      if name not in names:
        hint = f'must be one of {", ".join(names)}, or from client_work.end'
        _refuse(f'{rule}.needs', name, hint)


def config(
  algorithm: algorithm_lib.Algorithm, given: client_config.LocalConfig
) -> client_config.LocalConfig:
  """Returns the configuration that an algorithm's clients train with.

  Settings that the algorithm does not use must have their defaults.
  """
  work = algorithm.client_work
  if (work.full_batch or work.plain_sgd) and given.optimizer != 'sgd':
    raise errors.InputError(
      'optimizer',
      getattr(given.optimizer, 'name', given.optimizer),
      'this algorithm needs plain sgd on clients; the server may have an '
      'optimizer of its own',
    )
  unused = {}
  rules = (algorithm.mix, algorithm.gate.decide)
  if not any(getattr(rule, 'uses_clock', True) for rule in rules):
    unused['anneal_clock'] = 'nothing is annealed'
  if not algorithm.measures:
    unused['holdout'] = 'no client measures models on its data'
  if work.full_batch:
    unused['optimizer_clock'] = 'clients take one step'
    if given.local_epochs != 1:
      unused['local_epochs'] = 'clients take one step; must be 1 or omitted'
  defaults = client_config.LocalConfig()
  for name, reason in unused.items():
    value = getattr(given, name)
    if value != getattr(defaults, name):
      hint = f'has no effect with this algorithm: {reason}'
      raise errors.InputError(name, value, hint)
  if work.full_batch:
    return dataclasses.replace(given, local_epochs=1)
  return given


def check_broadcast(
  algorithm: algorithm_lib.Algorithm, layout: layout_lib.Layout
) -> None:
  """Refuses a server that does not send what its clients receive."""
  aggregate = algorithm.aggregate
  sent = aggregate.broadcast(aggregate.init(layout))
  received = algorithm.client_work.receives(layout)
  for name, ours, theirs in _differences(sent, received):
    hint = f'aggregate.broadcast has {ours}, client_work.receives {theirs}'
    raise errors.InputError('client_work.receives', name, hint)


def _work(work: algorithm_lib.ClientWork) -> algorithm_lib.ClientWork:
  """Returns the client work with functions that are checked."""

  def on_tensor(field: str) -> Any:
    function = getattr(work, field)

    def checked(first: tf.Tensor, *others: Any) -> tf.Tensor:
      value = function(first, *others)
      dtype, shape = first.dtype, first.shape
      return _tensor(f'client_work.{field}', 'a tensor', value, dtype, shape)

    return function and checked

  def start(begun: algorithm_lib.ClientRound) -> algorithm_lib.Tensors:
    assert work.start is not None
    values = _named('client_work.start', work.start(begun))
    for name, value in values.items():
      if value.shape.rank not in (0, 1):
        hint = 'must be a scalar or a vector like z'
        _refuse('client_work.start', f'{name} {_format_value(value)}', hint)
    return values

  def end(
    begun: algorithm_lib.ClientRound, trained: algorithm_lib.Trained
  ) -> algorithm_lib.Trained:
    assert work.end is not None
    return _trained(work.end(begun, trained), begun)

  return work._replace(
    init=lambda layout: _arrays('client_work.init', work.init(layout)),
    receives=lambda layout: _arrays(
      'client_work.receives', work.receives(layout)
    ),
    start=work.start and start,
    gradient=on_tensor('gradient'),
    project=on_tensor('project'),
    end=work.end and end,
  )


def _trained(
  value: Any, begun: algorithm_lib.ClientRound
) -> algorithm_lib.Trained:
  """Returns what a client keeps and uploads, of the right types."""
  place = 'client_work.end'
  if not isinstance(value, algorithm_lib.Trained):
    _refuse(place, value, 'must return a Trained')
  kept, upload = _named(place, value.kept), _named(place, value.upload)
  for name, tensor in kept.items():
    if name not in begun.kept:
      hint = f'keeps {name}, which client_work.init does not name'
      _refuse(place, f'{name} {_format_value(tensor)}', hint)
    like = begun.kept[name]
    kept[name] = _tensor(place, name, tensor, like.dtype, like.shape)
  if 'z' not in upload:
    _refuse(place, f'upload of {", ".join(upload) or "nothing"}', 'must have z')
  w = begun.w
  upload['z'] = _tensor(place, 'z', upload['z'], w.dtype, w.shape)
  metrics = _named(place, value.metrics)
  for name, tensor in metrics.items():
    if name in algorithm_lib.METRICS:
      _refuse(place, name, 'is a metric that clients have anyway; rename it')
    metrics[name] = _tensor(place, name, tensor, tf.float32)
  return value._replace(kept=kept, upload=upload, metrics=metrics)


def _named(place: str, value: Any) -> dict[str, tf.Tensor]:
  """Returns a dict of tensors."""
  if not isinstance(value, dict) or not _are_names(value):
    _refuse(place, value, 'must return tensors by name, in a dict')
  tensors = {}
  for name, tensor in value.items():
    try:
      tensors[name] = tf.convert_to_tensor(tensor)
    except (TypeError, ValueError):
      _refuse(place, f'{name} {_format_value(tensor)}', 'must be a tensor')
    if tensors[name].dtype == tf.string:
      _refuse(place, f'{name} of text', 'must be a tensor of numbers')
  return tensors


def _arrays(place: str, value: Any) -> dict[str, np.ndarray]:
  """Returns a dict of arrays besides the model."""
  is_dict = isinstance(value, dict) and _are_names(value)
  if not is_dict or not all(isinstance(v, np.ndarray) for v in value.values()):
    _refuse(place, value, 'must return a dict of NumPy arrays')
  for name, array in value.items():
    if name == 'z':
      _refuse(place, name, 'is the name of the model; choose another')
    if not name.isidentifier():
      _refuse(place, repr(name), 'must be a name of letters, digits and _')
    if array.dtype.kind in 'OSU':
      _refuse(place, f'{name} {_format_value(array)}', 'must have numbers')
  return value


def _are_names(value: Any) -> bool:
  """Returns whether a dict's keys, or all items, are texts."""
  kinds = (dict, tuple, list)
  return isinstance(value, kinds) and all(isinstance(n, str) for n in value)


def _check_functions(
  rule: str, record: Any, fields: Iterable[str], optional: bool = False
) -> None:
  """Refuses a rule with fields that are not functions."""
  takes = 'must be a function or None' if optional else 'must be a function'
  for field in fields:
    function = getattr(record, field)
    if not callable(function) and not (optional and function is None):
      _refuse(f'{rule}.{field}', function, takes)


class _Metrics(dict[str, Any]):
  """The metrics that a rule needs; refuses to return others."""

  def __init__(self, rule: str, metrics: Mapping[str, Any]):
    super().__init__(metrics)
    self._rule = rule

  def __missing__(self, name: str) -> Any:
    hint = f'reads this metric, which {self._rule}.needs does not name'
    raise errors.InputError(self._rule, name, hint)


def _ids(value: Any, n: int) -> np.ndarray:
  """Returns S_t as an array."""
  try:
    ids = np.asarray(value)
  except ValueError:
    ids = np.asarray(None)
  if ids.ndim != 1 or ids.dtype.kind not in 'iu' or not len(ids):
    hint = 'must return at least one client, as an array of whole numbers'
    _refuse('select', value, hint)
  if ids.min() < 0 or ids.max() >= n or (np.diff(ids) <= 0).any():
    hint = f'must return sorted, different numbers of clients below {n}'
    _refuse('select', value, hint)
  return ids


def _mixed(value: Any, z: tf.Tensor) -> algorithm_lib.Mixed:
  if not isinstance(value, algorithm_lib.Mixed):
    _refuse('mix', value, 'must return a Mixed(w, p, kept_local)')
  return algorithm_lib.Mixed(
    _tensor('mix', 'w', value.w, z.dtype, z.shape),
    _tensor('mix', 'p', value.p, tf.float32),
    _tensor('mix', 'kept_local', value.kept_local, tf.float32),
  )


def _decision(
  gate: algorithm_lib.Gate,
  seed: tf.Tensor,
  t: tf.Tensor,
  metrics: algorithm_lib.Tensors,
) -> algorithm_lib.Decision:
  value = gate.decide(seed, t, _Metrics('gate', metrics))
  if not isinstance(value, algorithm_lib.Decision):
    _refuse('gate', value, 'must return a Decision(sent, q, delta)')
  return algorithm_lib.Decision(
    _tensor('gate', 'sent', value.sent, tf.bool),
    _tensor('gate', 'q', value.q, tf.float32),
    _tensor('gate', 'delta', value.delta, tf.float32),
  )


def _tensor(
  rule: str, name: str, value: Any, dtype: tf.DType, shape: Any = ()
) -> tf.Tensor:
  """Returns a tensor of this type and shape; floats of a rule are cast."""
  try:
    if dtype.is_floating and tf.is_tensor(value) and value.dtype.is_floating:
      value = tf.cast(value, dtype)
    tensor = tf.convert_to_tensor(value, dtype)
  except (TypeError, ValueError):
    tensor = None
  if tensor is None or not tensor.shape.is_compatible_with(shape):
    takes = f'{dtype.name} {list(shape)}'
    _refuse(
      rule, f'{name} {_format_value(value)}', f'must return {name} as {takes}'
    )
  return tensor


def _aggregated(
  aggregate: algorithm_lib.Aggregator,
  memory: algorithm_lib.Memory,
  updates: algorithm_lib.Updates,
  z_bar: np.ndarray | None,
) -> algorithm_lib.Aggregated:
  updates = updates._replace(metrics=_Metrics('aggregate', updates.metrics))
  with np.errstate(over='ignore', invalid='ignore'):  # the process reports it
    value = aggregate.apply(memory, updates, z_bar)
  if not isinstance(value, tuple) or len(value) != 2:
    _refuse('aggregate', value, 'must return an Aggregated(z_bar, memory)')
  new, z = value[0], updates.z[0]
  same = isinstance(new, np.ndarray) and new.shape == z.shape
  if not same or new.dtype != z.dtype:
    takes = f'{z.dtype} {list(z.shape)}, like the uploads'
    _refuse('aggregate', new, f'must return a z_bar of {takes}')
  new_memory = _memory(value[1])
  for name, kept in new_memory.items():
    if isinstance(kept, client_store.ClientStore) and name not in memory:
      _refuse('aggregate', name, 'init must return every ClientStore of memory')
  old, later = (
    _arrays('aggregate.broadcast', aggregate.broadcast(m))
    for m in (memory, new_memory)
  )
  for name, before, after in _differences(old, later):
    hint = f'must stay {before} in all rounds'
    _refuse('aggregate.broadcast', f'{name} {after}', hint)
  return algorithm_lib.Aggregated(new, new_memory)


def _memory(value: Any) -> algorithm_lib.Memory:
  is_dict = isinstance(value, dict) and _are_names(value)
  kinds = (np.ndarray, client_store.ClientStore)
  if not is_dict or not all(isinstance(v, kinds) for v in value.values()):
    hint = 'its memory must be a dict of NumPy arrays and ClientStores'
    _refuse('aggregate', value, hint)
  return value


def _uploads(value: Any, layout: layout_lib.Layout) -> int:
  return validation.integer('aggregate.uploads', value, 0, layout.size)


def _format_value(value: Any) -> str:
  """Describes a value by type and shape."""
  shape = getattr(value, 'shape', None)
  if shape is None:
    return f'{value!r:.40}' if value is None else type(value).__name__
  dtype = getattr(value.dtype, 'name', value.dtype)
  return f'{dtype} {list(shape)}'


def _differences(
  *both: algorithm_lib.Arrays,
) -> Iterator[tuple[str, str, str]]:
  """Yields the names, types and shapes in which two sets of arrays differ."""
  for name in sorted({name for arrays in both for name in arrays}):
    one, other = (
      _format_value(arrays[name]) if name in arrays else 'nothing'
      for arrays in both
    )
    if one != other:
      yield name, one, other


def _refuse(rule: str, value: Any, hint: str) -> None:
  text = value if isinstance(value, str) else _format_value(value)
  raise errors.InputError(rule, text, hint)
