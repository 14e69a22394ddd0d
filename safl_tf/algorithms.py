"""Named compositions of the four rules."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from safl_tf import checks, names
from safl_tf.rules import fuse as fuse_rules
from safl_tf.rules import gate as gate_rules
from safl_tf.rules import mix as mix_rules
from safl_tf.rules import select as select_rules


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A federated algorithm: four rules that know nothing of each other.

  Another algorithm is this one with a rule replaced:

    dataclasses.replace(build_safl(), gate=gate.accuracy_gap(nu=0.2))

  Attributes:
    select: (seed, t, n) -> ids of the devices that take part.
    mix: (seed, t, z_bar, z) -> what a device starts from.
    gate: whether a device uploads what it trained.
    fuse: how the server makes z̄ of the uploads.
  """

  select: select_rules.Select = dataclasses.field(
    default_factory=select_rules.uniform
  )
  mix: mix_rules.Mix = dataclasses.field(default_factory=mix_rules.replace)
  gate: gate_rules.Gate = dataclasses.field(default_factory=gate_rules.always)
  fuse: fuse_rules.Fuse = dataclasses.field(default_factory=fuse_rules.by_size)


def build_fed_avg(
  fraction: float = 1.0, devices_per_round: int | None = None
) -> Algorithm:
  """FedAvg (McMahan et al. 2017), equations (2)-(4).

  Args:
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  return Algorithm(select=select_rules.uniform(fraction, devices_per_round))


def build_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """SAFL, Algorithm 1 of the paper.

  Args:
    epsilon: ε, the weight of z̄ in an element that is kept local.
    temperature: L of p = exp(-t/L).
    mix_granularity: 'element' (equation (6)) or 'model'.
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round),
    mix=mix_rules.anneal(epsilon, temperature, mix_granularity),
  )


def build_extended_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  nu: float = 0.5,
  mix_granularity: str = 'element',
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """Extended SAFL, Algorithm 2: SAFL whose devices may withhold an update.

  Args:
    epsilon: ε, the weight of z̄ in an element that is kept local.
    temperature: L of p = exp(-t/L).
    nu: ν of q = exp(-Δ/ν).
    mix_granularity: 'element' (equation (6)) or 'model'.
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_safl(
      epsilon, temperature, mix_granularity, fraction, devices_per_round
    ),
    gate=gate_rules.accuracy_gap(nu),
  )


BUILDERS: dict[str, Callable[..., Algorithm]] = {
  'fedavg': build_fed_avg,
  'safl': build_safl,
  'extended_safl': build_extended_safl,
}


def build(name: str, **arguments: Any) -> Algorithm:
  """An algorithm by its name; arguments it doesn't take are passed over."""
  builder = BUILDERS[checks.choice('algorithm', name, names.ALGORITHMS)]
  known = builder.__annotations__
  return builder(**{k: v for k, v in arguments.items() if k in known})


def describe(algorithm: Algorithm) -> dict[str, str]:
  """The rules in words, such as `anneal.mix(epsilon=0.3, ...)`.

  Two algorithms that are made by the same factories with the same numbers have
  the same description; a run's folder is known by it.
  """
  return {
    field.name: _describe(getattr(algorithm, field.name))
    for field in dataclasses.fields(algorithm)
  }


def _describe(rule: Any) -> str:
  if isinstance(rule, tuple):  # a gate or a fusion: functions and settings
    return ', '.join(map(_describe, rule))
  if rule is None or isinstance(rule, (bool, int, float, str)):
    return repr(rule)
  if not inspect.isfunction(rule):
    return type(rule).__name__
  closed = inspect.getclosurevars(rule).nonlocals
  settings = ', '.join(
    f'{name}={_describe(value)}' for name, value in sorted(closed.items())
  )
  return f'{rule.__qualname__.replace(".<locals>", "")}({settings})'
