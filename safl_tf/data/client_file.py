"""Files with the data of one client, for a machine of its own.

A file is an .npz that `numpy.load(allow_pickle=False)` reads:

  x              inputs [m, ...]; x/0, x/1, ... or x/NAME if there are several
  y              targets [m, ...]
  sample_weight  weights of the examples [m] or of their tokens; optional
  about          JSON text in bytes, uint8 [length]: the format, the facts that
                 hold for all clients, and which client this is

The rows of a client are in the order in which a simulation has them, repeated
ones included, with the same types. The file of the server has the test
examples, or just `about`. Equal contents give files of equal bytes.
"""

import dataclasses
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from safl_tf.data import arrays, client_data, examples, targets
from safl_tf.data.files import npz, tabular
from safl_tf.util import (
  atomic_io,
  bounded_io,
  console,
  digests,
  errors,
  validation,
)

SERVER = 'server.npz'

_FORMAT = 'safl_tf client data 1'
_CLIENT = re.compile(r'client_\d+\.npz')
_TASKS = ('classification', 'regression', 'multi_label', 'tokens')
_TAKES = 'a file of safl-partition --export_clients'


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the data of all clients and of the server have in common.

  All values are JSON, so that facts are equal to those read from a file.

  Attributes:
    name: the short name of the data set.
    task: 'classification', 'regression', 'multi_label' or 'tokens'.
    num_classes: the number of classes; None unless for classification.
    class_names: the name of each class, label or token; may be empty.
    inputs: the structure of x with {'shape', 'dtype'} of a row as leaves, as
      `arrays.map_spec` takes it; text has the dtype 'string'.
    targets: {'shape', 'dtype'} of a row of y.
    weights: the shape of a row of sample_weight; None without weights.
    metadata: what is stored with a trained model, see `Dataset.metadata`.
  """

  name: str
  task: str
  num_classes: int | None
  class_names: tuple[str, ...]
  inputs: Any
  targets: dict[str, Any]
  weights: list[int] | None
  metadata: dict[str, Any]

  def __post_init__(self) -> None:
    for field in ('inputs', 'targets', 'weights', 'metadata'):
      value = json.loads(atomic_io.to_json(getattr(self, field), None))
      object.__setattr__(self, field, value)
    object.__setattr__(self, 'class_names', tuple(self.class_names))

  @classmethod
  def of(
    cls,
    name: str,
    task: str,
    data: client_data.ClientData | examples.Examples,
    num_classes: int | None,
    metadata: Mapping[str, Any],
  ) -> Self:
    """Returns the facts of data.

    Args:
      name: the short name of the data set.
      task: see `Dataset.task`.
      data: of clients, or of one.
      num_classes: the number of classes, if y holds class numbers.
      metadata: see `Dataset.metadata`.
    """
    w = data.sample_weight
    return cls(
      name=name,
      task=validation.choice('task', task, _TASKS),
      num_classes=num_classes,
      class_names=tuple(data.class_names or ()),
      inputs=_spec(data.x),
      targets=_row_spec(data.y),
      weights=None if w is None else list(w.shape[1:]),
      metadata=dict(metadata),
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the facts as JSON values."""
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {**values, 'class_names': list(self.class_names)}

  @classmethod
  def from_json(cls, values: Any) -> Self:
    """Returns the facts from JSON values; refuses others."""
    fields = [field.name for field in dataclasses.fields(cls)]
    if not isinstance(values, Mapping) or sorted(values) != sorted(fields):
      hint = f'must have the fields {", ".join(fields)}'
      raise errors.InputError('facts', type(values).__name__, hint)
    optional_int = int | None
    for name, is_valid in {
      'name': lambda v: isinstance(v, str),
      'task': lambda v: v in _TASKS,
      'num_classes': lambda v: isinstance(v, optional_int),
      'class_names': lambda v: (
        isinstance(v, list) and all(isinstance(name, str) for name in v)
      ),
      'inputs': _is_spec,
      'targets': _is_row_spec,
      'weights': lambda v: v is None or _is_shape(v),
      'metadata': lambda v: isinstance(v, dict),
    }.items():
      if not is_valid(values[name]):
        kind = type(values[name]).__name__
        raise errors.InputError(f'facts.{name}', kind, 'is not valid')
    return cls(**values)

  def differences(self, other: 'Facts') -> dict[str, tuple[Any, Any]]:
    """Returns (own, other's) value of each field that differs.

    Those of the metadata are named one by one, as 'metadata.categories'.
    """
    own, others = (
      {**f.to_json(), **{f'metadata.{k}': v for k, v in f.metadata.items()}}
      for f in (self, other)
    )
    names = [n for n in {**own, **others} if n != 'metadata']
    pairs = {name: (own.get(name), others.get(name)) for name in names}
    return {
      n: (mine, theirs) for n, (mine, theirs) in pairs.items() if mine != theirs
    }


class ClientFile(NamedTuple):
  """The data of one client, or of the server.

  Attributes:
    facts: about the data of all clients.
    examples: those of this client; the test examples of the server, if any.
    client: the number of the client; None for the server, and if unknown.
    client_id: the name of the client, if known.
    num_clients: the number of clients, if known.
  """

  facts: Facts
  examples: examples.Examples | None
  client: int | None = None
  client_id: str | None = None
  num_clients: int | None = None


def write(path: str | os.PathLike[str], file: ClientFile) -> None:
  """Writes a file atomically; refuses examples that the facts do not fit."""
  _check(file)
  about = {
    'format': _FORMAT,
    'facts': file.facts.to_json(),
    'has_examples': file.examples is not None,
    'client': file.client,
    'client_id': file.client_id,
    'num_clients': file.num_clients,
  }
  text = np.frombuffer(atomic_io.to_json(about).encode(), np.uint8)
  with (
    atomic_io.replacing(path) as opened,
    zipfile.ZipFile(opened, 'w') as archive,
  ):
    for name, array in {'about': text, **_named(file.examples)}.items():
      member = zipfile.ZipInfo(f'{name}.npy')  # of a fixed date
      with archive.open(member, 'w', force_zip64=True) as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def read(path: str | os.PathLike[str], argument: str = 'data') -> ClientFile:
  """Reads and checks a file; errors name `argument`."""
  name = os.fspath(path)
  try:
    with npz.open_archive(name) as archive:
      found = {npz.array_name(m): m for m in archive.infolist()}
      if 'about' not in found or len(found) < len(archive.infolist()):
        raise tabular.DataError(f'is not {_TAKES}')
      size = sum(member.file_size for member in found.values())
      reason = bounded_io.shortage(size)
      if reason is not None:
        raise tabular.DataError(reason)
      for member in found.values():
        npz.read_header(archive, member)
      file = _from_arrays(
        {name: npz.read_array(archive, m) for name, m in found.items()}
      )
    _check(file)
    return file
  except errors.InputError as error:
    hint = f'{error.argument}={error.value}: {error.hint}'
  except tabular.DataError as error:
    hint = str(error)
    if not zipfile.is_zipfile(name):
      hint = f'is not {_TAKES}, or it is damaged'
  except OSError as error:
    hint = f'cannot be read ({error.strerror or error})'
  except MemoryError:
    hint = 'does not fit into memory'
  raise errors.InputError(argument, name, errors.one_line(hint))


def digest(file: ClientFile) -> str:
  """Returns a digest of all examples; different rows or types change it."""
  parts = [
    f'{name} {digests.of_array(array)}'
    for name, array in sorted(_named(file.examples).items())
  ]
  return digests.of_text('\n'.join(parts))


def export(
  folder: str | os.PathLike[str],
  clients: client_data.ClientData,
  facts: Facts,
  test: examples.Examples | None,
) -> None:
  """Writes client_0.npz, client_1.npz, ... and server.npz into a folder.

  Files of an earlier export there are replaced or removed. server.npz is
  removed first and written last: with it, the files belong together.

  Args:
    folder: an existing folder, which the caller has locked.
    clients: the data of all clients.
    facts: about them.
    test: the test examples of the server, if any.
  """
  root = pathlib.Path(folder)
  server = ClientFile(facts, test, num_clients=clients.num_clients)
  _check(server)
  (root / SERVER).unlink(missing_ok=True)
  written = set()
  numbers = range(clients.num_clients)
  with console.progress_bar(
    total=len(numbers), desc='clients', leave=False
  ) as bar:
    for k in numbers:
      name = f'client_{k}.npz'
      write(root / name, of_client(clients, facts, k))
      written.add(name)
      bar.update()
  for name in os.listdir(root):
    if _CLIENT.fullmatch(name) and name not in written:
      (root / name).unlink()
  write(root / SERVER, server)


def of_client(
  clients: client_data.ClientData, facts: Facts, k: int
) -> ClientFile:
  """Returns the data of client k, and of no other."""
  rows = clients.indices(k)
  w = clients.sample_weight
  own = examples.Examples(
    arrays.map_leaves(lambda leaf: leaf[rows], clients.x),
    clients.y[rows],
    None if w is None else w[rows],
    clients.class_names,
  )
  return ClientFile(facts, own, k, clients.client_ids[k], clients.num_clients)


def _named(data: examples.Examples | None) -> dict[str, np.ndarray]:
  """Returns the arrays of examples by their names in a file."""
  if data is None:
    return {}
  names = _input_names(_spec(data.x))
  named = dict(zip(_leaves(names), _leaves(data.x), strict=True))
  named['y'] = data.y
  if data.sample_weight is not None:
    named['sample_weight'] = data.sample_weight
  return {name: np.ascontiguousarray(array) for name, array in named.items()}


def _from_arrays(found: dict[str, np.ndarray]) -> ClientFile:
  """Returns the data from the arrays of a file."""
  try:
    about = json.loads(found.pop('about').tobytes())
    is_known = about['format'] == _FORMAT
  except (ValueError, KeyError, TypeError, RecursionError):
    is_known = False
  if not is_known:
    raise tabular.DataError(f'is not {_TAKES} of this version')
  facts = Facts.from_json(about.get('facts'))
  for name, kind in {
    'client': int | None,
    'client_id': str | None,
    'num_clients': int | None,
    'has_examples': bool,
  }.items():
    if not isinstance(about.get(name), kind):
      raise tabular.DataError(f'{name} in about is not valid')
  place = about['client'], about['client_id'], about['num_clients']
  if not about['has_examples']:
    _check_names(found, set())
    return ClientFile(facts, None, *place)
  names = _input_names(facts.inputs)
  leaves = _leaves(names)
  weights = set() if facts.weights is None else {'sample_weight'}
  _check_names(found, {*leaves, 'y', *weights})
  if isinstance(names, dict):  # in the order of the file
    names = {name.removeprefix('x/'): name for name in found if name in leaves}
  return ClientFile(
    facts,
    examples.Examples(
      arrays.map_leaves(found.__getitem__, names),
      found['y'],
      found.get('sample_weight'),
      list(facts.class_names) or None,
    ),
    *place,
  )


def _input_names(spec: Any) -> Any:
  """Returns the structure of inputs, with the names of the arrays."""
  if _is_row_spec(spec):
    return 'x'
  if isinstance(spec, dict):
    return {key: f'x/{key}' for key in spec}
  return tuple(f'x/{i}' for i in range(len(spec)))


def _leaves(x: Any) -> list[Any]:
  return [leaf for _, leaf in arrays.named_leaves(x)]


def _check_names(found: Mapping[str, Any], expected: set[str]) -> None:
  """Refuses missing and unknown arrays."""
  if set(found) != expected:
    here, there = (', '.join(sorted(n)) or 'none' for n in (found, expected))
    raise tabular.DataError(f'has the arrays {here}; must be {there}')


def _check(file: ClientFile) -> None:
  """Refuses examples that are invalid or that the facts do not describe."""
  facts, data = file.facts, file.examples
  if data is None:
    return
  if isinstance(data.x, dict):
    for key in data.x:
      if not isinstance(key, str) or '\0' in key or not arrays.is_unicode(key):
        raise errors.InputError('x', f'{key!a}', 'must be the name of an input')
  w = data.sample_weight
  for name, here, there in (
    ('x', _spec(data.x), facts.inputs),
    ('y', _row_spec(data.y), facts.targets),
    ('sample_weight', w if w is None else list(w.shape[1:]), facts.weights),
  ):
    if here != there:
      hint = f'must be as for all clients: {there}'
      raise errors.InputError(name, f'rows of {here}', hint)
  examples.check(data.x, data.y)
  targets.num_classes(data.y, facts.num_classes)
  if w is not None:
    if w.dtype != np.float32 or len(w) != len(data.y):
      hint = f'must be float32, for {len(data.y)} examples'
      raise errors.InputError('sample_weight', f'{w.dtype} [{len(w)}]', hint)
    arrays.check_finite('sample_weight', w)
    if (w < 0).any():  # all of a client's may be 0
      hint = 'must be at least 0'
      raise errors.InputError('sample_weight', w.min(), hint)


def _spec(x: Any) -> Any:
  """Returns the structure of inputs, with {'shape', 'dtype'} of each."""
  spec = arrays.map_leaves(_row_spec, x)
  return list(spec) if isinstance(spec, tuple) else spec


def _row_spec(array: np.ndarray) -> dict[str, Any]:
  dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
  if array.dtype.kind == 'S':
    dtype = 'string'
  return {'shape': list(array.shape[1:]), 'dtype': dtype}


def _is_spec(value: Any) -> bool:
  if _is_row_spec(value):
    return True
  if not isinstance(value, list | dict) or not value:
    return False
  parts = value.values() if isinstance(value, dict) else value
  return all(map(_is_row_spec, parts))


def _is_row_spec(value: Any) -> bool:
  return (
    isinstance(value, dict)
    and set(value) == {'shape', 'dtype'}
    and _is_shape(value['shape'])
    and isinstance(value['dtype'], str)
  )


def _is_shape(value: Any) -> bool:
  return isinstance(value, list) and all(
    isinstance(n, int) and n >= 0 for n in value
  )
