"""Manifests: partitions as files.

A manifest is JSON with one client per line:

  {
  "format": "safl_tf partition 1",
  "dataset": "mnist",
  "partition": {"partition": "iid", "num_clients": 80, "seed": 0},
  "num_classes": 10,
  "num_examples": 60000,
  "labels_sha256": "...",
  "clients": [
  {"id":"0","indices":[52,7,...],"label_counts":{"3":20,...}},
  ...
  ]
  }

`labels_sha256`, of all labels as little-endian 32-bit integers, identifies the
data set. `partition`, the settings, is only informative. Other keys and keys
that appear twice are refused. For targets that are not class numbers,
`num_classes` is null, `label_counts` are empty and `labels_sha256` is that of
the type and shape in text, such as "<f4 (60000, 2)", and of the numbers.
"""

import collections
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from safl_tf.data import targets
from safl_tf.util import bounded_io, errors, validation

if TYPE_CHECKING:
  from safl_tf.data import client_data

FORMAT = 'safl_tf partition 1'

_MAX = 2**31 - 1  # examples and classes
_MEMORY = 8  # bytes of memory for a byte of the file
_TYPES: dict[str, Any] = {
  'format': str,
  'dataset': str,
  'partition': dict,
  'num_classes': (int, type(None)),
  'num_examples': int,
  'labels_sha256': str,
  'clients': list,
}
_CLIENT_TYPES = {'id': str, 'indices': list, 'label_counts': dict}
_TYPE_NAMES = {
  str: 'text',
  int: 'a whole number',
  (int, type(None)): 'a whole number or null',
  list: 'a list',
  dict: 'an object',
}


@dataclasses.dataclass(frozen=True, eq=False)
class Manifest:
  """A partition read from a file; `from_manifest` returns one.

  Attributes:
    sha256: the SHA-256 of the file.
    settings: `partition` of the file.
    client_ids: the name of each client.
    parts: the rows of each client, int32.
    label_counts: label -> number of examples, for each client.

  Example:
    ```pycon
    >>> text = safl_tf.partition.to_manifest(clients, 'blobs')
    >>> _ = pathlib.Path('blobs.json').write_text(text)
    >>> manifest = safl_tf.partition.from_manifest('blobs.json')
    >>> manifest.dataset, manifest.num_examples, manifest.client_ids
    ('blobs', 300, ['0', '1', '2', '3'])
    ```
  """

  path: str
  sha256: str
  dataset: str
  settings: Mapping[str, Any]
  num_classes: int | None
  num_examples: int
  labels_sha256: str
  client_ids: list[str] = dataclasses.field(repr=False)
  parts: list[np.ndarray] = dataclasses.field(repr=False)
  label_counts: list[dict[str, int]] = dataclasses.field(repr=False)

  def __call__(
    self, y: np.ndarray, num_classes: int | None
  ) -> list[np.ndarray]:
    """Returns the parts; refuses labels of other data."""
    if (len(y), num_classes) != (self.num_examples, self.num_classes):
      raise _error(
        self.path,
        f'is for other data: {self.num_examples} examples of '
        f'{self.num_classes} classes, not {len(y)} of {num_classes}',
      )
    if labels_sha256(y) != self.labels_sha256:
      raise _error(
        self.path, 'is for other data: labels_sha256 does not match y'
      )
    for k, part in enumerate(self.parts):
      counts = _label_counts(y[part])
      if counts != self.label_counts[k]:
        place = _place(k, self.client_ids[k])
        raise _error(self.path, f'{place}: label_counts must be {counts}')
    return self.parts


def from_manifest(path: str | os.PathLike[str]) -> Manifest:
  """Reads a partition from a file.

  Args:
    path: of the file, which has the text of `to_manifest`.

  Returns:
    A partition, which refuses other labels than those it was made for.

  Raises:
    InputError: the file cannot be read or is not a manifest.

  Example:
    ```pycon
    >>> text = safl_tf.partition.to_manifest(clients, 'blobs')
    >>> _ = pathlib.Path('blobs.json').write_text(text)
    >>> same = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.from_manifest('blobs.json'))
    >>> same.sizes.tolist() == clients.sizes.tolist()
    True
    ```
  """
  validation.instance('path', path, (str, os.PathLike), 'the path of a file')
  path = os.fspath(path)
  try:
    data = bounded_io.read_bytes(path, _MEMORY)
  except OSError as error:
    raise _error(path, f'cannot be read: {error.strerror}') from error
  try:
    content = json.loads(
      data, object_pairs_hook=_unique, parse_constant=_refuse_constant
    )
  except (ValueError, RecursionError) as error:
    raise _error(path, f'is not JSON ({errors.reason(error)})') from error
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise _error(path, f'is not a manifest: its format must be "{FORMAT}"')
  place = ''
  parts: dict[str, np.ndarray] = {}
  try:
    _check_types(content, _TYPES)
    for key in ('num_classes', 'num_examples'):
      if content[key] is not None:
        validation.integer(key, content[key], low=1, high=_MAX)
    if not content['clients']:
      raise ValueError('clients must hold at least one')
    for k, client in enumerate(content['clients']):
      name: Any = client.get('id') if isinstance(client, dict) else None
      place = f'{_place(k, name)}: '
      _check_types(client, _CLIENT_TYPES)
      if name in parts:
        raise ValueError('id must be unique')
      if not set(map(type, client['label_counts'].values())) <= {int}:
        raise ValueError('label_counts must be whole numbers')
      parts[name] = _indices(client['indices'], content['num_examples'])
  except ValueError as error:
    raise _error(path, f'{place}{error}') from None
  clients = content.pop('clients')
  del content['format']
  return Manifest(
    path=path,
    sha256=hashlib.sha256(data).hexdigest(),
    settings=content.pop('partition'),
    client_ids=list(parts),
    parts=list(parts.values()),
    label_counts=[client['label_counts'] for client in clients],
    **content,
  )


def to_manifest(
  clients: 'client_data.ClientData',
  dataset: str,
  settings: Mapping[str, Any] | None = None,
) -> str:
  """Returns the text of a manifest, a partition as a file.

  Args:
    clients: whose rows to write.
    dataset: the name of the data set.
    settings: how the partition was made: JSON values by name.

  Example:
    ```pycon
    >>> text = safl_tf.partition.to_manifest(
    ...   clients, 'blobs', {'partition': 'labels', 'seed': 0})
    >>> text.splitlines()[1]
    '"format": "safl_tf partition 1",'
    ```
  """
  from safl_tf.data import client_data

  for name, value, kind, takes in (
    ('clients', clients, client_data.ClientData, 'a ClientData'),
    ('dataset', dataset, str, "a data set's name"),
    ('settings', settings or {}, Mapping, 'a dict or None'),
  ):
    validation.instance(name, value, kind, takes)
  header = {
    'format': FORMAT,
    'dataset': dataset,
    'partition': dict(settings or {}),
    'num_classes': clients.num_classes,
    'num_examples': len(clients.y),
    'labels_sha256': labels_sha256(clients.y),
  }
  lines = [f'{json.dumps(key)}: {json.dumps(header[key])},' for key in header]
  entries = [
    json.dumps(
      {
        'id': name,
        'indices': clients.indices(k).tolist(),
        'label_counts': _label_counts(clients.y[clients.indices(k)]),
      },
      separators=(',', ':'),
    )
    for k, name in enumerate(clients.client_ids)
  ]
  lines = ['{', *lines, '"clients": [', ',\n'.join(entries), ']', '}', '']
  return '\n'.join(lines)


def labels_sha256(y: np.ndarray) -> str:
  """Returns the SHA-256 of labels in the order of the data."""
  if targets.is_classes(y):
    return hashlib.sha256(y.astype('<i4').tobytes()).hexdigest()
  little = y.astype(y.dtype.newbyteorder('<'))
  header = f'{little.dtype.str} {little.shape}'.encode()
  return hashlib.sha256(header + little.tobytes()).hexdigest()


def _label_counts(labels: np.ndarray) -> dict[str, int]:
  """Returns the number of examples of each label, sorted by label."""
  if not targets.is_classes(labels):
    return {}
  counts = collections.Counter(labels.tolist())
  return {str(label): counts[label] for label in sorted(counts)}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns a JSON object; refuses a key that appears twice."""
  value = dict(pairs)
  if len(value) < len(pairs):
    counts = collections.Counter(key for key, _ in pairs)
    raise ValueError(f'{counts.most_common(1)[0][0]!r} appears twice')
  return value


def _refuse_constant(name: str) -> NoReturn:
  raise ValueError(f'{name} is not a JSON number')


def _check_types(value: Any, types: Mapping[str, Any]) -> None:
  """Raises ValueError unless `value` has just these keys with these types."""
  if not isinstance(value, dict):
    raise ValueError(f'must be an object with {", ".join(types)}')
  for key, kind in types.items():
    if key not in value:
      raise ValueError(f'{key} is missing')
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value[key]) not in kinds:
      raise ValueError(f'{key} must be {_TYPE_NAMES[kind]}')
  for key in value:
    if key not in types:
      raise ValueError(f'{key!r} is not a key of a manifest')


def _indices(rows: list[Any], total: int) -> np.ndarray:
  """Returns the rows of a client, int32; raises ValueError for bad ones."""
  if not rows:
    raise ValueError('indices must not be empty')
  if set(map(type, rows)) != {int}:
    raise ValueError('indices must be whole numbers')
  for row in (min(rows), max(rows)):
    if not 0 <= row < total:
      raise ValueError(f'index {row} must be in [0, {total - 1}]')
  return np.array(rows, np.int32)


def _place(k: int, client_id: Any) -> str:
  """Returns the name of client k for error messages."""
  return f'client {k}' if client_id is None else f'client {k} ({client_id!r})'


def _error(path: str, hint: str) -> errors.InputError:
  return errors.InputError('path', path, errors.one_line(hint))
