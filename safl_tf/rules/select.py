"""Rules that select the clients of a round, S_t."""

import numpy as np

from safl_tf.core import algorithm, seeds
from safl_tf.util import errors, validation

Select = algorithm.Select


def uniform(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> Select:
  """Draws s = max(1, round(R·n)) clients uniformly without replacement.

  Args:
    fraction: R, in (0, 1].
    clients_per_round: s itself, instead of R; at most n.

  Returns:
    select(seed, t, n) -> the sorted ids of S_t, shape [s].

  Example:
    ```pycon
    >>> rule = safl_tf.select.uniform(fraction=0.3)
    >>> len(rule(0, 1, 20))  # S_1 of 20 clients, with seed 0
    6
    >>> algorithm = dataclasses.replace(safl_tf.build_safl(), select=rule)
    ```
  """
  validation.limited('fraction', fraction)
  if clients_per_round is not None:
    validation.limited('clients_per_round', clients_per_round)

  def select(seed: int, t: int, n: int) -> np.ndarray:
    s = clients_per_round or max(1, round(fraction * n))
    if s > n:
      raise errors.InputError(
        'clients_per_round', s, f'must be at most the number of clients, {n}'
      )
    if s == n:
      return np.arange(n)
    rng = seeds.generator(seed, seeds.Role.SELECT, t)
    return np.sort(rng.choice(n, size=s, replace=False, shuffle=False))

  return select
