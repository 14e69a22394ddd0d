"""Partitions as files, to be looked at, kept and used again.

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

`labels_sha256` is of all labels as little-endian 32-bit integers, and tells the
data set from others. What made the partition is there to be read only.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from safl_tf.util import errors, validation

if TYPE_CHECKING:
  from safl_tf.data import client_data

FORMAT = 'safl_tf partition 1'

_KEYS = {
  'format': str,
  'dataset': str,
  'partition': dict,
  'num_classes': int,
  'num_examples': int,
  'labels_sha256': str,
  'clients': list,
}
_DEVICE_KEYS = {'id': str, 'indices': list, 'label_counts': dict}
_KINDS = {
  str: 'text',
  int: 'a whole number',
  list: 'a list',
  dict: 'an object',
}


@dataclasses.dataclass(frozen=True, eq=False)
class Manifest:
  """A partition that was read from a file.

  Attributes:
    path: of the file.
    sha256: of the file.
    dataset: the name of the data set.
    settings: what made the partition.
    num_classes: labels are in 0..num_classes-1.
    num_examples: N.
    labels_sha256: of the labels.
    client_ids: the clients' names.
    parts: the examples of each, int32.
    label_counts: how many of which label each holds.
  """

  path: str
  sha256: str
  dataset: str
  settings: Mapping[str, Any]
  num_classes: int
  num_examples: int
  labels_sha256: str
  client_ids: list[str] = dataclasses.field(repr=False)
  parts: list[np.ndarray] = dataclasses.field(repr=False)
  label_counts: list[dict[str, int]] = dataclasses.field(repr=False)

  def __call__(self, y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """The parts, if these are the labels that they were made for."""
    here = (len(y), num_classes)
    if here != (self.num_examples, self.num_classes):
      raise _wrong(
        self.path,
        f'is made for other data: {self.num_examples} examples of '
        f'{self.num_classes} classes; here are {len(y)} of {num_classes}',
      )
    if labels_sha256(y) != self.labels_sha256:
      raise _wrong(
        self.path, 'is made for other data: labels_sha256 is not that of y'
      )
    for k, part in enumerate(self.parts):
      counts = _label_counts(y[part])
      if counts != self.label_counts[k]:
        raise _wrong(
          self.path,
          f'{_name(k, self.client_ids[k])}: label_counts must be {counts}',
        )
    return self.parts


def from_manifest(path: str | os.PathLike[str]) -> Manifest:
  """The partition that a manifest describes.

  Args:
    path: of the file.

  Returns:
    A `Partition`, which refuses labels that it wasn't made for.

  Raises:
    InputError: the file isn't there or isn't right; it says what is wrong.
  """
  path = os.fspath(path)
  try:
    data = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise _wrong(path, f'cannot be read: {error.strerror}') from error
  found = _parse(path, data)
  for key in ('num_classes', 'num_examples'):
    try:
      validation.integer(key, found[key], low=1)
    except errors.InputError as error:
      raise _wrong(path, str(error)) from None
  if not found['clients']:
    raise _wrong(path, 'clients must hold at least one')
  parts: dict[str, np.ndarray] = {}
  for k, client in enumerate(found['clients']):
    try:
      _check_keys(client, _DEVICE_KEYS)
      if client['id'] in parts:
        raise ValueError('id must be there only once')
      parts[client['id']] = _indices(client['indices'], found['num_examples'])
    except ValueError as error:
      name = client.get('id') if isinstance(client, dict) else None
      raise _wrong(path, f'{_name(k, name)}: {error}') from None
  return Manifest(
    path=path,
    sha256=hashlib.sha256(data).hexdigest(),
    dataset=found['dataset'],
    settings=found['partition'],
    num_classes=found['num_classes'],
    num_examples=found['num_examples'],
    labels_sha256=found['labels_sha256'],
    client_ids=list(parts),
    parts=list(parts.values()),
    label_counts=[client['label_counts'] for client in found['clients']],
  )


def to_manifest(
  clients: 'client_data.ClientData',
  dataset: str,
  settings: Mapping[str, Any] | None = None,
) -> str:
  """The text of a manifest; `files.write_text` writes it.

  Args:
    clients: who holds what.
    dataset: the name of the data set.
    settings: what made the partition, as JSON values.
  """
  about = {
    'format': FORMAT,
    'dataset': dataset,
    'partition': dict(settings or {}),
    'num_classes': clients.num_classes,
    'num_examples': len(clients.y),
    'labels_sha256': labels_sha256(clients.y),
  }
  head = [f'{json.dumps(key)}: {json.dumps(about[key])},' for key in about]
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
  lines = ['{', *head, '"clients": [', ',\n'.join(entries), ']', '}', '']
  return '\n'.join(lines)


def labels_sha256(y: np.ndarray) -> str:
  """What tells these labels from others."""
  return hashlib.sha256(y.astype('<i4').tobytes()).hexdigest()


def _label_counts(labels: np.ndarray) -> dict[str, int]:
  """How often each label is there, in the labels' order."""
  counts = collections.Counter(labels.tolist())
  return {str(label): counts[label] for label in sorted(counts)}


def _parse(path: str, data: bytes) -> dict[str, Any]:
  """The JSON object in a file, with all the keys of a manifest."""
  try:
    found = json.loads(data)
  except (ValueError, RecursionError) as error:
    raise _wrong(path, f'is not JSON ({errors.reason(error)})') from error
  if not isinstance(found, dict) or found.get('format') != FORMAT:
    raise _wrong(path, f'is not a manifest: its format must be "{FORMAT}"')
  try:
    _check_keys(found, _KEYS)
  except ValueError as error:
    raise _wrong(path, str(error)) from None
  return found


def _check_keys(found: Any, kinds: Mapping[str, type]) -> None:
  """All keys must be there, with values of these kinds."""
  if not isinstance(found, dict):
    raise ValueError(f'must be an object with {", ".join(kinds)}')
  for key, kind in kinds.items():
    if key not in found:
      raise ValueError(f'{key} is missing')
    if type(found[key]) is not kind:
      raise ValueError(f'{key} must be {_KINDS[kind]}')


def _indices(given: list[Any], total: int) -> np.ndarray:
  """Checked rows of a client, int32."""
  if not given:
    raise ValueError('indices must not be empty')
  if set(map(type, given)) != {int}:
    raise ValueError('indices must be whole numbers')
  for index in (min(given), max(given)):
    if not 0 <= index < total:
      raise ValueError(f'index {index} must be in [0, {total - 1}]')
  return np.array(given, np.int32)


def _name(k: int, client_id: Any) -> str:
  """What a client is called in a message."""
  return f'client {k}' if client_id is None else f'client {k} ({client_id!r})'


def _wrong(path: str, told: str) -> errors.InputError:
  return errors.InputError('path', path, told)
