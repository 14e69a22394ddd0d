"""Sweeps over parameters: settings, names of runs, and the report.

`sweep` runs a function over a grid; the program safl-sweep shares the rest.
"""

import inspect
import itertools
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tqdm

from safl_tf.reporting import (
  comparison,
  hparams_plugin,
  metrics,
  names,
  tables,
)
from safl_tf.util import digests, errors, output_folder, validation

if TYPE_CHECKING:
  import pandas as pd

_MAX_NAME = 100  # characters of a setting in the name of a folder
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
    f'{name}_{names.plain(value)}'
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


def occasionally(function: Callable[[], Any]) -> Callable[[], None]:
  """Returns a function whose calls take at most a tenth of the time."""
  due = 0.0

  def call() -> None:
    nonlocal due
    start = time.monotonic()
    if start >= due:
      function()
      due = start + 10 * (time.monotonic() - start)

  return call


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
  another one ended, as `train` resumes each run from its folder.

  Args:
    function: called as function(**parameters, seed=..., output_dir=...) for
      each run; passes `seed` and `output_dir` to `train` and returns its
      result.
    grid: parameter -> its values: numbers, texts, booleans or None.
    seeds: of the runs with the same parameters.
    output_dir: folder of the sweep.
    target: test accuracy in (0, 1] to which rounds and megabytes are counted.
    progress: whether to show a progress bar; by default only on a terminal.

  Returns:
    A row per run and round: the parameters, the seed and the metrics.

  Raises:
    InputError: the function does not take the parameters, or values are
      invalid.

  Example:
    ```python
    def run(temperature, seed, output_dir):
      return safl_tf.train(
        model_fn, clients, safl_tf.build_safl(temperature=temperature),
        test_data=(x_test, y_test), rounds=2, seed=seed, output_dir=output_dir)

    table = safl_tf.sweep(run, {'temperature': [1, 80]}, seeds=[0])
    table.groupby(['temperature', 'round'])['test_accuracy'].mean()
    ```
  """
  import pandas as pd

  settings = product(_check(function, grid, seeds))
  validation.limited('target', target, 'target_accuracy')
  folder = pathlib.Path(output_dir)
  finished: list[tables.Run] = []
  abouts: list[dict[str, Any]] = []

  def report() -> None:
    done = sorted(finished, key=lambda run: settings.index(dict(run.setting)))
    paths = [folder / run_name(run.setting, run.seed) for run in done]
    title = f'Sweep over {", ".join(map(names.heading, grid))}'
    of = {k: v for k, v in abouts[0].items() if all(a[k] == v for a in abouts)}
    content = comparison.Comparison(done, target=target, title=title, **of)
    write(folder, content, paths)

  with output_folder.opened(folder, 'sweep', 'output_dir'):
    report_now_and_then = occasionally(report)
    runs = list(itertools.product(seeds, settings))
    disable = None if progress is None else not progress
    for seed, setting in tqdm.tqdm(runs, unit='run', disable=disable):
      path = folder / run_name(setting, seed)
      result = function(**setting, seed=seed, output_dir=str(path))
      history = getattr(result, 'history', None)
      if not history:
        hint = 'must return the result of safl_tf.train'
        raise errors.InputError('function', type(result).__name__, hint)
      finished.append(tables.Run(setting, seed, history))
      abouts.append(_about(result.process, setting))
      report_now_and_then()
    report()
  return pd.DataFrame(
    [
      {**run.setting, 'seed': run.seed, **row}
      for run in finished
      for row in run.history
    ]
  )


def _about(process: Any, setting: Setting) -> dict[str, Any]:
  """Returns what a run has besides its own setting; see `Comparison`."""
  algorithm, clients = process.algorithm, process.clients
  values = {'num_clients': clients.num_clients, **algorithm.settings}
  shared = {key: v for key, v in values.items() if key not in setting}
  return {
    'algorithm': algorithm.name,
    'subtitle': names.subtitle(shared),
    'guess': 1 / clients.num_classes if clients.num_classes else None,
  }


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
