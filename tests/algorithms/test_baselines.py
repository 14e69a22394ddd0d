"""FedSGD, FedProx, centralised and local training against closed forms."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core import client_config, process
from safl_tf.data import client_data
from safl_tf.rules import aggregate, gate, mix
from safl_tf.training import loop
from safl_tf.util import errors
from tests import marks, tiny

SIZES = (20, 13, 31, 7)
MEAN = client_config.LocalConfig(
  local_epochs=1, batch_size=100, learning_rate=0.1, loss_reduction='mean'
)


def make(algorithm, config=MEAN, clients=None, model=tiny.dense, **options):
  return process.FederatedProcess(
    model,
    clients or tiny.clients(SIZES),
    algorithm,
    config,
    jit_compile='false',
    **options,
  )


def after(trainer, rounds, seed=0):
  state = trainer.initialize(seed)
  for _ in range(rounds):
    state, _ = trainer.next(state)
  return state


@pytest.mark.parametrize(
  'batch_size, executor',
  marks.some(
    itertools.product([100, 5, 1], ['serial', 'threads', 'vectorized']),
    [(100, 'threads'), (5, 'threads'), (1, 'serial'), (5, 'vectorized')],
  ),
)
def test_fed_sgd_is_fed_avg_with_one_full_batch(batch_size, executor):
  chunks = dataclasses.replace(MEAN, batch_size=batch_size)
  sgd = make(safl_tf.build_fed_sgd(), chunks, executor=executor)
  avg = make(safl_tf.build_fed_avg(), init='shared')
  np.testing.assert_allclose(
    after(sgd, 3).z_bar, after(avg, 3).z_bar, atol=1e-6, rtol=0
  )


def test_fed_sgd_is_gradient_descent_on_all_data():
  sgd = make(safl_tf.build_fed_sgd())
  whole = make(safl_tf.build_centralized(), init='shared')
  np.testing.assert_allclose(
    after(sgd, 3).z_bar, after(whole, 3).z_bar, atol=1e-6, rtol=0
  )


@pytest.mark.parametrize('epochs', [1, 3])
def test_fed_sgd_has_its_own_epochs_and_reduction(epochs):
  """Whether one says so, or leaves the defaults."""
  other = dataclasses.replace(MEAN, local_epochs=epochs, loss_reduction='sum')
  a = after(make(safl_tf.build_fed_sgd(), other), 2)
  b = after(make(safl_tf.build_fed_sgd()), 2)
  assert a.z_bar.tobytes() == b.z_bar.tobytes()
  with pytest.raises(
    errors.InputError, match=r'^local_epochs=4: has no effect'
  ):
    make(safl_tf.build_fed_sgd(), dataclasses.replace(MEAN, local_epochs=4))


def test_fed_sgd_by_hand():
  """Clients of 1 and 3 examples: the gradients of their means, 1 : 3."""
  x = np.array([[1.0], [2.0], [2.0], [2.0]], np.float32)
  y = np.array([1, 0, 0, 0], np.int32)
  clients = client_data.ClientData.from_arrays(x, y, [[0], [1, 2, 3]])

  def model():
    return keras.Sequential(
      [
        keras.Input((1,)),
        keras.layers.Dense(
          2,
          use_bias=False,
          kernel_initializer=keras.initializers.Constant([[0.25, -0.5]]),
        ),
      ]
    )

  w = np.array([0.25, -0.5])

  def gradient(value, label):
    e = np.exp(value * w)
    return value * (e / e.sum() - np.eye(2)[label])

  expected = w - 0.1 * (gradient(1.0, 1) + 3 * gradient(2.0, 0)) / 4
  trainer = make(safl_tf.build_fed_sgd(), clients=clients, model=model)
  np.testing.assert_allclose(after(trainer, 1).z_bar, expected, rtol=1e-6)


def test_fed_sgd_clients_keep_nothing():
  trainer = make(safl_tf.build_fed_sgd())
  start = trainer.initialize(0)
  assert start.z_bar is not None
  np.testing.assert_array_equal(start.client_models[0], start.client_models[3])
  np.testing.assert_array_equal(start.client_models[0], start.z_bar)
  assert len(after(trainer, 2).client_models) == 0


def test_fed_sgd_refuses_what_makes_no_sense():
  adam = dataclasses.replace(MEAN, optimizer='adam')
  with pytest.raises(errors.InputError, match=r'^optimizer=adam: '):
    make(safl_tf.build_fed_sgd(), adam)
  for rule in ({'mix': mix.anneal()}, {'gate': gate.accuracy_gap()}):
    with pytest.raises(errors.InputError, match='FedSGD uploads') as error:
      dataclasses.replace(safl_tf.build_fed_sgd(), **rule)
    assert error.value.argument in rule


def test_fed_sgd_with_a_server_optimizer():
  adam = dataclasses.replace(
    safl_tf.build_fed_sgd(),
    aggregate=aggregate.server_optimizer(optimizer='adam'),
  )
  a = after(make(adam), 30)
  b = after(make(safl_tf.build_fed_sgd()), 30)
  assert not np.allclose(a.z_bar, b.z_bar)


def test_centralized_holds_every_example_once():
  x, y = tiny.blobs(30)
  clients = client_data.ClientData.from_arrays(
    x, y, [np.arange(20), np.arange(10, 25)]
  )
  trainer = make(safl_tf.build_centralized(), clients=clients)
  assert trainer.clients.num_clients == 1
  np.testing.assert_array_equal(trainer.clients.indices(0), np.arange(25))


def test_centralized_is_one_client_of_fed_avg():
  x, y = tiny.blobs(sum(SIZES))
  one = tiny.clients((sum(SIZES),), x, y)
  config = client_config.LocalConfig(batch_size=16, learning_rate=0.01)
  a = after(make(safl_tf.build_centralized(), config), 3)
  b = after(make(safl_tf.build_fed_avg(), config, one), 3)
  assert a.z_bar.tobytes() == b.z_bar.tobytes()


def test_local_only_clients_hear_nothing_of_each_other():
  config = client_config.LocalConfig(batch_size=16, learning_rate=0.01)
  some = after(make(safl_tf.build_local_only(), config), 3)
  # The same first client beside others: its model is the same, bit by bit.
  x, y = tiny.blobs(sum(SIZES))
  x = x.copy()
  x[SIZES[0] :] *= -3
  others = tiny.clients(SIZES, x, y)
  changed = after(make(safl_tf.build_local_only(), config, others), 3)
  assert some.client_models[0].tobytes() == changed.client_models[0].tobytes()
  assert some.client_models[1].tobytes() != changed.client_models[1].tobytes()


def test_local_only_is_safl_with_epsilon_0_and_no_cooling():
  config = client_config.LocalConfig(batch_size=16, learning_rate=0.01)
  a = after(make(safl_tf.build_local_only(), config), 3)
  safl = safl_tf.build_safl(epsilon=0.0, temperature=1e20)
  b = after(make(safl, config), 3)
  assert a.z_bar.tobytes() == b.z_bar.tobytes()


def test_local_only_is_scored_by_the_clients_own_models():
  x, y = tiny.blobs(200, seed=1)
  result = loop.train(
    tiny.dense,
    tiny.clients(SIZES),
    safl_tf.build_local_only(),
    test_data=(x, y),
    rounds=2,
    config=MEAN,
    jit_compile='false',
    progress=False,
  )
  flat, state = result.process.model, result.state
  right = [
    np.mean(
      flat.to_model(state.client_models[k])(x).numpy().argmax(axis=1) == y
    )
    for k in range(len(SIZES))
  ]
  assert result.history[-1]['test_accuracy'] == pytest.approx(np.mean(right))


@pytest.mark.parametrize('reduction', ['sum', 'mean'])
@pytest.mark.parametrize('executor', ['serial', 'threads', 'vectorized'])
def test_fed_prox_by_hand(reduction, executor):
  """Plain SGD: w ← w - α·(g + μ·(w - z̄)), where g is FedAvg's gradient."""
  mu, rate, m = 0.7, 0.05, 12
  config = client_config.LocalConfig(
    local_epochs=2,
    batch_size=m,
    learning_rate=rate,
    loss_reduction=reduction,
  )
  clients = tiny.clients((m,))
  algorithm = safl_tf.build_fed_prox(mu)
  trainer = make(algorithm, config, clients, executor=executor)
  z_bar = after(trainer, 1).z_bar
  got = after(trainer, 2).z_bar
  plain = dataclasses.replace(config, local_epochs=1)
  step = make(safl_tf.build_fed_avg(), plain, clients)
  blank = step.initialize(0)

  def gradient(w):
    """From one plain step; a full batch, so its order doesn't matter."""
    new, _ = step.next(blank._replace(t=1, z_bar=w.astype(np.float32)))
    return (w - new.z_bar.astype(np.float64)) / rate

  w = z_bar.astype(np.float64)
  scale = m if reduction == 'sum' else 1
  for _ in range(2):
    w = w - rate * (gradient(w) + mu * scale * (w - z_bar))
  np.testing.assert_allclose(got, w, atol=2e-6)


def test_fed_prox_keeps_clients_nearer():
  def distance(mu):
    config = client_config.LocalConfig(batch_size=16, learning_rate=0.01)
    trainer = make(safl_tf.build_fed_prox(mu), config)
    first = after(trainer, 1)
    second, _ = trainer.next(first)
    moved = [second.client_models[k] - first.z_bar for k in range(len(SIZES))]
    return np.linalg.norm(moved)

  assert distance(1.0) < 0.9 * distance(0.0)
  # Without a global model there is nothing to be near to.
  config = client_config.LocalConfig()
  a = after(make(safl_tf.build_fed_prox(1.0), config), 1)
  b = after(make(safl_tf.build_fed_avg(), config), 1)
  np.testing.assert_allclose(a.z_bar, b.z_bar, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_compositions():
  """Rules may be put together as one likes, where that makes sense."""
  x, y = tiny.blobs(300, seed=1)
  config = client_config.LocalConfig(batch_size=16, learning_rate=0.01)
  composed = [
    dataclasses.replace(
      safl_tf.build_extended_safl(), aggregate=aggregate.inverse_distance()
    ),
    dataclasses.replace(
      safl_tf.build_safl(),
      aggregate=aggregate.server_optimizer(optimizer='momentum', beta_1=0.5),
    ),
    dataclasses.replace(safl_tf.build_safl(), aggregate=aggregate.krum()),
    registry.build('astw_safl', server_optimizer='sgd'),
    registry.build('extended_safl', aggregator='geometric_median'),
  ]
  for algorithm in composed:
    result = loop.train(
      tiny.dense,
      tiny.clients((40, 33, 51, 27)),
      algorithm,
      test_data=(x, y),
      rounds=30,
      config=config,
      jit_compile='false',
      eval_every=30,
      progress=False,
    )
    assert result.history[-1]['test_accuracy'] > 0.95
