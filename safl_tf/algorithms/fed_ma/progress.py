"""What FedMA remembers between rounds, as arrays that can be checkpointed.

Names begin with 'global_' for the matching that gave the global model there is,
and with 'pass_' for the one under way.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

GLOBAL, PASS = 'global_', 'pass_'
WIDTHS = f'{GLOBAL}widths'

Memory = Mapping[str, np.ndarray]


class Matching(NamedTuple):
  """Which client's unit is which global unit, in the layers matched so far.

  Attributes:
    ids: the J clients.
    widths: of all hidden layers: of the global ones, then of the clients'.
    maps: each client's maps, layer after layer: int32 [J, sum of widths].
    counts: how many clients' units each global unit is made of, layer after
      layer.
  """

  ids: np.ndarray
  widths: np.ndarray
  maps: np.ndarray
  counts: np.ndarray

  def extended(
    self, i: int, maps: Sequence[np.ndarray], counts: np.ndarray
  ) -> 'Matching':
    """The same after the i-th hidden layer was matched."""
    widths = self.widths.copy()
    widths[i] = len(counts)
    new = np.stack(maps).astype(np.int32)
    return self._replace(
      widths=widths,
      maps=np.concatenate([self.maps, new], axis=1),
      counts=np.concatenate([self.counts, counts]),
    )

  def only(self, kept: np.ndarray) -> 'Matching':
    """The same for some of the clients.

    Args:
      kept: whether each stays [J].
    """
    return self._replace(ids=self.ids[kept], maps=self.maps[kept])

  def chosen(self, k: int, widths: Sequence[int]) -> list[np.ndarray]:
    """Which global units client k takes over, for each hidden layer.

    Those of its own maps, or, if it took no part, those that most clients
    share, the first of equal ones.

    Args:
      k: the client.
      widths: how many units a client has in each hidden layer.
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
    """As arrays with such names."""
    return {prefix + name: value for name, value in self._asdict().items()}


def begin(ids: np.ndarray, widths: Sequence[int]) -> Matching:
  """Before any layer was matched.

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
  """What was written with such names, if anything was."""
  if f'{prefix}ids' not in memory:
    return None
  return Matching(*(memory[prefix + name] for name in Matching._fields))


def finished(memory: Memory) -> dict[str, np.ndarray]:
  """What is known of the global model, without the pass under way."""
  return {
    name: value for name, value in memory.items() if name.startswith(GLOBAL)
  }
