"""How the server makes its model z̄ of what it received."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Updates(NamedTuple):
  """What a round brought; r devices uploaded.

  Attributes:
    t: the round.
    ids: the devices, shape [r].
    z: their models, r vectors of shape [P].
    m: the sizes of their data, shape [r].
  """

  t: int
  ids: np.ndarray
  z: Sequence[np.ndarray]
  m: np.ndarray


class Fuse(NamedTuple):
  """A fusion: `init` its memory, `apply` a round's updates (r > 0) to it.

  The memory is a dict of arrays, so that any fusion can be checkpointed.
  """

  # size P -> memory
  init: Callable[[int], dict[str, np.ndarray]]
  # (memory, updates, z_bar or None) -> (z_bar, memory)
  apply: Callable[
    [dict[str, np.ndarray], Updates, np.ndarray | None],
    tuple[np.ndarray, dict[str, np.ndarray]],
  ]


def weighted_mean(eta: Any, z: Sequence[np.ndarray]) -> np.ndarray:
  """Σ_k η_k z_k / Σ_k η_k, summed in float64, in the type of z.

  Args:
    eta: coefficients, shape [r]; they are normalised here.
    z: r vectors of shape [P].
  """
  eta = np.asarray(eta, np.float64)
  total = np.zeros(z[0].shape, np.float64)
  for coefficient, model in zip(eta / eta.sum(), z, strict=True):
    total += np.multiply(model, coefficient, dtype=np.float64)
  return total.astype(z[0].dtype)


def by_size() -> Fuse:
  """FedAvg's fusion, equation (3) with η_k = m_k / Σ m over the received."""

  def apply(
    memory: dict[str, np.ndarray], updates: Updates, z_bar: np.ndarray | None
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    del z_bar
    return weighted_mean(updates.m, updates.z), memory

  return Fuse(init=lambda size: {}, apply=apply)
