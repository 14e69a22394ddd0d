"""Where an optimizer's counter of steps starts a round."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import client_config, optimizer, process
from safl_tf.data import client_data
from safl_tf.rules import mix
from safl_tf.util import errors
from tests import tiny

EXECUTORS = ('serial', 'threads', 'vectorized')
SIZES = (5, 12)
EPOCHS, BATCH = 2, 4
STEPS = (4, 6)  # E·⌈m_k/B⌉


class Slope(keras.layers.Layer):
  """Adds the loss w, whose gradient is 1: a step subtracts the rate."""

  def build(self, input_shape):
    self.w = self.add_weight(shape=(3,), initializer='zeros')

  def call(self, inputs):
    self.add_loss(tf.reduce_sum(self.w))
    return tf.zeros([tf.shape(inputs)[0], 1])


def make_model():
  return keras.Sequential([keras.Input((1,)), Slope()])


def schedule():
  """1, 1/2, 1/3, ..."""
  return keras.optimizers.schedules.InverseTimeDecay(1.0, 1, 1.0)


def rates(start, stop):
  """The sum of the rates of steps start, ..., stop-1."""
  return sum(1 / (i + 1) for i in range(start, stop))


def make_process(clock, executor='threads', select=None):
  x = np.zeros((sum(SIZES), 1), np.float32)
  parts = np.split(np.arange(len(x)), [SIZES[0]])
  clients = client_data.ClientData.from_arrays(x, np.zeros(len(x), int), parts)
  algorithm = dataclasses.replace(safl_tf.build_fed_avg(), mix=mix.keep())
  if select is not None:
    algorithm = dataclasses.replace(algorithm, select=select)
  config = client_config.LocalConfig(
    local_epochs=EPOCHS,
    batch_size=BATCH,
    optimizer=keras.optimizers.SGD(schedule()),
    loss_reduction='mean',
    optimizer_clock=clock,
  )
  return process.FederatedProcess(
    make_model,
    clients,
    algorithm,
    config,
    executor=executor,
    from_logits=True,
  )


def run(trainer, rounds):
  state = trainer.initialize()
  for _ in range(rounds):
    state, _ = trainer.next(state)
  return [-float(state.client_models[k].mean()) for k in range(2)]


@pytest.mark.parametrize('executor', EXECUTORS)
def test_run_goes_on_over_rounds(executor):
  result = run(make_process('run', executor), 3)
  wanted = [rates(0, 3 * steps) for steps in STEPS]
  np.testing.assert_allclose(result, wanted, rtol=1e-5)


@pytest.mark.parametrize('executor', EXECUTORS)
def test_participation_starts_anew(executor):
  result = run(make_process('participation', executor), 3)
  wanted = [3 * rates(0, steps) for steps in STEPS]
  np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_participation_is_the_default():
  assert client_config.LocalConfig().optimizer_clock == 'participation'
  assert client_config.LocalConfig().iteration(7, 100) == 0


def test_rounds_that_a_client_missed_count():
  """The second client takes part in the third round only."""
  select = lambda seed, t, n: np.arange(1 + (t == 3))
  result = run(make_process('run', select=select), 3)
  wanted = [rates(0, 3 * STEPS[0]), rates(2 * STEPS[1], 3 * STEPS[1])]
  np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_rates_of_the_theory():
  """α_0/(t+1) in the t-th step of a run."""
  decay = keras.optimizers.schedules.InverseTimeDecay(0.6 / 2, 2, 1.0)
  for t in range(1, 50):
    assert float(decay(t - 1)) == pytest.approx(0.6 / (t + 1), rel=1e-6)


def test_only_the_counter_differs():
  """Adam's moments and the learning rate are fresh all the same."""
  variables = [keras.Variable(np.ones(3)), keras.Variable(np.ones((2, 2)))]
  pure = optimizer.PureOptimizer(keras.optimizers.Adam(0.5), variables)
  started = pure.starting_at(tf.constant(7, tf.int64))
  changed = [
    i
    for i, (a, b) in enumerate(zip(started, pure.initial, strict=True))
    if not np.array_equal(a, b)
  ]
  assert len(changed) == 1
  [i] = changed
  assert int(started[i]) == 7
  assert [s.dtype for s in started] == [s.dtype for s in pure.initial]


def test_a_constant_rate_does_not_care():
  """Bit for bit, for a real model."""
  result = []
  for clock in ('participation', 'run'):
    config = client_config.LocalConfig(batch_size=8, optimizer_clock=clock)
    trainer = process.FederatedProcess(
      tiny.dense,
      tiny.clients(),
      safl_tf.build_safl(),
      config,
      jit_compile='false',
    )
    state = trainer.initialize()
    for _ in range(2):
      state, _ = trainer.next(state)
    result.append(state.z_bar)
  np.testing.assert_array_equal(*result)


def test_iterations():
  config = client_config.LocalConfig(
    local_epochs=3, batch_size=50, optimizer_clock='run'
  )
  assert [config.iteration(t, 101) for t in (1, 2, 11)] == [0, 9, 90]


def test_unknown_clock_is_refused():
  with pytest.raises(errors.InputError, match='optimizer_clock=rnd'):
    client_config.LocalConfig(optimizer_clock='rnd')
