"""Three hundred rounds cost no more memory than a hundred, and no retracing."""

import dataclasses
import gc

import numpy as np
import psutil
import pytest

import safl_tf
from safl_tf.core import client_config, process, seeds
from tests import marks, tiny

SIZES = tuple(np.random.default_rng(0).integers(1, 60, 40).tolist())
CONFIG = client_config.LocalConfig(
  local_epochs=1, batch_size=8, learning_rate=0.02
)


def varying(seed, t, n):
  """Another number of other clients every round."""
  rng = seeds.generator(seed, seeds.Role.SELECT, t)
  return np.sort(rng.choice(n, size=rng.integers(1, 9), replace=False))


def resident():
  gc.collect()
  return psutil.Process().memory_info().rss


@pytest.mark.parametrize(
  'executor, store',
  marks.some(
    [('threads', 'mmap'), ('vectorized', 'ram')], [('threads', 'mmap')]
  ),
)
def test_flat(executor, store, tmp_path):
  safl = safl_tf.build_extended_safl()
  trainer = process.FederatedProcess(
    tiny.dense,
    tiny.clients(SIZES),
    dataclasses.replace(safl, select=varying),
    CONFIG,
    executor=executor,
    client_store=store,
    store_dir=tmp_path,
  )
  state = trainer.initialize(0)
  traces, memory = [], []
  for _ in range(300):
    state, _ = trainer.next(state)
    traces.append(trainer.num_traces)
    if state.t in (100, 300):
      memory.append(resident())
  assert traces[1] == traces[-1]
  assert memory[1] - memory[0] < 4e6
