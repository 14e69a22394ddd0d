"""Short descriptions for readers: rules with their settings, tables in HTML.

`describe` has the complete ones, by which runs are recognised.
"""

import dataclasses
import html
import types
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = (bool, int, float, str)


def settings(value: Any) -> dict[str, Any]:
  """Returns the numbers and texts by which rules were built.

  They are the variables that functions close over, and the fields of data
  classes, by name; those that are None are left out.
  """
  return dict(_settings(value, set()))


def label(rule: Any) -> str:
  """Returns a rule as `anneal(epsilon=0.3, ...)`."""
  values = settings(rule).items()
  return f'{_name(rule)}({", ".join(f"{k}={v!r}" for k, v in values)})'


def plain(value: Any) -> Any:
  """Returns a number, a text or None as it is, and of other values a name."""
  if value is None or isinstance(value, _PLAIN):
    return value
  return getattr(value, '__name__', type(value).__name__)


def html_table(title: str, rows: Mapping[str, Any]) -> str:
  """Returns a title and rows of names and values, for notebooks."""
  cells = ''.join(
    f'<tr><th style="text-align:left">{html.escape(name)}</th>'
    f'<td style="text-align:left">{html.escape(str(value))}</td></tr>'
    for name, value in rows.items()
  )
  return f'<b>{html.escape(title)}</b><table>{cells}</table>'


def _settings(value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
  if id(value) in seen:
    return
  seen.add(id(value))
  for name, inner in _inner(value):
    if isinstance(inner, _PLAIN):
      if name:
        yield name, inner
    else:
      yield from _settings(inner, seen)


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
  """Yields what a rule consists of, by name where it has one."""
  if isinstance(value, types.FunctionType) and value.__closure__:
    names = value.__code__.co_freevars
    for name, cell in zip(names, value.__closure__, strict=True):
      try:
        yield name, cell.cell_contents
      except ValueError:  # not assigned yet
        continue
  elif isinstance(value, tuple):
    yield from (('', inner) for inner in value)
  elif dataclasses.is_dataclass(value) and not isinstance(value, type):
    for field in dataclasses.fields(value):
      yield field.name, getattr(value, field.name)


def _name(rule: Any) -> str:
  """Returns the name of the function that built a rule."""
  if isinstance(rule, tuple):  # a gate, an aggregator, client work
    defaults = getattr(rule, '_field_defaults', {}).values()
    own = [f for f in rule if callable(f) and f not in defaults]
    rule = own[0] if own else rule
  given = getattr(rule, 'safl_tf_name', None)
  if given is not None:
    return f'named {given!r}'
  name = getattr(rule, '__qualname__', type(rule).__qualname__).split('.')[0]
  if name.startswith('_'):
    name = rule.__module__.split('.')[-1]
  return name.removeprefix('build_')
