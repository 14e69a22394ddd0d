"""Aggregators that a few wrong or malicious models can't move far.

None of them looks at the sizes of the clients' data, which a malicious client
could make up. Models that are all the same give that very model.
"""

from collections.abc import Callable, Sequence

import numpy as np

from safl_tf.rules.aggregate import base
from safl_tf.util import errors, validation

Models = Sequence[np.ndarray]


def coordinate_median() -> base.Aggregator:
  """The median of every element (Yin et al. 2018), not weighted by size.

    z̄_j = median_k z_kj

  With an even number of models it is the mean of the two in the middle.
  """

  def estimate(z: Models) -> np.ndarray:
    return _trimmed(z, (len(z) - 1) // 2)

  return _aggregator(estimate)


def trimmed_mean(trim_fraction: float = 0.2) -> base.Aggregator:
  """The trimmed mean of every element (Yin et al. 2018), not weighted by size.

  Of the r values of an element, the ⌊fraction · r⌋ smallest and as many of the
  largest are left out; z̄_j is the mean of the others.

  Args:
    trim_fraction: what to leave out at each end, in [0, 0.5). 0 is the mean.
  """
  if validation.real('trim_fraction', trim_fraction, 0, 0.5) == 0.5:
    raise errors.InputError(
      'trim_fraction', trim_fraction, 'must be less than 0.5'
    )

  def estimate(z: Models) -> np.ndarray:
    return _trimmed(z, int(trim_fraction * len(z)))

  return _aggregator(estimate)


def krum(num_byzantine: int | None = None) -> base.Aggregator:
  """Krum (Blanchard et al. 2017): the one model with the lowest score.

    score_k = Σ ‖z_k - z_j‖²  over the r - f - 2 models j nearest to k

  Not weighted by size. The first of equal scores is taken.

  Args:
    num_byzantine: f, how many models may be malicious. By default the most that
      Krum withstands, ⌊(r - 3) / 2⌋ or 0 if that is less. A round with fewer
      than f + 3 models is not refused: scores look at the nearest model only,
      and nothing is promised about the result.
  """
  if num_byzantine is not None:
    validation.integer('num_byzantine', num_byzantine, 0)

  def estimate(z: Models) -> np.ndarray:
    scores = _krum_scores(z, _byzantine(num_byzantine, len(z)))
    return z[int(np.argmin(scores))]

  return _aggregator(estimate)


def multi_krum(
  num_byzantine: int | None = None, num_selected: int | None = None
) -> base.Aggregator:
  """Multi-Krum (Blanchard et al. 2017): the mean of those that score lowest.

  Scores are as in `krum`. Not weighted by size. The first of equal scores are
  taken.

  Args:
    num_byzantine: f, as in `krum`.
    num_selected: how many models to average, r - f by default. A round with
      fewer models averages all of them; at least one is always taken.
  """
  if num_byzantine is not None:
    validation.integer('num_byzantine', num_byzantine, 0)
  if num_selected is not None:
    validation.integer('num_selected', num_selected, 1)

  def estimate(z: Models) -> np.ndarray:
    f = _byzantine(num_byzantine, len(z))
    count = max(1, len(z) - f) if num_selected is None else num_selected
    chosen = np.argsort(_krum_scores(z, f), kind='stable')[:count]
    return np.stack([z[k] for k in chosen]).mean(axis=0, dtype=np.float64)

  return _aggregator(estimate)


def geometric_median(
  max_iterations: int = 100, tolerance: float = 1e-8
) -> base.Aggregator:
  """The geometric median, as in RFA (Pillutla et al. 2022) but for the sizes.

    z̄ = argmin_v Σ_k ‖v - z_k‖

  by the smoothed iterations of Weiszfeld, in float64 and from the median of
  every element:

    v ← Σ_k z_k/d_k / Σ_k 1/d_k,   d_k = √(‖v - z_k‖² + ν²)

  ν is 1e-9 times the median distance at the start. RFA weights models by size;
  here all count the same.

  Args:
    max_iterations: the most iterations of a round.
    tolerance: iterations end when ‖Σ_k (z_k - v)/d_k‖, which is 0 at the
      smoothed median, is at most this times r. It is free of a scale.
  """
  validation.integer('max_iterations', max_iterations, 1)
  validation.real('tolerance', tolerance, 0)

  def estimate(z: Models) -> np.ndarray:
    v = _trimmed(z, (len(z) - 1) // 2)
    nu = 1e-9 * np.median([np.linalg.norm(model - v) for model in z])
    if nu == 0:  # v is more than half of the models, and so the median
      return v
    for _ in range(max_iterations):
      pull, weight = np.zeros_like(v), 0.0
      for model in z:
        gap = model - v
        d = np.sqrt(gap @ gap + nu**2)
        pull += gap / d
        weight += 1 / d
      v += pull / weight
      if np.linalg.norm(pull) <= tolerance * len(z):
        break
    return v

  return _aggregator(estimate)


def _aggregator(estimate: Callable[[Models], np.ndarray]) -> base.Aggregator:
  """The aggregator that estimates z̄ of the models alone."""

  def apply(
    memory: base.Memory, updates: base.Updates, z_bar: np.ndarray | None
  ) -> base.Aggregated:
    del z_bar
    z = updates.z
    same = all(np.array_equal(model, z[0]) for model in z[1:])
    # Rounding is kept away from models that are the same; always a copy.
    return base.Aggregated(
      np.array(z[0] if same else estimate(z), z[0].dtype), memory
    )

  return base.Aggregator(apply)


def _trimmed(z: Models, count: int) -> np.ndarray:
  """The mean, in float64, without `count` values at each end of an element."""
  ordered = np.sort(np.stack(z), axis=0)
  return ordered[count : len(z) - count].mean(axis=0, dtype=np.float64)


def _byzantine(num_byzantine: int | None, r: int) -> int:
  """How many of r models may be malicious."""
  return max(0, (r - 3) // 2) if num_byzantine is None else num_byzantine


def _krum_scores(z: Models, f: int) -> np.ndarray:
  """Krum's scores of r models, shape [r].

  Gaps are taken pair by pair: a matrix product would be faster, but far models
  would drown the distances between near ones in rounding.
  """
  r = len(z)
  squares = np.zeros((r, r))
  for i in range(r):
    for j in range(i):
      gap = np.subtract(z[i], z[j], dtype=np.float64)
      squares[i, j] = squares[j, i] = gap @ gap
  nearest = max(1, r - f - 2)
  # In order, the first of each row is the model's distance to itself.
  return np.sort(squares, axis=1)[:, 1 : nearest + 1].sum(axis=1)
