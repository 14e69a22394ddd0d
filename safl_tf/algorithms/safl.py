"""SAFL and Extended SAFL, the paper's Algorithms 1 and 2."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import gate, mix


@algorithm.published('safl')
def build_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds SAFL, Algorithm 1: FedAvg with an annealed start.

  Args:
    epsilon: ε, the weight of z̄ in an element that is kept local.
    temperature: L of p = exp(-t/L).
    mix_granularity: 'element' (equation (6)) or 'model'.
    fraction: R, the share of clients in a round.
    clients_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    mix=mix.anneal(epsilon, temperature, mix_granularity),
  )


@algorithm.published('extended_safl')
def build_extended_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  nu: float = 0.5,
  mix_granularity: str = 'element',
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds Extended SAFL, Algorithm 2: clients may withhold an update.

  Args:
    epsilon: ε, the weight of z̄ in an element that is kept local.
    temperature: L of p = exp(-t/L).
    nu: ν of q = exp(-Δ/ν).
    mix_granularity: 'element' (equation (6)) or 'model'.
    fraction: R, the share of clients in a round.
    clients_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_safl(
      epsilon, temperature, mix_granularity, fraction, clients_per_round
    ),
    gate=gate.accuracy_gap(nu),
  )
