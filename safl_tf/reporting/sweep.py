"""Sweeps over parameters: settings, names of runs, and the report.

`sweep` runs a function over a grid; the program safl-sweep shares the rest.
"""

import functools
import inspect
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tqdm

from safl_tf.reporting import comparison, hparams_plugin, metrics, tables
from safl_tf.training import metrics_log
from safl_tf.util import (
  atomic_io,
  describe,
  digests,
  errors,
  output_folder,
  validation,
  versions,
)

if TYPE_CHECKING:
  import pandas as pd

_MAX_NAME = 100  # characters of a setting in the name of a folder
_FINISHED = 'finished.json'  # run -> digest of the function that made it
# Names that cannot be swept, and why.
RESERVED = {
  'seed': 'is what seeds are for',
  'output_dir': 'differs between runs anyway',
  'rounds': 'a run also has the results of fewer rounds',
}

Setting = Mapping[str, Any]


def product(grid: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
  """Returns all combinations of the values of a grid; the last vary fastest."""
  return [
    dict(zip(grid, values, strict=True))
    for values in itertools.product(*grid.values())
  ]


def run_name(setting: Setting, seed: int) -> str:
  """Returns the name of a run's folder, which depends on nothing else."""
  values = [
    f'{name}_{tables.format_value(value)}'
    for name, value in setting.items()
    if value is not None
  ]
  text = '_'.join(values)
  plain = re.sub(r'[^\w.+-]', '-', text)
  if plain != text or len(plain) > _MAX_NAME:
    plain = f'{plain[:_MAX_NAME]}_{digests.of_text(text)[:8]}'
  return f'{plain or "all"}_seed{seed}'


def write(
  folder: pathlib.Path,
  content: comparison.Comparison,
  run_folders: Sequence[pathlib.Path],
) -> str:
  """Writes the report of finished runs; returns its table as Markdown.

  Args:
    folder: of the sweep.
    content: the runs.
    run_folders: their folders, in which TensorBoard finds their settings.
  """
  table = comparison.write(folder, 'sweep', content)
  settings = [{**run.setting, 'seed': run.seed} for run in content.runs]
  for setting, path in zip(settings, run_folders, strict=True):
    if (path / 'logdir').is_dir():
      hparams_plugin.write_session(path / 'logdir', setting)
  metric = metrics.main(run.history for run in content.runs)
  hparams_plugin.write_experiment(folder, settings, metric)
  return table


def sweep(
  function: Callable[..., Any],
  grid: Mapping[str, Sequence[Any]],
  seeds: Sequence[int] = (0,),
  output_dir: str | os.PathLike[str] = 'runs/sweep',
  *,
  target: float = 0.9,
  progress: bool | None = None,
) -> 'pd.DataFrame':
  """Trains with all combinations of parameters, and compares the results.

  Writes sweep.html, sweep.csv, sweep.md, sweep.tex, runs.csv, plots/ and a
  folder per run, as the program safl-sweep does. The same call continues where
  another one ended: runs that the same function has finished are skipped.

  Args:
    function: called as function(**parameters, seed=..., output_dir=...) for
      each run; passes `seed` and `output_dir` to `safl_tf.train` and returns
      its result.
    grid: parameter -> its values: numbers, texts, booleans or None.
    seeds: of the runs with the same parameters.
    output_dir: folder of the sweep.
    target: test accuracy to which rounds and megabytes are counted.
    progress: whether to show a progress bar; by default only on a terminal.

  Returns:
    A row per run and round: the parameters, the seed and the metrics.
  """
  import pandas as pd

  settings = product(_check(function, grid, seeds))
  validation.limited('target', target, 'target_accuracy')
  folder = pathlib.Path(output_dir)
  runs = list(itertools.product(settings, seeds))
  finished: list[tables.Run] = []
  with output_folder.opened(folder, 'sweep', 'output_dir'):
    call = functools.partial(_call, folder, function, _digest(function))
    disable = None if progress is None else not progress
    for setting, seed in tqdm.tqdm(runs, unit='run', disable=disable):
      finished.append(tables.Run(setting, seed, call(setting, seed)))
      done = sorted(finished, key=lambda run: settings.index(dict(run.setting)))
      write(
        folder,
        comparison.Comparison(done, target=target),
        [folder / run_name(run.setting, run.seed) for run in done],
      )
  return pd.DataFrame(
    [
      {**run.setting, 'seed': run.seed, **row}
      for run in finished
      for row in run.history
    ]
  )


def _check(function: Any, grid: Any, seeds: Any) -> Mapping[str, Sequence[Any]]:
  """Returns the grid; refuses what cannot be run."""
  if not callable(function):
    hint = 'must be a function that calls safl_tf.train'
    raise errors.InputError('function', function, hint)
  validation.instance('grid', grid, Mapping, 'parameters and their values')
  for name, values in grid.items():
    if name in RESERVED:
      raise errors.InputError('grid', name, RESERVED[name])
    kinds = (str, bool, int, float, type(None))
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not all(isinstance(value, kinds) for value in values):
      hint = 'must be a list of numbers, texts, booleans or None'
      raise errors.InputError(f'grid: {name}', values, hint)
    _check_once(f'grid: {name}', values)
  _check_once('seeds', seeds)
  for seed in seeds:
    validation.integer('seeds', seed, 0, validation.MAX_SEED)
  names = dict.fromkeys([*grid, 'seed', 'output_dir'])
  try:
    inspect.signature(function).bind(**names)
  except TypeError as error:
    hint = f'the function takes other arguments ({error})'
    raise errors.InputError('grid', ', '.join(grid), hint) from error
  return grid


def _check_once(name: str, values: Sequence[Any]) -> None:
  if not values or len(set(map(repr, values))) < len(values):
    hint = 'must have values, each of them once'
    raise errors.InputError(name, list(values), hint)


def _digest(function: Callable[..., Any]) -> str | None:
  """Returns a digest of a function and the versions; None if unknown."""
  try:
    text = describe.describe('function', function)
  except errors.InputError:
    return None  # runs resume from their folders instead
  return digests.of_text(text + atomic_io.to_json(versions.find()))


def _call(
  folder: pathlib.Path,
  function: Callable[..., Any],
  digest: str | None,
  setting: Setting,
  seed: int,
) -> Sequence[tables.Row]:
  """Returns the history of a run; calls the function if it is not finished."""
  name = run_name(setting, seed)
  known = _read_finished(folder)
  if digest is not None and known.get(name) == digest:
    try:
      rows = metrics_log.read_csv(folder / name / 'metrics.csv')
    except (OSError, errors.InputError):
      rows = []
    if rows:
      return rows
  result = function(**setting, seed=seed, output_dir=str(folder / name))
  history = getattr(result, 'history', None)
  if not history:
    hint = 'must return the result of safl_tf.train'
    raise errors.InputError('function', type(result).__name__, hint)
  if digest is not None:
    atomic_io.write_json(folder / _FINISHED, {**known, name: digest})
  return history


def _read_finished(folder: pathlib.Path) -> dict[str, str]:
  try:
    known = json.loads((folder / _FINISHED).read_text(encoding='utf-8'))
  except (OSError, ValueError):
    return {}
  return known if isinstance(known, dict) else {}
