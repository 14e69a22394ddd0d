"""Runs of a program that makes several: which are done, and how to do one."""

import pathlib
from typing import TYPE_CHECKING, Any

from binaries import train

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

  pass


def path_of(values: dict[str, Any]) -> pathlib.Path:
  """The folder of a run with these values of safl-train's flags."""
  return train.folder_of(values).path


def history(values: dict[str, Any]) -> list[dict[str, Any]] | None:
  """The rows of the rounds asked for, if a run has done them all, else None."""
  from safl_tf.training import checkpoint, metrics_log
  from safl_tf.util import errors

  path = path_of(values)
  done = max(checkpoint.Checkpoints(path / 'checkpoints').rounds(), default=0)
  try:
    rows = metrics_log.read_csv(path / 'metrics.csv')
  except (OSError, errors.InputError):
    return None
  if not rows or rows[-1]['round'] != done:
    return None
  accuracies = [row['test_accuracy'] for row in rows]
  stop = values['stop_at_accuracy']
  stopped = stop is not None and any(
    a is not None and a >= stop for a in accuracies
  )
  if not stopped and done < values['rounds']:
    return None
  return [row for row in rows if row['round'] <= values['rounds']]


def twin(values: dict[str, Any]) -> dict[str, Any] | None:
  """A run in a folder beside `output_dir` that has done the same, if any.

  It has the same flags and seed, and has done as many rounds or more.

  Args:
    values: of the flags of the run that isn't done itself.

  Returns:
    The same values, but for where the other run is.
  """
  from safl_tf.training import metrics_log
  from safl_tf.util import errors

  mine = train.folder_of(values)
  beside = pathlib.Path(values['output_dir']).parent
  for path in sorted(beside.glob(f'*/*_seed{values["seed"]}/hparams.json')):
    run = path.parent
    try:
      hparams = metrics_log.read_hparams(run)
    except (OSError, errors.InputError):
      continue
    if not hparams or run == mine.path or mine.changed(hparams['flags']):
      continue
    other = values | {'output_dir': str(run.parent), 'experiment': run.name}
    if history(other) is not None:
      return other
  return None


def is_complete(values: dict[str, Any]) -> bool:
  """Whether nothing is left to do for a run; if in doubt, there is.

  What is done already is not repeated by `train.train`.
  """
  path = path_of(values)
  if history(values) is None or values['client_table']:
    return False
  last = path / 'plots' / 'partition.png'
  drawn = last.exists() and (
    last.stat().st_mtime >= (path / 'metrics.csv').stat().st_mtime
  )
  return drawn and values['export'] == 'none'


def run(values: dict[str, Any], dataset: 'dataset_lib.Dataset') -> str | None:
  """Trains, or goes on; what went wrong with the export, if anything."""
  import keras

  from binaries import building

  keras.backend.clear_session()  # layers get the names they have alone
  built = building.process_and_data(values, dataset)
  return train.train(values, train.folder_of(values), *built)[1]
