"""The authors' matching: MAP of a Beta-Bernoulli process; layers may grow.

A global unit is drawn from a Gaussian around μ₀, and a client's units are noisy
copies of some of the global ones; all variances are 1. With A_g = μ₀ + Σ of the
matched rows, n_g of them, and S_g = 1 + n_g, the most likely g is A_g / S_g.
"""

from collections.abc import Sequence

import numpy as np

_CAP = 700  # global units of a layer, beyond which few are opened
_MAX_POPULARITY = 10  # larger counts of a unit weigh no more


def match_all(
  rows: Sequence[np.ndarray],
  prior: np.ndarray,
  gamma: float,
  sweeps: int,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Assigns the units of two or more clients to global units.

  The widest client's units are the first global units; the other clients follow
  by decreasing width. Then, sweep by sweep and in random order, each client is
  removed and assigned again, until nothing changes.

  Args:
    rows: each client's units [L_k, D], float64.
    prior: μ₀ [D].
    gamma: γ, how readily units are opened.
    sweeps: the maximum number of sweeps.
    rng: for the order of clients in a sweep.

  Returns:
    Maps π_k [L_k], without repetitions: a client's unit -> the global unit.
  """
  order = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
  matching = _Matching(rows, prior, gamma)
  for k in order:
    matching.add(k)
  for _ in range(sweeps):
    before = dict(matching.maps)
    for k in rng.permutation(len(rows)).tolist():
      matching.remove(k)
      matching.add(k)
    if all(np.array_equal(before[k], matching.maps[k]) for k in order):
      break
  return [matching.maps[k] for k in range(len(rows))]


def scores(
  row: np.ndarray,
  sums: np.ndarray,
  counts: np.ndarray,
  prior: np.ndarray,
  num_clients: int,
  gamma: float,
  openings: int,
) -> np.ndarray:
  """Returns the score of assigning unit i of a client to global unit g.

    C[i, g]   = |A_g + a_i|²/(S_g + 1) - |A_g|²/S_g + log(c_g/(J - c_g))
    C[i, L+r] = |μ₀ + a_i|²/2 - |μ₀|² - 2·log r + 2·log(γ/J),   r = 1, 2, ...

  Args:
    row: the client's units a [L_k, D].
    sums: A [L, D], without this client.
    counts: n [L], without this client; c is at most 10 of it.
    prior: μ₀ [D].
    num_clients: J.
    gamma: γ.
    openings: the number of new units on offer.

  Returns:
    C [L_k, L + openings].
  """
  squares = _squares(sums)
  precision = 1.0 + counts
  popular = np.minimum(counts, _MAX_POPULARITY)
  joined = squares + 2 * row @ sums.T + _squares(row)[:, None]
  old = joined / (precision + 1) - squares / precision
  old += np.log(popular / (num_clients - popular))
  alone = _squares(row + prior) / 2 - prior @ prior
  rank = np.arange(1, openings + 1)
  new = alone[:, None] - 2 * np.log(rank) + 2 * np.log(gamma / num_clients)
  return np.concatenate([old, new], axis=1)


class _Matching:
  """The state of an assignment of clients' units to global units."""

  def __init__(
    self, rows: Sequence[np.ndarray], prior: np.ndarray, gamma: float
  ):
    self._rows = rows
    self._prior = prior
    self._gamma = gamma
    self._cap = max(_CAP, 2 * max(map(len, rows)))
    self._sums = np.zeros((0, len(prior)))
    self._counts = np.zeros(0, np.int64)
    self.maps: dict[int, np.ndarray] = {}

  def add(self, k: int) -> None:
    """Assigns a client's units and opens new ones as needed."""
    from scipy import optimize

    row, width = self._rows[k], len(self._counts)
    openings = min(len(row), max(self._cap - width, 1))
    if width:
      score = scores(
        row,
        self._sums,
        self._counts,
        self._prior,
        len(self._rows),
        self._gamma,
        openings,
      )
      units, chosen = optimize.linear_sum_assignment(score, maximize=True)
    else:
      units = chosen = np.arange(len(row))
    assert len(units) == len(row), 'every unit must be assigned'
    opened = np.unique(chosen[chosen >= width])
    chosen = np.where(
      chosen < width, chosen, width + np.searchsorted(opened, chosen)
    )
    more = len(opened)
    self._sums = np.concatenate([self._sums, np.tile(self._prior, (more, 1))])
    self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
    self._sums[chosen] += row
    self._counts[chosen] += 1
    self.maps[k] = chosen

  def remove(self, k: int) -> None:
    """Removes a client and closes the units that only it had."""
    chosen = self.maps.pop(k)
    self._sums[chosen] -= self._rows[k]
    self._counts[chosen] -= 1
    open_still = self._counts > 0
    self._sums, self._counts = self._sums[open_still], self._counts[open_still]
    place = np.cumsum(open_still) - 1
    self.maps = {other: place[pi] for other, pi in self.maps.items()}


def _squares(rows: np.ndarray) -> np.ndarray:
  """Returns |row|² of each row."""
  return np.einsum('ud,ud->u', rows, rows)
