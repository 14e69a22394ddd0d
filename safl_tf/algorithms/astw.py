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

  Args:
    astw_base: the factor by which an upload's weight shrinks in every round.
    astw_layerwise: whether clients upload deep layers in only a third of the
      rounds; True if None.
    fraction: R, the share of clients in a round.
    clients_per_round: s, their number, instead of R.
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

  `astw_layerwise` is False if None: the paper composes the weights only.
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
