"""Which devices take part in a round: S_t."""

from collections.abc import Callable

import numpy as np

from safl_tf import checks, errors, seeds

Select = Callable[[int, int, int], np.ndarray]  # (seed, t, n) -> ids


def uniform(
  fraction: float = 1.0, devices_per_round: int | None = None
) -> Select:
  """Draws s = max(1, round(R·n)) devices uniformly without replacement.

  Args:
    fraction: R, in (0, 1].
    devices_per_round: s itself, instead of R.

  Returns:
    select(seed, t, n) -> the sorted ids of S_t, shape [s].
  """
  checks.real('fraction', fraction, 0, 1, open_low=True)
  if devices_per_round is not None:
    checks.integer('devices_per_round', devices_per_round, low=1)

  def select(seed: int, t: int, n: int) -> np.ndarray:
    s = devices_per_round or max(1, round(fraction * n))
    if s > n:
      raise errors.InputError(
        'devices_per_round', s, f'must be at most the number of devices, {n}'
      )
    if s == n:
      return np.arange(n)
    rng = seeds.generator(seed, seeds.Role.SELECT, t)
    return np.sort(rng.choice(n, size=s, replace=False, shuffle=False))

  return select
