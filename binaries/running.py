"""Runs of a program that makes several: which are done, and how to do one."""

import pathlib
from typing import TYPE_CHECKING, Any

from binaries import train

if TYPE_CHECKING:
  from safl_tf.data import datasets


def path_of(values: dict[str, Any]) -> pathlib.Path:
  """The folder of a run with these values of safl-train's flags."""
  return train.folder_of(values).path


def history(values: dict[str, Any]) -> list[dict[str, Any]] | None:
  """The rows of a run that has done all its rounds, else None."""
  from safl_tf import checkpoints, errors, records

  path = path_of(values)
  done = max(checkpoints.Checkpoints(path / 'checkpoints').rounds(), default=0)
  try:
    rows = records.read_csv(path / 'metrics.csv')
  except (OSError, errors.InputError):
    return None
  if not rows or rows[-1]['round'] != done:
    return None
  accuracies = [row['test_accuracy'] for row in rows]
  stop = values['stop_at_accuracy']
  stopped = stop is not None and any(
    a is not None and a >= stop for a in accuracies
  )
  return rows if stopped or done >= values['rounds'] else None


def is_complete(values: dict[str, Any]) -> bool:
  """Whether nothing is left to do for a run; if in doubt, there is.

  What is done already is not repeated by `train.train`.
  """
  path = path_of(values)
  if history(values) is None or values['device_table']:
    return False
  last = path / 'plots' / 'partition.png'
  drawn = last.exists() and (
    last.stat().st_mtime >= (path / 'metrics.csv').stat().st_mtime
  )
  return drawn and values['export'] == 'none'


def run(values: dict[str, Any], dataset: 'datasets.Dataset') -> str | None:
  """Trains, or goes on; what went wrong with the export, if anything."""
  import keras

  from binaries import building

  keras.backend.clear_session()  # layers get the names they have alone
  built = building.process_and_data(values, dataset)
  return train.train(values, train.folder_of(values), *built)[1]
