"""Measures round time and memory for populations of 100 to 100,000 clients.

  python -m benchmarks.population --write=docs/benchmarks.md
  python -m benchmarks.population --quick

LeNet-5, 50 clients per round with 600 images each for every population. Each
population runs in its own process; they take turns, one round each.
"""

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Iterator

from benchmarks import reports, workers
from safl_tf.reporting import tables

SIZES = (100, 1_000, 10_000, 100_000)
STORES = ('ram', 'mmap')
EXAMPLES, COHORT = 600, 50


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


def section(cycles: int, examples: int) -> str:
  """Returns the table as Markdown."""
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
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  if arguments.clients:
    metadata: dict[str, float] = {}
    values = rounds(
      arguments.clients, arguments.store, arguments.examples, metadata
    )
    workers.serve(values, metadata)
    return
  examples = EXAMPLES // 10 if arguments.quick else EXAMPLES
  text = section(arguments.cycles, examples)
  reports.write(arguments.write, 'population', text)


if __name__ == '__main__':
  main()
