"""The clients of a run as they joined: deployment.json in its folder.

With it a server that starts again knows its clients before they are back, and
refuses one that comes back with other data.
"""

import dataclasses
import json
import pathlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from safl_tf.data import client_file
from safl_tf.util import atomic_io, errors

NAME = 'deployment.json'
_TYPES: dict[str, type] = {
  'client': int,
  'name': str,
  'uid': str,
  'size': int,
  'data_sha256': str,
  'protocol': int,
  'versions': dict,
  'hardware': dict,
}
_MAX_SIZE = 2**31 - 1  # rows have int32 numbers


@dataclasses.dataclass(frozen=True)
class Description:
  """What a client says of itself.

  Attributes:
    client: its number, k.
    name: its name.
    uid: the id of its state folder.
    size: m_k.
    data_sha256: of its data.
    facts: what its data are like.
    protocol: see `messages.PROTOCOL`.
    versions: of packages, by name.
    hardware: what may change the last bits of its sums.
  """

  client: int
  name: str
  uid: str
  size: int
  data_sha256: str
  facts: client_file.Facts
  protocol: int
  versions: dict[str, str]
  hardware: dict[str, Any]

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> Self:
    """Returns the description in a reply."""
    found = _typed(values, _TYPES)
    facts = client_file.Facts.from_json(values['facts'])
    return cls(**{**found, 'uid': str(uuid.UUID(found['uid']))}, facts=facts)


class Client(NamedTuple):
  """A client when the run began."""

  name: str
  size: int
  data_sha256: str


class Record(NamedTuple):
  """A run and its clients.

  Attributes:
    run: the id of the run.
    facts: what the data of all clients are like.
    clients: client k is the k-th.
  """

  run: str
  facts: client_file.Facts
  clients: list[Client]


def create(facts: client_file.Facts, found: Sequence[Description]) -> Record:
  """Returns the record of a new run."""
  clients = [Client(d.name, d.size, d.data_sha256) for d in found]
  return Record(str(uuid.uuid4()), facts, clients)


def write(folder: pathlib.Path, record: Record) -> None:
  """Writes deployment.json."""
  values = {
    'run': record.run,
    'facts': record.facts.to_json(),
    'clients': [client._asdict() for client in record.clients],
  }
  atomic_io.write_json(folder / NAME, values)


def read(folder: pathlib.Path, argument: str) -> Record | None:
  """Reads deployment.json; None if the run has not begun."""
  path = folder / NAME
  try:
    values = json.loads(path.read_text(encoding='utf-8'))
    return Record(
      str(uuid.UUID(str(values['run']))),
      client_file.Facts.from_json(values['facts']),
      [Client(**_typed(c, Client._fields)) for c in values['clients']],
    )
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    hint = f'its {NAME} is damaged ({errors.reason(error)}); restore it'
    raise errors.InputError(argument, folder, hint) from error


def _typed(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
  """Returns the values of these names; refuses those of other types."""
  found = {name: values[name] for name in names}
  for name, value in found.items():
    if type(value) is not _TYPES[name]:
      kind = _TYPES[name].__name__
      raise errors.InputError(name, type(value).__name__, f'must be {kind}')
  if not 1 <= found['size'] <= _MAX_SIZE:
    hint = f'must be in [1, {_MAX_SIZE}]'
    raise errors.InputError('size', found['size'], hint)
  return found
