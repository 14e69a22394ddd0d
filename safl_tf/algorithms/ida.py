"""IDA (Yeganeh et al. 2020), alone and with SAFL's clients."""

import dataclasses

from safl_tf.algorithms import fed_avg, safl
from safl_tf.core import algorithm
from safl_tf.rules import aggregate


@algorithm.published('ida')
def build_ida(
  ida_reference: str = 'mean',
  ida_norm: str = 'l2',
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds IDA: FedAvg that weights uploads by inverse distance.

  The server averages with `aggregate.inverse_distance` (Yeganeh et al. 2020).

  Args:
    ida_reference: the point distances are measured from: the plain 'mean' of
      the uploads, or their mean weighted by 'size'.
    ida_norm: 'l2' or 'l1'.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_ida(ida_norm='l1'), rounds=3)
    ```
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    aggregate=aggregate.inverse_distance(ida_reference, ida_norm),
  )


@algorithm.published('ida_safl')
def build_ida_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  ida_reference: str = 'mean',
  ida_norm: str = 'l2',
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds IDA-SAFL: SAFL's clients with IDA's server.

  Args:
    epsilon: ε, see `build_safl`.
    temperature: L, see `build_safl`.
    mix_granularity: see `build_safl`.
    ida_reference: see `build_ida`.
    ida_norm: see `build_ida`.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_ida_safl(temperature=10), rounds=3)
    ```
  """
  return dataclasses.replace(
    safl.build_safl(
      epsilon, temperature, mix_granularity, fraction, clients_per_round
    ),
    aggregate=aggregate.inverse_distance(ida_reference, ida_norm),
  )
