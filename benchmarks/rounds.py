"""Compares the seconds per round of several training methods.

  python -m benchmarks.rounds                       # all, half an hour
  python -m benchmarks.rounds --quick               # a tenth of the clients
  python -m benchmarks.rounds --work=lenet --write=docs/benchmarks.md

Every method runs in its own process; they take turns, one round each.
"""

import argparse
import os
import pathlib
import statistics
from typing import NamedTuple

from benchmarks import reports, workers
from safl_tf.reporting import tables

WORKS = ('lenet', 'vgg')


class Measured(NamedTuple):
  """Time and memory of a method.

  Attributes:
    first: seconds of the first round, including compilation.
    round: median seconds of the later rounds.
    peak_mb: peak memory of the process.
  """

  first: float
  round: float
  peak_mb: float


def serve(work: str, method: str, quick: bool) -> None:
  """Times one method in this process, a round per request."""
  from benchmarks import methods, workloads

  workers.serve(methods.METHODS[method](workloads.get(work, quick)), {})


def compare(
  work: str, quick: bool, cycles: int
) -> tuple[dict[str, Measured], float]:
  """Times all methods, and returns GFLOP/s of large matrix products."""
  from benchmarks import methods

  started = {
    method: workers.Worker(
      'benchmarks.rounds',
      [f'--work={work}', f'--method={method}', *['--quick'] * quick],
    )
    for method in methods.METHODS
  }
  seconds = workers.take_turns(started, cycles)
  results = {
    method: Measured(
      first=seconds[method][0],
      round=statistics.median(seconds[method][1:]),
      peak_mb=worker.close()['peak_mb'],
    )
    for method, worker in started.items()
  }
  gemm = results.pop(methods.GEMM)
  return results, 1 / min(gemm.round, gemm.first)


def section(work: str, quick: bool, cycles: int) -> str:
  """Returns the table of a workload as Markdown."""
  from benchmarks import methods, workloads

  workload = workloads.get(work, quick)
  results, gflops = compare(work, quick, cycles)
  gflop = workload.flop_per_image * workload.images_per_round / 1e9
  limit = gflop / gflops
  rows = [
    [
      name,
      f'{result.round:.2f}',
      f'{workload.images_per_round / result.round:,.0f}',
      f'{results[methods.FIT].round / result.round:.1f}',
      f'{results[methods.STEP].round / result.round:.2f}',
      f'{result.round / limit:.2f}',
      f'{result.first:.1f}',
      f'{result.peak_mb:.0f}',
    ]
    for name, result in results.items()
  ]
  headings = 'method,s / round,images / s,× Keras fit,× one-step,× GEMM limit'
  headings += ',first round s,peak RSS MB'
  ratio = results[methods.EXTENDED].round / results[methods.SAFL].round
  return '\n\n'.join(
    [
      f'## {workload.title}',
      f'{reports.provenance("benchmarks.rounds")} The median of {cycles} '
      'rounds each, taken in turns.',
      f'{gflop:.0f} GFLOP per round; matrix products reach {gflops:.0f} '
      f'GFLOP/s, so the limit is {limit:.2f} s.',
      tables.to_markdown([headings.split(','), *rows]).rstrip(),
      f'Extended SAFL takes {ratio:.2f} times as long as SAFL.',
    ]
  )


def main() -> None:
  """Times all methods, prints the tables and optionally writes them."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--work', choices=WORKS, help='only this workload')
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--cycles', type=int, default=3, help='rounds to time')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  parser.add_argument('--method', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  if arguments.method:
    serve(arguments.work, arguments.method, arguments.quick)
    return
  for work in [arguments.work] if arguments.work else WORKS:
    text = section(work, arguments.quick, arguments.cycles)
    reports.write(arguments.write, f'rounds: {work}', text)


if __name__ == '__main__':
  main()
