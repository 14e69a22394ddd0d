"""FedProx (Li et al. 2020), alone and with the clients of other algorithms."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import client_work


@algorithm.published('fedprox')
def build_fed_prox(
  proximal_mu: float | None = None,
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds FedProx: FedAvg whose clients are pulled to the global model.

  The pull is that of `client_work.proximal` (Li et al. 2020).

  Args:
    proximal_mu: μ ≥ 0 of the term μ/2·‖w - z̄‖²; 0.01 if None.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_fed_prox(proximal_mu=0.1), rounds=3)
    ```
  """
  return with_proximal(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    0.01 if proximal_mu is None else proximal_mu,
  )


def with_proximal(
  rules: algorithm.Algorithm, proximal_mu: float
) -> algorithm.Algorithm:
  """Adds FedProx's pull to an algorithm's client work; 0 adds nothing."""
  pull = client_work.proximal(proximal_mu)
  if not proximal_mu:
    return rules
  work = client_work.compose(rules.client_work, pull)
  return dataclasses.replace(rules, client_work=work)
