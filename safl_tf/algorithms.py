"""Named compositions of rules."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

from safl_tf import checks, errors, names
from safl_tf.rules import fuse as fuse_rules
from safl_tf.rules import gate as gate_rules
from safl_tf.rules import match as match_rules
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
    one_step: whether a device takes one step, with the gradient of all its
      data, from the one model there is (FedSGD), instead of E epochs.
    pooled: whether one device holds the data of all (centralised training).
    alone: whether devices hear nothing of each other (local training); z̄ is
      then no more than the average of their models, and what is evaluated is
      every device's own.
    match: FedMA's matching, in place of `fuse`.
  """

  select: select_rules.Select = dataclasses.field(
    default_factory=select_rules.uniform
  )
  mix: mix_rules.Mix = dataclasses.field(default_factory=mix_rules.replace)
  gate: gate_rules.Gate = dataclasses.field(default_factory=gate_rules.always)
  fuse: fuse_rules.Fuse = dataclasses.field(default_factory=fuse_rules.by_size)
  one_step: bool = False
  pooled: bool = False
  alone: bool = False
  match: match_rules.Match | None = None

  def __post_init__(self) -> None:
    mix, gate, fuse = (
      _describe(rule) == _describe(default)
      for rule, default in (
        (self.mix, mix_rules.replace()),
        (self.gate, gate_rules.always()),
        (self.fuse, fuse_rules.by_size()),
      )
    )
    if self.one_step and not (mix and gate):
      _refuse(
        'one_step',
        'FedSGD sends gradients at one common model, which devices neither mix '
        'with a model of their own nor withhold',
      )
    if self.match is None:
      return
    if self.one_step or self.pooled or self.alone or not fuse:
      _refuse('match', 'FedMA is a fusion of its own; give no other')
    if self.match.matching == 'bbp' and not (mix and gate):
      _refuse(
        'match',
        "FedMA with 'bbp' changes the layers' widths, and models of different "
        'shapes can be neither mixed nor compared; replace mix and gate only '
        "with matching='hungarian' and schedule='oneshot'",
      )
    if self.match.schedule == 'layerwise' and not (mix and gate):
      _refuse(
        'match',
        'FedMA with a layerwise schedule has no whole global model within a '
        "pass to mix or compare with; use schedule='oneshot'",
      )

  @property
  def communicates(self) -> bool:
    """Whether anything passes between devices and a server."""
    return not (self.pooled or self.alone)

  @property
  def freezes(self) -> bool:
    """Whether devices train only a part of their layers."""
    return self.match is not None and self.match.schedule == 'layerwise'


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


def build_centralized() -> Algorithm:
  """The paper's upper baseline: one device with all data, E epochs a round."""
  return Algorithm(pooled=True)


def build_local_only(
  fraction: float = 1.0, devices_per_round: int | None = None
) -> Algorithm:
  """Every device by itself: SAFL with ε = 0 and p = 1.

  Args:
    fraction: R, the share of devices that train in a round.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round),
    mix=mix_rules.keep(),
    alone=True,
  )


def build_fed_sgd(
  fraction: float = 1.0, devices_per_round: int | None = None
) -> Algorithm:
  """FedSGD (McMahan et al. 2017): w ← w - α·Σ_k (m_k/Σ m)·g_k.

  g_k is the gradient of the mean loss over all data of device k at the one
  model w, whatever the local epochs and the loss's reduction are set to. There
  are no initial models of the devices' own.

  Args:
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round), one_step=True
  )


def build_ida(
  ida_reference: str = 'mean',
  ida_norm: str = 'l2',
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """IDA (Yeganeh et al. 2020): FedAvg that weighs by inverse distance.

  Args:
    ida_reference: of the distances: the 'mean' of the received models, or
      their mean by 'size'.
    ida_norm: 'l2' or 'l1'.
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round),
    fuse=_ida(ida_reference, ida_norm),
  )


def build_ida_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  ida_reference: str = 'mean',
  ida_norm: str = 'l2',
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """IDA-SAFL: SAFL's devices and IDA's server; see those two."""
  return dataclasses.replace(
    build_safl(
      epsilon, temperature, mix_granularity, fraction, devices_per_round
    ),
    fuse=_ida(ida_reference, ida_norm),
  )


def build_astw(
  astw_base: float = math.e / 2,
  astw_layerwise: bool | None = None,
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """ASTW (Chen, Sun, Jin 2020): all last uploads, old ones weigh less.

  Args:
    astw_base: what an upload's weight is divided by in every round.
    astw_layerwise: whether deep layers are exchanged in a third of the rounds
      only; True if None.
    fraction: R, the share of devices that take part in a round.
    devices_per_round: s, their number, instead of R.
  """
  layerwise = True if astw_layerwise is None else astw_layerwise
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round),
    fuse=_astw(astw_base, layerwise),
  )


def build_astw_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  astw_base: float = math.e / 2,
  astw_layerwise: bool | None = None,
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """ASTW-SAFL: SAFL's devices and ASTW's server; see those two.

  `astw_layerwise` is False if None: the paper composes the weights only.
  """
  return dataclasses.replace(
    build_safl(
      epsilon, temperature, mix_granularity, fraction, devices_per_round
    ),
    fuse=_astw(astw_base, astw_layerwise),
  )


def build_fed_ma(
  fedma_matching: str = 'hungarian',
  fedma_schedule: str = 'layerwise',
  fedma_average: str = 'mean',
  fedma_gamma: float = 7.0,
  fraction: float = 1.0,
  devices_per_round: int | None = None,
) -> Algorithm:
  """FedMA (Wang, Yurochkin et al. 2020): matched averaging.

  Args:
    fedma_matching: 'hungarian' keeps widths, 'bbp' may grow layers.
    fedma_schedule: 'layerwise' or 'oneshot'.
    fedma_average: 'mean' or 'map'.
    fedma_gamma: how readily 'bbp' opens units.
    fraction: R, the share of devices that take part in a pass.
    devices_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    build_fed_avg(fraction, devices_per_round),
    match=match_rules.Match(
      fedma_matching, fedma_schedule, fedma_average, gamma=fedma_gamma
    ),
  )


def _ida(ida_reference: str = 'mean', ida_norm: str = 'l2') -> fuse_rules.Fuse:
  return fuse_rules.inverse_distance(ida_reference, ida_norm)


def _astw(
  astw_base: float = math.e / 2, astw_layerwise: bool | None = None
) -> fuse_rules.Fuse:
  return fuse_rules.temporal(astw_base, bool(astw_layerwise))


BUILDERS: dict[str, Callable[..., Algorithm]] = {
  'centralized': build_centralized,
  'local_only': build_local_only,
  'fedsgd': build_fed_sgd,
  'fedavg': build_fed_avg,
  'safl': build_safl,
  'extended_safl': build_extended_safl,
  'ida': build_ida,
  'ida_safl': build_ida_safl,
  'astw': build_astw,
  'astw_safl': build_astw_safl,
  'fedma': build_fed_ma,
}

FUSIONS: dict[str, Callable[..., fuse_rules.Fuse]] = {
  'size': fuse_rules.by_size,
  'median': fuse_rules.coordinate_median,
  'trimmed_mean': fuse_rules.trimmed_mean,
  'krum': fuse_rules.krum,
  'multi_krum': fuse_rules.multi_krum,
  'geometric_median': fuse_rules.geometric_median,
  'ida': _ida,
  'astw': _astw,
}


def build(
  name: str,
  *,
  fusion: str = 'auto',
  server_optimizer: str = 'none',
  **arguments: Any,
) -> Algorithm:
  """An algorithm by its name; arguments it doesn't take are passed over.

  Args:
    name: one of `names.ALGORITHMS`.
    fusion: one of `names.FUSIONS` in place of the algorithm's own, 'auto'.
    server_optimizer: one of `names.SERVER_OPTIMIZERS`, which takes what the
      fusion gives as the direction of its step; 'none' adopts it.
    **arguments: of the algorithm, the fusion and the server's optimizer, which
      is passed those that start with `server_`.
  """
  checks.choice('algorithm', name, names.ALGORITHMS)
  checks.choice('fusion', fusion, names.FUSIONS)
  checks.choice(
    'server_optimizer', server_optimizer, ('none', *names.SERVER_OPTIMIZERS)
  )
  algorithm = checks.call(BUILDERS[name], arguments)
  for flag, value, unset in (
    ('fusion', fusion, 'auto'),
    ('server_optimizer', server_optimizer, 'none'),
  ):
    if value != unset and algorithm.match is not None:
      raise errors.InputError(flag, value, 'FedMA is a fusion of its own')
  if fusion != 'auto':
    fuse = checks.call(FUSIONS[fusion], arguments)
    algorithm = dataclasses.replace(algorithm, fuse=fuse)
  if server_optimizer != 'none':
    own = {
      key.removeprefix('server_'): value
      for key, value in arguments.items()
      if key.startswith('server_')
    }
    fuse = fuse_rules.server_optimizer(algorithm.fuse, server_optimizer, **own)
    algorithm = dataclasses.replace(algorithm, fuse=fuse)
  return algorithm


def describe(algorithm: Algorithm) -> dict[str, str]:
  """The rules in words, such as `anneal.mix(epsilon=0.3, ...)`.

  Two algorithms that are made by the same factories with the same numbers have
  the same description; a run's folder is known by it.
  """
  return {
    field.name: _describe(getattr(algorithm, field.name))
    for field in dataclasses.fields(algorithm)
  }


def _refuse(argument: str, reason: str) -> None:
  raise errors.InputError(argument, 'with these rules', reason)


def _describe(rule: Any) -> str:
  if dataclasses.is_dataclass(rule):
    return repr(rule)
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
