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

  A client starts round t from a mix of the global model z̄ and its own z, by
  equations (6) and (7):

      w = u ⊙ z̄ + (1 - u) ⊙ z,   u_j = ε with probability exp(-t/L), else 1

  Args:
    epsilon: ε in [0, 1], the weight of z̄ in an element that is kept local.
    temperature: L > 0, the number of rounds after which exp(-t/L) is 1/e.
    mix_granularity: 'element' draws every u_j, as in equation (6); 'model'
      draws one u for the whole model.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_safl(epsilon=0.3, temperature=10),
      test_data=(x_test, y_test), rounds=3)
    result.frame[['p', 'kept_local', 'test_accuracy']]
    ```
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

  Clients start as in `build_safl` and upload with the probability q of
  equations (24) and (25), where h is a model's accuracy on the client's data:

      q = exp(-Δ/ν),   Δ = |h(z̄) - h(z)| / (h(z̄) + h(z))

  Args:
    epsilon: ε in [0, 1], the weight of z̄ in an element that is kept local.
    temperature: L > 0 of exp(-t/L).
    nu: ν > 0; a larger value uploads more.
    mix_granularity: 'element' (equation (6)) or 'model'.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_extended_safl(nu=0.5), rounds=3,
      config=safl_tf.LocalConfig(holdout=0.2))  # examples to measure h on
    result.frame[['uploaded', 'q_p50', 'bytes_up']]
    ```
  """
  return dataclasses.replace(
    build_safl(
      epsilon, temperature, mix_granularity, fraction, clients_per_round
    ),
    gate=gate.accuracy_gap(nu),
  )
