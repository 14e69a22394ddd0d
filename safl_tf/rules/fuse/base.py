"""What a fusion is, and the plain one: an average by size."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf import layout as layouts

Memory = dict[str, np.ndarray]
Layout = layouts.Layout


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


class Fused(NamedTuple):
  """What the server makes of a round's updates.

  Attributes:
    z_bar: its new model [P].
    memory: what the fusion remembers.
  """

  z_bar: np.ndarray
  memory: Memory


def everything(layout: Layout, t: int) -> int:
  """The whole model is uploaded in every round."""
  del t
  return layout.size


def no_memory(layout: Layout) -> Memory:
  """For fusions that remember nothing."""
  del layout
  return {}


class Fuse(NamedTuple):
  """A fusion: `init` its memory, `apply` a round's updates (r > 0) to it.

  The memory is a dict of arrays, so that any fusion can be checkpointed. It is
  a value: `apply` returns a new one and leaves the old one as it was.
  """

  # (memory, updates, z_bar or None) -> Fused
  apply: Callable[[Memory, Updates, np.ndarray | None], Fused]
  init: Callable[[Layout], Memory] = no_memory
  # (layout, t) -> how many elements each device uploads in round t
  uploads: Callable[[Layout, int], int] = everything


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
    memory: Memory, updates: Updates, z_bar: np.ndarray | None
  ) -> Fused:
    del z_bar
    return Fused(weighted_mean(updates.m, updates.z), memory)

  return Fuse(apply)
