"""safl-train: see `binaries.training_flags`."""

import pathlib
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any

from binaries import common, training_flags

if TYPE_CHECKING:
  from safl_tf.core import process
  from safl_tf.data import dataset as dataset_lib
  from safl_tf.training import run_directory


def main() -> None:
  """Flags -> data, model, algorithm -> one run -> pictures and export."""
  start = time.perf_counter()
  values = training_flags.values()
  folder = folder_of(values)
  folder.check()
  common.start_tensorflow()
  from binaries import building

  history, failure = train(values, folder, *building.process_and_data(values))
  _summarise(history, folder.path, time.perf_counter() - start)
  if failure:
    raise common.ExitError(failure)


def folder_of(values: dict[str, Any]) -> 'run_directory.RunDirectory':
  """The folder of the run that the flags describe; nothing is made yet."""
  from safl_tf.training import run_directory

  path = pathlib.Path(values['output_dir']) / values['experiment']
  return run_directory.RunDirectory(path, values, values['keep_checkpoints'])


def train(
  values: dict[str, Any],
  folder: 'run_directory.RunDirectory',
  trainer: 'process.FederatedProcess',
  dataset: 'dataset_lib.Dataset',
) -> tuple[list[dict[str, Any]], str | None]:
  """Runs a process to its end and writes all that a run leaves.

  Args:
    values: of the flags.
    folder: the run's, see `folder_of`.
    trainer: the process, see `building.process_and_data`.
    dataset: its data.

  Returns:
    The run's history; what went wrong with the export, if anything.
  """
  from safl_tf.training import loop

  schedule = loop.Schedule(
    values['rounds'],
    values['eval_every'],
    values['checkpoint_every'],
    values['stop_at_accuracy'],
  )
  path = folder.path
  with folder.opened():
    result = loop.run(
      trainer,
      schedule,
      values['seed'],
      (dataset.x_test, dataset.y_test),
      folder,
      dataset.metadata,
    )
    with futures.ThreadPoolExecutor(1) as side:
      pictures = side.submit(_write_results, values, path, result, dataset)
      failure = _export(values, path, result, dataset)
      pictures.result()
  return result.history, failure


def _write_results(
  values: dict[str, Any], path: pathlib.Path, result: Any, dataset: Any
) -> None:
  """The plots, and clients.csv if asked for."""
  from safl_tf.reporting import plots
  from safl_tf.training import loop, metrics_log

  if values['client_table']:
    table = loop.client_table(result.process, result.state)
    metrics_log.write_clients(path, table)
  plots.write_all(
    path,
    result.history,
    result.process.clients.label_counts(),
    dataset.class_names,
    f'{values["algorithm"]}, {values["model"]} on {dataset.name}',
  )


def _export(
  values: dict[str, Any], path: pathlib.Path, result: Any, dataset: Any
) -> str | None:
  """Exports the model unless that was done; what went wrong, if anything."""
  from safl_tf.training import export, run_directory

  model, formats = result.process.model, values['export']
  about = run_directory.about(result.state.t, dataset.metadata)
  if export.is_current(path / 'export', formats, about):
    return None
  try:
    with common.only_errors():
      export.export(
        result.model,
        path / 'export',
        model.input_spec,
        model.from_logits,
        formats,
        about,
      )
  except (export.ExportError, OSError) as error:
    return (
      f'--export={formats}: {error}; all else of the run is in {path}, '
      f'safl-export --run={path} tries again'
    )
  return None


def _summarise(
  history: list[dict[str, Any]], path: pathlib.Path, seconds: float
) -> None:
  scored = [row for row in history if row['test_accuracy'] is not None]
  last = history[-1]
  if scored:
    best = max(scored, key=lambda row: row['test_accuracy'])
    print(f'best accuracy  {best["test_accuracy"]:.1%} (round {best["round"]})')
    print(f'last accuracy  {scored[-1]["test_accuracy"]:.1%}')
  uploads = sum(row['uploaded'] for row in history)
  selected = sum(row['selected'] for row in history)
  print(f'uploads        {uploads} of {selected}')
  up, down = last['total_bytes_up'] / 1e6, last['total_bytes_down'] / 1e6
  print(f'moved          {up:.1f} MB up, {down:.1f} MB down')
  rounds = sum(row['seconds'] for row in history)
  print(f'time           {seconds:.1f} s ({rounds:.1f} s in rounds)')
  print(f'files          {path}')


def cli() -> None:
  """The console script."""
  common.run('safl-train', training_flags, main)


if __name__ == '__main__':
  cli()
