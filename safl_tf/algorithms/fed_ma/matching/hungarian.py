"""Matching at fixed width: one-to-one assignment of the nearest units."""

from collections.abc import Sequence

import numpy as np

from safl_tf.algorithms.fed_ma.matching import averages


def match_all(
  rows: Sequence[np.ndarray],
  reference: np.ndarray,
  weights: np.ndarray,
  sweeps: int,
) -> list[np.ndarray]:
  """Assigns clients' units to those of a reference, and updates it.

  It assigns every client's units one to one, with the minimum sum of squared
  distances, and moves the reference to the mean of the assigned units, until no
  assignment changes. It is the limit of `bbp` for γ -> 0.

  Args:
    rows: each client's units [L, D].
    reference: the initial reference units [L, D].
    weights: of the clients in the mean [J].
    sweeps: the maximum number of sweeps.

  Returns:
    Maps π_k [L], permutations: a client's unit -> the global unit.
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
  """Returns the map of one client."""
  from scipy import optimize

  _, chosen = optimize.linear_sum_assignment(
    squared_distances(reference, row).T
  )
  return chosen


def squared_distances(reference: np.ndarray, row: np.ndarray) -> np.ndarray:
  """Returns |reference_g - row_i|² [g, i], with one matrix product."""
  squares = [np.einsum('ud,ud->u', a, a) for a in (reference, row)]
  return squares[0][:, None] - 2 * reference @ row.T + squares[1]
