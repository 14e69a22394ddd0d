import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import algorithm
from safl_tf.core import layout as layout_lib
from safl_tf.rules import aggregate, client_work
from safl_tf.util import errors
from tests import marks, tiny, tiny_numpy, tiny_rounds

FED_AVG = safl_tf.build_fed_avg()
CLIENTS, CONFIG = tiny_rounds.CLIENTS, tiny_rounds.CONFIG
LAYOUT = layout_lib.Layout((layout_lib.Tensor('w', (4,), 0, True),))
EXECUTORS = pytest.mark.parametrize(
  'executor', ['serial', 'threads', 'vectorized']
)
REDUCTIONS = pytest.mark.parametrize(
  'reduction', marks.some(['sum', 'mean'], ['sum'])
)
# Float32 rounding through a dozen steps, against float64.
CLOSE = {'rtol': 1e-4, 'atol': 1e-5}


def with_work(work, **rules):
  return dataclasses.replace(FED_AVG, client_work=work, **rules)


def run(rules, rounds=2, **options):
  """The states after each round, of clients that start from one model."""
  return tiny_rounds.run(
    tiny_rounds.make(rules, init='shared', **options), rounds
  )


def config_of(reduction):
  rate = 0.02 if reduction == 'sum' else 0.2
  return dataclasses.replace(
    CONFIG, loss_reduction=reduction, learning_rate=rate
  )


def check_second_round(states, config, change):
  """All clients' models equal those of training in NumPy."""
  z_bar = states[1].z_bar
  for k in range(CLIENTS.num_clients):
    expected, _, _ = tiny_numpy.train(CLIENTS, config, 2, k, z_bar, change)
    np.testing.assert_allclose(states[2].client_models[k], expected, **CLOSE)


@EXECUTORS
@REDUCTIONS
def test_proximal_equals_numpy(executor, reduction):
  config = config_of(reduction)
  rules = with_work(client_work.proximal(0.5))
  states, _ = run(rules, executor=executor, config=config)
  z_bar = states[1].z_bar.astype(np.float64)
  check_second_round(states, config, lambda g, w: g + 0.5 * (w - z_bar))
  plain, _, _ = tiny_numpy.train(CLIENTS, config, 2, 0, z_bar)
  assert np.abs(states[2].client_models[0] - plain).max() > 1e-3


def test_proximal_without_a_global_model_is_no_pull():
  rules = with_work(client_work.proximal(0.5))
  pulled, plain = (run(rules, 1)[0][-1] for rules in (rules, FED_AVG))
  tiny_rounds.check_same(pulled, plain)


@pytest.mark.parametrize('mu', [-1.0, np.nan, np.inf, 'a', None])
def test_proximal_refuses(mu):
  with pytest.raises(errors.InputError, match='proximal_mu='):
    client_work.proximal(mu)


@EXECUTORS
def test_one_step_is_a_step_on_the_mean_loss(executor):
  rules = with_work(client_work.one_step(), shared_start=True)
  trainer = tiny_rounds.make(rules, executor=executor)
  states, _ = tiny_rounds.run(trainer, 1)
  z_bar, gradients = states[0].z_bar, []
  for k in range(CLIENTS.num_clients):
    rows = CLIENTS.indices(k)
    gradients.append(
      tiny_numpy.evaluate(z_bar, CLIENTS.x[rows], CLIENTS.y[rows])[2]
    )
  expected = z_bar - 0.02 * np.sum(gradients, axis=0) / CLIENTS.sizes.sum()
  np.testing.assert_allclose(states[1].z_bar, expected, **CLOSE)
  assert np.abs(states[1].z_bar - z_bar).max() > 1e-3
  assert len(states[1].client_models) == 0  # clients have no models


def freezing(mask):
  """FedAvg whose server freezes what a mask says."""
  return with_work(
    client_work.freeze(),
    aggregate=aggregate.by_size()._replace(
      init=lambda layout: {'mask': mask},
      broadcast=lambda memory: {'frozen': memory['mask']},
    ),
  )


@EXECUTORS
def test_freeze(executor):
  mask = np.arange(63) % 3 == 0
  states, metrics = run(freezing(mask), executor=executor)
  for k in range(CLIENTS.num_clients):
    for t, start in (1, states[0].client_models[k]), (2, states[1].z_bar):
      z = states[t].client_models[k]
      np.testing.assert_array_equal(z[mask], start[mask])
  check_second_round(states, CONFIG, lambda g, w: np.where(mask, 0, g))
  assert metrics[1].bytes_down == CLIENTS.num_clients * (4 * 63 + 63)


def test_compose_applies_gradients_and_projections_in_order():
  double = client_work.ClientWork(
    start=lambda begun: {'factor': 2.0},
    gradient=lambda g, w, values, weight: g * values['factor'],
    project=lambda w, before, values: w * values['factor'] + before,
  )
  add = client_work.ClientWork(
    start=lambda begun: {'factor': 3.0},
    gradient=lambda g, w, values, weight: g + weight * values['factor'],
    project=lambda w, before, values: w - values['factor'],
  )
  for works, g, w in ((double, add), 25.0, 16.0), ((add, double), 40.0, 13.0):
    both = client_work.compose(*works)
    values = both.start(None)
    assert len(values) == 2
    assert both.gradient(5.0, 1.0, values, 5.0) == g
    assert both.project(9.0, 1.0, values) == w


def test_compose_passes_the_end_on():
  def adding(name):
    def end(begun, trained):
      return trained._replace(
        metrics={**trained.metrics, name: float(len(trained.metrics))}
      )

    return client_work.ClientWork(end=end)

  trained = algorithm.Trained(None, 1, {}, {}, {})
  both = client_work.compose(adding('a'), adding('b'))
  assert both.end(None, trained).metrics == {'a': 0.0, 'b': 1.0}


def test_composed_values_stay_apart():
  """Two pulls, whose values have the same names, are one pull of the sum."""
  pulls = [client_work.proximal(mu) for mu in (0.2, 0.3)]
  both = run(with_work(client_work.compose(*pulls)))[0]
  z_bar = both[1].z_bar.astype(np.float64)
  check_second_round(both, CONFIG, lambda g, w: g + 0.5 * (w - z_bar))


@EXECUTORS
def test_compose_with_a_projection(executor):
  mask = np.arange(63) < 20
  frozen = freezing(mask)
  work = client_work.compose(client_work.proximal(0.5), frozen.client_work)
  rules = dataclasses.replace(frozen, client_work=work)
  states, _ = run(rules, executor=executor)
  z_bar = states[1].z_bar.astype(np.float64)
  check_second_round(
    states, CONFIG, lambda g, w: np.where(mask, 0, g + 0.5 * (w - z_bar))
  )


def named(field, *names):
  arrays = {name: np.zeros(3) for name in names}
  return client_work.ClientWork(**{field: lambda layout: arrays})


@pytest.mark.parametrize('field', ['init', 'receives'])
def test_compose_merges_arrays(field):
  both = client_work.compose(named(field, 'a', 'b'), named(field, 'c'))
  assert list(getattr(both, field)(LAYOUT)) == ['a', 'b', 'c']
  other = client_work.compose(named(field, 'a', 'b'), named(field, 'b'))
  message = f'^client_work.{field}=b: two works have arrays of this name'
  with pytest.raises(errors.InputError, match=message):
    getattr(other, field)(LAYOUT)
  with pytest.raises(errors.InputError, match=message):
    tiny_rounds.make(with_work(other))


def test_defaults_stay_defaults():
  assert client_work.compose() == client_work.ClientWork()
  pull = client_work.proximal(0.1)
  work = client_work.compose(client_work.ClientWork(), pull)
  changed = {'start', 'gradient'}
  for name, default in client_work.ClientWork()._asdict().items():
    assert (getattr(work, name) is default) == (name not in changed)


def test_compose_keeps_what_any_work_says():
  plain = client_work.ClientWork(plain_sgd=True)
  both = client_work.compose(plain, client_work.one_step())
  assert both.plain_sgd and both.full_batch
  assert not client_work.compose(plain, plain).full_batch


def bits(states):
  return [
    (
      state.z_bar.tobytes(),
      {name: array.tobytes() for name, array in state.memory.items()},
      [
        {name: array.tobytes() for name, array in state.kept(k).items()}
        for k in range(CLIENTS.num_clients)
      ],
    )
    for state in states[1:]
  ]


def test_executors_agree():
  """Works with all functions and arrays of their own."""
  scaffold = safl_tf.build_scaffold(clients_per_round=4)
  work = client_work.compose(scaffold.client_work, client_work.proximal(0.5))
  rules = dataclasses.replace(scaffold, client_work=work)
  serial, threads, stacked = (
    run(rules, 3, executor=name)[0]
    for name in ('serial', 'threads', 'vectorized')
  )
  assert bits(serial) == bits(threads)
  for one, other in zip(serial[1:], stacked[1:], strict=True):
    np.testing.assert_allclose(one.z_bar, other.z_bar, **CLOSE)
    for k in range(CLIENTS.num_clients):
      for name, array in one.kept(k).items():
        np.testing.assert_allclose(
          array, other.kept(k)[name], rtol=1e-3, atol=1e-4
        )


def test_models_with_statistics_train():
  """Values are cut into the trainable tensors only."""
  rules = with_work(client_work.proximal(0.5))
  states, _ = run(rules, model=tiny.normalised)
  assert np.isfinite(states[-1].z_bar).all()


def test_values_have_the_shapes_of_tensors():
  seen = []

  def gradient(g, w, values, weight):
    seen.append((values['v'].shape, values['s'].shape, w.shape, weight.dtype))
    return g

  work = client_work.ClientWork(
    start=lambda begun: {'v': begun.w, 's': begun.t}, gradient=gradient
  )
  run(with_work(work), 1, executor='serial')
  assert {v for v, _, _, _ in seen} == set(tiny_numpy.SHAPES)
  assert all(v == w and s == () for v, s, w, _ in seen)
  assert {dtype for _, _, _, dtype in seen} == {tf.float32}
