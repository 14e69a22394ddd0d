"""Algorithms and aggregators by name."""

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from safl_tf.algorithms import (
  astw,
  baselines,
  fed_avg,
  fed_dyn,
  fed_prox,
  fed_sgd,
  ida,
  safl,
  scaffold,
)
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


_PROXIMAL = 'proximal_mu'

BUILDERS: dict[str, Callable[..., algorithm_lib.Algorithm]] = {
  'centralized': baselines.build_centralized,
  'local_only': baselines.build_local_only,
  'fedsgd': fed_sgd.build_fed_sgd,
  'fedavg': fed_avg.build_fed_avg,
  'fedprox': fed_prox.build_fed_prox,
  'safl': safl.build_safl,
  'extended_safl': safl.build_extended_safl,
  'ida': ida.build_ida,
  'ida_safl': ida.build_ida_safl,
  'astw': astw.build_astw,
  'astw_safl': astw.build_astw_safl,
  'fedma': fed_ma.build_fed_ma,
  'scaffold': scaffold.build_scaffold,
  'scaffold_safl': scaffold.build_scaffold_safl,
  'feddyn': fed_dyn.build_fed_dyn,
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


def arguments(
  name: str, aggregator: str = 'auto', server_optimizer: str = 'none'
) -> tuple[str, ...]:
  """Returns the names of the arguments that have an effect in `build`."""
  names = _parameters(BUILDERS[name])
  if aggregator != 'auto':
    replaced = {n for rule in AGGREGATORS.values() for n in _parameters(rule)}
    names = [n for n in names if n not in replaced]
    names += _parameters(AGGREGATORS[aggregator])
  for own in aggregate.OPTIMIZER_ARGUMENTS.get(server_optimizer, ()):
    names.append(f'server_{own}')
  if _PROXIMAL not in names and _takes_proximal(BUILDERS[name]()):
    names.append(_PROXIMAL)
  return tuple(names)


def build(
  name: str,
  *,
  aggregator: str = 'auto',
  server_optimizer: str = 'none',
  **options: Any,
) -> algorithm_lib.Algorithm:
  """Builds an algorithm by name; options without an effect are refused.

  Args:
    name: one of `choices.ALGORITHMS`.
    aggregator: one of `choices.AGGREGATORS`; 'auto' is the algorithm's own.
    server_optimizer: one of `choices.SERVER_OPTIMIZERS`, which steps along the
      aggregator's change of z̄; 'none' adopts the aggregate as it is.
    **options: of the algorithm, the aggregator and the server optimizer, which
      takes those that start with `server_`; and `proximal_mu`, FedProx's pull
      with the clients of any algorithm; see `arguments`.
  """
  validation.choice('algorithm', name, choices.ALGORITHMS)
  validation.choice('aggregator', aggregator, choices.AGGREGATORS)
  validation.choice(
    'server_optimizer', server_optimizer, ('none', *choices.SERVER_OPTIMIZERS)
  )
  _check_options(options, name, aggregator, server_optimizer)
  algorithm = validation.call(BUILDERS[name], options)
  if _PROXIMAL not in _parameters(BUILDERS[name]):
    mu = options.get(_PROXIMAL) or 0.0
    algorithm = fed_prox.with_proximal(algorithm, mu)
  if aggregator != 'auto':
    _check_has_server(algorithm, 'aggregator', aggregator)
    if algorithm.pooled:
      hint = 'has no effect: there is one client, which holds all data'
      raise errors.InputError('aggregator', aggregator, hint)
    if algorithm.client_work.init is not algorithm_lib.no_arrays:
      hint = f'{name} has an aggregator of its own; it takes no other'
      raise errors.InputError('aggregator', aggregator, hint)
    rule = validation.call(AGGREGATORS[aggregator], options)
    algorithm = dataclasses.replace(algorithm, aggregate=rule)
  if server_optimizer != 'none':
    _check_has_server(algorithm, 'server_optimizer', server_optimizer)
    rule = _with_optimizer(algorithm.aggregate, server_optimizer, options)
    algorithm = dataclasses.replace(algorithm, aggregate=rule)
  return algorithm_lib.with_name(name, algorithm)


def _check_options(
  options: Mapping[str, Any], name: str, aggregator: str, optimizer: str
) -> None:
  """Refuses options that the algorithm and its rules do not take."""
  taken = arguments(name, aggregator, optimizer)
  for option, value in options.items():
    if option in taken:
      continue
    chosen = f'{name}, aggregator={aggregator}, server_optimizer={optimizer}'
    takes = f'{chosen} takes {", ".join(taken) or "no options"}'
    if users := _users(option):
      hint = f'has no effect: {takes}; it is for {", ".join(users)}'
    else:
      near = difflib.get_close_matches(option, taken, n=2)
      hint = f'did you mean {" or ".join(near)}? ' if near else ''
      hint += f'no such option; {takes}'
    raise errors.InputError(option, value, hint)


def _users(option: str) -> list[str]:
  """Returns the algorithms and rules that take an option."""
  servers = aggregate.OPTIMIZER_ARGUMENTS.items()
  return [
    *(n for n in BUILDERS if option in arguments(n)),
    *(
      f'aggregator={n}'
      for n, rule in AGGREGATORS.items()
      if option in _parameters(rule)
    ),
    *(
      f'server_optimizer={n}'
      for n, names in servers
      if option in [f'server_{own}' for own in names]
    ),
  ]


def _check_has_server(
  algorithm: algorithm_lib.Algorithm, argument: str, value: str
) -> None:
  """Refuses a server's rule for algorithms that have no use for it."""
  if algorithm.driver is not None:
    hint = 'FedMA is an aggregator; it takes no other'
    raise errors.InputError(argument, value, hint)
  if algorithm.alone:
    hint = 'has no effect: clients never receive the global model'
    raise errors.InputError(argument, value, hint)


def _takes_proximal(algorithm: algorithm_lib.Algorithm) -> bool:
  """Returns whether clients take steps during which z̄ can pull them."""
  return not (algorithm.alone or algorithm.client_work.full_batch)


def _with_optimizer(
  inner: algorithm_lib.Aggregator, name: str, options: Mapping[str, Any]
) -> algorithm_lib.Aggregator:
  own = {
    key.removeprefix('server_'): value
    for key, value in options.items()
    if key.startswith('server_')
  }
  try:
    return aggregate.server_optimizer(inner, name, **own)
  except errors.InputError as error:
    argument = f'server_{error.argument}'
    raise errors.InputError(argument, error.value, error.hint) from error


def _parameters(function: Callable[..., Any]) -> list[str]:
  return list(inspect.signature(function).parameters)
