"""Presets: files of flags that come with the programs, chosen by name."""

import importlib.resources
import sys

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import validation


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


def apply(flags: absl_flags.FlagValues) -> None:
  """Sets the flags of the chosen preset that the command line does not set.

  With --preset=list it prints all presets and ends the process.
  """
  if 'preset' not in flags or flags.preset is None:
    return
  name, presets = flags.preset, _read()
  if name == 'list':
    width = max(map(len, presets))
    for preset, (summary, *_) in presets.items():
      print(f'{preset:<{width}}  {summary.removeprefix("# ")}', flush=True)
    sys.exit(0)
  validation.choice('preset', name, [*presets, 'list'])
  skipped = []
  for line in presets[name]:
    flag, _, value = line.removeprefix('--').partition('=')
    if line.startswith('#'):
      continue
    if flag not in flags:
      skipped.append(f'--{flag}')
    elif not flags[flag].present:
      flags[flag].parse(value)
      flags[flag].present = 0  # a default, not given by the user
  if skipped:
    names = ', '.join(skipped)
    logging.info('preset %s: skipped flags of safl-train: %s', name, names)
  flags.validate_all_flags()


def _read() -> dict[str, list[str]]:
  """Returns the lines of all presets by name; the first is a summary."""
  package = __name__.split('.flags')[0]  # binaries or safl_tf.binaries
  folder = importlib.resources.files(package) / 'presets'
  files = sorted(folder.iterdir(), key=lambda file: file.name)
  return {
    file.name.removesuffix('.flags'): file.read_text('utf-8').splitlines()
    for file in files
  }
