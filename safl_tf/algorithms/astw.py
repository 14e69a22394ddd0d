"""ASTW (Chen, Sun, Jin 2020), alone and with SAFL's clients."""

import dataclasses
import math

from safl_tf.algorithms import fed_avg, safl
from safl_tf.core import algorithm
from safl_tf.rules import aggregate
from safl_tf.util import validation


@algorithm.published('astw')
def build_astw(
  astw_base: float = math.e / 2,
  astw_layerwise: bool | None = None,
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds ASTW: averages every client's last upload, older ones weigh less.

  The server averages with `aggregate.temporal` (Chen, Sun and Jin 2020).

  Args:
    astw_base: a ≥ 1, the factor by which an upload's weight shrinks per round.
    astw_layerwise: whether clients upload deep layers in only a third of the
      rounds; True if None.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_astw(clients_per_round=2), rounds=3)
    result.frame['bytes_up']  # less in rounds without deep layers
    ```
  """
  layerwise = _layerwise(astw_layerwise, default=True)
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    aggregate=aggregate.temporal(astw_base, layerwise),
  )


@algorithm.published('astw_safl')
def build_astw_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  astw_base: float = math.e / 2,
  astw_layerwise: bool | None = None,
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds ASTW-SAFL: SAFL's clients with ASTW's server.

  Args:
    epsilon: ε, see `build_safl`.
    temperature: L, see `build_safl`.
    mix_granularity: see `build_safl`.
    astw_base: a, see `build_astw`.
    astw_layerwise: see `build_astw`; False if None, as the paper composes the
      weights only.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_astw_safl(temperature=10), rounds=3)
    ```
  """
  return dataclasses.replace(
    safl.build_safl(
      epsilon, temperature, mix_granularity, fraction, clients_per_round
    ),
    aggregate=aggregate.temporal(
      astw_base, _layerwise(astw_layerwise, default=False)
    ),
  )


def _layerwise(given: bool | None, default: bool) -> bool:
  takes = 'True, False or None'
  validation.instance('astw_layerwise', given, bool, takes, optional=True)
  return default if given is None else given
