"""Layers that grow, and clients whose models don't."""

import numpy as np
import pytest

from safl_tf.algorithms.fed_ma import layer_weights, progress
from tests.algorithms.fed_ma import nets, test_rounds

UNITS, PHASES, SIZES = (6, 5), 3, test_rounds.SIZES
make, rounds = test_rounds.make, test_rounds.rounds


def maps_of(state):
  """Each client's maps, layer by layer."""
  return [
    np.split(row, np.cumsum(UNITS)[:-1]) for row in state.memory['global_maps']
  ]


@pytest.mark.parametrize('schedule', ['layerwise', 'oneshot'])
def test_widths_stay_bounded(schedule):
  trainer = make('bbp', schedule)
  states, _ = rounds(trainer, 6 * trainer.rounds_per_pass)
  ends = states[trainer.rounds_per_pass :: trainer.rounds_per_pass]
  widths = np.array([state.memory['global_widths'] for state in ends])
  assert (widths > UNITS).all()
  assert (widths <= len(SIZES) * np.array(UNITS)).all()
  assert (widths.max(axis=0) - widths[0] <= 2).all()  # no growth by passes
  for state in ends:
    chain = nets.chain_of(trainer.model).resized(state.memory['global_widths'])
    assert state.z_bar.shape == (chain.size,)
    counts = np.split(state.memory['global_counts'], [chain.hidden[0]])
    for layer, width in enumerate(UNITS):
      result = [maps[layer] for maps in maps_of(state)]
      assert all(len(set(pi.tolist())) == width for pi in result)
      np.testing.assert_array_equal(
        np.bincount(np.concatenate(result)), counts[layer]
      )


def test_models_within_a_pass():
  """Global widths below, the original ones from the layer on."""
  trainer = make('bbp')
  states, _ = rounds(trainer, 5)
  for t, matched in ((1, 1), (2, 2), (4, 1), (5, 2)):
    memory = states[t].memory
    widths = memory['pass_widths']
    np.testing.assert_array_equal(widths[matched:], UNITS[matched:])
    assert (widths[:matched] > UNITS[:matched]).all()
    size = nets.chain_of(trainer.model).resized(widths).size
    assert memory['pass_models'].shape == (len(SIZES), size)
    assert memory['pass_maps'].shape == (len(SIZES), sum(UNITS[:matched]))


def test_inputs_that_a_client_does_not_have_are_zero():
  trainer = make('bbp')
  states, _ = rounds(trainer, 1)
  memory = states[1].memory
  for z, pi in zip(
    test_rounds.layers_of(trainer, states[1]), memory['pass_maps'], strict=True
  ):
    has = np.isin(np.arange(memory['pass_widths'][0]), pi)
    assert (z[1].kernel[0][has] != 0).all()
    assert (z[1].kernel[0][~has] == 0).all() and not has.all()


def test_newcomers_take_common_units():
  """In the second pass a client takes part that was not in the first."""
  trainer = make('bbp', 'oneshot', 0.5)
  state = rounds(trainer, 1)[0][-1]
  old = set(state.memory['global_ids'].tolist())
  while set(trainer.algorithm.select(0, state.t + 1, 4).tolist()) <= old:
    state, _ = trainer.next(state)
    old = set(state.memory['global_ids'].tolist())
  done = progress.read(state.memory, progress.GLOBAL)
  chain = nets.chain_of(trainer.model)
  ids = trainer.algorithm.select(0, state.t + 1, 4).tolist()
  (new, *_) = set(ids) - old
  chosen = done.chosen(new, chain.hidden)
  counts = np.split(done.counts, [done.widths[0]])
  for units, count in zip(chosen, counts, strict=True):
    rest = np.delete(count, units)
    assert count[units].min() >= rest.max()
  z = layer_weights.pick(chain.resized(done.widths), state.z_bar, chosen)
  assert z.shape == (chain.size,)
  after, metrics = trainer.next(state)
  assert metrics.sent.all() and np.isfinite(after.z_bar).all()


def test_a_grown_model_is_a_plain_model():
  trainer = make('bbp')
  state = rounds(trainer, 3)[0][-1]
  model = trainer.get_model(state)
  assert tuple(layer.units for layer in model.layers) == (
    *state.memory['global_widths'],
    3,
  )
  flat = np.concatenate([w.ravel() for w in model.get_weights()])
  np.testing.assert_array_equal(flat, state.z_bar)
  assert trainer.model_of(state) is trainer.model_of(state)
  assert trainer.model_of(trainer.initialize(0)) is trainer.model
