"""Measures round time and memory for many clients, in all and in a round.

  python -m benchmarks.population --write=docs/benchmarks.md
  python -m benchmarks.population --quick

The first table: LeNet-5, 50 clients per round with 600 images each, of 100 to
100,000 clients. The second: 10 to 1,000 clients per round with a dense model of
0.5M parameters and one step each, so that aggregation and storage are all that
grows. Each row runs in its own process; they take turns, one round each.
"""

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks import reports, workers
from safl_tf.reporting import tables

SIZES = (100, 1_000, 10_000, 100_000)
STORES = ('ram', 'mmap')
EXAMPLES, COHORT = 600, 50
COHORTS = (10, 100, 1_000)
KINDS = (('fedavg', 'ram'), ('fedavg', 'mmap'), ('scaffold', 'mmap'))


def rounds(
  num_clients: int, store: str, examples: int, metadata: dict[str, float]
) -> Iterator[float]:
  """Yields the seconds of every round, and fills in the metadata."""
  import numpy as np

  import safl_tf
  from safl_tf.core import process
  from safl_tf.data import client_data
  from safl_tf.models import lenet5

  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (60_000, 28, 28, 1), np.uint8)
  y = rng.integers(0, 10, len(x))
  # Rows of one array, so that the index lists are stored only once.
  parts = rng.integers(0, len(x), (num_clients, examples), np.int32)
  start = time.perf_counter()
  clients = client_data.ClientData.from_arrays(x, y, parts, num_classes=10)
  metadata['lists_mb'] = clients.total_examples * 4 / 1e6
  del parts
  trainer = process.FederatedProcess(
    lenet5.lenet5,
    clients,
    safl_tf.build_safl(clients_per_round=COHORT),
    client_store=store,
  )
  state = trainer.initialize(0)
  metadata['start'] = time.perf_counter() - start
  while True:
    start = time.perf_counter()
    state, _ = trainer.next(state)
    yield time.perf_counter() - start


def cohort_rounds(
  cohort: int, store: str, algorithm: str, metadata: dict[str, float]
) -> Iterator[float]:
  """Yields the seconds of rounds with many clients of a 0.5M-parameter model.

  The metadata have the growth of the peak memory since the start of round 1.
  """
  import keras
  import numpy as np

  from safl_tf.algorithms import registry
  from safl_tf.core import client_config, process
  from safl_tf.data import client_data

  def model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
      [
        keras.Input((784,)),
        layers.Dense(630, activation='relu'),
        layers.Dense(10),
      ]
    )

  rng = np.random.default_rng(0)
  x = rng.normal(size=(1_000, 784)).astype(np.float32)
  y = rng.integers(0, 10, len(x))
  parts = rng.integers(0, len(x), (cohort, 10))
  trainer = process.FederatedProcess(
    model,
    client_data.ClientData.from_arrays(x, y, parts, num_classes=10),
    registry.build(algorithm),
    client_config.LocalConfig(local_epochs=1, batch_size=10),
    init='shared',
    client_store=store,
  )
  state = trainer.initialize(0)
  before = workers.peak_mb()
  while True:
    start = time.perf_counter()
    state, _ = trainer.next(state)
    seconds = time.perf_counter() - start
    metadata['growth_mb'] = workers.peak_mb() - before
    yield seconds


def cohort_section(cycles: int, cohorts: Sequence[int]) -> str:
  """Returns the table of cohorts as Markdown."""
  names = [(*kind, cohort) for kind in KINDS for cohort in cohorts]
  started = {
    f'{algorithm} {store} {cohort}': workers.Worker(
      'benchmarks.population',
      [f'--cohort={cohort}', f'--store={store}', f'--algorithm={algorithm}'],
    )
    for algorithm, store, cohort in names
  }
  seconds = workers.take_turns(started, cycles)
  headings = 'algorithm,store,clients per round,s / round,ms / client'
  headings += ',peak RSS above the start MB,all models of a round MB'
  lines = [headings.split(',')]
  for algorithm, store, cohort in names:
    key = f'{algorithm} {store} {cohort}'
    metadata = started[key].close()
    median = statistics.median(seconds[key][1:])
    lines.append(
      [
        algorithm,
        store,
        f'{cohort:,}',
        f'{median:.2f}',
        f'{1000 * median / cohort:.1f}',
        f'{metadata["growth_mb"]:.0f}',
        f'{cohort * 500_860 * 4 / 1e6:.0f}',
      ]
    )
  return '\n\n'.join(
    [
      '## Cohorts: a dense model of 0.5M parameters, one step a client',
      f'{reports.provenance("benchmarks.population")} The median of {cycles} '
      'rounds each, taken in turns. In `ram` there are the models before and '
      'after a round; in `mmap` only a few. One step a client is the worst '
      'case for the time of `mmap`.',
      tables.to_markdown(lines, left=2).rstrip(),
    ]
  )


def section(cycles: int, examples: int) -> str:
  """Returns the table of populations as Markdown."""
  names = [(n, store) for n in SIZES for store in STORES]
  started = {
    f'{n} {store}': workers.Worker(
      'benchmarks.population',
      [f'--clients={n}', f'--store={store}', f'--examples={examples}'],
    )
    for n, store in names
  }
  seconds = workers.take_turns(started, cycles)
  base = statistics.median(seconds[f'{SIZES[0]} ram'][1:])
  headings = 'clients,store,s / round,against 100 in ram,set-up s'
  headings += ',index lists MB,RSS at the end MB,peak RSS MB'
  lines = [headings.split(',')]
  for n, store in names:
    metadata = started[f'{n} {store}'].close()
    median = statistics.median(seconds[f'{n} {store}'][1:])
    lines.append(
      [
        f'{n:,}',
        store,
        f'{median:.2f}',
        f'{median / base - 1:+.1%}',
        f'{metadata["start"]:.1f}',
        f'{metadata["lists_mb"]:.0f}',
        f'{metadata["rss_mb"]:.0f}',
        f'{metadata["peak_mb"]:.0f}',
      ]
    )
  return '\n\n'.join(
    [
      f'## Population: {COHORT} of n clients per round, {examples} images each',
      f'{reports.provenance("benchmarks.population")} The median of {cycles} '
      'rounds each, taken in turns.',
      tables.to_markdown(lines, left=2).rstrip(),
    ]
  )


def main() -> None:
  """Measures, prints the table and optionally writes it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--quick', action='store_true', help='60 images each')
  parser.add_argument('--cycles', type=int, default=5, help='rounds to time')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  parser.add_argument('--clients', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--store', help=argparse.SUPPRESS)
  parser.add_argument('--examples', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--cohort', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--algorithm', help=argparse.SUPPRESS)
  parser.add_argument(
    '--only', choices=('population', 'cohort'), help='only this table'
  )
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  metadata: dict[str, float] = {}
  if arguments.cohort:
    values = cohort_rounds(
      arguments.cohort, arguments.store, arguments.algorithm, metadata
    )
    workers.serve(values, metadata)
    return
  if arguments.clients:
    values = rounds(
      arguments.clients, arguments.store, arguments.examples, metadata
    )
    workers.serve(values, metadata)
    return
  if arguments.only != 'cohort':
    examples = EXAMPLES // 10 if arguments.quick else EXAMPLES
    text = section(arguments.cycles, examples)
    reports.write(arguments.write, 'population', text)
  if arguments.only != 'population':
    cohorts = COHORTS[:2] if arguments.quick else COHORTS
    text = cohort_section(arguments.cycles, cohorts)
    reports.write(arguments.write, 'cohorts', text)


if __name__ == '__main__':
  main()
