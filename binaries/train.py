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
  print_summary(history, config.path, time.perf_counter() - start)
  if failure:
    raise errors.RunError(failure)


def train(
  config: RunConfig,
  dataset: 'dataset_lib.Dataset',
  progress: bool | None = None,
) -> tuple[list[dict[str, Any]], str | None]:
  """Trains or resumes a run and writes all its files.

  Args:
    config: of the run.
    dataset: its data.
    progress: whether to show a progress bar; by default only on a terminal.

  Returns:
    The history of the run, and the error of its export, if any.
  """
  from safl_tf.training import loop, outputs

  from . import factories

  process = factories.build_process(config, dataset)
  schedule = validation.call(loop.Schedule, config.to_dict())
  _, test_clients = factories.split_clients(config, dataset)
  directory = config.directory()
  with (
    contextlib.closing(process),
    program.locating(config.path),
  ):
    result = loop.run(
      process,
      schedule,
      config.seed,
      dataset.test_data,
      directory,
      dataset.metadata,
      test_clients,
      outputs.Outputs(
        config.export,
        config.client_table,
        {'model': config.model, 'dataset': dataset.name},
        config.figure_formats,
      ),
      progress=progress,
    )
  return result.history, result.failure and f'--{result.failure}'


def print_summary(
  history: list[dict[str, Any]], path: pathlib.Path, seconds: float
) -> None:
  """Prints the results of a run."""
  from safl_tf.reporting import metrics

  metric, last = metrics.main([history]), history[-1]
  scores = {row['round']: row[metric.column] for row in history}
  scores = {t: value for t, value in scores.items() if value is not None}
  if scores:
    spec = '.1%' if metric.percent else '.4g'
    best = metric.best(scores.values())
    t = next(t for t, value in scores.items() if value == best)
    print(f'{f"best {metric.name}":<15}{best:{spec}} (round {t})')
    print(f'{f"last {metric.name}":<15}{[*scores.values()][-1]:{spec}}')
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
