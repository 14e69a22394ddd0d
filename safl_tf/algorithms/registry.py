"""Algorithms and aggregators by name."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from safl_tf.algorithms import astw, baselines, fed_avg, fed_sgd, ida, safl
from safl_tf.algorithms.fed_ma import build as fed_ma
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.rules import aggregate
from safl_tf.util import choices, errors, validation


def _ida(
  ida_reference: str = 'mean', ida_norm: str = 'l2'
) -> algorithm_lib.Aggregator:
  return aggregate.inverse_distance(ida_reference, ida_norm)


def _astw(
  astw_base: float = math.e / 2, astw_layerwise: bool | None = None
) -> algorithm_lib.Aggregator:
  return aggregate.temporal(astw_base, bool(astw_layerwise))


BUILDERS: dict[str, Callable[..., algorithm_lib.Algorithm]] = {
  'centralized': baselines.build_centralized,
  'local_only': baselines.build_local_only,
  'fedsgd': fed_sgd.build_fed_sgd,
  'fedavg': fed_avg.build_fed_avg,
  'safl': safl.build_safl,
  'extended_safl': safl.build_extended_safl,
  'ida': ida.build_ida,
  'ida_safl': ida.build_ida_safl,
  'astw': astw.build_astw,
  'astw_safl': astw.build_astw_safl,
  'fedma': fed_ma.build_fed_ma,
}

AGGREGATORS: dict[str, Callable[..., algorithm_lib.Aggregator]] = {
  'size': aggregate.by_size,
  'median': aggregate.coordinate_median,
  'trimmed_mean': aggregate.trimmed_mean,
  'krum': aggregate.krum,
  'multi_krum': aggregate.multi_krum,
  'geometric_median': aggregate.geometric_median,
  'ida': _ida,
  'astw': _astw,
}


def build(
  name: str,
  *,
  aggregator: str = 'auto',
  server_optimizer: str = 'none',
  **arguments: Any,
) -> algorithm_lib.Algorithm:
  """Builds an algorithm by name; arguments it does not take are ignored.

  Args:
    name: one of `choices.ALGORITHMS`.
    aggregator: one of `choices.AGGREGATORS`; 'auto' is the algorithm's own.
    server_optimizer: one of `choices.SERVER_OPTIMIZERS`, which steps along the
      aggregator's change of z̄; 'none' adopts the aggregate as it is.
    **arguments: of the algorithm, the aggregator and the server optimizer,
      which takes those that start with `server_`.
  """
  validation.choice('algorithm', name, choices.ALGORITHMS)
  validation.choice('aggregator', aggregator, choices.AGGREGATORS)
  validation.choice(
    'server_optimizer', server_optimizer, ('none', *choices.SERVER_OPTIMIZERS)
  )
  algorithm = validation.call(BUILDERS[name], arguments)
  for flag, value, unset in (
    ('aggregator', aggregator, 'auto'),
    ('server_optimizer', server_optimizer, 'none'),
  ):
    if value != unset and algorithm.driver is not None:
      raise errors.InputError(
        flag, value, 'FedMA is an aggregator; it takes no other'
      )
  if aggregator != 'auto':
    rule = validation.call(AGGREGATORS[aggregator], arguments)
    algorithm = dataclasses.replace(algorithm, aggregate=rule)
  if server_optimizer != 'none':
    own = {
      key.removeprefix('server_'): value
      for key, value in arguments.items()
      if key.startswith('server_')
    }
    rule = aggregate.server_optimizer(
      algorithm.aggregate, server_optimizer, **own
    )
    algorithm = dataclasses.replace(algorithm, aggregate=rule)
  return algorithm
