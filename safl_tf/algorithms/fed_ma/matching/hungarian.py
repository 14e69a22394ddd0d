"""Matching at fixed width: the nearest units, one to one."""

from collections.abc import Sequence

import numpy as np
from scipy import optimize

from safl_tf.algorithms.fed_ma.matching import averages


def match_all(
  rows: Sequence[np.ndarray],
  reference: np.ndarray,
  weights: np.ndarray,
  sweeps: int,
) -> list[np.ndarray]:
  """Assigns clients' units to those of a reference, which then moves.

  Every client's units are assigned one to one, at the least sum of squared
  distances; the reference becomes the mean of what was assigned; and so on,
  until no assignment changes. It is the limit of `bbp` for γ -> 0.

  Args:
    rows: each client's units [L, D].
    reference: the units [L, D] that are the first to be compared with.
    weights: how much each client counts in the mean [J].
    sweeps: at most so many.

  Returns:
    Maps π_k [L], permutations: a client's unit -> the global one.
  """
  maps = [assign(reference, row) for row in rows]
  for _ in range(sweeps - 1):
    reference = averages.average_units(rows, maps, weights)
    new = [assign(reference, row) for row in rows]
    if all(map(np.array_equal, new, maps)):
      break
    maps = new
  return maps


def assign(reference: np.ndarray, row: np.ndarray) -> np.ndarray:
  """The map of one client."""
  _, chosen = optimize.linear_sum_assignment(
    squared_distances(reference, row).T
  )
  return chosen


def squared_distances(reference: np.ndarray, row: np.ndarray) -> np.ndarray:
  """cost[g, i] = |reference_g - row_i|², with one matrix product."""
  squares = [np.einsum('ud,ud->u', a, a) for a in (reference, row)]
  return squares[0][:, None] - 2 * reference @ row.T + squares[1]
