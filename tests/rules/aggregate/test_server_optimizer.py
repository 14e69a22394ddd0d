import dataclasses
import io
import math

import numpy as np
import pytest

import safl_tf
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import layout
from safl_tf.rules import aggregate
from safl_tf.util import choices, errors
from tests import memories

LAYOUT = layout.Layout(
  (
    layout.Tensor('net/conv/kernel', (2, 2, 1, 2), 0, True),
    layout.Tensor('net/dense/kernel', (2, 5), 8, True),
    layout.Tensor('net/dense/bias', (5,), 18, True),
    layout.Tensor('net/norm/moving_mean', (4,), 23, False),
  )
)
TRAINED = slice(0, 23)
DEEP = slice(8, 23)
M = np.array([10, 40, 30, 20])
INNERS = {
  'by size': aggregate.by_size,
  'inverse distance': aggregate.inverse_distance,
  'temporal': aggregate.temporal,
  'layer by layer': lambda: aggregate.temporal(layerwise=True),
  'median': aggregate.coordinate_median,
}
every_optimizer = pytest.mark.parametrize(
  'optimizer', choices.SERVER_OPTIMIZERS
)
every_inner = pytest.mark.parametrize('inner', INNERS.values(), ids=INNERS)


def rounds(count=4, dtype=np.float32):
  """Three of the four clients in every round."""
  rng = np.random.default_rng(0)
  for t in range(1, count + 1):
    ids = rng.permutation(4)[:3]
    z = rng.normal(size=(3, LAYOUT.size)).astype(dtype)
    yield aggregate.Updates(
      t=t, ids=ids, arrays={'z': list(z)}, m=M[ids], num_clients=9
    )


def run(rule, received):
  """All z_bar and memories; memory that is written to would raise."""
  memory, z_bar, result = rule.init(LAYOUT), None, []
  for update in received:
    memories.freeze(memory)
    z_bar, memory = rule.apply(memory, update, z_bar)
    z_bar.setflags(write=False)
    result.append((z_bar, memory))
  return result


def by_hand(
  inner,
  received,
  optimizer,
  learning_rate,
  beta_1=0.9,
  beta_2=0.99,
  tau=1e-3,
):
  """The paper's Algorithm 2, element by element in Python's floats."""
  memory, x, result = inner.init(LAYOUT), None, []
  m, v = [0.0] * LAYOUT.size, [tau * tau] * LAYOUT.size
  for update in received:
    y, memory = inner.apply(memory, update, x)
    new = y.copy()
    for j in range(23 if x is not None else 0):
      delta = float(y[j]) - float(x[j])
      if optimizer == 'sgd':
        step = delta
      elif optimizer == 'momentum':
        m[j] = step = beta_1 * m[j] + delta
      else:
        m[j] = beta_1 * m[j] + (1 - beta_1) * delta
        if optimizer == 'adagrad':
          v[j] += delta * delta
        elif optimizer == 'adam':
          v[j] = beta_2 * v[j] + (1 - beta_2) * delta * delta
        else:
          sign = 1 if v[j] > delta * delta else -1
          v[j] -= (1 - beta_2) * delta * delta * sign
        step = m[j] / (math.sqrt(v[j]) + tau)
      new[j] = float(x[j]) + learning_rate * step
    x = new
    result.append(x)
  return result


@every_optimizer
@every_inner
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_is_what_the_formula_says(optimizer, inner, dtype):
  received = list(rounds(dtype=dtype))
  rule = aggregate.server_optimizer(inner(), optimizer, 0.3)
  expected = by_hand(inner(), received, optimizer, 0.3)
  precision = 4 * np.finfo(dtype).eps
  for (got, _), wanted in zip(run(rule, received), expected, strict=True):
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=0, atol=precision)


def used(optimizer, *settings):
  """Of learning rate, betas and tau, those that the optimizer uses."""
  names = ('learning_rate', 'beta_1', 'beta_2', 'tau')
  own = aggregate.OPTIMIZER_ARGUMENTS[optimizer]
  return {n: v for n, v in zip(names, settings, strict=True) if n in own}


@every_optimizer
def test_settings_are_used(optimizer):
  received = list(rounds(dtype=np.float64))
  settings = 0.7, 0.5, 0.25, 0.1  # learning rate, betas, tau
  own = used(optimizer, *settings)
  rule = aggregate.server_optimizer(None, optimizer, **own)
  expected = by_hand(aggregate.by_size(), received, optimizer, *settings)
  for (got, _), wanted in zip(run(rule, received), expected, strict=True):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
  'optimizer, expected',
  [
    # Steps where Delta is 0.5, then 1; betas 0.5, tau 1, lr 1.
    ('sgd', [0.5, 1]),
    ('momentum', [0.5, 1.25]),
    ('adagrad', [0.25 / (math.sqrt(1.25) + 1), 0.625 / (1.5 + 1)]),
    ('adam', [0.25 / (math.sqrt(0.625) + 1), 0.625 / (math.sqrt(0.8125) + 1)]),
    ('yogi', [0.25 / (math.sqrt(0.875) + 1), 0.625 / (math.sqrt(1.375) + 1)]),
  ],
)
def test_vectors(optimizer, expected):
  one = layout.Layout((layout.Tensor('a/kernel', (1,), 0, True),))
  own = used(optimizer, 1.0, 0.5, 0.5, 1.0)
  rule = aggregate.server_optimizer(None, optimizer, **own)

  def update(value):
    return aggregate.Updates(
      1, np.array([0]), {'z': [np.array([value])]}, np.array([1]), 1
    )

  first = rule.apply(rule.init(one), update(2.0), np.array([1.5]))
  x = first.z_bar[0]
  second = rule.apply(first.memory, update(x + 1), first.z_bar)
  steps = [x - 1.5, second.z_bar[0] - x]
  np.testing.assert_allclose(steps, expected, rtol=1e-14)


def test_yogi_moves_v_towards_the_square():
  """Up and down, by a part of the square."""
  one = layout.Layout((layout.Tensor('a/kernel', (1,), 0, True),))
  rule = aggregate.server_optimizer(None, 'yogi', 1.0, 0.0, 0.9, 1.0)
  memory = rule.init(one)
  for delta, expected in (2.0, 1 + 0.1 * 4), (0.5, 1.4 - 0.1 * 0.25):
    z = [np.array([delta])]
    update = aggregate.Updates(1, np.array([0]), {'z': z}, np.array([1]), 1)
    memory = rule.apply(memory, update, np.zeros(1)).memory
    assert memory['v'] == pytest.approx(expected, rel=1e-15)


@every_inner
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_sgd_with_rate_1_is_the_inner_aggregator(inner, dtype):
  received = list(rounds(20, dtype))
  # Where x + (y - x) is not y: a tiny element after a large one.
  for update in received[::2]:
    for z in update.z:
      z[5] = 1e7
  for update in received[1::2]:
    for z in update.z:
      z[5] = 1.1e-9
  result = run(aggregate.server_optimizer(inner(), 'sgd', 1.0), received)
  plain = run(inner(), received)
  for (got, _), (expected, _) in zip(result, plain, strict=True):
    assert got.tobytes() == expected.tobytes()


@every_optimizer
def test_the_first_model_is_the_inner_aggregators(optimizer):
  (first, *_) = received = list(rounds())
  rule = aggregate.server_optimizer(None, optimizer, 0.3)
  ((z_bar, memory), *_) = run(rule, received)
  expected = aggregate.weighted_mean(first.m, first.z)
  np.testing.assert_array_equal(z_bar, expected)
  start = rule.init(LAYOUT)
  assert memory.keys() == start.keys()
  for name in start:
    np.testing.assert_array_equal(memory[name], start[name])


@every_optimizer
@every_inner
def test_moving_statistics_are_the_inner_aggregators(optimizer, inner):
  received = list(rounds())
  result = run(aggregate.server_optimizer(inner(), optimizer, 0.3), received)
  plain = run(inner(), received)
  for t, ((got, _), (expected, _)) in enumerate(
    zip(result, plain, strict=True), 1
  ):
    np.testing.assert_array_equal(got[23:], expected[23:])
    if t > 1:
      assert (got[TRAINED] != expected[TRAINED]).any()


@pytest.mark.parametrize(
  'optimizer, slots',
  [
    ('sgd', {}),
    ('momentum', {'m': 0}),
    ('adagrad', {'m': 0, 'v': 0.04}),
    ('adam', {'m': 0, 'v': 0.04}),
    ('yogi', {'m': 0, 'v': 0.04}),
  ],
)
def test_slots(optimizer, slots):
  own = used(optimizer, 1.0, 0.9, 0.99, 0.2)
  rule = aggregate.server_optimizer(aggregate.temporal(), optimizer, **own)
  memory = rule.init(LAYOUT)
  inner = aggregate.temporal().init(LAYOUT)
  inners = {f'inner/{name}' for name in inner}
  assert memory.keys() == inners | set(slots) | {'trainable_size'}
  for name, value in slots.items():
    assert memory[name].dtype == np.float64
    np.testing.assert_allclose(memory[name], np.full(23, value), rtol=1e-15)


@every_optimizer
def test_slots_stay_float64_and_change(optimizer):
  result = run(aggregate.server_optimizer(None, optimizer, 0.3), rounds())
  (_, before), (_, after) = result[-2:]
  for name in {'m', 'v'} & after.keys():
    assert after[name].dtype == np.float64
    assert (after[name] != before[name]).all()


@every_optimizer
def test_memory_is_a_value(optimizer):
  rule = aggregate.server_optimizer(aggregate.temporal(), optimizer, 0.3)
  memory, z_bar, kept = rule.init(LAYOUT), None, []
  for update in rounds():
    kept.append((memory, memories.to_arrays(memory)))
    z_bar, memory = rule.apply(memory, update, z_bar)
  for memory, copy in kept:
    arrays = memories.to_arrays(memory)
    assert arrays.keys() == copy.keys()
    for name in copy:
      np.testing.assert_array_equal(arrays[name], copy[name])


@every_optimizer
def test_what_the_inner_aggregator_keeps_is_its_own(optimizer):
  """Here it keeps its last result, the very array that it returns."""

  def apply(memory, update, z_bar):
    del memory, z_bar
    mean = aggregate.weighted_mean(update.m, update.z)
    return aggregate.Aggregated(mean, {'last': mean})

  received = list(rounds())
  rule = aggregate.server_optimizer(aggregate.Aggregator(apply), optimizer, 0.3)
  for update, (_, memory) in zip(received, run(rule, received), strict=True):
    expected = aggregate.weighted_mean(update.m, update.z)
    np.testing.assert_array_equal(memory['inner/last'], expected)


@every_optimizer
def test_goes_on_from_saved_memory(optimizer):
  received = list(rounds(6))
  rule = aggregate.server_optimizer(aggregate.temporal(), optimizer, 0.3)
  whole = run(rule, received)
  z_bar, memory = whole[2]
  file = io.BytesIO()
  np.savez(file, **memories.to_arrays(memory))
  file.seek(0)
  arrays = dict(np.load(file, allow_pickle=False))
  memory = memories.from_arrays(rule.init(LAYOUT), arrays)
  for update, (expected, _) in zip(received[3:], whole[3:], strict=True):
    z_bar, memory = rule.apply(memory, update, z_bar)
    np.testing.assert_array_equal(z_bar, expected)


def test_one_in_the_other():
  """Half a step of half a step is a quarter of one."""
  received = list(rounds(dtype=np.float64))
  half = aggregate.server_optimizer(None, 'sgd', 0.5)
  result = run(aggregate.server_optimizer(half, 'sgd', 0.5), received)
  expected = run(aggregate.server_optimizer(None, 'sgd', 0.25), received)
  for (got, _), (wanted, _) in zip(result, expected, strict=True):
    np.testing.assert_allclose(got[TRAINED], wanted[TRAINED], atol=1e-15)


def test_uploads_are_the_inner_aggregators():
  inner = aggregate.temporal(layerwise=True)
  rule = aggregate.server_optimizer(inner)
  uploads = [rule.uploads(LAYOUT, t) for t in range(1, 17)]
  assert uploads == [inner.uploads(LAYOUT, t) for t in range(1, 17)]
  assert set(uploads) == {LAYOUT.size, LAYOUT.size - 15}
  assert aggregate.server_optimizer().uploads(LAYOUT, 2) == LAYOUT.size


def test_deep_layers_that_are_not_sent_stay_with_sgd():
  inner = aggregate.temporal(layerwise=True)
  result = run(aggregate.server_optimizer(inner, 'sgd', 0.5), rounds(5))
  first, *others = [z_bar for z_bar, _ in result]
  for z_bar in others:
    assert z_bar[DEEP].tobytes() == first[DEEP].tobytes()
    assert (z_bar[:8] != first[:8]).all()


@pytest.mark.parametrize(
  'optimizer, rate',
  [
    ('sgd', 1.0),
    ('momentum', 1.0),
    ('adagrad', 0.01),
    ('adam', 0.01),
    ('yogi', 0.01),
  ],
)
def test_default_learning_rates(optimizer, rate):
  received = list(rounds())
  result = run(aggregate.server_optimizer(optimizer=optimizer), received)
  expected = run(aggregate.server_optimizer(None, optimizer, rate), received)
  for (got, _), (wanted, _) in zip(result, expected, strict=True):
    np.testing.assert_array_equal(got, wanted)


def test_the_default_is_adam_by_size():
  received = list(rounds())
  result = run(aggregate.server_optimizer(), received)
  expected = run(
    aggregate.server_optimizer(
      aggregate.by_size(), 'adam', 0.01, 0.9, 0.99, 1e-3
    ),
    received,
  )
  for (got, _), (wanted, _) in zip(result, expected, strict=True):
    np.testing.assert_array_equal(got, wanted)


def test_description_has_the_settings():
  rule = aggregate.server_optimizer(
    aggregate.inverse_distance(), 'yogi', tau=0.5
  )
  description = algorithm_lib.describe(
    dataclasses.replace(safl_tf.build_fed_avg(), aggregate=rule)
  )['aggregate']
  for setting in (
    "optimizer='yogi'",
    'learning_rate=0.01',
    'beta_1=0.9',
    'beta_2=0.99',
    'tau=0.5',
    "inverse_distance.apply(by_size=False, norm='l2'",
  ):
    assert setting in description


@pytest.mark.parametrize(
  'argument, value',
  [
    ('inner', 'ida'),
    ('optimizer', 'rmsprop'),
    ('learning_rate', 0),
    ('learning_rate', math.inf),
    ('beta_1', -0.1),
    ('beta_1', 1),
    ('beta_2', 1.0),
    ('beta_2', 1.5),
    ('tau', 0),
    ('tau', math.nan),
  ],
)
def test_refused(argument, value):
  with pytest.raises(errors.InputError, match=f'{argument}={value}: .*must be'):
    aggregate.server_optimizer(**{argument: value})


def test_inner_must_be_an_aggregator():
  with pytest.raises(errors.InputError, match=r'inner=.*must be an Aggregator'):
    aggregate.server_optimizer(aggregate.by_size)


@every_optimizer
@pytest.mark.parametrize('name', ['beta_1', 'beta_2', 'tau'])
def test_settings_that_are_not_used_are_refused(optimizer, name):
  if name in aggregate.OPTIMIZER_ARGUMENTS[optimizer]:
    aggregate.server_optimizer(None, optimizer, **{name: 0.5})
  else:
    with pytest.raises(errors.InputError, match=f'^{name}=0.5: has no effect'):
      aggregate.server_optimizer(None, optimizer, **{name: 0.5})
