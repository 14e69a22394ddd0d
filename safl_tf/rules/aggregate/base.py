"""The types of an aggregator, and FedAvg's weighted mean."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from safl_tf.core import algorithm, layout

Aggregated = algorithm.Aggregated
Aggregator = algorithm.Aggregator
Layout = layout.Layout
Memory = algorithm.Memory
Updates = algorithm.Updates


def weighted_mean(eta: Any, z: Iterable[np.ndarray]) -> np.ndarray:
  """Returns Σ_k η_k z_k / Σ_k η_k, summed in float64, in the dtype of z.

  Args:
    eta: coefficients, shape [r]; need not be normalised.
    z: r > 0 vectors of shape [P], each read once.
  """
  eta = np.asarray(eta, np.float64)
  total: Any = 0.0  # then a new array, so that each sum is in place
  for coefficient, model in zip(eta / eta.sum(), z, strict=True):
    total += np.multiply(model, coefficient, dtype=np.float64)
  return total.astype(model.dtype)


def by_size() -> Aggregator:
  """Averages by size: equation (3) with η_k = m_k / Σ m over the uploads."""

  def apply(
    memory: Memory, updates: Updates, z_bar: np.ndarray | None
  ) -> Aggregated:
    del z_bar
    return Aggregated(weighted_mean(updates.m, updates.z), memory)

  return Aggregator(apply)
