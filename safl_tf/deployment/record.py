"""What clients said when a run began: deployment.json in its folder.

With it a server that starts again knows its clients before they are back, and
refuses one that comes back with other data.
"""

import dataclasses
import json
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from safl_tf.data import client_file
from safl_tf.util import atomic_io, errors

NAME = 'deployment.json'


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
    return cls(
      client=int(values['client']),
      name=str(values['name']),
      uid=str(uuid.UUID(values['uid'])),
      size=int(values['size']),
      data_sha256=str(values['data_sha256']),
      facts=client_file.Facts.from_json(values['facts']),
      protocol=int(values['protocol']),
      versions=dict(values['versions']),
      hardware=dict(values['hardware']),
    )


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
      str(uuid.UUID(values['run'])),
      client_file.Facts.from_json(values['facts']),
      [Client(**client) for client in values['clients']],
    )
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    hint = f'its {NAME} is damaged ({errors.reason(error)}); restore it'
    raise errors.InputError(argument, folder, hint) from error
