"""Averages over clients: matched units, and classes of the last layer."""

from collections.abc import Sequence

import numpy as np


def average_units(
  rows: Sequence[np.ndarray],
  maps: Sequence[np.ndarray],
  weights: np.ndarray,
  prior: np.ndarray | None = None,
) -> np.ndarray:
  """Averages the units that clients' maps send to the same global unit.

    θ_g = Σ w_k·row_i / Σ w_k  over all (k, i) with π_k(i) = g

  With a prior of variance 1 around μ₀, and noise of variance 1, it is the
  maximum a posteriori, a mean that is shrunken by n/(n + 1):

    θ_g = (μ₀ + Σ w_k·row_i) / (1 + Σ w_k)

  Args:
    rows: each client's units [L_k, D].
    maps: π_k [L_k], a client's unit -> the global unit.
    weights: w_k [J] of the clients.
    prior: μ₀ [D], for the maximum a posteriori.

  Returns:
    The global units, float64 [L, D].
  """
  width = 1 + max(int(pi.max()) for pi in maps)
  total = np.zeros((width, rows[0].shape[1]))
  mass = np.zeros((width, 1))
  for row, pi, weight in zip(rows, maps, weights, strict=True):
    total[pi] += weight * row  # a map has no repetitions
    mass[pi] += weight
  if prior is not None:
    total += prior
    mass += 1
  return total / mass


def average_classes(
  values: Sequence[np.ndarray], counts: np.ndarray
) -> np.ndarray:
  """Averages each class weighted by the clients' examples of it.

    p_kc = n_kc / Σ_k n_kc,  or 1/J for a class that no client has

  Args:
    values: J arrays [..., C], such as kernels and biases.
    counts: n_kc [J, C].

  Returns:
    Σ_k p_kc·values_k, float64 [..., C].
  """
  counts = np.asarray(counts, np.float64)
  totals = counts.sum(axis=0)
  equal = np.full_like(counts, 1 / len(counts))
  shares = np.divide(counts, totals, out=equal, where=totals > 0)
  total = np.zeros(values[0].shape)
  for value, share in zip(values, shares, strict=True):
    total += value * share
  return total
