"""Layer by layer: phases, passes, what is frozen, counted and dropped."""

import functools

import numpy as np
import pytest

import safl_tf
from safl_tf import attacks
from safl_tf.algorithms.fed_ma import layer_weights, progress
from safl_tf.core import client_config, process
from safl_tf.training import loop
from safl_tf.util import errors
from tests import tiny
from tests.algorithms.fed_ma import nets

SIZES = (40, 33, 51, 27)
CONFIG = client_config.LocalConfig(
  local_epochs=2, batch_size=20, learning_rate=0.01
)
# nets.mlp: three layers 8 -> 6 -> 5 -> 3 with biases, elements of each.
PHASES = 3
ELEMENTS = (9 * 6, 7 * 5, 6 * 3)
UNITS = (6, 5)


@functools.cache  # a state is a value, so tests share processes
def make(matching='hungarian', schedule='layerwise', fraction=1.0, sizes=SIZES):
  return process.FederatedProcess(
    nets.mlp,
    tiny.clients(sizes),
    safl_tf.build_fed_ma(matching, schedule, fraction=fraction),
    CONFIG,
    jit_compile='false',
  )


def rounds(trainer, count, state=None):
  """The states and metrics of some rounds; the state before at first."""
  states = [trainer.initialize(0) if state is None else state]
  metrics = []
  for _ in range(count):
    state, measured = trainer.next(states[-1])
    states.append(state)
    metrics.append(measured)
  return states, metrics


def bits(state):
  z_bar = None if state.z_bar is None else state.z_bar.tobytes()
  memory = {name: a.tobytes() for name, a in state.memory.items()}
  own = state.client_models.to_arrays()
  return state.t, z_bar, memory, {name: a.tobytes() for name, a in own.items()}


def layers_of(trainer, state):
  """Each client's layers in the midst of a pass."""
  chain = nets.chain_of(trainer.model)
  chain = chain.resized(state.memory['pass_widths'])
  return [layer_weights.split(chain, z) for z in state.memory['pass_models']]


def same(one, other):
  return (
    layer_weights.join([one]).tobytes() == layer_weights.join([other]).tobytes()
  )


def test_a_pass_gives_a_global_model():
  trainer = make()
  assert trainer.rounds_per_pass == PHASES
  states, metrics = rounds(trainer, 7)
  assert [state.t for state in states] == list(range(8))
  z = [state.z_bar for state in states]
  assert z[0] is z[1] is z[2] is None and z[3] is not None
  assert z[3] is z[4] is z[5] and not np.array_equal(z[5], z[6])
  assert z[6] is z[7]
  assert all(m.sent.all() and m.p == 0 for m in metrics)
  assert metrics[0].kept_local == 1  # there is nothing to take over yet
  assert all(m.kept_local == 0 for m in metrics[1:])
  losses = [m.train_loss for m in metrics]
  assert losses[-1] < losses[0]
  assert len(states[-1].client_models) == 0
  assert trainer.num_traces == 1


def test_layers_below_are_frozen_and_shared():
  trainer = make()
  states, _ = rounds(trainer, 6)
  first, second = (layers_of(trainer, states[t]) for t in (1, 2))
  for before, after in zip(first, second, strict=True):
    assert same(before[0], after[0]) and same(before[0], first[0][0])
    assert same(after[1], second[0][1])
    assert not same(before[1], after[1]) and not same(before[2], after[2])
  assert not same(second[0][2], second[1][2])  # the classifiers are their own
  chain = nets.chain_of(trainer.model)
  final = layer_weights.split(chain, states[3].z_bar)
  assert same(final[0], second[0][0]) and same(final[1], second[0][1])
  # The classifier was trained once more, and is not frozen.
  assert not same(final[2], second[0][2])
  assert not any('pass' in name for name in states[3].memory)


def test_clients_stay_for_a_pass():
  trainer = make(fraction=0.5)
  _, metrics = rounds(trainer, 12)
  result = np.array([m.ids for m in metrics]).reshape(4, PHASES, 2)
  for number, ids in enumerate(result, start=1):
    expected = trainer.algorithm.select(0, number, len(SIZES))
    np.testing.assert_array_equal(ids, [expected] * PHASES)
  assert len({ids[0].tobytes() for ids in result}) > 1


@pytest.mark.parametrize('schedule', ['layerwise', 'oneshot'])
@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_learns(matching, schedule):
  trainer = make(matching, schedule)
  state = rounds(trainer, 12)[0][-1]
  x, y = tiny.blobs(500, seed=1)
  outputs = np.asarray(trainer.get_model(state)(x))
  assert np.mean(outputs.argmax(axis=1) == y) > 0.95


@pytest.mark.parametrize('schedule', ['layerwise', 'oneshot'])
@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_a_state_is_a_value(matching, schedule):
  trainer = make(matching, schedule)
  states, _ = rounds(trainer, 5)
  before = [bits(state) for state in states]
  again = rounds(trainer, 2, states[3])[0]
  assert [bits(state) for state in again] == before[3:]
  assert [bits(state) for state in states] == before
  other = make.__wrapped__(matching, schedule)  # a new one
  assert bits(rounds(other, 5)[0][-1]) == before[-1]


def test_bytes_layer_by_layer():
  _, metrics = rounds(make(), 7)
  up = [ELEMENTS[0], ELEMENTS[1], ELEMENTS[2] + 3]  # and three class counts
  inside = [ELEMENTS[0] + UNITS[0], ELEMENTS[1] + UNITS[1]]
  down = [0, *inside, sum(ELEMENTS), *inside, sum(ELEMENTS)]
  assert [m.bytes_up for m in metrics] == [4 * 4 * n for n in [*up, *up, up[0]]]
  assert [m.bytes_down for m in metrics] == [4 * 4 * n for n in down]


def test_bytes_of_layers_that_grow():
  states, metrics = rounds(make('bbp'), 4)
  a, b = states[3].memory['global_widths'].tolist()
  assert a > 6 and b > 5
  up = [9 * 6, (a + 1) * 5, (b + 1) * 3 + 3, 9 * 6]
  whole = 9 * a + (a + 1) * b + (b + 1) * 3
  down = [0, 9 * a + 6, (a + 1) * b + 5, whole]
  assert [m.bytes_up for m in metrics] == [4 * 4 * n for n in up]
  assert [m.bytes_down for m in metrics] == [4 * 4 * n for n in down]


@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_bytes_at_once(matching):
  states, metrics = rounds(make(matching, 'oneshot'), 3)
  up = 4 * 4 * (sum(ELEMENTS) + 3)
  assert [m.bytes_up for m in metrics] == [up] * 3
  down = [0] + [4 * 4 * (s.z_bar.size + sum(UNITS)) for s in states[1:3]]
  assert [m.bytes_down for m in metrics] == down


def broken(state, rows):
  """The same, but some clients' models are not finite."""
  models = state.memory['pass_models'].copy()
  models[rows] = np.nan
  return state._replace(memory=state.memory | {'pass_models': models})


@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_a_client_is_out_for_the_rest_of_a_pass(matching):
  trainer = make(matching)
  states, _ = rounds(trainer, 1)
  after, metrics = rounds(trainer, 3, broken(states[1], [2]))
  np.testing.assert_array_equal(metrics[0].dropped, [2])
  np.testing.assert_array_equal(metrics[0].sent, [True, True, False, True])
  width = states[1].memory['pass_widths'][0]
  assert metrics[0].bytes_up == 3 * 4 * (width + 1) * 5
  np.testing.assert_array_equal(metrics[1].ids, [0, 1, 3])
  assert not len(metrics[1].dropped) and np.isfinite(after[2].z_bar).all()
  np.testing.assert_array_equal(after[2].memory['global_ids'], [0, 1, 3])
  assert len(after[2].memory['global_maps']) == 3
  np.testing.assert_array_equal(metrics[2].ids, range(4))


@pytest.mark.parametrize('first', [True, False])
def test_a_pass_without_clients_is_given_up(first):
  trainer = make('bbp')
  states, _ = rounds(trainer, 1 if first else 4)
  start = broken(states[-1], slice(None))
  after, metrics = rounds(trainer, 5, start)
  np.testing.assert_array_equal(metrics[0].dropped, range(4))
  assert np.isnan(metrics[0].train_loss) and metrics[0].bytes_up == 0
  assert not len(metrics[1].ids) and metrics[1].bytes_down == 0
  z = [state.z_bar for state in after]
  assert z[0] is z[1] is z[2] is z[4] and z[5] is not None
  kept = progress.finished(states[-1].memory)
  assert bool(kept) != first
  assert after[2].memory == kept  # and what is known of z̄
  if first:
    with pytest.raises(errors.RunError, match=r'no client has sent a finite'):
      trainer.get_model(after[2])


@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_one_client_needs_no_matching(matching):
  trainer = make(matching, 'oneshot', sizes=(40,))
  plain = process.FederatedProcess(
    nets.mlp,
    tiny.clients((40,)),
    safl_tf.build_fed_avg(),
    CONFIG,
    jit_compile='false',
  )
  mine, others = (rounds(p, 3)[0][-1] for p in (trainer, plain))
  assert mine.z_bar.tobytes() == others.z_bar.tobytes()
  np.testing.assert_array_equal(
    mine.memory['global_maps'], [[*range(6), *range(5)]]
  )
  layerwise = make(matching, sizes=(40,))
  states, metrics = rounds(layerwise, 2 * PHASES)
  assert tuple(states[-1].memory['global_widths']) == UNITS
  assert metrics[-1].train_loss < metrics[0].train_loss


def test_malicious_clients_spoil_what_they_upload_and_nothing_else():
  attack = attacks.Attack('noise', fraction=0.25, strength=100.0)
  malicious = process.FederatedProcess(
    nets.mlp,
    tiny.clients(SIZES),
    safl_tf.build_fed_ma(),
    CONFIG,
    jit_compile='false',
    attack=attack,
  )
  plain = layers_of(malicious, rounds(make(), 1)[0][1])
  spoiled = layers_of(malicious, rounds(malicious, 1)[0][1])
  assert not same(plain[0][0], spoiled[0][0])
  for one, other in zip(plain, spoiled, strict=True):
    assert same(one[2], other[2])  # not touched by matching the first layer


def test_too_few_rounds():
  trainer = make()
  state = rounds(trainer, 2)[0][-1]
  hint = r'^rounds=2: .* first global model after 3 rounds$'
  with pytest.raises(errors.InputError, match=hint):
    trainer.get_model(state)
  with pytest.raises(errors.InputError, match=r'^rounds=2: must be at least 3'):
    loop.run(trainer, loop.Schedule(rounds=2))
