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

# Elements that are summed at a time, to stay in the cache.
_BLOCK = 32_768


def weighted_mean(eta: Any, z: Iterable[np.ndarray]) -> np.ndarray:
  """Returns Σ_k η_k z_k / Σ_k η_k, summed in float64, in the dtype of z.

  Args:
    eta: coefficients, shape [r]; need not be normalised.
    z: r > 0 vectors of shape [P], each read once.

  Example:
    ```pycon
    >>> z = [np.float32([0, 4]), np.float32([4, 8])]
    >>> safl_tf.aggregate.weighted_mean([3, 1], z).tolist()
    [1.0, 5.0]
    ```
  """
  eta = np.asarray(eta, np.float64)
  total: Any = None
  product = np.empty(_BLOCK)
  for coefficient, model in zip(eta / eta.sum(), z, strict=True):
    if total is None:
      total = np.zeros(model.shape)
    for i in range(0, len(model), _BLOCK):
      part = total[i : i + _BLOCK]
      term = product[: len(part)]
      np.multiply(model[i : i + _BLOCK], coefficient, term, dtype=np.float64)
      part += term
  return total.astype(model.dtype)


def by_size() -> Aggregator:
  """Averages by size: equation (3) with η_k = m_k / Σ m over the uploads.

  Example:
    ```pycon
    >>> updates = safl_tf.aggregate.Updates(
    ...   t=1, ids=np.array([0, 3]), m=np.array([30, 10]), num_clients=4,
    ...   arrays={'z': [np.float32([0, 4]), np.float32([4, 8])]})
    >>> safl_tf.aggregate.by_size().apply({}, updates, None).z_bar.tolist()
    [1.0, 5.0]
    ```
  """

  def apply(
    memory: Memory, updates: Updates, z_bar: np.ndarray | None
  ) -> Aggregated:
    del z_bar
    return Aggregated(weighted_mean(updates.m, updates.z), memory)

  return Aggregator(apply)
