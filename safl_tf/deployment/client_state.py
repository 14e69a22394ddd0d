"""What a client keeps between rounds, in one atomic file of its own.

The file of a run has the arrays before and after the client's last round t. If
the server asks for round t again, because a reply or the server was lost, the
client repeats it from the arrays before, and gets the same bits.
"""

import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from safl_tf.deployment import messages
from safl_tf.util import atomic_io

_DIGEST_BYTES = hashlib.sha256().digest_size
_BEFORE, _AFTER = 'before/', 'after/'


class DamagedError(Exception):
  """A file that is damaged; the message names it and says how."""


class Saved(NamedTuple):
  """What a client kept.

  Attributes:
    t: its last round.
    before: the arrays that it kept before that round, by name.
    after: those that it keeps since.
  """

  t: int
  before: dict[str, np.ndarray]
  after: dict[str, np.ndarray]


def read(path: pathlib.Path) -> tuple[dict[str, Any], Saved]:
  """Returns what a file belongs to, and what was saved in it.

  Raises:
    DamagedError: the file is damaged.
  """
  data = path.read_bytes()
  body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
  if hashlib.sha256(body).digest() != digest:
    raise DamagedError(f'{path} does not match its SHA-256')
  try:
    owner, arrays = messages.decode(body)
    t = int(owner.pop('t'))
  except (messages.DamagedError, KeyError, TypeError, ValueError) as error:
    raise DamagedError(f'{path} {error}') from error
  before, after = (messages.below(p, arrays) for p in (_BEFORE, _AFTER))
  return owner, Saved(t, before, after)


class ClientState:
  """The file of a client in a run.

  Args:
    folder: of the run; created by the first `save`.
    owner: what the file belongs to, as JSON values: run, client, seed.
  """

  def __init__(self, folder: pathlib.Path, owner: Mapping[str, Any]):
    self.path = folder / 'client_state.bin'
    self._owner = dict(owner)

  def load(self) -> Saved | None:
    """Returns what was saved; None without a file.

    Raises:
      DamagedError: the file is damaged or belongs to something else.
    """
    try:
      owner, saved = read(self.path)
    except FileNotFoundError:
      return None
    if owner != self._owner:
      raise DamagedError(f'{self.path} is of {owner}, not of {self._owner}')
    return saved

  def save(self, saved: Saved) -> None:
    """Replaces the file, synced to disk."""
    arrays = {
      **{_BEFORE + name: array for name, array in saved.before.items()},
      **{_AFTER + name: array for name, array in saved.after.items()},
    }
    body = messages.encode({**self._owner, 't': saved.t}, arrays)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    atomic_io.write_bytes(self.path, body + hashlib.sha256(body).digest())

  def set_aside(self) -> pathlib.Path:
    """Renames a damaged file, so that nothing is lost; returns its new path."""
    number = 0
    while (
      aside := self.path.with_name(f'{self.path.name}.damaged-{number}')
    ).exists():
      number += 1
    os.replace(self.path, aside)
    return aside
