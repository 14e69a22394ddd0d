"""Describes rules and other values as text, to recognise a run by them.

A function is described by its code and by the values it refers to: defaults,
closed-over variables and global variables, each described in the same way.
What belongs to an installed package is described by its name alone, since the
versions of the packages are part of a run's identity.
"""

import collections
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.metadata
import json
import logging
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from safl_tf.util import digests, errors, installed

_NAME = 'safl_tf_name'  # attribute of a rule that `named` returned
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_LONG = 100  # characters after which a text is replaced by its digest
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Types of installed packages whose `repr` is all there is to know.
_READABLE = frozenset(
  {
    'builtins.range',
    'builtins.slice',
    'datetime.date',
    'datetime.datetime',
    'datetime.timedelta',
    'decimal.Decimal',
    'fractions.Fraction',
    're.Pattern',
    'tensorflow.python.framework.dtypes.DType',
    'tensorflow.python.framework.tensor.TensorSpec',
    'tensorflow.python.framework.tensor_shape.TensorShape',
  }
)
_OWN = frozenset({'safl_tf', 'binaries'})


class _UnknownValueError(Exception):
  """A value that cannot be described; the message is its type."""


def named(name: str, rule: Any) -> Any:
  """Gives a rule a name, by which a resumed run recognises it.

  A rule is otherwise recognised by its code and the values it refers to. Rules
  that refer to what cannot be described, such as a random generator, need a
  name; change it whenever the rule changes.

  Args:
    name: of the rule.
    rule: a function, or a gate or an aggregator.

  Example:
    ```python
    rng = np.random.default_rng(7)
    order = rng.permutation(clients.num_clients)

    def in_turn(seed, t, n):
      return np.sort(np.roll(order, t)[:2])

    select = safl_tf.named('in turn, from 7', in_turn)
    algorithm = dataclasses.replace(safl_tf.build_safl(), select=select)
    result = safl_tf.train(model_fn, clients, algorithm, rounds=2)
    ```
  """
  if not isinstance(name, str) or not name:
    raise errors.InputError('name', repr(name), 'must be a text')
  if isinstance(rule, tuple):  # a gate or an aggregator
    parts = enumerate(rule)
    return type(rule)(
      *(named(f'{name} {i}', f) if callable(f) else f for i, f in parts)
    )
  if not callable(rule):
    hint = 'must be a function, a gate or an aggregator'
    raise errors.InputError('rule', repr(rule), hint)

  def call(*args: Any, **kwargs: Any) -> Any:
    return rule(*args, **kwargs)

  setattr(call, _NAME, name)
  return call


def describe(argument: str, value: Any) -> str:
  """Returns the description of an argument.

  Raises:
    errors.InputError: the value, or one that it refers to, has a state that
      cannot be read.
  """
  try:
    return _Describer().describe(value)
  except _UnknownValueError as error:
    remedy = "give it a name: safl_tf.named('...', rule)"
    if argument in ('model', 'optimizer'):
      remedy = 'leave that out of the code of its classes'
    raise errors.InputError(
      argument,
      getattr(value, '__qualname__', type(value).__name__),
      f'depends on a {error}, so a resumed run could not recognise it; '
      f'{remedy}',
    ) from error


def without_names(config: Any, names: dict[str, str] | None = None) -> Any:
  """Numbers the layers of a Keras configuration in the place of their names.

  Keras numbers unnamed layers over the lifetime of a process.
  """
  names = {} if names is None else names

  def number(name: Any) -> Any:
    if isinstance(name, list | tuple):
      return [number(item) for item in name]
    if not isinstance(name, str):
      return name
    return names.setdefault(name, f'layer {len(names)}')

  def replace(key: str, value: Any) -> Any:
    if key in ('name', 'keras_history', 'input_layers', 'output_layers'):
      return number(value)
    return without_names(value, names)

  if isinstance(config, Mapping):
    return {key: replace(key, value) for key, value in config.items()}
  if isinstance(config, list | tuple):
    return [without_names(item, names) for item in config]
  return config


class _Describer:
  """Describes values; a value within itself is described by its depth."""

  def __init__(self) -> None:
    self._path: list[int] = []  # ids of the values around the current one
    self._known: dict[int, tuple[Any, str]] = {}  # id -> value, description

  def describe(self, value: Any) -> str:
    if isinstance(value, _PLAIN):
      return _shorten(repr(value))
    if id(value) in self._path:
      return f'<{self._path.index(id(value))}>'
    if id(value) not in self._known:
      self._path.append(id(value))
      self._known[id(value)] = (value, self._describe(value))
      self._path.pop()
    return self._known[id(value)][1]

  def _describe(self, value: Any) -> str:
    name = getattr(value, _NAME, None)
    if isinstance(name, str):
      return f'named({name!r})'
    if _is_importable(value):
      return _qualified(value)
    for kinds, method in self._methods():
      if isinstance(value, kinds):
        return method(value)
    return self._object(value)

  def _methods(self) -> Iterable[tuple[Any, Callable[[Any], str]]]:
    return (
      (enum.Enum, str),
      (types.FunctionType, self._function),
      (types.MethodType, self._method),
      ((types.BuiltinFunctionType, np.ufunc), _builtin),
      (functools.partial, self._partial),
      (types.ModuleType, _module),
      (type, self._class),
      ((tuple, list, set, frozenset, collections.deque), self._sequence),
      (Mapping, self._mapping),
      ((np.ndarray, np.generic), _array),
      (np.dtype, str),
      (logging.Logger, lambda logger: f'Logger({logger.name})'),
      (pathlib.PurePath, repr),
    )

  def _function(self, function: types.FunctionType) -> str:
    cells = zip(
      function.__code__.co_freevars, function.__closure__ or (), strict=True
    )
    settings = dict(sorted(_contents(cells)))
    name = function.__qualname__.replace('.<locals>', '')
    if not _is_installed(function.__module__):
      name += f'#{_code_digest(function.__code__)}'
      settings |= {
        key: function.__globals__[key]
        for key in sorted(set(_global_names(function.__code__)))
        if key in function.__globals__
      }
      settings |= _defaults(function)
    return f'{name}({self._settings(settings)})'

  def _method(self, method: types.MethodType) -> str:
    function = self.describe(method.__func__)
    return f'{self.describe(method.__self__)}.{function}'

  def _partial(self, partial: functools.partial) -> str:
    settings: dict[Any, Any] = dict(enumerate(partial.args))
    settings |= partial.keywords
    function = self.describe(partial.func)
    return f'partial({function}, {self._settings(settings)})'

  def _class(self, kind: type) -> str:
    if _is_installed(kind.__module__):
      return _qualified(kind)
    members = {
      key: getattr(value, '__func__', value)
      for key, value in vars(kind).items()
      if key[:1] != '_' or isinstance(value, types.FunctionType)
    }
    members = {
      key: value.fget if isinstance(value, property) else value
      for key, value in members.items()
      if not isinstance(value, _SLOTS)
    }
    bases = [base for base in kind.__bases__ if base is not object]
    text = f'{self._sequence(bases)} {self._settings(members)}'
    return f'{kind.__qualname__}#{digests.of_text(text)[:8]}'

  def _sequence(self, values: Any) -> str:
    items = list(map(self.describe, values))
    if isinstance(values, set | frozenset):
      items.sort()
    return f'({", ".join(items)})'

  def _mapping(self, mapping: Mapping[Any, Any]) -> str:
    items = {self.describe(k): v for k, v in mapping.items()}
    return f'{{{self._settings(items)}}}'

  def _object(self, value: Any) -> str:
    kind = type(value)
    if hasattr(value, 'numpy') and hasattr(value, 'dtype'):  # a tensor
      return _array(value.numpy())
    if hasattr(value, 'python_function'):  # a tf.function
      return self.describe(value.python_function)
    if hasattr(value, 'get_config') and hasattr(kind, 'from_config'):
      return self._keras(value)
    if _qualified(kind) in _READABLE or kind.__module__ == 'typing':
      return f'{kind.__name__}({value!r})'
    if hasattr(value, '__wrapped__'):  # as by functools.cache
      return self.describe(value.__wrapped__)
    if dataclasses.is_dataclass(value):
      fields = dataclasses.fields(value)
      settings = {f.name: getattr(value, f.name) for f in fields}
    elif _is_installed(kind.__module__) or not hasattr(value, '__dict__'):
      raise _UnknownValueError(_qualified(kind))
    else:
      settings = vars(value)
    return f'{self._class(kind)}({self._settings(settings)})'

  def _keras(self, value: Any) -> str:
    """Describes a Keras object by its configuration, code and weights."""
    config = without_names(value.get_config())
    inner = [v for v in vars(value).values() if hasattr(v, 'get_config')]
    weights = [np.asarray(w) for w in getattr(value, 'weights', ())]
    text = json.dumps(config, sort_keys=True, default=repr)
    parts = [text, *map(self.describe, inner), *map(_array, weights)]
    return f'{self._class(type(value))}({_shorten(", ".join(parts))})'

  def _settings(self, settings: Mapping[Any, Any]) -> str:
    return ', '.join(f'{k}={self.describe(v)}' for k, v in settings.items())


def _defaults(function: types.FunctionType) -> dict[str, Any]:
  """Returns the defaults of a function's arguments by position or name."""
  positional = enumerate(function.__defaults__ or ())
  return {
    **{f'default {i}': value for i, value in positional},
    **(function.__kwdefaults__ or {}),
  }


def _contents(cells: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
  """Yields the closed-over variables that have a value."""
  for name, cell in cells:
    try:
      yield name, cell.cell_contents
    except ValueError:  # assigned later, or never
      yield name, None


def _code_digest(code: types.CodeType) -> str:
  """Returns a short digest of a function's code and its constants."""
  signature = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
  constants = [
    _code_digest(c) if isinstance(c, types.CodeType) else _constant(c)
    for c in code.co_consts
  ]
  parts = (*signature, code.co_code.hex(), *code.co_names, *constants)
  return digests.of_text('\n'.join(map(str, parts)))[:8]


def _constant(value: Any) -> str:
  if isinstance(value, frozenset):  # of a set in the code
    return f'frozenset({sorted(map(repr, value))})'
  return repr(value)


def _global_names(code: types.CodeType) -> Iterator[str]:
  """Yields the global variables that a function's code reads."""
  for instruction in dis.get_instructions(code):
    if instruction.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
      yield instruction.argval
  for constant in code.co_consts:
    if isinstance(constant, types.CodeType):
      yield from _global_names(constant)


def _builtin(function: Any) -> str:
  owner = getattr(function, '__self__', None)
  if owner is not None and not isinstance(owner, types.ModuleType | type):
    raise _UnknownValueError(f'{_qualified(type(owner))}.{function.__name__}')
  module = getattr(function, '__module__', None) or 'numpy'
  return f'{module}.{function.__name__}'


def _module(module: types.ModuleType) -> str:
  """Describes a module: an installed one by name, another by its source."""
  name = module.__name__
  if _is_installed(name):
    return _with_version(name)
  file = getattr(module, '__file__', None)
  if file is None:
    raise _UnknownValueError(f'module {name}')
  source = pathlib.Path(file).read_bytes()
  return f'{name}#{hashlib.sha256(source).hexdigest()[:8]}'


def _with_version(name: str) -> str:
  package = name.partition('.')[0]
  if package in _OWN or package in sys.stdlib_module_names:
    return name
  try:
    return f'{name}=={importlib.metadata.version(package)}'
  except importlib.metadata.PackageNotFoundError:
    return name


@functools.cache
def _is_installed(name: str | None) -> bool:
  """Returns whether a module belongs to Python or to an installed package."""
  package = (name or '').partition('.')[0]
  if package in _OWN or package == 'builtins':
    return True
  if package == '__main__':
    return False
  if package in sys.stdlib_module_names:
    return True
  file = getattr(sys.modules.get(package), '__file__', None)
  return file is not None and installed.is_installed(file)


def _is_importable(value: Any) -> bool:
  """Returns whether a value is a global name of an installed package."""
  module = getattr(value, '__module__', None)
  name = getattr(value, '__qualname__', None)
  if not isinstance(module, str) or not isinstance(name, str):
    return False
  known = getattr(sys.modules.get(module), name, None)
  return known is value and _is_installed(module)


def _qualified(named: Any) -> str:
  return f'{named.__module__}.{named.__qualname__}'


def _array(array: Any) -> str:
  array = np.asarray(array)
  if array.dtype.hasobject:
    raise _UnknownValueError('array of objects')
  shape = list(array.shape)
  return f'{array.dtype}{shape}#{digests.of_array(array)[:16]}'


def _shorten(text: str) -> str:
  if len(text) <= _LONG:
    return text
  return f'{text[:_LONG]}...#{digests.of_text(text)[:8]}'
