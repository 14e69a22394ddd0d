"""Times the parts of a run besides training: mixing, aggregation, checkpoints.

  python -m benchmarks.parts --write=docs/benchmarks.md
  python -m benchmarks.parts --quick

On MNIST-LeNet-80 with the default executor. Each part is timed separately, for
all clients of a round, and reported as a share of a complete round.
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
from safl_tf.reporting import tables


def seconds(function: Callable[[], object], calls: int = 3) -> float:
  """Returns the median seconds of several calls, after a warm-up call."""
  function()
  durations = []
  for _ in range(calls):
    start = time.perf_counter()
    function()
    durations.append(time.perf_counter() - start)
  return statistics.median(durations)


def section(quick: bool) -> str:
  """Returns the table as Markdown."""
  import numpy as np
  import tensorflow as tf

  import safl_tf
  from benchmarks import workloads
  from safl_tf.core import process, seeds
  from safl_tf.data import examples
  from safl_tf.rules import aggregate
  from safl_tf.training import evaluation, identity, run_directory
  from safl_tf.util import digests, hardware

  work = workloads.get('lenet', quick)
  n = work.num_clients
  safl = safl_tf.build_safl()
  trainer = process.FederatedProcess(
    work.model_fn, work.clients(), safl, work.config
  )
  state, _ = trainer.next(trainer.initialize(0))
  z_bar = state.z_bar
  assert z_bar is not None
  whole_round = seconds(lambda: trainer.next(state))

  z = [state.client_models[k] for k in range(n)]
  pairs = [seeds.pair(0, seeds.Role.MIX, 1, k) for k in range(n)]
  mix = tf.function(safl.mix, jit_compile=True, autograph=False)
  t = tf.constant(2.0)
  pool = futures.ThreadPoolExecutor(hardware.num_cores())

  def mix_all() -> None:
    run = lambda k: mix(tf.constant(pairs[k]), t, z_bar, z[k]).w.numpy()
    list(pool.map(run, range(n)))

  received = aggregate.Updates(
    1, np.arange(n), {'z': z}, np.full(n, work.examples), n
  )
  aggregating = seconds(lambda: safl.aggregate.apply({}, received, z_bar))
  with tempfile.TemporaryDirectory() as path:
    folder = run_directory.RunDirectory(path)
    later = state

    def save() -> None:
      nonlocal later  # a later round, in which every model has changed
      models = later.client_models
      models = models.updated({k: models[k] for k in range(n)})
      later = later._replace(t=later.t + 1, clients={'z': models})
      folder.save(later, [])

    with folder.opened():
      folder.begin({}, rounds=1)
      folder.restore(state)
      saving = seconds(save)

  shaped = trainer.trainer_of(state)
  x = trainer.clients.x
  predict = evaluation.Predictor(shaped.model, x, shaped.jit_compile)
  tested = np.arange(min(10_000, len(x)))

  def initial_models() -> None:
    models = trainer.initialize(1).client_models
    list(pool.map(models.__getitem__, range(1000)))

  parts = {
    f'mixing, {n} clients': seconds(mix_all),
    f'aggregation, {n} models': aggregating,
    f'checkpoint of {n} models': saving,
  }
  parts['these three in total'] = sum(parts.values())
  evaluating = seconds(lambda: predict(z_bar, tested))
  parts[f'evaluation on {len(tested):,} images'] = evaluating
  rows = [['part', 's', 'share of a round']]
  rows += [['complete round', f'{whole_round:.3f}', '100 %']]
  for name, value in parts.items():
    rows.append([name, f'{value:.3f}', f'{value / whole_round:.1%}'])
  gigabyte = np.arange(125_000_000)
  test_data = examples.Examples(x, trainer.clients.y)
  define = lambda: identity.of_run(
    trainer, trainer.initialize(0), test_data, {}
  )
  alone: dict[str, Callable[[], object]] = {
    'initial models of 1,000 clients': initial_models,
    'identity of the run, once, with digests of all data twice': define,
    'digest of 1 GB': lambda: digests.of_array(gigabyte),
    'sum of 1 GB, to compare': gigabyte.sum,
  }
  for name, function in alone.items():
    rows.append([name, f'{seconds(function):.3f}', ''])
  return '\n\n'.join(
    [
      f'## Besides training: {work.title}',
      f'{reports.provenance("benchmarks.parts")} Medians of 3. The share of a '
      'checkpoint is for one in every round; the default is every fifth.',
      tables.to_markdown(rows).rstrip(),
    ]
  )


def main() -> None:
  """Measures, prints the table and optionally writes it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--quick', action='store_true', help='8 clients')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  reports.write(arguments.write, 'parts', section(arguments.quick))


if __name__ == '__main__':
  main()
