"""Finished runs in folders, to compare without training."""

import dataclasses
import glob
import os
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from safl_tf.util import errors

from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.reporting import tables

_SEED = re.compile(r'[-_]?seed[-_]?\d+$')
_TEST_DATA = ('test_inputs', 'test_labels')  # of a run's identity
_DIGEST = 8  # characters of a digest that are shown


class SavedRun(NamedTuple):
  """A run that is in a folder.

  Attributes:
    path: the folder.
    seed: of the run.
    history: its rows of metrics, at least one.
    flags: those of safl-train that it used; None if Python code made it.
    test_data: digests of what it was evaluated on.
    num_classes: None for other tasks.
  """

  path: pathlib.Path
  seed: int
  history: list[dict[str, Any]]
  flags: dict[str, Any] | None
  test_data: tuple[Any, ...]
  num_classes: int | None


def find(patterns: str, own: pathlib.Path) -> list[SavedRun]:
  """Returns the runs in the folders that patterns match.

  Folders that are not runs are left out, with a line in the log.

  Args:
    patterns: of paths, separated by commas, as --runs has them.
    own: the folder to write to, which is passed over.
  """
  saved, others = [], []
  paths = [
    path
    for pattern in patterns.split(',')
    for path in sorted(glob.glob(os.path.expanduser(pattern.strip())))
  ]
  for path in map(pathlib.Path, dict.fromkeys(paths)):
    if path.is_dir() and path.resolve() != own.resolve():
      run = _read(path)
      if run is None:
        others.append(path.name)
      else:
        saved.append(run)
  if others:
    logging.info('not runs with a finished round: %s', ', '.join(others))
  if not saved:
    hint = 'there is no run; give the folders of runs, such as runs/*'
    raise errors.InputError('runs', patterns, hint)
  for run in saved:
    if run.test_data != saved[0].test_data:
      hint = f'was tested on other data than {saved[0].path}; leave one out'
      raise errors.InputError('runs', run.path, hint)
  return saved


def _read(path: pathlib.Path) -> SavedRun | None:
  """Reads a run; None if the folder is none or has no finished round."""
  from safl_tf.training import hparams as hparams_lib
  from safl_tf.training import metrics_log, run_directory

  if not run_directory.is_run(path) or not (path / 'metrics.csv').is_file():
    return None
  hparams = hparams_lib.read(path, 'runs')
  history = metrics_log.read_csv(path / 'metrics.csv')
  if hparams is None or not history:
    return None
  identity = hparams['identity']
  test_data = tuple(identity.get(name) for name in _TEST_DATA)
  flags = _used(hparams['flags'])
  classes = identity.get('num_classes')
  return SavedRun(path, identity['seed'], history, flags, test_data, classes)


def _used(flags: dict[str, Any] | None) -> dict[str, Any] | None:
  """Returns the flags that a run used and that its results depend on."""
  from safl_tf.training import run_directory

  if flags is None:
    return None
  fields = {field.name for field in dataclasses.fields(RunConfig)}
  known = {name: value for name, value in flags.items() if name in fields}
  unused = RunConfig(**known).unused()
  omitted = {'seed', *run_directory.MUTABLE_FLAGS, *unused}
  return {name: value for name, value in known.items() if name not in omitted}


def to_compare(saved: Sequence[SavedRun]) -> 'list[tables.Run]':
  """Returns the runs by setting: the flags that differ, except the seed.

  The setting of runs without flags is the name of their folder without seed.
  """
  from safl_tf.reporting import names, tables

  differing = _differing(saved)
  found: dict[tuple[str, int], SavedRun] = {}
  settings: dict[str, dict[str, Any]] = {}
  for run in saved:
    setting = {
      name: _show(name, (run.flags or {}).get(name)) for name in differing
    }
    if not differing:
      setting = {'run': _SEED.sub('', run.path.name) or run.path.name}
    label = names.setting(setting)
    settings.setdefault(label, setting)
    other = found.setdefault((label, run.seed), run)
    if other is not run:
      hint = f'has the setting and the seed of {other.path}; leave one out'
      raise errors.InputError('runs', run.path, hint)
  return [
    tables.Run(setting, seed, run.history)
    for label, setting in settings.items()
    for (of, seed), run in found.items()
    if of == label
  ]


def _differing(saved: Sequence[SavedRun]) -> list[str]:
  """Returns the flags that differ between runs that use them.

  There are none if Python code made a run, which has no flags.
  """
  flags = [run.flags for run in saved if run.flags is not None]
  if len(flags) < len(saved):
    return []
  names = dict.fromkeys(name for of in flags for name in of)
  values = {n: {repr(of[n]) for of in flags if n in of} for n in names}
  return [n for n in names if len(values[n]) > 1] or ['algorithm']


def _show(name: str, value: Any) -> Any:
  is_digest = name.endswith('_sha256') and isinstance(value, str)
  return value[:_DIGEST] if is_digest else value


def shared_settings(saved: Sequence[SavedRun]) -> dict[str, Any]:
  """Returns the flags that all runs share."""
  flags = [run.flags or {} for run in saved]
  return {
    name: value
    for name, value in sorted(flags[0].items())
    if all(name in of and of[name] == value for of in flags)
  }


def about(saved: Sequence[SavedRun]) -> dict[str, Any]:
  """Returns what the page on some runs says of all; see `runs.about`."""
  from safl_tf.reporting import names

  shared, classes = shared_settings(saved), saved[0].num_classes
  return {
    'algorithm': shared.get('algorithm'),
    'subtitle': names.subtitle(shared),
    'guess': 1 / classes if classes else None,
  }
