import dataclasses
import logging
import math

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.core import client_config, process, seeds
from safl_tf.models import lenet5
from safl_tf.rules import aggregate
from safl_tf.util import errors
from tests import marks, tiny, tiny_rounds

layers = keras.layers
# So small a rate that training changes nothing: what is left is the rules.
STILL = dataclasses.replace(tiny_rounds.CONFIG, learning_rate=1e-30)
# Zero biases become 1e-30, and dense layers' weights are about 1.
NEAR = {'rtol': 1e-6, 'atol': 1e-7}


def differ(one, other):
  return not np.array_equal(one.z_bar, other.z_bar)


def accuracy(trainer, state, x, y):
  outputs = np.asarray(trainer.get_model(state)(x, training=False))
  return np.mean(outputs.argmax(axis=1) == y)


@pytest.fixture(scope='module')
def safl():
  return tiny_rounds.make(safl_tf.build_safl(fraction=0.5))


@pytest.fixture(scope='module')
def still():
  """FedAvg among clients that stay where they start."""
  return tiny_rounds.make(safl_tf.build_fed_avg(), config=STILL)


def test_same_seed_same_bits(safl):
  states, _ = tiny_rounds.run(safl, 3)
  again = tiny_rounds.make(safl_tf.build_safl(fraction=0.5))
  tiny_rounds.check_same(states[-1], tiny_rounds.run(again, 3)[0][-1])
  assert differ(states[-1], tiny_rounds.run(safl, 3, seed=1)[0][-1])


def test_next_is_a_function(safl):
  states, _ = tiny_rounds.run(safl, 2)
  before = states[1].z_bar.copy()
  stored = states[1].client_models.to_arrays()['arrays'].copy()
  (first, measured), (second, again) = (safl.next(states[1]) for _ in range(2))
  tiny_rounds.check_same(first, second)
  tiny_rounds.check_same(first, states[2])
  for one, other in zip(measured, again, strict=True):
    np.testing.assert_array_equal(one, other)
  np.testing.assert_array_equal(states[1].z_bar, before)
  np.testing.assert_array_equal(
    states[1].client_models.to_arrays()['arrays'], stored
  )


def images(sizes):
  """Noise, with a bright line for each class."""
  rng = np.random.default_rng(0)
  y = np.arange(sum(sizes)) % 10
  x = rng.integers(0, 60, (len(y), 28, 28, 1), dtype=np.uint8)
  x[np.arange(len(y)), 4 + 2 * y] = 255
  return tiny.clients(sizes, x, y)


EPSILON_1 = {
  'lenet5': (lenet5.lenet5, images((12, 9, 10)), 'auto'),
  'batch norm and dropout': (tiny.normalised, tiny_rounds.CLIENTS, 'auto'),
}


@pytest.mark.parametrize(
  'name', marks.some(EPSILON_1, ['batch norm and dropout'])
)
def test_safl_with_epsilon_1_is_fed_avg(name):
  model, clients, jit = EPSILON_1[name]
  options = {'model': model, 'clients': clients, 'jit_compile': jit}
  one = tiny_rounds.make(
    safl_tf.build_safl(epsilon=1.0, temperature=5), **options
  )
  other = tiny_rounds.make(safl_tf.build_fed_avg(), **options)
  states, metrics = tiny_rounds.run(one, 4)
  tiny_rounds.check_same(states[-1], tiny_rounds.run(other, 4)[0][-1])
  assert 0.3 < metrics[-1].kept_local < 0.6  # it did draw


def test_cold_safl_is_fed_avg():
  one = tiny_rounds.make(safl_tf.build_safl(temperature=1e-3))
  tiny_rounds.check_same(
    tiny_rounds.run(one, 3)[0][-1],
    tiny_rounds.run(tiny_rounds.make(safl_tf.build_fed_avg()), 3)[0][-1],
  )


def test_first_round_starts_from_own_initialisations(still):
  states, metrics = tiny_rounds.run(still, 1, seed=3)
  own = [
    still.model.init(seeds.pair(3, seeds.Role.INIT, k + 1))
    for k in range(len(tiny_rounds.SIZES))
  ]
  assert len({z.tobytes() for z in own}) == len(tiny_rounds.SIZES)
  assert states[0].z_bar is None and len(states[0].client_models) == 0
  for k, z in enumerate(own):
    assert states[0].client_models[k].tobytes() == z.tobytes()
    np.testing.assert_allclose(states[1].client_models[k], z, **NEAR)
  mean = np.average(own, axis=0, weights=tiny_rounds.SIZES)
  np.testing.assert_allclose(states[1].z_bar, mean, rtol=1e-5, atol=1e-6)
  assert metrics[0].kept_local == 1 and metrics[0].bytes_down == 0


def test_fed_avg_adopts_the_global_model(still):
  states, metrics = tiny_rounds.run(still, 2)
  for k in range(len(tiny_rounds.SIZES)):
    np.testing.assert_allclose(
      states[2].client_models[k], states[1].z_bar, **NEAR
    )
  assert metrics[1].p == metrics[1].kept_local == 0


def test_safl_keeps_some_of_its_own():
  algorithm = safl_tf.build_safl(epsilon=0.3, temperature=4)
  trainer = tiny_rounds.make(algorithm, config=STILL)
  states, metrics = tiny_rounds.run(trainer, 3)
  p = math.exp(-3 / 4)
  z_bar, kept = states[2].z_bar, []
  for k in range(len(tiny_rounds.SIZES)):
    z, new = states[2].client_models[k], states[3].client_models[k]
    local_part = 0.3 * z_bar + 0.7 * z
    is_global = np.isclose(new, z_bar, **NEAR)
    is_local = np.isclose(new, local_part, **NEAR)
    assert (is_global | is_local).all()
    kept.append(is_local & ~is_global)
  same = np.isclose(z_bar, z, **NEAR).sum()  # biases are all zero here
  share = np.sum(kept) / (np.size(kept) - same * len(tiny_rounds.SIZES))
  assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / np.size(kept))
  assert metrics[2].p == pytest.approx(p)
  assert metrics[2].kept_local == pytest.approx(share, abs=0.1)
  assert not np.array_equal(kept[0], kept[1])  # each client draws its own u


def test_unselected_clients_keep_their_model(safl):
  states, metrics = tiny_rounds.run(safl, 6)
  for before, after, measured in zip(
    states[:-1], states[1:], metrics, strict=True
  ):
    assert len(measured.ids) == 3
    for k in range(len(tiny_rounds.SIZES)):
      kept = (
        after.client_models[k].tobytes() == before.client_models[k].tobytes()
      )
      assert kept == (k not in measured.ids)
  assert len({m.ids.tobytes() for m in metrics}) > 1
  taken = set(np.concatenate([m.ids for m in metrics]))
  assert len(states[-1].client_models) == len(taken)


def test_uploaded_is_the_trained_model(safl):
  states, metrics = tiny_rounds.run(safl, 3)
  for state, measured in zip(states[1:], metrics, strict=True):
    expected = aggregate.weighted_mean(
      np.array(tiny_rounds.SIZES)[measured.ids],
      [state.client_models[k] for k in measured.ids],
    )
    assert state.z_bar.tobytes() == expected.tobytes()


def test_one_client():
  trainer = tiny_rounds.make(safl_tf.build_safl(), clients=tiny.clients((20,)))
  states, metrics = tiny_rounds.run(trainer, 3)
  for state in states[1:]:
    assert state.z_bar.tobytes() == state.client_models[0].tobytes()
  assert metrics[2].train_loss < metrics[0].train_loss


def test_bytes(safl):
  _, metrics = tiny_rounds.run(safl, 3)
  model = 63 * 4
  assert [m.bytes_up for m in metrics] == [3 * model] * 3
  assert [m.bytes_down for m in metrics] == [0, 3 * model, 3 * model]


def test_threads_agree_on_initialisers_of_the_users():
  def noise(shape, dtype=None):
    return np.random.normal(size=shape).astype('float32')

  model = lambda: keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      layers.Dense(tiny.CLASSES, kernel_initializer=noise),
    ]
  )
  one, other = (
    tiny_rounds.make(model=model, executor=executor)
    for executor in ('serial', 'threads')
  )
  tiny_rounds.check_same(
    tiny_rounds.run(one, 1)[0][-1], tiny_rounds.run(other, 1)[0][-1]
  )


def linear():
  return keras.Sequential(
    [keras.Input((tiny.FEATURES,)), layers.Dense(tiny.CLASSES)]
  )


def test_a_client_that_is_not_finite_is_dropped(caplog):
  x, y = tiny.blobs(sum(tiny_rounds.SIZES))
  huge = x.copy()
  huge[20:33] *= 1e30  # client 1's
  broken, sound = (
    tiny_rounds.make(
      safl_tf.build_safl(),
      linear,
      tiny.clients(tiny_rounds.SIZES, features, y),
    )
    for features in (huge, x)
  )
  start = broken.initialize(0)
  with caplog.at_level(logging.WARNING, logger='absl'):
    states, metrics = tiny_rounds.run(broken, 2)
  assert 'round 2: dropped non-finite updates of client 1' in caplog.text
  others = [0, 2, 3, 4, 5]
  for state, m in zip(states[1:], metrics, strict=True):
    np.testing.assert_array_equal(m.dropped, [1])
    np.testing.assert_array_equal(m.ids[m.sent], others)
    assert state.client_models[1].tobytes() == start.client_models[1].tobytes()
    assert np.isfinite(state.z_bar).all() and np.isfinite(m.train_loss)
    assert m.bytes_up == 5 * 27 * 4
    expected = aggregate.weighted_mean(
      np.array(tiny_rounds.SIZES)[others],
      [state.client_models[k] for k in others],
    )
    assert state.z_bar.tobytes() == expected.tobytes()
  alike, _ = tiny_rounds.run(sound, 1)
  for k in others:
    assert (
      states[1].client_models[k].tobytes()
      == alike[1].client_models[k].tobytes()
    )


def test_the_stored_model_is_put_back():
  """Also when the client had trained before."""
  x, y = tiny.blobs(33)
  trainer = tiny_rounds.make(model=linear, clients=tiny.clients((20, 13), x, y))
  states, _ = tiny_rounds.run(trainer, 1)
  bad = states[1]._replace(z_bar=np.tile(np.float32([3e38, -3e38, 1e38]), 9))
  state, metrics = trainer.next(bad)
  np.testing.assert_array_equal(metrics.dropped, [0, 1])
  for k in range(2):
    assert (
      state.client_models[k].tobytes() == states[1].client_models[k].tobytes()
    )
  assert state.z_bar is bad.z_bar and math.isnan(metrics.train_loss)
  assert not metrics.sent.any()


def test_shared_initialisation_of_a_function():
  trainer = tiny_rounds.make(init='shared')
  states = [trainer.initialize(seed).client_models for seed in (0, 0, 1)]
  z = states[0][0]
  assert all(states[0][k].tobytes() == z.tobytes() for k in range(6))
  assert states[1][3].tobytes() == z.tobytes()
  assert not np.array_equal(states[2][0], z)


def test_shared_initialisation_of_a_model():
  model = tiny.dense()
  trainer = tiny_rounds.make(model=model)
  assert trainer.init == 'shared'
  clients = trainer.initialize(5).client_models
  weights = np.concatenate([np.ravel(w) for w in model.get_weights()])
  for k in range(6):
    np.testing.assert_array_equal(clients[k], weights)
  own = tiny_rounds.make(model=model, init='per_client').initialize(5)
  assert not np.array_equal(own.client_models[0], weights)


def test_shared_start_makes_round_one_a_fed_avg_round():
  trainer = tiny_rounds.make(
    safl_tf.build_fed_avg(), config=STILL, init='shared'
  )
  states, _ = tiny_rounds.run(trainer, 1)
  np.testing.assert_allclose(
    states[1].z_bar, states[0].client_models[0], **NEAR
  )


@pytest.mark.parametrize(
  'name',
  marks.some(tiny.MODELS, ['functional', 'subclassed with build', 'nested']),
)
def test_users_models_learn(name):
  model, take = tiny.MODELS[name]
  x, y = tiny.blobs(400)
  trainer = tiny_rounds.make(
    safl_tf.build_safl(temperature=3),
    model,
    tiny.clients((30, 20, 40, 25, 1), take(x[:116]), y[:116]),
    jit_compile='auto',
    from_logits=True,
  )
  states, _ = tiny_rounds.run(trainer, 8)
  score = accuracy(trainer, states[-1], take(x[116:]), y[116:])
  assert score > 0.9
  assert trainer.num_traces == 1


def test_frozen_weights_stay():
  model = tiny.functional()
  model.layers[1].trainable = False
  frozen = model.layers[1].get_weights()
  trainer = tiny_rounds.make(safl_tf.build_safl(temperature=3), model)
  states, _ = tiny_rounds.run(trainer, 3)
  after = trainer.get_model(states[-1]).layers[1].get_weights()
  assert all(map(np.array_equal, after, frozen))


def test_clock_of_steps():
  config = dataclasses.replace(tiny_rounds.CONFIG, anneal_clock='step')
  trainer = tiny_rounds.make(safl_tf.build_safl(temperature=30), config=config)
  _, metrics = tiny_rounds.run(trainer, 3)
  steps = np.array([2 * math.ceil(m / 8) for m in tiny_rounds.SIZES])
  for t, m in enumerate(metrics):
    assert m.p == pytest.approx(np.exp(-t * steps / 30).mean(), rel=1e-5)


def test_model_of_a_state(safl):
  states, _ = tiny_rounds.run(safl, 1)
  with pytest.raises(ValueError, match='no global model before'):
    safl.get_model(states[0])
  model = safl.get_model(states[1])
  assert type(model) is keras.Sequential
  flat = np.concatenate([np.ravel(w) for w in model.get_weights()])
  np.testing.assert_array_equal(flat, states[1].z_bar)
  for a, b in zip(
    safl.get_model_weights(states[1]), model.get_weights(), strict=True
  ):
    np.testing.assert_array_equal(a, b)


def test_defaults():
  trainer = process.FederatedProcess(
    tiny.dense, tiny_rounds.CLIENTS, safl_tf.build_safl()
  )
  assert trainer.config == client_config.LocalConfig()
  assert trainer.jit_compile


def chain(*after):
  return keras.Sequential([keras.Input((tiny.FEATURES,)), *after])


REFUSED = {
  'too few outputs': (
    {'model': lambda: chain(layers.Dense(2))},
    r'^model=.*3 classes',
  ),
  'outputs that are no scores': (
    {'model': lambda: chain(layers.Dense(8), layers.Reshape((2, 4)))},
    r'^model=.*outputs have shape \(2, 2, 4\)',
  ),
  'other inputs': (
    {'model': tiny.two_inputs},
    r'^model=.*does not take inputs of shape \(8,\)',
  ),
  'no trainable weights': (
    {'model': lambda: chain(layers.ReLU())},
    r'^model=.*no trainable weights',
  ),
  'everything frozen': (
    {'model': lambda: chain(layers.Dense(3, trainable=False))},
    r'^model=.*no trainable weights',
  ),
  'no model': (
    {'model': 7},
    r'^model=7: must be a keras.Model, or ',
  ),
  'too many clients': (
    {'algorithm': safl_tf.build_safl(clients_per_round=7)},
    r'^clients_per_round=7: .* 6$',
  ),
  'init': ({'init': 'zeros'}, r'^init=zeros: '),
  'executor': ({'executor': 'spark'}, r'^executor=spark: '),
  'jit_compile': ({'jit_compile': 'yes'}, r'^jit_compile=yes: '),
  'device': ({'device': 'gpu:97'}, r'^device=gpu:97: '),
}


@pytest.mark.parametrize('options, hint', REFUSED.values(), ids=REFUSED)
def test_refused(options, hint):
  with pytest.raises(errors.InputError, match=hint):
    tiny_rounds.make(**options)


@pytest.mark.parametrize('seed', [-1, 0.5, None])
def test_bad_seeds(safl, seed):
  with pytest.raises(errors.InputError, match=f'^seed={seed}: '):
    safl.initialize(seed)
