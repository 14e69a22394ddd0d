"""Seconds per round of several ways to train, in one go.

  python -m benchmarks.rounds                       # both works, half an hour
  python -m benchmarks.rounds --quick               # a tenth of it
  python -m benchmarks.rounds --work=lenet --write=docs/benchmarks.md

Every way runs in a process of its own; they take turns, a round each.
"""

import argparse
import os
import pathlib
import statistics
from typing import NamedTuple

from benchmarks import reports, workers

WORKS = ('lenet', 'vgg')


class Measured(NamedTuple):
  """What a way took.

  Attributes:
    first: seconds of the first round, with whatever it compiles.
    round: seconds of a later round, the median.
    peak_mb: the process's memory at most.
  """

  first: float
  round: float
  peak_mb: float


def child(work: str, way: str, quick: bool) -> None:
  """Times one way in this process, round by round."""
  from benchmarks import ways, workloads

  workers.serve(ways.WAYS[way](workloads.get(work, quick)), {})


def compare(
  work: str, quick: bool, cycles: int
) -> tuple[dict[str, Measured], float]:
  """All ways on one work, and the GFLOP/s of large matrix products."""
  from benchmarks import ways

  started = {
    way: workers.Worker(
      'benchmarks.rounds',
      [f'--work={work}', f'--way={way}', *['--quick'] * quick],
    )
    for way in ways.WAYS
  }
  seconds = workers.take_turns(started, cycles)
  results = {
    way: Measured(
      first=seconds[way][0],
      round=statistics.median(seconds[way][1:]),
      peak_mb=worker.close()['peak_mb'],
    )
    for way, worker in started.items()
  }
  gemm = results.pop(ways.GEMM)
  return results, 1 / min(gemm.round, gemm.first)


def section(work: str, quick: bool, cycles: int) -> str:
  """A work's table as Markdown."""
  from benchmarks import ways, workloads

  workload = workloads.get(work, quick)
  results, gflops = compare(work, quick, cycles)
  gflop = workload.flop_per_image * workload.images_per_round / 1e9
  limit = gflop / gflops
  rows = [
    [
      name,
      f'{found.round:.2f}',
      f'{workload.images_per_round / found.round:,.0f}',
      f'{results[ways.FIT].round / found.round:.1f}',
      f'{results[ways.STEP].round / found.round:.2f}',
      f'{found.round / limit:.2f}',
      f'{found.first:.1f}',
      f'{found.peak_mb:.0f}',
    ]
    for name, found in results.items()
  ]
  heads = 'way,s / round,images / s,× Keras fit,× one-step,× GEMM limit'
  heads += ',first round s,peak RSS MB'
  extra = results[ways.EXTENDED].round / results[ways.SAFL].round
  return '\n\n'.join(
    [
      f'## {workload.title}',
      f'{reports.how("benchmarks.rounds")} The median of {cycles} rounds each, '
      'taken in turns.',
      f'{gflop:.0f} GFLOP a round; matrix products reach {gflops:.0f} GFLOP/s, '
      f'so the limit is {limit:.2f} s.',
      reports.table(heads.split(','), rows),
      f'Extended SAFL takes {extra:.2f} times as long as SAFL.',
    ]
  )


def main() -> None:
  """Runs all ways and prints, and maybe writes, the tables."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--work', choices=WORKS, help='only this work')
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--cycles', type=int, default=3, help='rounds to time')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  parser.add_argument('--way', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  if arguments.way:
    child(arguments.work, arguments.way, arguments.quick)
    return
  for work in [arguments.work] if arguments.work else WORKS:
    text = section(work, arguments.quick, arguments.cycles)
    reports.write(arguments.write, f'rounds: {work}', text)


if __name__ == '__main__':
  main()
