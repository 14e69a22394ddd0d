"""FedAvg (McMahan et al. 2017)."""

from safl_tf.core import algorithm
from safl_tf.rules import aggregate, gate, mix, select


@algorithm.published('fedavg')
def build_fed_avg(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds FedAvg, equations (2)-(4) of the paper (McMahan et al. 2017).

      w_k = z̄,   z̄ ← Σ_k η_k z_k,   η_k = m_k / Σ_j m_j over the uploads

  Args:
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_fed_avg(clients_per_round=2),
      test_data=(x_test, y_test), rounds=3)
    result.frame[['selected', 'uploaded', 'test_accuracy']]
    ```
  """
  return algorithm.Algorithm(
    select=select.uniform(fraction, clients_per_round),
    mix=mix.replace(),
    gate=gate.always(),
    aggregate=aggregate.by_size(),
  )
