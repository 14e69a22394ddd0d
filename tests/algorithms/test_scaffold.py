"""SCAFFOLD, alone and with SAFL's start."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from examples import client_drift as quadratic
from safl_tf.algorithms import registry
from safl_tf.core import executors, seeds
from safl_tf.rules import aggregate, gate
from safl_tf.util import choices, errors
from tests import marks, papers, tiny, tiny_rounds

SIZES = (20, 13, 31, 7)
CLIENTS = tiny.clients(SIZES)
EQUAL = tiny.clients((16,) * 4)
EXECUTORS = pytest.mark.parametrize('executor', executors.EXECUTORS)
REDUCTIONS = pytest.mark.parametrize('reduction', ['mean', 'sum'])
PAPER = pytest.mark.parametrize(
  'executor, reduction',
  [
    ('serial', 'sum'),
    ('threads', 'mean'),
    ('vectorized', 'mean'),
    ('vectorized', 'sum'),
  ],
)
# Float32 rounding through a few dozen steps, against float64.
CLOSE = {'rtol': 1e-4, 'atol': 1e-5}


def make(algorithm, clients=CLIENTS, **options):
  config = {'reduction': 'mean', 'local_epochs': 2, 'batch_size': 8}
  config |= {name: options.pop(name) for name in [*config] if name in options}
  reduction = config.pop('reduction')
  config = dataclasses.replace(
    tiny_rounds.CONFIG,
    loss_reduction=reduction,
    learning_rate=0.2 if reduction == 'mean' else 0.02,
    **config,
  )
  return tiny_rounds.make(algorithm, clients=clients, config=config, **options)


def own(state, name='c', n=4):
  return np.array([state.clients[name][k] for k in range(n)], np.float64)


def one_step(name, full_batch):
  """An algorithm whose clients take one step, by rule or by configuration."""
  algorithm = registry.build(name)
  work = algorithm.client_work._replace(full_batch=full_batch)
  return dataclasses.replace(algorithm, client_work=work)


@EXECUTORS
@pytest.mark.parametrize('full_batch', marks.some([True, False], [False]))
def test_one_step_is_fed_avg(executor, full_batch):
  """Corrections c - c_k add up to zero over all clients.

  All is float64, and rounding of a few rounds is below 1e-14.
  """
  runs = [
    quadratic.global_models(
      quadratic.make_process(
        one_step(name, full_batch),
        batch_size=2 if full_batch else 4,
        local_epochs=1,
        executor=executor,
      ),
      6,
    )
    for name in ('fedavg', 'scaffold')
  ]
  (ours, _), (theirs, state) = runs
  assert np.ptp(ours, axis=0).min() > 0.01  # they move
  variates = own(state, n=quadratic.N)
  assert np.abs(variates - state.memory['c']).min(axis=0).max() > 0.01
  np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-14)


@REDUCTIONS
def test_one_step_of_a_network_is_fed_avg(reduction):
  options = {'local_epochs': 1, 'batch_size': 16, 'reduction': reduction}
  runs = [
    tiny_rounds.run(make(registry.build(name), EQUAL, **options), 5)[0]
    for name in ('fedavg', 'scaffold')
  ]
  for ours, theirs in zip(*runs, strict=True):
    if ours.z_bar is not None:
      # Float32 rounding of five rounds of one step each.
      np.testing.assert_allclose(theirs.z_bar, ours.z_bar, atol=1e-6)


def test_two_steps_are_not_fed_avg():
  runs = [
    tiny_rounds.run(make(registry.build(name), EQUAL, batch_size=8), 3)[0]
    for name in ('fedavg', 'scaffold')
  ]
  first, last = (
    np.abs(runs[0][t].z_bar - runs[1][t].z_bar).max() for t in (1, 3)
  )
  assert first < 1e-6  # there are no variates in the first round
  assert last > 1e-3


@PAPER
def test_rounds_of_the_paper(executor, reduction):
  """Algorithm 1, with three of four clients in a round, of unequal sizes."""
  trainer = make(
    safl_tf.build_scaffold(clients_per_round=3),
    init='shared',
    reduction=reduction,
    executor=executor,
  )
  states, metrics = tiny_rounds.run(trainer, 3, seed=1)
  expected = papers.start(states[0].client_models[0], 4)
  for t, (state, measured) in enumerate(
    zip(states[1:], metrics, strict=True), 1
  ):
    ids = measured.ids
    expected, means = papers.scaffold(trainer, 1, t, ids, expected)
    np.testing.assert_allclose(state.z_bar, expected.x, **CLOSE)
    np.testing.assert_allclose(state.memory['c'], expected.extra, **CLOSE)
    np.testing.assert_allclose(own(state), expected.own, **CLOSE)
    # c_k is the mean of the gradients along the client's path.
    np.testing.assert_allclose(own(state)[ids], means, **CLOSE)
    # The server's variate is the mean of all clients'.
    np.testing.assert_allclose(
      state.memory['c'], own(state).mean(axis=0), atol=1e-6
    )
  assert np.abs(expected.extra).max() > 0.01
  assert len({tuple(m.ids) for m in metrics}) > 1


def test_rounds_with_an_annealed_start():
  """Each path starts at the client's mixed model, and so does its variate."""
  algorithm = safl_tf.build_scaffold_safl(temperature=2.0)
  trainer = make(algorithm)
  states, metrics = tiny_rounds.run(trainer, 3)
  expected = papers.start(states[0].client_models[0], 4)
  for t, (before, state) in enumerate(itertools.pairwise(states), 1):
    z = [before.client_models[k] for k in range(4)]
    starts = z  # there is no global model in the first round
    if t > 1:
      keys = [seeds.pair(0, seeds.Role.MIX, t, k) for k in range(4)]
      rows = zip(keys, z, strict=True)
      starts = [
        algorithm.mix(tf.constant(key), float(t), before.z_bar, model).w.numpy()
        for key, model in rows
      ]
      assert 0.1 < metrics[t - 1].kept_local < 0.5
    expected, means = papers.scaffold(
      trainer, 0, t, range(4), expected, starts=starts
    )
    np.testing.assert_allclose(state.z_bar, expected.x, **CLOSE)
    np.testing.assert_allclose(own(state), means, **CLOSE)
    np.testing.assert_allclose(
      state.memory['c'], own(state).mean(axis=0), atol=1e-6
    )


def test_moving_statistics_are_averaged():
  """Unweighted, like the model; variates do not touch them."""
  trainer = make(safl_tf.build_scaffold(), model=tiny.normalised)
  states, _ = tiny_rounds.run(trainer, 3)
  check_moving_statistics(trainer, states[-1])


def check_moving_statistics(trainer, state):
  """Moving statistics of z̄ are the plain mean of the clients'."""
  statistics = slice(trainer.model.layout.trainable_size, None)
  assert len(state.z_bar[statistics]) == 32
  uploads = own(state, 'z')[:, statistics]
  # z̄ is a mean in float64, rounded once.
  np.testing.assert_allclose(
    state.z_bar[statistics], uploads.mean(axis=0), rtol=1e-6, atol=1e-7
  )
  by_size = np.average(uploads, axis=0, weights=SIZES)
  assert np.abs(state.z_bar[statistics] - by_size).max() > 1e-3
  assert (uploads[:, 16:] > 0).all()  # variances


def test_global_learning_rate():
  """x ← x + η_g·mean(y_k - x) from the second round on, with the same c."""
  rate = 0.5
  trainer = make(
    registry.build(
      'scaffold', server_optimizer='sgd', server_learning_rate=rate
    ),
    init='shared',
  )
  states, metrics = tiny_rounds.run(trainer, 2)
  expected = papers.start(states[0].client_models[0], 4)
  # The first global model is the mean itself: there is no x before it.
  for t, (state, global_rate) in enumerate(
    zip(states[1:], (1.0, rate), strict=True), 1
  ):
    ids = metrics[t - 1].ids
    expected, _ = papers.scaffold(trainer, 0, t, ids, expected, global_rate)
    np.testing.assert_allclose(state.z_bar, expected.x, **CLOSE)
    np.testing.assert_allclose(state.memory['inner/c'], expected.extra, **CLOSE)
  mean = own(states[2], 'z').mean(axis=0)
  assert np.abs(mean - states[2].z_bar).max() > 1e-3
  np.testing.assert_allclose(
    states[2].z_bar, (mean + states[1].z_bar) / 2, atol=1e-6
  )


@pytest.mark.parametrize(
  'optimizer', ['momentum', 'adam', keras.optimizers.SGD(0.1)]
)
@pytest.mark.parametrize('name', ['scaffold', 'scaffold_safl'])
def test_other_optimizers_are_refused(name, optimizer):
  config = dataclasses.replace(
    tiny_rounds.CONFIG, optimizer=optimizer, learning_rate=0.002
  )
  with pytest.raises(errors.InputError, match=r'^optimizer=.*plain sgd') as e:
    tiny_rounds.make(registry.build(name), config=config)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize('name', ['scaffold', 'scaffold_safl'])
def test_gates_are_refused(name):
  with pytest.raises(errors.InputError, match=r'^gate=.*so all upload'):
    dataclasses.replace(registry.build(name), gate=gate.accuracy_gap())


@pytest.mark.parametrize('name', ['scaffold', 'scaffold_safl', 'feddyn'])
@pytest.mark.parametrize('aggregator', choices.AGGREGATORS[1:])
def test_other_aggregators_are_refused(name, aggregator):
  match = rf'^aggregator={aggregator}: {name} has an aggregator of its own'
  with pytest.raises(errors.InputError, match=match):
    registry.build(name, aggregator=aggregator)


def test_an_aggregator_without_variates_is_refused():
  algorithm = dataclasses.replace(
    safl_tf.build_scaffold(), aggregate=aggregate.by_size()
  )
  with pytest.raises(
    errors.InputError,
    match=r'^client_work.receives=c: aggregate.broadcast has nothing',
  ):
    make(algorithm)
