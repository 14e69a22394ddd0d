"""Argument checks that return the value or raise `InputError`."""

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from safl_tf.util import errors


def real(
  name: str,
  value: Any,
  low: float = -math.inf,
  high: float = math.inf,
  open_low: bool = False,
) -> float:
  """Returns a finite number in [low, high], or (low, high] with `open_low`."""
  number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  valid = (
    number
    and math.isfinite(value)
    and (low < value if open_low else low <= value)
    and value <= high
  )
  if not valid:
    raise errors.InputError(
      name,
      _shown(value, float),
      f'must be a number{_interval(low, high, open_low)}',
    )
  return float(value)


def integer(
  name: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> int:
  """Returns an integer in [low, high]."""
  whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not whole or not low <= value <= high:
    raise errors.InputError(
      name,
      _shown(value, int),
      f'must be a whole number{_interval(low, high, False)}',
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
  shown = value if plain else type(value).__name__
  raise errors.InputError(name, shown, f'must be {takes}')


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
  """Calls a function with those arguments that it accepts, by name."""
  accepted = function.__annotations__
  return function(**{k: v for k, v in arguments.items() if k in accepted})


def _shown(value: Any, number: Callable[[str], float]) -> Any:
  """Returns the value; with quotes if it is the text of a number."""
  if not isinstance(value, str):
    return value
  try:
    number(value)
  except ValueError:
    return value
  return repr(value)


def _interval(low: float, high: float, open_low: bool) -> str:
  """Formats an interval: ' in (0, 1]', ' >= 1', ' > 0' or ''."""
  if math.isinf(low) and math.isinf(high):
    return ''
  if math.isinf(high):
    return f' {">" if open_low else ">="} {low}'
  if math.isinf(low):
    return f' <= {high}'
  return f' in {"(" if open_low else "["}{low}, {high}]'
