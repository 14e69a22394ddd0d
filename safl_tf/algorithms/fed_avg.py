"""FedAvg (McMahan et al. 2017)."""

from safl_tf.core import algorithm
from safl_tf.rules import aggregate, gate, mix, select


@algorithm.published('fedavg')
def build_fed_avg(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds FedAvg, equations (2)-(4).

  Args:
    fraction: R, the share of clients in a round.
    clients_per_round: s, their number, instead of R.
  """
  return algorithm.Algorithm(
    select=select.uniform(fraction, clients_per_round),
    mix=mix.replace(),
    gate=gate.always(),
    aggregate=aggregate.by_size(),
  )
