import dataclasses
import math

import numpy as np
import pytest

from safl_tf.core import batching, client_config
from safl_tf.util import errors

CONFIG = client_config.LocalConfig(
  local_epochs=2, batch_size=8, learning_rate=0.02
)


@pytest.mark.parametrize('m', [1, 7, 8, 9, 30])
@pytest.mark.parametrize('epochs', [1, 3])
def test_plan(m, epochs):
  config = client_config.LocalConfig(local_epochs=epochs, batch_size=8)
  indices = np.random.default_rng(0).choice(1000, m, replace=False)
  max_steps = epochs * 5
  plan = batching.plan_batches(
    indices, config, max_steps, np.random.default_rng(1)
  )
  per_epoch = math.ceil(m / 8)
  assert plan.examples.shape == (max_steps, 8)
  assert plan.examples.dtype == plan.counts.dtype == np.int32
  assert plan.num_steps == epochs * per_epoch == config.steps(m)
  assert not plan.counts[plan.num_steps :].any()
  orders = []
  for e in range(epochs):
    rows = range(e * per_epoch, (e + 1) * per_epoch)
    counts = plan.counts[list(rows)]
    assert (counts[:-1] == 8).all() and counts.sum() == m
    real = np.concatenate([plan.examples[i, : plan.counts[i]] for i in rows])
    assert sorted(real) == sorted(indices)  # each exactly once
    assert set(plan.examples[list(rows)].ravel()) <= set(indices)
    orders.append(real.tolist())
  if m == 30 and epochs == 3:
    assert orders[0] != orders[1] != orders[2]


def test_plan_is_a_function_of_its_seed():
  make = lambda seed: (
    batching.plan_batches(
      np.arange(30), CONFIG, 10, np.random.default_rng(seed)
    ).examples
  )
  np.testing.assert_array_equal(make(1), make(1))
  assert not np.array_equal(make(1), make(2))


def test_clock():
  """Rounds by default; else the gradient steps before this round."""
  config = client_config.LocalConfig()
  assert [config.clock(t, 600) for t in (1, 2, 50)] == [1, 2, 50]
  steps = dataclasses.replace(config, anneal_clock='step')
  assert config.steps(600) == 36
  assert [steps.clock(t, 600) for t in (1, 2, 50)] == [0, 36, 49 * 36]
  assert steps.clock(3, 601) == 2 * 3 * 13
  assert math.exp(-steps.clock(2, 600) / 80) == pytest.approx(0.64, abs=5e-3)


def test_defaults_are_the_papers():
  assert client_config.LocalConfig() == client_config.LocalConfig(
    local_epochs=3,
    batch_size=50,
    learning_rate=0.002,
    optimizer='sgd',
    loss_reduction='sum',
    anneal_clock='round',
  )


@pytest.mark.parametrize(
  'argument, value',
  [
    ('local_epochs', 0),
    ('batch_size', 2.5),
    ('learning_rate', 0),
    ('learning_rate', math.nan),
    ('optimizer', 'sdg'),
    ('loss_reduction', 'max'),
    ('anneal_clock', 'epoch'),
    ('holdout', 0),
    ('holdout', 0.95),
  ],
)
def test_refused(argument, value):
  with pytest.raises(
    errors.InputError, match=f'^{argument}={value}: .*must be'
  ):
    client_config.LocalConfig(**{argument: value})


@pytest.mark.parametrize('m, held_out', [(1, 0), (2, 1), (10, 2), (31, 6)])
def test_split(m, held_out):
  config = dataclasses.replace(CONFIG, holdout=0.2)
  indices = np.random.default_rng(0).choice(1000, m, replace=False)
  trained, measured = batching.split(indices, config, np.random.default_rng(1))
  assert config.num_held_out(m) == held_out
  assert sorted([*trained, *measured[:held_out]]) == sorted(indices)
  assert len(measured) == (held_out or m)  # who has one example uses it twice
  again = batching.split(indices, config, np.random.default_rng(1))
  np.testing.assert_array_equal(again[1], measured)


def test_split_is_random():
  config = dataclasses.replace(CONFIG, holdout=0.5)
  splits = [
    batching.split(np.arange(30), config, np.random.default_rng(seed))[1]
    for seed in (1, 2)
  ]
  assert set(splits[0]) != set(splits[1])


def test_without_a_share_nothing_is_held_out():
  trained, measured = batching.split(
    np.arange(30), CONFIG, np.random.default_rng(1)
  )
  np.testing.assert_array_equal(trained, np.arange(30))
  np.testing.assert_array_equal(measured, np.arange(30))


@pytest.mark.parametrize('m', [1, 8, 9, 30])
def test_plan_for_measuring(m):
  indices = np.arange(100, 100 + m)
  plan = batching.plan_measuring(indices, CONFIG, 5)
  assert plan.examples.shape == (5, 8)
  assert plan.num_steps == math.ceil(m / 8)
  real = [row[:n] for row, n in zip(plan.examples, plan.counts, strict=True)]
  np.testing.assert_array_equal(np.concatenate(real), indices)


def test_no_plan_for_measuring():
  plan = batching.plan_measuring(np.arange(9), CONFIG, 0)
  assert plan.examples.shape == (0, 8) and plan.num_steps == 0
