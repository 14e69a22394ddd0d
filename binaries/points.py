"""The settings of a sweep: values of flags, from --grid and --point."""

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Collection
from typing import Any, NamedTuple

from absl import flags as absl_flags

from safl_tf.util import errors

from .flags.data import Data
from .flags.run_config import RunConfig

# Flags that cannot be swept, and why.
_RESERVED = {
  'seed': 'give --seeds',
  'rounds': 'a run also has the results of fewer rounds; see --at_rounds',
  'output_dir': 'all runs are in one folder',
  'experiment': 'all runs are in one folder',
  'figures': 'all runs have the same figures',
}


class Setting(NamedTuple):
  """A point of a sweep.

  Attributes:
    values: swept flags, with None for those that have no effect here.
    config: all flags, with the data resolved.
  """

  values: dict[str, Any]
  config: RunConfig


def settings(flags: absl_flags.FlagValues) -> list[Setting]:
  """Returns all settings, without those that differ in nothing."""
  grid = _grid(flags.grid)
  points = [_point(text) for text in flags.point]
  for text, point in zip(flags.point, points, strict=True):
    for name in point.keys() & grid.keys():
      raise errors.InputError('point', text, f'--grid has {name}, too')
  for i, point in enumerate(points):
    if point in points[:i]:
      raise errors.InputError('point', flags.point[i], 'must occur only once')
  if not grid and not points:
    hint = 'is required, such as --grid=epsilon=0.1,0.3; see --help'
    raise errors.InputError('grid', '', hint)
  names = list(dict.fromkeys([*itertools.chain(*points), *grid]))
  found: dict[tuple[Any, ...], Setting] = {}
  data: dict[Any, RunConfig] = {}
  given = [
    {**point, **dict(zip(grid, values, strict=True))}
    for point in points or [{}]
    for values in itertools.product(*grid.values())
  ]
  for name in set.intersection(*map(set, given)):
    if flags[name].present:
      value = flags[name].value
      raise errors.InputError(name, value, 'is also swept; give it once')
  configs = [
    RunConfig.read(flags, seed=0, **{n: _parse(n, v) for n, v in of.items()})
    for of in given
  ]
  _check_effects(flags, configs, names)
  for config in configs:
    unused = config.unused()
    setting = {n: None if n in unused else getattr(config, n) for n in names}
    key = tuple(map(repr, setting.values()))
    if key not in found:
      found[key] = Setting(setting, _resolve_data(config, data))
  return list(found.values())


def _grid(texts: Collection[str]) -> dict[str, list[str]]:
  """Parses --grid: flag -> values."""
  grid: dict[str, list[str]] = {}
  for text in texts:
    name, _, rest = text.partition('=')
    name, values = name.strip(), [value.strip() for value in rest.split(',')]
    _check_name('grid', text, name)
    if name in grid:
      hint = f'{name} must occur only once; give its values in one --grid'
      raise errors.InputError('grid', text, hint)
    for value in values:
      if values.count(value) > 1:
        raise errors.InputError('grid', text, f'{value} must occur only once')
    grid[name] = values
  return grid


def _point(text: str) -> dict[str, str]:
  """Parses a --point: flag -> value."""
  point: dict[str, str] = {}
  for item in text.split(','):
    name, _, value = item.partition('=')
    name = name.strip()
    _check_name('point', text if '=' in item else item, name)
    if name in point:
      raise errors.InputError('point', text, f'{name} must occur only once')
    point[name] = value.strip()
  return point


def _check_name(flag: str, text: str, name: str) -> None:
  """Refuses what is not NAME=..., or no flag of a run."""
  form = {'grid': 'epsilon=0.1,0.3', 'point': 'epsilon=0.1,temperature=10'}
  if '=' not in text:
    hint = f'must be a flag and values, such as {form[flag]}'
    raise errors.InputError(flag, text, hint)
  if name in _RESERVED:
    hint = f'{name} cannot be swept; {_RESERVED[name]}'
    raise errors.InputError(flag, text, hint)
  known = [f.name for f in dataclasses.fields(RunConfig) if f.metadata]
  if name not in known:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f'; did you mean {" or ".join(near)}?' if near else ''
    raise errors.InputError(flag, text, f'there is no flag {name}{hint}')


@functools.cache
def _parse(name: str, value: str) -> Any:
  """Returns the value of a flag, as the command line would."""
  field = next(f for f in dataclasses.fields(RunConfig) if f.name == name)
  flags = absl_flags.FlagValues()
  field.metadata['add'](flags, '', name)
  try:
    flags(['safl-sweep', f'--{name}={value}'])
  except absl_flags.Error as error:
    hint = str(error).partition(f'--{name}={value}: ')[2] or str(error)
    raise errors.InputError(name, value, hint) from error
  return flags[name].value


def _check_effects(
  flags: absl_flags.FlagValues,
  configs: Collection[RunConfig],
  swept: Collection[str],
) -> None:
  """Refuses flags that have an effect in no setting."""
  for field in dataclasses.fields(RunConfig):
    name = field.name
    if name in swept or (name in flags and flags[name].present):
      hints = [config.hint(name) for config in configs]
      if all(hints):
        value = getattr(next(iter(configs)), name)
        raise errors.InputError(name, value, hints[0] or '')


def _resolve_data(config: RunConfig, known: dict[Any, RunConfig]) -> RunConfig:
  """Resolves the data; reads the same files only once."""
  key = tuple(data_flags(config).values())
  if key not in known:
    known[key] = config.resolve_data()
  return dataclasses.replace(config, **data_flags(known[key]))


def data_flags(config: RunConfig) -> dict[str, Any]:
  """Returns the flags that say which data to load."""
  return {f.name: getattr(config, f.name) for f in dataclasses.fields(Data)}
