"""The code of how_to/own_algorithm.md runs, and computes what the page says."""

import dataclasses
import functools

import numpy as np
import pytest

import safl_tf
from tests import tiny, tiny_numpy, tiny_rounds
from tests.docs import pages

pytestmark = pytest.mark.usefixtures('no_outputs')

PAGE = 'how_to/own_algorithm.md'
BLOCKS = pages.blocks(PAGE)
CLIENTS, CONFIG = tiny_rounds.CLIENTS, tiny_rounds.CONFIG
SUM = CLIENTS.sizes.sum()
# Float32 rounding through a dozen steps, against float64.
CLOSE = {'rtol': 1e-4, 'atol': 1e-5}
ALGORITHMS = ('lazy', 'picky', 'fed_nova', 'fed_dc_prox', 'fed_dc_safl')


@pytest.fixture(scope='module')
def page():
  """The names that the page defines, after its code has run."""
  train = functools.partial(safl_tf.train, jit_compile='false', progress=False)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(safl_tf, 'train', train)
    return pages.run(PAGE, {})


def test_the_algorithm_is_short():
  lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
  assert 'def build_fed_dc(' in BLOCKS[0]
  assert len(lines) <= 40
  assert max(len(line) for block in BLOCKS for line in block.splitlines()) <= 88


def test_the_algorithm_trains(page):
  accuracy = page['result'].history[-1]['test_accuracy']
  assert accuracy > 0.7
  assert page['result'].state.t == 6


@pytest.mark.parametrize('executor', ['serial', 'threads', 'vectorized'])
@pytest.mark.parametrize('reduction', ['sum', 'mean'])
def test_fed_dc_equals_numpy(page, executor, reduction):
  config = dataclasses.replace(CONFIG, loss_reduction=reduction)
  trainer = tiny_rounds.make(
    page['build_fed_dc'](0.3), config=config, executor=executor
  )
  states, metrics = tiny_rounds.run(trainer, 2)
  z_bar = states[0].z_bar.astype(np.float64)
  n = CLIENTS.num_clients
  drifts, updates, update = [np.zeros(63)] * n, [np.zeros(63)] * n, np.zeros(63)
  for t in (1, 2):
    uploads = []
    for k in range(n):

      def change(g, w, h=drifts[k], own=updates[k]):
        return g + 0.3 * (w + h - z_bar) + own - update  # noqa: B023

      z, _, steps = tiny_numpy.train(CLIENTS, config, t, k, z_bar, change)
      drifts[k] = drifts[k] + z - z_bar
      updates[k] = (z - z_bar) / (steps * config.learning_rate)
      uploads.append(z + drifts[k])
      kept = states[t].kept(k)
      np.testing.assert_allclose(kept['z'], z, **CLOSE)
      np.testing.assert_allclose(kept['drift'], drifts[k], **CLOSE)
      np.testing.assert_allclose(kept['update'], updates[k], 1e-3, 1e-4)
    z_bar = CLIENTS.sizes @ np.stack(uploads) / SUM
    update = CLIENTS.sizes @ np.stack(updates) / SUM
    np.testing.assert_allclose(states[t].z_bar, z_bar, **CLOSE)
    np.testing.assert_allclose(states[t].memory['update'], update, 1e-3, 1e-4)
    assert (
      metrics[t - 1].bytes_up == metrics[t - 1].bytes_down == n * 2 * 4 * 63
    )


def test_fed_nova_equals_numpy(page):
  states, [metrics] = tiny_rounds.run(tiny_rounds.make(page['fed_nova']), 1)
  start = states[0].z_bar.astype(np.float64)
  changes, tau = [], []
  for k in range(CLIENTS.num_clients):
    z, _, steps = tiny_numpy.train(CLIENTS, CONFIG, 1, k, start)
    changes.append((z - start) / steps)
    tau.append(steps)
  p = CLIENTS.sizes / SUM
  expected = start + (p @ tau) * (p @ np.stack(changes))
  np.testing.assert_allclose(states[1].z_bar, expected, **CLOSE)
  np.testing.assert_array_equal(metrics.metrics['tau'], tau)
  assert metrics.bytes_up == 6 * 4 * 64


@pytest.mark.parametrize('name', ALGORITHMS)
def test_recipes_learn(page, name):
  result = safl_tf.train(
    tiny.dense,
    tiny.clients((40, 33, 51, 27)),
    page[name],
    test_data=tiny.blobs(300, seed=1),
    rounds=15,
    eval_every=15,
    config=safl_tf.LocalConfig(learning_rate=0.01, batch_size=20),
    jit_compile='false',
    progress=False,
  )
  assert result.history[-1]['test_accuracy'] > 0.9


def test_gates_of_the_page_decide(page):
  _, metrics = tiny_rounds.run(tiny_rounds.make(page['lazy']), 3)
  for row in metrics[1:]:
    np.testing.assert_array_equal(row.sent, row.metrics['distance'] >= 0.1)
  _, metrics = tiny_rounds.run(tiny_rounds.make(page['picky']), 3)
  gap = metrics[2].metrics['loss'] - metrics[2].metrics['global_loss']
  np.testing.assert_allclose(
    metrics[2].q, np.minimum(1, np.exp(-gap / 0.1)), rtol=1e-5
  )


def test_fed_dc_finds_the_minimum_of_a_quadratic(page):
  a, c = np.float32([1, 4, 2]), np.float32([0, 1, -3])
  best = pytest.approx(a @ c / a.sum(), abs=1e-4)
  assert page['minimise'](page['build_fed_dc'](0.5), a, c) == best
  assert page['minimise'](safl_tf.build_scaffold(), a, c) == best
  assert page['minimise'](safl_tf.build_fed_avg(), a, c) != best


def test_fed_dc_resumes(page, tmp_path):
  """The arrays that clients keep, and the server's memory, are stored."""

  def run(folder, rounds):
    return safl_tf.train(
      tiny.dense,
      CLIENTS,
      page['build_fed_dc'](clients_per_round=4),
      rounds=rounds,
      config=CONFIG,
      jit_compile='false',
      progress=False,
      output_dir=tmp_path / folder,
    ).state

  whole = run('whole', 4)
  run('parts', 2)
  parts = run('parts', 4)
  assert parts.z_bar.tobytes() == whole.z_bar.tobytes()
  assert parts.memory['update'].tobytes() == whole.memory['update'].tobytes()
  for k in range(CLIENTS.num_clients):
    kept, expected = parts.kept(k), whole.kept(k)
    assert {n: a.tobytes() for n, a in kept.items()} == {
      n: a.tobytes() for n, a in expected.items()
    }
