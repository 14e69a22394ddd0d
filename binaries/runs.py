"""Runs of a program that trains several: their state and their training."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from safl_tf.util import errors

from . import train
from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib


def history(config: RunConfig) -> list[dict[str, Any]] | None:
  """Returns the rows of a run's rounds, or None if the run is not finished."""
  from safl_tf.training import checkpoint, metrics_log

  saved = checkpoint.Checkpoints(config.path / 'checkpoints')
  try:
    done = max(saved.rounds(), default=0)
    rows = metrics_log.read_csv(config.path / 'metrics.csv')
  except (OSError, ValueError):  # an InputError is a ValueError
    return None
  if not rows or not rows[0].keys() >= set(metrics_log.COLUMNS):
    return None
  if [row['round'] for row in rows] != list(range(1, done + 1)):
    return None
  rounds, stop = config.rounds, config.stop_at_accuracy
  stopped = stop is not None and any(
    row['test_accuracy'] is not None and row['test_accuracy'] >= stop
    for row in rows
  )
  if not stopped and done < rounds:
    return None
  return [row for row in rows if row['round'] <= rounds]


def find_finished(config: RunConfig) -> RunConfig | None:
  """Returns a finished run with these flags, here or beside `output_dir`."""
  if history(config) is not None:
    return config
  beside = pathlib.Path(config.output_dir).parent
  for path in sorted(beside.glob(f'*/*_seed{config.seed}/hparams.json')):
    if _is_equivalent(config, path.parent):
      run = dataclasses.replace(
        config, output_dir=str(path.parents[1]), experiment=path.parent.name
      )
      if history(run) is not None:
        return run
  return None


def _is_equivalent(config: RunConfig, path: pathlib.Path) -> bool:
  """Returns whether a folder is a run with these flags; False if broken."""
  from safl_tf.training import hparams as hparams_lib

  try:
    flags = (hparams_lib.read(path) or {}).get('flags')
  except (OSError, errors.InputError):
    return False
  return flags is not None and not config.directory().changed(flags)


def is_complete(config: RunConfig) -> bool:
  """Returns whether a run has left all its files.

  Exports and client tables are left to `run`, which skips finished work.
  """
  if history(config) is None or config.client_table or config.export != 'none':
    return False
  plots, metrics = config.path / 'plots', config.path / 'metrics.csv'
  files = [plots / f'partition.{suffix}' for suffix in config.figure_formats]
  return all(
    file.exists() and file.stat().st_mtime >= metrics.stat().st_mtime
    for file in files
  )


def about(configs: Sequence[RunConfig]) -> dict[str, Any]:
  """Returns what the page on some runs says of all of them.

  Returns:
    Attributes of `comparison.Comparison`: the algorithm, the subtitle of
    charts, and the accuracy of guessing.
  """
  from safl_tf.reporting import names
  from safl_tf.training import hparams as hparams_lib

  shared = shared_settings(configs, ())
  values = [config.to_dict() for config in configs]
  same = {k: v for k, v in shared.items() if all(own[k] == v for own in values)}
  guess = None
  for config in configs:
    hparams = hparams_lib.read(config.path)
    if hparams is not None:
      classes = hparams['identity'].get('num_classes')
      guess = 1 / classes if classes else None
      break
  return {
    'algorithm': same.get('algorithm'),
    'subtitle': names.subtitle(same),
    'guess': guess,
  }


def check_data(
  configs: Iterable[RunConfig], dataset: 'dataset_lib.Dataset'
) -> None:
  """Refuses runs on other data, so that no table mixes data sets."""
  from safl_tf.data import examples
  from safl_tf.training import identity

  test_data = examples.Examples(dataset.x_test, dataset.y_test, dataset.w_test)
  part = identity.of_inputs(dataset.x_train, test_data)
  for config in configs:
    config.directory().check_part(part)


def describe(runs: Sequence[RunConfig], finished: int) -> list[str]:
  """Describes runs and their progress, in a sentence each."""
  from safl_tf.reporting import names

  def values(read: Callable[[RunConfig], Any]) -> str:
    return ', '.join(dict.fromkeys(str(read(run)) for run in runs))

  known = all(run.num_clients for run in runs)
  clients = f'{values(lambda r: r.num_clients)} clients, ' if known else ''
  seeds = values(lambda run: run.seed)
  word = 'seeds' if ',' in seeds else 'seed'
  sentences = [
    f'{values(lambda run: names.value("model", pathlib.Path(run.model).stem))} '
    f'on {values(lambda run: names.value("dataset", run.dataset))}, '
    f'{clients}{runs[0].rounds} rounds, '
    f'{word} {seeds}.'
  ]
  if finished < len(runs):
    sentences.append(f'So far, {finished} of {len(runs)} runs are finished.')
  return sentences


def shared_settings(
  runs: Sequence[RunConfig], varied: Collection[str]
) -> dict[str, Any]:
  """Returns the flags that any run uses, except the varied ones."""
  used = {
    name: value
    for run in runs
    for name, value in run.to_dict().items()
    if name not in (*varied, 'experiment', 'output_dir', *run.unused())
  }
  return dict(sorted(used.items()))


@contextlib.contextmanager
def shared_workers(config: RunConfig) -> Iterator[None]:
  """Keeps the workers of a Ray cluster for several runs."""
  if config.executor != 'ray':
    yield
    return
  from safl_tf.core.executors.ray import workers

  with workers.find(config.ray_executor(), config.device).held():
    yield


@contextlib.contextmanager
def reporting(write: Callable[[], Any]) -> Iterator[Callable[[], None]]:
  """Gives a function to call after each run, which writes now and then.

  If a run fails or is stopped, the report on those before is written, too.
  """
  from safl_tf.reporting import sweep as sweep_lib

  write_now_and_then, finished = sweep_lib.occasionally(write), 0

  def report_run() -> None:
    nonlocal finished
    finished += 1
    write_now_and_then()

  try:
    yield report_run
  except BaseException:
    if finished:
      write()
    raise


def run(
  config: RunConfig,
  dataset: 'dataset_lib.Dataset',
  progress: bool | None = None,
) -> str | None:
  """Trains or resumes a run; returns the error of its export, if any."""
  import keras

  keras.backend.clear_session()  # gives layers the same names in every run
  return train.train(config, dataset, progress)[1]
