"""Measures what Ray costs, compared with `threads` on the same work.

  python -m benchmarks.scaling --write=docs/how_to/scale_out.md
  python -m benchmarks.scaling --quick

The first table: rounds of MNIST-LeNet-80 on one machine, with `threads` and on
one and two local Ray workers, for several chunks. They take turns, one round
each. CPU seconds are those of all processes. The second: the driver's CPU time
per client if clients train on one example, so that almost nothing but the
driver's work is left.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from benchmarks import reports
from safl_tf.reporting import tables

CHUNKS = (1, 4, 16, None)
NUM_WORKERS = (1, 2)
THREADS = 'threads'


class Cost(NamedTuple):
  """Seconds of a round: wall time, and CPU time of three kinds of processes."""

  wall: float
  driver: float
  workers: float
  ray: float

  @property
  def cpu(self) -> float:
    """CPU seconds of all processes."""
    return self.driver + self.workers + self.ray


class Trainer:
  """Runs one round after the other, and measures them."""

  def __init__(self, make: Callable[[], Any]):
    self._process = make()
    self._state = self._process.initialize(0)
    self.next()  # compiles
    self.next()  # is the first with a global model

  def next(self) -> Cost:
    """Runs a round."""
    before, start = _cpu_seconds(), time.perf_counter()
    self._state, _ = self._process.next(self._state)
    wall = time.perf_counter() - start
    after = _cpu_seconds()
    spent = [after[kind] - before[kind] for kind in ('driver', 'worker', 'ray')]
    return Cost(wall, *spent)


def _cpu_seconds() -> dict[str, float]:
  """Returns the CPU seconds so far of this process, of workers and of Ray."""
  seconds = dict.fromkeys(('driver', 'worker', 'ray'), 0.0)
  for kind, processes in _processes().items():
    for process in processes:
      with contextlib.suppress(psutil.Error):  # has ended
        times = process.cpu_times()
        seconds[kind] += times.user + times.system
  return seconds


def _processes() -> dict[str, list[psutil.Process]]:
  """Returns this process, workers, and Ray's own processes."""
  own = psutil.Process()
  found: dict[str, list[psutil.Process]] = {'worker': [], 'ray': []}
  for child in own.children(recursive=True):
    with contextlib.suppress(psutil.Error):
      is_worker = child.name() == 'ray::Worker'
      found['worker' if is_worker else 'ray'].append(child)
  return {'driver': [own], **found}


def _median(costs: Sequence[Cost]) -> Cost:
  return Cost(*map(statistics.median, zip(*costs, strict=True)))


def _name(num_workers: int, chunk: int | None) -> str:
  workers = f'{num_workers} worker{"s" * (num_workers > 1)}'
  return f'Ray, {workers}, chunks of {chunk or "default size"}'


def _take_turns(
  trainers: Mapping[str, Trainer], cycles: int
) -> dict[str, list[Cost]]:
  costs: dict[str, list[Cost]] = {name: [] for name in trainers}
  for cycle in range(cycles):
    for name, trainer in trainers.items():
      cost = trainer.next()
      costs[name].append(cost)
      print(f'  cycle {cycle}: {name}: {cost}', file=sys.stderr, flush=True)
  return costs


class Rounds(NamedTuple):
  """Compared rounds.

  Attributes:
    table: a row per executor.
    client_seconds: CPU seconds of a client with threads.
    worker_mb: resident memory of a worker, at most.
  """

  table: list[list[str]]
  client_seconds: float
  worker_mb: float


def compare_rounds(quick: bool, cycles: int) -> Rounds:
  """Compares rounds with `threads` and on workers."""
  import safl_tf
  from benchmarks import workloads
  from safl_tf.core.executors.ray import workers as workers_lib

  work = workloads.get('lenet', quick)
  make = functools.partial(
    safl_tf.FederatedProcess,
    work.model_fn,
    work.clients(),
    safl_tf.build_safl(),
    work.config,
  )
  threads = Trainer(functools.partial(make, executor='threads'))
  costs: dict[str, list[Cost]] = {THREADS: []}
  memory: list[float] = []
  for num_workers in NUM_WORKERS:
    config = safl_tf.RayConfig(workers=num_workers)
    with workers_lib.find(config, 'auto').held():
      trainers = {THREADS: threads}
      for chunk in CHUNKS:
        executor = dataclasses.replace(config, chunk=chunk)
        trainers[_name(num_workers, chunk)] = Trainer(
          functools.partial(make, executor=executor)
        )
      for name, measured in _take_turns(trainers, cycles).items():
        costs.setdefault(name, []).extend(measured)
      memory += [w.memory_info().rss / 1e6 for w in _processes()['worker']]
  # Ray idles while threads train.
  idle = [cost._replace(ray=0.0, workers=0.0) for cost in costs[THREADS]]
  medians = {name: _median(values) for name, values in costs.items()}
  base = medians[THREADS] = _median(idle)
  rows = [
    [
      name,
      f'{cost.wall:.2f}',
      f'{cost.cpu:.2f}',
      f'{cost.driver:.2f}',
      f'{cost.workers:.2f}',
      f'{cost.ray:.2f}',
      f'{cost.cpu / base.cpu:.2f}',
    ]
    for name, cost in medians.items()
  ]
  headings = 'executor,s / round,CPU s,driver,workers,Ray,× CPU of threads'
  table = [headings.split(','), *rows]
  return Rounds(table, base.cpu / work.num_clients, max(memory))


def driver_table(quick: bool, cycles: int) -> tuple[list[list[str]], float]:
  """Measures the driver alone; returns the table and LeNet-5's default."""
  import safl_tf
  from benchmarks import workloads
  from safl_tf.core.executors.ray import workers as workers_lib

  headings = 'model,clients per round,chunk,ms of driver CPU per client'
  rows: list[list[str]] = []
  default = 0.0
  config = safl_tf.RayConfig(workers=1)
  with workers_lib.find(config, 'auto').held():
    for name, count in ('lenet', 1000), ('vgg', 200):
      work = workloads.get(name)
      count = count // 10 if quick else count
      one = work._replace(num_clients=count, examples=1)
      local = safl_tf.LocalConfig(local_epochs=1, batch_size=1)
      for chunk in CHUNKS:
        trainer = Trainer(
          functools.partial(
            safl_tf.FederatedProcess,
            work.model_fn,
            one.clients(),
            safl_tf.build_safl(),
            local,
            executor=dataclasses.replace(config, chunk=chunk),
          )
        )
        costs = [trainer.next().driver / count for _ in range(cycles)]
        milliseconds = 1000 * statistics.median(costs)
        print(f'  {name}, {chunk}: {costs}', file=sys.stderr, flush=True)
        if name == 'lenet' and chunk is None:
          default = milliseconds
        label = 'LeNet-5' if name == 'lenet' else 'Light VGG'
        size = str(chunk or 'default')
        rows.append([label, str(count), size, f'{milliseconds:.2f}'])
  return [headings.split(','), *rows], default


def section(quick: bool, cycles: int) -> str:
  """Returns both tables as Markdown."""
  rounds = compare_rounds(quick, cycles)
  driver, milliseconds = driver_table(quick, cycles)
  seconds = rounds.client_seconds
  cores = seconds / (milliseconds / 1000)
  return '\n\n'.join(
    [
      f'{reports.provenance("benchmarks.scaling")} Medians of {cycles} rounds '
      'each, taken in turns. One worker has two CPUs, two have one each.',
      tables.to_markdown(rounds.table).rstrip(),
      f'A worker has up to {rounds.worker_mb:.0f} MB of resident memory, here '
      'with four times the data and the compiled training.',
      'The driver without training (one example per client, one worker):',
      tables.to_markdown(driver).rstrip(),
      f'A LeNet-5 client of MNIST-LeNet-80 takes {seconds:.3f} CPU '
      f'seconds and {milliseconds:.2f} ms of the driver, so one core of the '
      f'driver feeds about {cores:.0f} cores of workers.',
    ]
  )


def main() -> None:
  """Measures, prints the tables and optionally writes them."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--cycles', type=int, default=3, help='rounds to time')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  text = section(arguments.quick, arguments.cycles)
  reports.write(arguments.write, 'scaling', text)


if __name__ == '__main__':
  main()
