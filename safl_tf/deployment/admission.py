"""Decides which clients may take part in a run, from their descriptions."""

import collections
from collections.abc import Mapping, Sequence

from safl_tf.data import client_file
from safl_tf.deployment import messages, record
from safl_tf.util import errors, versions

# The packages of which all must have the same versions.
PACKAGES = ('safl_tf', 'tensorflow', 'keras', 'numpy')


def refusal(
  new: record.Description,
  num_clients: int,
  owner: int | None,
  run: record.Record | None,
) -> str | None:
  """Returns why a client cannot take part; None if it can.

  Args:
    new: its description.
    num_clients: n.
    owner: the client that its key belongs to; None without keys.
    run: the run, if it has begun.
  """
  if new.protocol != messages.PROTOCOL:
    return f'speaks protocol {new.protocol}, the server {messages.PROTOCOL}'
  known = versions.find()
  for name in PACKAGES:
    if new.versions.get(name) != known[name]:
      return (
        f'has {name} {new.versions.get(name)}, the server {known[name]}; '
        'install the same version'
      )
  if not 0 <= new.client < num_clients:
    return f'this run has clients 0 to {num_clients - 1} (--num_clients)'
  if owner is not None and owner != new.client:
    return f'its key is that of client {owner}'
  if run is None:
    return None
  began = run.clients[new.client]
  if new.size != began.size or new.data_sha256 != began.data_sha256:
    return (
      f'has other data ({new.size} examples, {new.data_sha256[:8]}) than '
      f'when the run began ({began.size}, {began.data_sha256[:8]})'
    )
  return difference(new.facts, run.facts)


def difference(
  facts: client_file.Facts, common: client_file.Facts
) -> str | None:
  """Returns how the data of a client differ; None if they do not."""
  for name, (own, others) in facts.differences(common).items():
    return f'its data have {name} {own}, those of the others {others}'
  return None


def most_common(facts: Sequence[client_file.Facts]) -> client_file.Facts:
  """Returns the facts of most clients; in a tie, the first of them."""
  texts = [str(sorted(f.to_json().items())) for f in facts]
  text, _ = collections.Counter(texts).most_common(1)[0]
  return facts[texts.index(text)]


def check_names(descriptions: Mapping[int, record.Description]) -> None:
  """Refuses clients with the same name."""
  found = descriptions.values()
  names = collections.Counter(d.name for d in found)
  for name, count in names.items():
    if count > 1:
      clients = sorted(d.client for d in found if d.name == name)
      text = ', '.join(map(str, clients))
      raise errors.RunError(f'clients {text} have the same name, {name}')
