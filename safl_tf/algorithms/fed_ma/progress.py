"""FedMA's memory between rounds, as named arrays for checkpoints.

Names start with 'global_' for the matching behind the current global model, and
with 'pass_' for the pass in progress.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

GLOBAL, PASS = 'global_', 'pass_'
WIDTHS = f'{GLOBAL}widths'

Memory = Mapping[str, np.ndarray]


class Matching(NamedTuple):
  """The clients' units as global units, in the layers matched so far.

  Attributes:
    ids: the J clients.
    widths: of all hidden layers: of the global ones, then of the clients'.
    maps: each client's maps, layer after layer: int32 [J, sum of widths].
    counts: the number of client units in each global unit, layer after layer.
  """

  ids: np.ndarray
  widths: np.ndarray
  maps: np.ndarray
  counts: np.ndarray

  def extended(
    self, i: int, maps: Sequence[np.ndarray], counts: np.ndarray
  ) -> 'Matching':
    """Returns the matching with the i-th hidden layer added."""
    widths = self.widths.copy()
    widths[i] = len(counts)
    new = np.stack(maps).astype(np.int32)
    return self._replace(
      widths=widths,
      maps=np.concatenate([self.maps, new], axis=1),
      counts=np.concatenate([self.counts, counts]),
    )

  def only(self, kept: np.ndarray) -> 'Matching':
    """Returns the matching of some of the clients.

    Args:
      kept: whether to keep each client [J].
    """
    return self._replace(ids=self.ids[kept], maps=self.maps[kept])

  def chosen(self, k: int, widths: Sequence[int]) -> list[np.ndarray]:
    """Returns the global units that client k adopts in each hidden layer.

    They are those of its own maps or, if it did not participate, those that
    the most clients share; ties go to the first.

    Args:
      k: the client.
      widths: of a client's hidden layers.
    """
    (rows,) = np.nonzero(self.ids == k)
    if len(rows):
      return np.split(self.maps[rows[0]], np.cumsum(widths)[:-1])
    counts = np.split(self.counts, np.cumsum(self.widths)[:-1])
    return [
      np.sort(np.argsort(-layer, kind='stable')[:width])
      for layer, width in zip(counts, widths, strict=True)
    ]

  def write(self, prefix: str) -> dict[str, np.ndarray]:
    """Returns the fields as named arrays."""
    return {prefix + name: value for name, value in self._asdict().items()}


def begin(ids: np.ndarray, widths: Sequence[int]) -> Matching:
  """Returns the matching before the first layer.

  Args:
    ids: the clients.
    widths: of a client's hidden layers.
  """
  return Matching(
    ids=ids.astype(np.int64),
    widths=np.array(widths, np.int64),
    maps=np.zeros((len(ids), 0), np.int32),
    counts=np.zeros(0, np.int64),
  )


def read(memory: Memory, prefix: str) -> Matching | None:
  """Reads what `Matching.write` wrote; None if there is nothing."""
  if f'{prefix}ids' not in memory:
    return None
  return Matching(*(memory[prefix + name] for name in Matching._fields))


def finished(memory: Memory) -> dict[str, np.ndarray]:
  """Returns the memory without the pass in progress."""
  return {
    name: value for name, value in memory.items() if name.startswith(GLOBAL)
  }
