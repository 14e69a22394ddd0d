"""Argument checks that return the value or raise `InputError`."""

import difflib
import importlib.util
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from safl_tf.util import errors

MAX_SEED = 2**63 - 1

_ADDRESS = re.compile(r'([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})')
_NUMBER = re.compile(r'-?[0-9]+(\.[0-9]*)?')


class Range(NamedTuple):
  """The numbers that an argument accepts, see `real` and `integer`."""

  low: float
  high: float
  whole: bool = True
  open_low: bool = False
  open_high: bool = False


def _positive(high: float) -> Range:
  return Range(0, high, whole=False, open_low=True)


# Arguments and flags by name. Upper limits are far above sensible values, and
# low enough that nothing overflows or asks for absurd amounts of memory.
LIMITS = {
  'test_fraction': _positive(1),
  'num_clients': Range(1, 10**6),
  'num_classes': Range(2, 10**6),
  'mean_examples': _positive(1e9),
  'variance_examples': Range(0, 1e18, whole=False),
  'max_labels': Range(1, 10**6),
  'dirichlet_alpha': Range(1e-9, 1e9, whole=False),
  'shards_per_client': Range(1, 10**6),
  'quantity_sigma': Range(0, 100, whole=False),
  'biased_fraction': Range(0, 1, whole=False),
  'biased_label': Range(0, 10**6),
  'min_examples': Range(1, 10**9),
  'fraction': _positive(1),
  'clients_per_round': Range(1, 10**6),
  'epsilon': Range(0, 1, whole=False),
  'temperature': _positive(1e30),
  'nu': _positive(1e30),
  'holdout': _positive(0.9),
  'local_epochs': Range(1, 10**5),
  'batch_size': Range(1, 10**6),
  'learning_rate': _positive(1e38),
  'proximal_mu': Range(0, 1e6, whole=False),
  'feddyn_alpha': _positive(1e6),
  'trim_fraction': Range(0, 0.5, whole=False, open_high=True),
  'num_byzantine': Range(0, 10**6),
  'num_selected': Range(1, 10**6),
  'astw_base': Range(1, 1e6, whole=False),
  'fedma_gamma': _positive(1e30),
  'server_learning_rate': _positive(1e38),
  'server_beta_1': Range(0, 1, whole=False, open_high=True),
  'server_beta_2': Range(0, 1, whole=False, open_high=True),
  'server_tau': _positive(1e6),
  'attack_fraction': Range(0, 1, whole=False),
  'attack_strength': Range(0, 1e30, whole=False),
  'rounds': Range(1, 10**6),
  'seed': Range(0, MAX_SEED),
  'eval_every': Range(1, 10**9),
  'client_test_fraction': _positive(0.9),
  'eval_clients_every': Range(1, 10**9),
  'personalize_steps': Range(0, 10**5),
  'checkpoint_every': Range(1, 10**9),
  'keep_checkpoints': Range(1, 10**6),
  'stop_at_accuracy': Range(0, 1, whole=False),
  'stack': Range(1, 10**6),
  'ray_workers': Range(1, 10**5),
  'ray_cpus_per_worker': Range(1, 10**4),
  'ray_gpus_per_worker': Range(0, 64, whole=False),
  'ray_chunk': Range(1, 10**6),
  'ray_timeout': Range(1, 1e6, whole=False),
  'client': Range(0, 10**6 - 1),
  'round_timeout': Range(1, 1e7, whole=False),
  'max_wait': Range(1, 1e8, whole=False),
  'target_accuracy': _positive(1),
  'processes': Range(1, 10**4),
  'trials': Range(2, 10**6),
}


def limited(name: str, value: Any, limits: str | None = None) -> Any:
  """Returns a number within the limits of its name in `LIMITS`.

  Args:
    name: the argument, for the error.
    value: the number.
    limits: another name to look up.
  """
  low, high, whole, open_low, open_high = LIMITS[limits or name]
  if whole:
    return integer(name, value, low, high)
  return real(name, value, low, high, open_low, open_high)


def real(
  name: str,
  value: Any,
  low: float = -math.inf,
  high: float = math.inf,
  open_low: bool = False,
  open_high: bool = False,
) -> float:
  """Returns a finite number in [low, high], without an open end."""
  number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  valid = (
    number
    and (low < value if open_low else low <= value)
    and (value < high if open_high else value <= high)
    and -math.inf < value < math.inf
  )
  if not valid:
    interval = _interval(low, high, open_low, open_high)
    raise errors.InputError(
      name, _format_value(value, float), f'must be a number{interval}'
    )
  return float(value)


def integer(
  name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> int:
  """Returns an integer in [low, high]."""
  whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not whole or not low <= value <= high:
    interval = _interval(low, high)
    raise errors.InputError(
      name, _format_value(value, int), f'must be a whole number{interval}'
    )
  return int(value)


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
  """Returns one of the allowed names; the error suggests similar ones."""
  allowed = list(allowed)
  if value not in allowed:
    similar = difflib.get_close_matches(str(value), allowed, n=3, cutoff=0.4)
    hint = f'did you mean {" or ".join(similar)}? ' if similar else ''
    raise errors.InputError(
      name, value, f'{hint}must be one of {", ".join(allowed)}'
    )
  return value


def ray_address(name: str, value: Any) -> str:
  """Returns where a Ray cluster is: local, auto or HOST:PORT."""
  match = _ADDRESS.fullmatch(str(value))
  if value in ('local', 'auto') or (match and 0 < int(match[2]) < 2**16):
    return value
  raise errors.InputError(name, value, 'must be local, auto or HOST:PORT')


class Address(NamedTuple):
  """A host and a port."""

  host: str
  port: int

  def __str__(self) -> str:
    host = f'[{self.host}]' if ':' in self.host else self.host
    return f'{host}:{self.port}'


def parse_address(name: str, value: str) -> Address:
  """Parses HOST:PORT, or [HOST]:PORT for IPv6."""
  match = _ADDRESS.fullmatch(str(value))
  if match is None or not 1 <= int(match[2]) <= 65535:
    hint = 'must be HOST:PORT, such as 127.0.0.1:9092, with a port up to 65535'
    raise errors.InputError(name, value, hint)
  return Address(match[1].strip('[]'), int(match[2]))


def installed(
  name: str, value: Any, extra: str, package: str | None = None
) -> None:
  """Refuses a value that needs a package of an extra of this one.

  Args:
    name: of the argument.
    value: that needs it.
    extra: of setup.cfg.
    package: what it installs, if its name is another one.
  """
  package = package or extra
  if importlib.util.find_spec(package) is None:
    hint = f"needs the package {package}: pip install 'safl_tf[{extra}]'"
    raise errors.InputError(name, value, hint)


def instance(
  name: str,
  value: Any,
  kind: type | tuple[type, ...],
  takes: str,
  optional: bool = False,
) -> Any:
  """Returns an instance of a class, or None if that is allowed.

  Args:
    name: of the argument.
    value: what was given.
    kind: the class or classes.
    takes: what the argument takes, for the error message.
    optional: whether None is allowed.
  """
  own = isinstance(value, kind) and not isinstance(value, type)
  if own or (optional and value is None):
    return value
  plain = value is None or isinstance(value, str | int | float)
  text = value if plain else type(value).__name__
  raise errors.InputError(name, text, f'must be {takes}')


def call(function: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
  """Calls a function with those of a program's settings that it accepts.

  Not for arguments of users, of which none may be passed over.
  """
  accepted = function.__annotations__
  return function(**{k: v for k, v in settings.items() if k in accepted})


def _format_value(value: Any, kind: type) -> Any:
  """Returns the value; with quotes if it is the text of such a number."""
  match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
  return repr(value) if match and not (kind is int and match[1]) else value


def _interval(
  low: float, high: float, open_low: bool = False, open_high: bool = False
) -> str:
  """Formats an interval: ' in (0, 1]', ' >= 1', ' > 0' or ''."""
  if math.isinf(low) and math.isinf(high):
    return ''
  if math.isinf(high):
    return f' {">" if open_low else ">="} {low}'
  if math.isinf(low):
    return f' {"<" if open_high else "<="} {high}'
  left, right = '(' if open_low else '[', ')' if open_high else ']'
  return f' in {left}{low}, {high}{right}'
