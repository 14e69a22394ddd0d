"""FedMA among clients that don't train: what is left is the matching.

The rate is so small that training changes no bit of a model without zeros.
"""

import functools

import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms.fed_ma import layer_weights, progress
from safl_tf.core import client_config, process
from safl_tf.rules import aggregate
from tests import tiny
from tests.algorithms.fed_ma import nets

STILL = client_config.LocalConfig(
  local_epochs=1, batch_size=8, learning_rate=1e-30
)
SIZES = (9, 15, 12)
LARGEST = 1
SCHEDULES = ('layerwise', 'oneshot')


@functools.cache  # a state is a value, so tests share processes
def make(name, schedule, matching='hungarian', gamma=7.0):
  """A process on noise, with as many examples of each class on a client."""
  model, shape, _, _ = nets.NETS[name]
  y = np.arange(sum(SIZES)) % 3
  return process.FederatedProcess(
    model,
    tiny.clients(SIZES, nets.inputs(shape, len(y)), y),
    safl_tf.build_fed_ma(matching, schedule, fedma_gamma=gamma),
    STILL,
    jit_compile='false',
  )


def run(trainer, models, passes=1, seed=0):
  """The state after some passes that start from these models."""
  state = trainer.initialize(seed)
  state = state._replace(
    clients={'z': state.client_models.updated(dict(enumerate(models)))}
  )
  for _ in range(passes * trainer.rounds_per_pass):
    state, _ = trainer.next(state)
  return state


def initial(trainer):
  z = trainer.model.init(np.array([1, 2], np.int32))
  return z + nets.noise(z.size, 0.01)


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('name', ['conv_net', 'small_vgg', 'lenet5'])
def test_permuted_copies_are_recovered_exactly(name, schedule):
  trainer = make(name, schedule)
  chain, z = nets.chain_of(trainer.model), initial(trainer)
  copies = [nets.permuted(chain, z, seed=k)[0] for k in range(len(SIZES))]
  state = run(trainer, copies)
  assert state.z_bar.tobytes() == copies[LARGEST].tobytes()
  assert run(trainer, copies, 2).z_bar.tobytes() == state.z_bar.tobytes()
  x = nets.inputs(nets.NETS[name][1], seed=5)
  expected, mean = (
    nets.outputs(trainer.model, w, x)
    for w in (z, aggregate.weighted_mean(SIZES, copies))
  )
  got = nets.outputs(trainer.model, state.z_bar, x)
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
  assert np.abs(mean - expected).max() > 0.02  # what FedAvg gives


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('name', ['conv_net', 'small_vgg'])
def test_noisy_copies_are_aligned(name, schedule):
  """Their mean is that of the copies before they were permuted."""
  trainer = make(name, schedule)
  chain, z = nets.chain_of(trainer.model), initial(trainer)
  noisy = [
    z + nets.noise(z.size, 0.01 * z.std(), seed=k + 1)
    for k in range(len(SIZES))
  ]
  copies, orders = zip(
    *(nets.permuted(chain, w, seed=k) for k, w in enumerate(noisy)), strict=True
  )
  *hidden, _ = layer_weights.split(chain, np.mean(noisy, axis=0))
  *_, last = layer_weights.split(chain, aggregate.weighted_mean(SIZES, noisy))
  mean = layer_weights.join([*hidden, last])
  expected = layer_weights.pick(chain, mean, orders[LARGEST])
  result = run(trainer, copies).z_bar
  np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('matching', ['hungarian', 'bbp'])
def test_identical_models_stay_as_they_are(matching, schedule):
  """With a small γ, 'bbp' opens no units."""
  gamma = 7.0 if matching == 'hungarian' else 1e-3
  trainer = make('conv_net', schedule, matching, gamma)
  z = initial(trainer)
  state = run(trainer, [z] * 3)
  assert state.z_bar.tobytes() == z.tobytes()
  identity = np.concatenate([np.arange(w) for w in (4, 5, 7)])
  np.testing.assert_array_equal(state.memory['global_maps'], [identity] * 3)
  np.testing.assert_array_equal(state.memory['global_counts'], [3] * 16)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_units_that_nobody_shares_make_an_ensemble(schedule):
  """With a huge γ a layer has all units of all clients, side by side.

  Inputs that a client does not have are zero, so that the clients' networks
  stay apart up to the last layer, where classes are averaged. A client takes
  its own units back when the next pass begins.
  """
  trainer = make('conv_net', schedule, 'bbp', 1e30)
  chain = nets.chain_of(trainer.model)
  models = [nets.noise(chain.size, seed=k) for k in range(3)]
  state = run(trainer, models)
  np.testing.assert_array_equal(state.memory['global_widths'], [12, 15, 21])
  x = nets.inputs(nets.IMAGE, seed=5)
  counts = trainer.clients.label_counts()
  expected = sum(
    share * nets.outputs(trainer.model, z, x)
    for share, z in zip(counts / counts.sum(axis=0), models, strict=True)
  )
  got = nets.outputs(trainer.model_of(state), state.z_bar, x)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
  done = progress.read(state.memory, progress.GLOBAL)
  grown = chain.resized(done.widths)
  for k, z in enumerate(models):
    taken = layer_weights.pick(grown, state.z_bar, done.chosen(k, chain.hidden))
    *hidden, _ = layer_weights.split(chain, taken)
    *own, _ = layer_weights.split(chain, z)
    assert (
      layer_weights.join(hidden).tobytes() == layer_weights.join(own).tobytes()
    )
