"""What every algorithm keeps, whatever it is made of."""

import dataclasses
import itertools

import numpy as np
import pytest

from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import client_config, process
from safl_tf.training import loop, metrics_log
from safl_tf.util import choices
from tests import marks, memories, tiny

pytestmark = pytest.mark.usefixtures('no_outputs')

SIZES = (40, 33, 51, 27)
CONFIG = client_config.LocalConfig(learning_rate=0.01, batch_size=20)
COMMUNICATING = [
  name
  for name in choices.ALGORITHMS
  if name not in ('centralized', 'local_only')
]
SHARED_START = ('fedsgd', 'feddyn')
# Elements of tiny.dense's two layers, and its units and classes.
LOWER, UPPER, UNITS, CLASSES = 8 * 5 + 5, 5 * 3 + 3, 5, 3
WHOLE = LOWER + UPPER


def config(name):
  """FedSGD takes one step on the mean loss, so a far longer one."""
  if name == 'fedsgd':
    return dataclasses.replace(CONFIG, learning_rate=0.5)
  return CONFIG


def make(name, clients=None, **options):
  return process.FederatedProcess(
    tiny.dense,
    clients or tiny.clients(SIZES),
    registry.build(name),
    options.pop('config', config(name)),
    jit_compile='false',
    **options,
  )


def rounds(trainer, state, count):
  """The states and metrics of some rounds."""
  results = []
  for _ in range(count):
    state, metrics = trainer.next(state)
    results.append((state, metrics))
  return results


def bits(state):
  """All that a state is made of."""
  z_bar = None if state.z_bar is None else state.z_bar.tobytes()
  arrays = memories.to_arrays(state.memory)
  memory = {name: array.tobytes() for name, array in arrays.items()}
  own = [kept(state, k) for k in range(len(SIZES))]
  return state.seed, state.t, z_bar, memory, own


# Unlike aggregators and client work; the others are slow tests.
FEW = pytest.mark.parametrize(
  'name',
  marks.some(
    choices.ALGORITHMS,
    ['fedavg', 'extended_safl', 'ida', 'astw_safl', 'fedma', 'feddyn'],
  ),
)


def kept(state, k):
  """All that a client keeps: its model, its variate and the like."""
  return {name: array.tobytes() for name, array in state.kept(k).items()}


@pytest.mark.parametrize('name', choices.ALGORITHMS)
def test_learns(name):
  result = loop.train(
    tiny.dense,
    tiny.clients(SIZES),
    registry.build(name),
    test_data=tiny.blobs(500, seed=1),
    rounds=40,
    config=config(name),
    jit_compile='false',
    eval_every=40,
    progress=False,
  )
  assert result.history[-1]['test_accuracy'] > 0.95


@FEW
def test_same_seed_same_bits(name):
  first, second = make(name), make(name)
  a = rounds(first, first.initialize(3), 3)[-1][0]
  b = rounds(second, second.initialize(3), 3)[-1][0]
  other = rounds(first, first.initialize(4), 3)[-1][0]
  assert bits(a) == bits(b)
  assert a.z_bar is None or a.z_bar.tobytes() != other.z_bar.tobytes()


@pytest.mark.parametrize('name', choices.ALGORITHMS)
def test_a_state_is_a_value(name):
  trainer = make(name)
  states = [s for s, _ in rounds(trainer, trainer.initialize(0), 3)]
  before = [bits(state) for state in states]
  again = trainer.next(states[1])[0]
  assert bits(again) == before[2]
  assert [bits(state) for state in states] == before


@pytest.mark.parametrize('name', choices.ALGORITHMS)
def test_resumed_is_uninterrupted(name, tmp_path):
  def run(path, count):
    return loop.train(
      tiny.dense,
      tiny.clients(SIZES),
      registry.build(name),
      test_data=tiny.blobs(100, seed=1),
      rounds=count,
      config=config(name),
      jit_compile='false',
      output_dir=tmp_path / path,
      progress=False,
    )

  whole = run('whole', 5)
  run('parts', 3)  # in the middle of a pass of FedMA
  parts = run('parts', 5)
  assert bits(parts.state) == bits(whole.state)
  same = [
    {k: v for k, v in row.items() if k not in metrics_log.MEASURED}
    for row in whole.history
  ]
  for row, expected in zip(parts.history, same, strict=True):
    assert {k: row[k] for k in expected} == expected


@FEW
def test_a_round_without_uploads_keeps_the_global_model(name):
  trainer = make(name)
  state = rounds(trainer, trainer.initialize(0), 4)[-1][0]
  if name in COMMUNICATING:
    broken = make(name, attack=attacks.Attack('nonfinite', fraction=1.0))
  else:
    diverging = dataclasses.replace(CONFIG, learning_rate=1e38)
    broken = make(name, config=diverging)
  new, metrics = broken.next(state)
  assert len(metrics.dropped) == len(metrics.ids)
  assert not metrics.sent.any() and metrics.bytes_up == 0
  assert bits(new._replace(t=state.t)) == bits(state)


@pytest.mark.parametrize('name', COMMUNICATING)
def test_a_non_finite_client_is_dropped(name):
  attack = attacks.Attack('nonfinite', fraction=0.25)
  trainer = make(name, attack=attack)
  (malicious,) = trainer.malicious
  start = trainer.initialize(0)
  results = rounds(trainer, start, 4)
  assert results[0][1].dropped.tolist() == [malicious]
  position = results[0][1].ids.tolist().index(malicious)
  assert not results[0][1].sent[position]
  assert results[0][1].sent.sum() == 3
  state = results[-1][0]
  assert np.isfinite(state.z_bar).all()
  assert kept(state, malicious) == kept(start, malicious)
  arrays = memories.to_arrays(state.memory).values()
  assert all(np.isfinite(array).all() for array in arrays)


@FEW
def test_one_client_is_enough(name):
  trainer = make(name, tiny.clients((60,)))
  results = rounds(trainer, trainer.initialize(0), 10)
  losses = [metrics.train_loss for _, metrics in results]
  assert np.isfinite(results[-1][0].z_bar).all()
  assert losses[-1] < losses[0]


def elements(name, t):
  """What one client sends and gets in round t, in 4-byte numbers."""
  if name in ('centralized', 'local_only'):
    return 0, 0
  if name == 'fedma':
    if t % 2 == 1:
      return LOWER, 0 if t == 1 else WHOLE
    return UPPER + CLASSES, LOWER + UNITS
  down = 0 if t == 1 and name not in SHARED_START else WHOLE
  if name in ('scaffold', 'scaffold_safl'):  # and a variate
    return 2 * WHOLE, down + WHOLE
  if name == 'astw' and 2 <= t <= 11:
    return LOWER, down
  return WHOLE, down


@pytest.mark.parametrize('name', choices.ALGORITHMS)
def test_bytes(name):
  trainer = make(name)
  results = rounds(trainer, trainer.initialize(0), 13)
  for t, (_, metrics) in zip(itertools.count(1), results, strict=False):
    up, down = elements(name, t)
    assert metrics.bytes_up == 4 * up * metrics.sent.sum()
    assert metrics.bytes_down == 4 * down * len(metrics.ids)
    if name not in ('centralized', 'local_only', 'extended_safl'):
      assert metrics.sent.sum() == 4


def test_extended_safl_sends_less_than_everything():
  trainer = make('extended_safl')
  results = rounds(trainer, trainer.initialize(0), 13)
  sent = [int(metrics.sent.sum()) for _, metrics in results]
  assert sent[0] == 4 and 4 < sum(sent) < 13 * 4
