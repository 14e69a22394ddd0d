"""Byzantine-robust aggregators: a few arbitrary models have little influence.

None of them uses the clients' numbers of examples, which a malicious client
could forge. Equal models give exactly that model.
"""

from collections.abc import Callable, Sequence

import numpy as np

from safl_tf.rules.aggregate import base
from safl_tf.util import validation

Models = Sequence[np.ndarray]


def coordinate_median() -> base.Aggregator:
  """Takes the median of every element (Yin et al. 2018), unweighted.

      z̄_j = median_k z_kj

  With an even number of models it is the mean of the two middle values.

  Example:
    ```python
    robust = dataclasses.replace(
      safl_tf.build_safl(), aggregate=safl_tf.aggregate.coordinate_median())
    result = safl_tf.train(model_fn, clients, robust, rounds=2)
    ```
  """

  def estimate(z: Models) -> np.ndarray:
    return _trimmed(z, (len(z) - 1) // 2)

  return _aggregator(estimate)


def trimmed_mean(trim_fraction: float = 0.2) -> base.Aggregator:
  """Takes the trimmed mean of every element (Yin et al. 2018), unweighted.

  It drops the ⌊fraction · r⌋ smallest and as many of the largest of the r
  values of an element; z̄_j is the mean of the others.

  Args:
    trim_fraction: the share to drop at each end, in [0, 0.5). 0 is the mean.

  Example:
    ```pycon
    >>> updates = safl_tf.aggregate.Updates(
    ...   t=1, ids=np.arange(4), m=np.ones(4), num_clients=4,
    ...   arrays={'z': [np.float32([value]) for value in (1, 2, 4, 1000)]})
    >>> rule = safl_tf.aggregate.trimmed_mean(trim_fraction=0.25)
    >>> rule.apply({}, updates, None).z_bar.tolist()
    [3.0]
    ```
  """
  validation.limited('trim_fraction', trim_fraction)

  def estimate(z: Models) -> np.ndarray:
    return _trimmed(z, int(trim_fraction * len(z)))

  return _aggregator(estimate)


def krum(num_byzantine: int | None = None) -> base.Aggregator:
  """Selects the model with the lowest score: Krum (Blanchard et al. 2017).

      score_k = Σ ‖z_k - z_j‖²  over the r - f - 2 models j nearest to k

  Unweighted. Ties go to the first.

  Args:
    num_byzantine: f, the number of Byzantine models to tolerate. By default
      Krum's maximum, max(0, ⌊(r - 3) / 2⌋). A round with fewer than f + 3
      models is not refused: scores then use the nearest model only, without any
      guarantee.

  Example:
    ```python
    robust = dataclasses.replace(
      safl_tf.build_safl(), aggregate=safl_tf.aggregate.krum(num_byzantine=1))
    attack = safl_tf.Attack('sign_flip', fraction=0.25)
    result = safl_tf.train(model_fn, clients, robust, attack=attack, rounds=2)
    ```
  """
  if num_byzantine is not None:
    validation.limited('num_byzantine', num_byzantine)

  def estimate(z: Models) -> np.ndarray:
    scores = _krum_scores(z, _byzantine(num_byzantine, len(z)))
    return z[int(np.argmin(scores))]

  return _aggregator(estimate)


def multi_krum(
  num_byzantine: int | None = None, num_selected: int | None = None
) -> base.Aggregator:
  """Averages the models with the lowest scores: Multi-Krum.

  Blanchard et al. 2017; scores as in `krum`, unweighted. Ties go to the first.

  Args:
    num_byzantine: f, as in `krum`.
    num_selected: the number of models to average, at least 1; r - f by default.
      A round with fewer models averages all of them.

  Example:
    ```python
    robust = dataclasses.replace(
      safl_tf.build_safl(),
      aggregate=safl_tf.aggregate.multi_krum(num_byzantine=1, num_selected=2))
    result = safl_tf.train(model_fn, clients, robust, rounds=2)
    ```
  """
  if num_byzantine is not None:
    validation.limited('num_byzantine', num_byzantine)
  if num_selected is not None:
    validation.limited('num_selected', num_selected)

  def estimate(z: Models) -> np.ndarray:
    f = _byzantine(num_byzantine, len(z))
    count = max(1, len(z) - f) if num_selected is None else num_selected
    chosen = np.argsort(_krum_scores(z, f), kind='stable')[:count]
    return np.stack([z[k] for k in chosen]).mean(axis=0, dtype=np.float64)

  return _aggregator(estimate)


def geometric_median(
  max_iterations: int = 100, tolerance: float = 1e-8
) -> base.Aggregator:
  """Takes the geometric median, as RFA (Pillutla et al. 2022), unweighted.

      z̄ = argmin_v Σ_k ‖v - z_k‖

  by smoothed Weiszfeld iterations, in float64, from the coordinate median:

      v ← Σ_k z_k/d_k / Σ_k 1/d_k,   d_k = √(‖v - z_k‖² + ν²)

  ν is 1e-9 times the median distance at the start. RFA weights models by size;
  here all weigh the same.

  Args:
    max_iterations: the maximum number of iterations in a round.
    tolerance: iterations stop when ‖Σ_k (z_k - v)/d_k‖, which is 0 at the
      smoothed median, is at most this times r; independent of scale.

  Example:
    ```python
    robust = dataclasses.replace(
      safl_tf.build_safl(), aggregate=safl_tf.aggregate.geometric_median())
    result = safl_tf.train(model_fn, clients, robust, rounds=2)
    ```
  """
  validation.integer('max_iterations', max_iterations, 1)
  validation.real('tolerance', tolerance, 0)

  def estimate(z: Models) -> np.ndarray:
    v = _trimmed(z, (len(z) - 1) // 2)
    nu = 1e-9 * np.median([np.linalg.norm(model - v) for model in z])
    if nu == 0:  # v equals more than half of the models, so it is the median
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
  """Builds an aggregator from an estimator of z̄."""

  def apply(
    memory: base.Memory, updates: base.Updates, z_bar: np.ndarray | None
  ) -> base.Aggregated:
    del z_bar
    z = list(updates.z)  # estimates need all models at once
    equal = all(np.array_equal(model, z[0]) for model in z[1:])
    # Equal models must not be rounded; always a copy.
    return base.Aggregated(
      np.array(z[0] if equal else estimate(z), z[0].dtype), memory
    )

  return base.Aggregator(apply)


def _trimmed(z: Models, count: int) -> np.ndarray:
  """Returns the mean without `count` values at each end, in float64."""
  ordered = np.sort(np.stack(z), axis=0)
  return ordered[count : len(z) - count].mean(axis=0, dtype=np.float64)


def _byzantine(num_byzantine: int | None, r: int) -> int:
  """Returns f, the number of Byzantine models to tolerate among r."""
  return max(0, (r - 3) // 2) if num_byzantine is None else num_byzantine


def _krum_scores(z: Models, f: int) -> np.ndarray:
  """Returns Krum's scores of r models, shape [r].

  Distances are computed pair by pair: a matrix product would be faster, but its
  rounding would swamp small distances when some models are far away.
  """
  r = len(z)
  squares = np.zeros((r, r))
  for i in range(r):
    for j in range(i):
      gap = np.subtract(z[i], z[j], dtype=np.float64)
      squares[i, j] = squares[j, i] = gap @ gap
  nearest = max(1, r - f - 2)
  # The smallest of each row is the model's distance to itself.
  return np.sort(squares, axis=1)[:, 1 : nearest + 1].sum(axis=1)
