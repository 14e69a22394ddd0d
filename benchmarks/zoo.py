"""Compares the ways to train a zoo of models: executors, with and without XLA.

  python -m benchmarks.zoo                          # all, about an hour
  python -m benchmarks.zoo --only='LeNet-5'
  python -m benchmarks.zoo --write=docs/benchmarks.md

Every way runs in its own process; the ways of a model take turns, one round
each. `auto` is the way that the defaults choose. The hand-written loop calls a
`tf.function` for every step of one client after the other.
"""

import argparse
import math
import os
import pathlib
import sys
from typing import NamedTuple

from benchmarks import reports, workers
from safl_tf.reporting import tables

HAND = 'hand-written loop'
# way -> executor and jit_compile
WAYS = {
  f'{executor}, {xla}': (executor, jit)
  for executor in ('threads', 'serial', 'vectorized')
  for xla, jit in (('no XLA', 'false'), ('XLA', 'true'))
}
_TIMEOUT = 300.0  # of a round
_MIN_SECONDS = 1.0  # that rounds of the fastest way take in all
HEADINGS = (
  'model,steps,way,s / round,CPU s / round,first round s,peak RSS MB,'
  '× best way,speed × hand-written'
)


class Measured(NamedTuple):
  """Time and memory of a way.

  Attributes:
    seconds: of the fastest round after the first.
    cpu: the CPU seconds of the cheapest one.
    first: seconds of the first round, including compilation.
    peak_mb: peak memory of the process.
  """

  seconds: float = math.inf
  cpu: float = math.inf
  first: float = math.inf
  peak_mb: float = math.nan


def serve(kind: str, steps: int, way: str) -> None:
  """Times one way in this process, a round per request."""
  from benchmarks import methods, zoo_models

  work = zoo_models.KINDS[kind].workload(kind, steps)
  method: methods.Method = methods.one_step
  if way != HAND:
    executor, jit = WAYS[way]
    method = methods.safl(executor, jit_compile=jit)
  workers.serve(method(work), {})


def chosen(kind: str, steps: int) -> str:
  """Returns the way that the defaults choose."""
  import safl_tf
  from benchmarks import zoo_models
  from safl_tf.core import executors, process

  work = zoo_models.KINDS[kind].workload(kind, steps)
  trainer = process.FederatedProcess(
    work.model_fn, work.clients(), safl_tf.build_safl(), work.config
  )
  jit = trainer.trainer_of(trainer.initialize(0)).jit_compile
  how = (executors.resolve('auto'), str(jit).lower())
  return next(way for way in WAYS if WAYS[way] == how)


def compare(kind: str, steps: int, cycles: int) -> dict[str, Measured]:
  """Times all ways to train a kind of model."""
  started = {
    way: workers.Worker(
      'benchmarks.zoo',
      [f'--only={kind}', f'--steps={steps}', f'--way={way}'],
    )
    for way in (HAND, *WAYS)
  }
  rounds: dict[str, list[workers.Measurement]] = {way: [] for way in started}
  for worker in started.values():
    worker.wait()
  spent = {way: 0.0 for way in started}
  turn = 0
  while turn <= cycles or min(spent[way] for way in started) < _MIN_SECONDS:
    for way in list(started):
      try:
        rounds[way].append(started[way].measure(_TIMEOUT))
        spent[way] += rounds[way][-1].value if turn else 0.0
      except (RuntimeError, TimeoutError):  # XLA cannot compile it, or not soon
        del started[way], rounds[way]
    turn += 1
  results = dict.fromkeys((HAND, *WAYS), Measured())
  for way, worker in started.items():
    first, *later = rounds[way]
    results[way] = Measured(
      seconds=min(r.value for r in later),
      cpu=min(r.cpu for r in later),
      first=first.value,
      peak_mb=worker.close()['peak_mb'],
    )
  return results


def rows(kind: str, steps: int, cycles: int) -> list[list[str]]:
  """Returns the rows of the table for a kind of model, `auto` first."""
  results = compare(kind, steps, cycles)
  auto = chosen(kind, steps)
  best = min(results[way].seconds for way in WAYS)
  hand = results[HAND].seconds
  order = sorted(results, key=lambda way: (way != auto, results[way].seconds))
  return [
    [
      kind,
      str(steps),
      f'auto: {way}' if way == auto else way,
      f'{measured.seconds:.3f}',
      f'{measured.cpu:.3f}',
      f'{measured.first:.1f}',
      f'{measured.peak_mb:.0f}',
      f'{measured.seconds / best:.2f}',
      f'{hand / measured.seconds:.2f}',
    ]
    for way in order
    for measured in [results[way]]
  ]


def main() -> None:
  """Times the zoo, prints the tables and optionally writes them."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--only', help='one kind of model')
  parser.add_argument('--steps', type=int, help='5 or 36')
  parser.add_argument(
    '--cycles', type=int, default=3, help='rounds to time at least'
  )
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  parser.add_argument('--way', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  if arguments.way:
    serve(arguments.only, arguments.steps, arguments.way)
    return
  from benchmarks import zoo_models

  kinds = [arguments.only] if arguments.only else list(zoo_models.KINDS)
  sizes = [arguments.steps] if arguments.steps else zoo_models.STEPS
  table = [HEADINGS.split(',')]
  for kind in kinds:
    for steps in sizes:
      new = rows(kind, steps, arguments.cycles)
      print(tables.to_markdown([table[0], *new]), file=sys.stderr, flush=True)
      table += new
  text = '\n\n'.join(
    [
      '## A zoo of models: executors, with and without XLA',
      f'{reports.provenance("benchmarks.zoo")} The fastest of '
      f'{arguments.cycles} rounds of SAFL each, or as many as the fastest way '
      f'finishes in {_MIN_SECONDS:.0f} s, taken in turns; `auto` is the '
      'way that the defaults choose. The hand-written loop is SAFL, too: a '
      '`tf.function` for every step, one client after the other, and NumPy. '
      '`inf`: XLA cannot compile it, or a round takes more than '
      f'{_TIMEOUT:.0f} s.',
      tables.to_markdown(table).rstrip(),
    ]
  )
  reports.write(arguments.write, 'zoo', text)


if __name__ == '__main__':
  main()
