"""What a run costs beside training: mixing, evaluating, checkpoints and so on.

  python -m benchmarks.parts --write=docs/benchmarks.md
  python -m benchmarks.parts --quick

On MNIST-LeNet-80 with the default executor. Each part is timed by itself, for
all clients of a round, and told as a share of a whole round.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent import futures

from benchmarks import reports


def seconds(function: Callable[[], object], times: int = 3) -> float:
  """The median of several calls, after one that doesn't count."""
  function()
  found = []
  for _ in range(times):
    start = time.perf_counter()
    function()
    found.append(time.perf_counter() - start)
  return statistics.median(found)


def section(quick: bool) -> str:
  """The table as Markdown."""
  import numpy as np
  import tensorflow as tf

  import safl_tf
  from benchmarks import workloads
  from safl_tf.core import process, seeds
  from safl_tf.rules import aggregate
  from safl_tf.training import evaluation, run_directory
  from safl_tf.util import hardware

  work = workloads.get('lenet', quick)
  n = work.num_clients
  safl = safl_tf.build_safl()
  trainer = process.FederatedProcess(
    work.model_fn, work.clients(), safl, work.config
  )
  state, _ = trainer.next(trainer.initialize(0))
  whole = seconds(lambda: trainer.next(state))

  z = [state.client_models[k] for k in range(n)]
  pairs = [seeds.pair(0, seeds.Role.MIX, 1, k) for k in range(n)]
  mix = tf.function(safl.mix, jit_compile=True, autograph=False)
  t = tf.constant(2.0)
  pool = futures.ThreadPoolExecutor(hardware.num_cores())

  def mix_all() -> None:
    run = lambda k: mix(tf.constant(pairs[k]), t, state.z_bar, z[k]).w.numpy()
    list(pool.map(run, range(n)))

  received = aggregate.Updates(1, np.arange(n), z, np.full(n, work.examples))
  aggregating = seconds(lambda: safl.aggregate.apply({}, received, state.z_bar))
  with tempfile.TemporaryDirectory() as path:
    folder = run_directory.RunDirectory(path, {})
    later = state

    def save() -> None:
      nonlocal later  # every model is another one, and the round a later one
      own = {k: later.clients[k] for k in range(n)}
      later = later._replace(t=later.t + 1, clients=later.clients.updated(own))
      folder.save(later, [])

    with folder.opened():
      folder.restore(state)
      saving = seconds(save)

  shaped = trainer.trainer_of(state)
  x = trainer.clients.x
  predict = evaluation.build_predict(shaped.model, x, shaped.jit_compile)
  tested = np.arange(min(10_000, len(x)))

  def first_models() -> None:
    fresh = trainer.initialize(1).clients
    list(pool.map(fresh.__getitem__, range(1000)))

  parts = {
    f'mixing, {n} clients': seconds(mix_all),
    f'aggregating, {n} models': aggregating,
    f'a checkpoint of {n} models': saving,
  }
  parts['these three together'] = sum(parts.values())
  evaluating = seconds(lambda: predict(state.z_bar, tested))
  parts[f'evaluating on {len(tested):,} images'] = evaluating
  rows = [['a whole round', f'{whole:.3f}', '100 %']]
  rows += [[a, f'{b:.3f}', f'{b / whole:.1%}'] for a, b in parts.items()]
  drawing = seconds(first_models)
  rows += [["1,000 clients' initial models", f'{drawing:.3f}', '']]
  return '\n\n'.join(
    [
      f'## Beside training: {work.title}',
      f'{reports.how("benchmarks.parts")} Medians of 3. By default a '
      'checkpoint is written every fifth round; the share is that of one in '
      'every round.',
      reports.table(['part', 's', 'share of a round'], rows),
    ]
  )


def main() -> None:
  """Measures and prints, and maybe writes, the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--quick', action='store_true', help='8 clients')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  reports.write(arguments.write, 'parts', section(arguments.quick))


if __name__ == '__main__':
  main()
