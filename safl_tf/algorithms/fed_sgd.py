"""FedSGD (McMahan et al. 2017)."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import client_work, gate, mix


@algorithm.published('fedsgd')
def build_fed_sgd(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds FedSGD (McMahan et al. 2017).

      w ← w - α·Σ_k (m_k/Σ m)·g_k

  g_k is the gradient of the mean loss over all data of client k at the global
  model w, whatever the local epochs and the loss reduction are. Clients have no
  models of their own: rules that mix or gate are refused.

  Args:
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_fed_sgd(), rounds=3,
      config=safl_tf.LocalConfig(local_epochs=1, learning_rate=0.5))
    ```
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    client_work=client_work.one_step(),
    shared_start=True,
    validate=_validate,
  )


def _validate(rules: algorithm.Algorithm) -> None:
  hint = (
    'FedSGD uploads gradients at the global model, which clients neither mix '
    'with a model of their own nor withhold'
  )
  algorithm.require_default(rules, 'mix', mix.replace(), hint)
  algorithm.require_default(rules, 'gate', gate.always(), hint)
