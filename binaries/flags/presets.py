"""Presets: files of flags that come with the programs, chosen by name."""

import importlib.resources
from importlib.resources.abc import Traversable

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import validation

_LIST = 'list'


def define(flags: absl_flags.FlagValues) -> None:
  """Adds --preset to a program."""
  absl_flags.DEFINE_string(
    'preset',
    None,
    'Name of a preset; list prints all of them. Flags on the command line '
    'override the preset, and flags of the preset that the program lacks are '
    'skipped with a note. --flagfile=FILE reads flags from a file instead.',
    flag_values=flags,
    module_name='run',
  )


def apply(flags: absl_flags.FlagValues) -> str | None:
  """Sets the flags of the chosen preset that the command line does not set.

  Args:
    flags: of a program, parsed.

  Returns:
    The text to print instead of running the program, for --preset=list.

  Raises:
    InputError: no preset has this name.
  """
  name = flags.preset if 'preset' in flags else None
  if name is None:
    return None
  files = _files()
  if name == _LIST:
    width = max(map(len, files))
    return '\n'.join(f'{n:<{width}}  {summary(n)}' for n in files)
  validation.choice('preset', name, [*files, _LIST])
  skipped = []
  for line in files[name].read_text('utf-8').splitlines():
    if line.startswith('--'):
      flag, _, value = line.removeprefix('--').partition('=')
      if flag not in flags:
        skipped.append(f'--{flag}')
      elif not flags[flag].present:
        flags[flag].parse(value)
  if skipped:
    told = ', '.join(skipped)
    logging.info('preset %s: skipped flags of safl-train: %s', name, told)
  flags.validate_all_flags()
  return None


def summary(name: str) -> str:
  """Returns the first line of a preset, which describes it."""
  first = _files()[name].read_text('utf-8').splitlines()[0]
  return first.removeprefix('# ')


def _files() -> dict[str, Traversable]:
  """Returns the files of all presets by name, sorted."""
  package = __name__.split('.flags')[0]  # binaries or safl_tf.binaries
  folder = importlib.resources.files(package) / 'presets'
  files = sorted(folder.iterdir(), key=lambda file: file.name)
  return {
    file.name.removesuffix('.flags'): file
    for file in files
    if file.name.endswith('.flags')
  }
