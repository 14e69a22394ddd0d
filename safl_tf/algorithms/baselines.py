"""The baselines: all data in one place, and every client by itself."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import mix


@algorithm.published('centralized')
def build_centralized() -> algorithm.Algorithm:
  """Builds centralised training: one client with all data, E epochs a round."""
  return dataclasses.replace(fed_avg.build_fed_avg(), pooled=True)


@algorithm.published('local_only')
def build_local_only(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds local training: SAFL with ε = 0 and p = 1.

  Args:
    fraction: R, the share of clients that train in a round.
    clients_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    mix=mix.keep(),
    alone=True,
  )
