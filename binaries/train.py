"""Trains a Keras model over many simulated clients.

Without flags: SAFL with LeNet-5 on 5,000 MNIST digits, over 20 clients with few
labels each. The defaults are the settings of "Gradual Federated Learning with
Simulated Annealing"; letters in brackets are the paper's.

  safl-train --algorithm=fedavg --rounds=50
  safl-train --preset=mnist_n80 --data_dir=DIR
  safl-train --preset=list
  safl-train --dataset=csv:flowers.csv --model=my_model.keras

All files of a run are in OUTPUT_DIR/EXPERIMENT. The same command resumes an
interrupted run.
"""

import contextlib
import functools
import pathlib
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from safl_tf.util import errors, hardware, validation

from . import program
from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib


def main(flags: absl_flags.FlagValues) -> None:
  """Trains one run and prints a summary."""
  start = time.perf_counter()
  config = RunConfig.get(flags)
  config.directory().check()
  hardware.start_tensorflow()
  history, failure = train(config, config.load())
  _print_summary(history, config.path, time.perf_counter() - start)
  if failure:
    raise errors.RunError(failure)


def train(
  config: RunConfig, dataset: 'dataset_lib.Dataset'
) -> tuple[list[dict[str, Any]], str | None]:
  """Trains or resumes a run and writes all its files.

  Returns:
    The history of the run, and the error of its export, if any.
  """
  from safl_tf.training import loop

  from . import factories

  process = factories.build_process(config, dataset)
  schedule = validation.call(loop.Schedule, config.to_dict())
  test_data = dataset.test_data
  directory = config.directory()
  with (
    contextlib.closing(process),
    program.locating(config.path),
    directory.opened(),
    futures.ThreadPoolExecutor(1) as background,
  ):
    result = loop.run(
      process, schedule, config.seed, test_data, directory, dataset.metadata
    )
    report = background.submit(_write_results, config, result, dataset)
    failure = _export(config, result, dataset)
    report.result()
  return result.history, failure


def _write_results(config: RunConfig, result: Any, dataset: Any) -> None:
  """Writes the plots and, with --client_table, clients.csv."""
  from safl_tf.data import heterogeneity
  from safl_tf.reporting import plots
  from safl_tf.training import evaluation, metrics_log

  if config.client_table:
    table = evaluation.client_table(result.process, result.state)
    metrics_log.write_clients(config.path, table)
  plots.write_all(
    config.path,
    result.history,
    *heterogeneity.table(result.process.clients, dataset.class_names),
    f'{config.algorithm}, {config.model} on {dataset.name}',
  )


def _export(config: RunConfig, result: Any, dataset: Any) -> str | None:
  """Exports the model unless the export is current; returns the error.

  All other files of the run are complete, whatever happens here.
  """
  from safl_tf.training import export

  formats, folder = config.export, config.path / 'export'
  metadata = {'round': result.state.t, **dataset.metadata}
  model = result.process.model
  try:
    with program.only_errors():
      export.export(
        result.model,
        folder,
        model.input_spec,
        model.from_logits,
        formats,
        metadata,
        'experiment',
        replace_current=False,
      )
  except (errors.RunError, errors.InputError, OSError) as error:
    cause = getattr(error, 'hint', error)
    return (
      f'--export={formats}: {cause}; all other files are in {config.path}, '
      f'safl-export --run={config.path} tries again'
    )
  return None


def _print_summary(
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
  print(f'communication  {up:.1f} MB up, {down:.1f} MB down')
  rounds = sum(row['seconds'] for row in history)
  print(f'time           {seconds:.1f} s ({rounds:.1f} s in rounds)')
  print(f'files          {path}')


cli = functools.partial(
  program.run, 'safl-train', __doc__, RunConfig.define, main
)

if __name__ == '__main__':
  cli()
