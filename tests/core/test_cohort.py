"""Outputs in a fixed order, stored as they arrive and read one at a time."""

import dataclasses
import threading
import time
import tracemalloc

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core import client_config, process
from safl_tf.core.executors import base, threads
from tests import tiny, tiny_rounds


def test_order_of_arrival_does_not_matter(monkeypatch):
  """Clients that finish in any order give the same bits."""
  expected = tiny_rounds.run(tiny_rounds.make(), 3)[0][-1]
  finished = []
  run = base.CompiledRound.__call__
  rng = np.random.default_rng(0)

  def slowly(self, inputs):
    output = run(self, inputs)
    time.sleep(rng.uniform(0, 0.05))
    finished.append(inputs.kept['z'].tobytes())
    return output

  monkeypatch.setattr(base.CompiledRound, '__call__', slowly)
  trainer = tiny_rounds.make(executor='threads')
  states = tiny_rounds.run(trainer, 3)[0]
  models = [states[0].client_models[k].tobytes() for k in range(6)]
  order = [models.index(z) for z in finished[:6]]
  tiny_rounds.check_same(states[-1], expected)
  assert sorted(order) == list(range(6))


def test_results_wait_in_a_small_window():
  """While the first is slow, others go on only as far as the window."""
  release, started = threading.Event(), []

  def worker(k):
    started.append(k)
    if k == 1:
      release.wait(10)
    return k

  pool = base.Pool([worker, worker], window=3)
  results = pool.map(lambda k: k, range(50))
  assert next(results) == 0  # in this thread
  waiting = threading.Thread(target=lambda: rest.extend(results))
  rest = []
  waiting.start()
  deadline = time.monotonic() + 10
  while len(started) < 7 and time.monotonic() < deadline:
    time.sleep(0.01)
  time.sleep(0.2)
  assert sorted(started) == list(range(7)) and not rest
  release.set()
  waiting.join(10)
  assert rest == list(range(1, 50))


def test_an_error_ends_the_others():
  def worker(k):
    if k == 3:
      raise ZeroDivisionError
    return k

  pool = base.Pool([worker], window=2)
  seen = []
  with pytest.raises(ZeroDivisionError):
    seen.extend(pool.map(lambda k: k, range(100)))
  assert list(pool.map(lambda k: k, [7, 8])) == [7, 8]


def wide():
  return keras.Sequential(
    [keras.Input((tiny.FEATURES,)), keras.layers.Dense(20_000)]
  )


@pytest.mark.parametrize('name', ['fedavg', 'ida', 'astw', 'scaffold'])
def test_memory_for_a_few_models(name):
  """180,000 parameters in 60 clients: 43 MB of models, and no sum of them."""
  clients = tiny.clients((2,) * 60)
  trainer = process.FederatedProcess(
    wide,
    clients,
    registry.build(name),
    client_config.LocalConfig(local_epochs=1, learning_rate=1e-4),
    init='shared',
    executor='threads',
    jit_compile='false',
    client_store='mmap',
  )
  state, _ = trainer.next(trainer.initialize(0))
  tracemalloc.start()
  try:
    trainer.next(state)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  model = trainer.model.size * 4
  window = threads._WINDOW * 2
  assert peak < (window + 14) * model < 0.6 * 60 * model


class Recorded(list):
  """An aggregator that keeps what it is given."""

  def __call__(self, memory, updates, z_bar):
    self.append(updates)
    return safl_tf.aggregate.by_size().apply(memory, updates, z_bar)


def test_uploads_are_a_lazy_sequence():
  seen = Recorded()
  algorithm = dataclasses.replace(
    safl_tf.build_fed_avg(), aggregate=safl_tf.aggregate.Aggregator(seen)
  )
  trainer = tiny_rounds.make(algorithm, client_store='mmap')
  state = tiny_rounds.run(trainer, 1)[0][-1]
  [updates] = seen
  assert updates.num_clients == len(updates.z) == 6
  for k, z in enumerate(updates.z):
    np.testing.assert_array_equal(z, state.client_models[k])
  np.testing.assert_array_equal(updates.z[-1], updates.z[5])
  assert [z.tobytes() for z in updates.z[1:3]] == [
    updates.z[k].tobytes() for k in (1, 2)
  ]
  with pytest.raises(IndexError):
    updates.z[6]


def test_what_is_withheld_is_kept_but_not_uploaded():
  seen = Recorded()
  decide = lambda seed, t, metrics: safl_tf.gate.Decision(
    metrics['distance'] < 0.35, 0.5, 0.0
  )
  algorithm = dataclasses.replace(
    safl_tf.build_fed_avg(),
    gate=safl_tf.gate.Gate(decide, needs=('distance',)),
    aggregate=safl_tf.aggregate.Aggregator(seen),
  )
  trainer = tiny_rounds.make(algorithm)
  states, metrics = tiny_rounds.run(trainer, 4)
  for t, (updates, measured) in enumerate(zip(seen, metrics, strict=True)):
    sent = measured.metrics['distance'] < 0.35
    expected = measured.ids if t == 0 else measured.ids[sent]
    np.testing.assert_array_equal(updates.ids, expected)
    for k, z in zip(updates.ids, updates.z, strict=True):
      np.testing.assert_array_equal(z, states[t + 1].client_models[k])
  assert 0 < len(seen[2].ids) < 6
