import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import optimizer as optimizer_lib
from safl_tf.util import choices, errors

STEPS = 6
SHAPES = [(4, 3), (3,), ()]
MAKERS = {
  **{
    name: lambda name=name: optimizer_lib.get(name, 0.05)
    for name in choices.OPTIMIZERS
  },
  'adamw, heavy decay': lambda: keras.optimizers.AdamW(0.05, weight_decay=0.3),
  'sgd with decay': lambda: keras.optimizers.SGD(0.05, weight_decay=0.3),
  'clipnorm': lambda: keras.optimizers.SGD(0.05, clipnorm=0.2),
  'global_clipnorm': lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.2),
  'clipvalue': lambda: keras.optimizers.SGD(0.05, clipvalue=0.1),
  'amsgrad': lambda: keras.optimizers.Adam(0.05, amsgrad=True),
  'centered rmsprop': lambda: keras.optimizers.RMSprop(
    0.05, momentum=0.9, centered=True
  ),
  'schedule': lambda: keras.optimizers.SGD(
    keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True)
  ),
  'nadam': lambda: keras.optimizers.Nadam(0.05),
  'lion': lambda: keras.optimizers.Lion(0.05),
  'adamax': lambda: keras.optimizers.Adamax(0.05),
  'adadelta': lambda: keras.optimizers.Adadelta(0.05),
  'ftrl': lambda: keras.optimizers.Ftrl(0.05),
  'lamb': lambda: keras.optimizers.Lamb(0.05),
  'adafactor': lambda: keras.optimizers.Adafactor(0.05),
}


def make_variables(dtype='float32', **kwargs):
  rng = np.random.default_rng(0)
  return [
    keras.Variable(rng.normal(size=shape), dtype=dtype, **kwargs)
    for shape in SHAPES
  ]


def gradients(step, dtype=np.float32):
  rng = np.random.default_rng(100 + step)
  return [tf.constant(rng.normal(size=s).astype(dtype)) for s in SHAPES]


def by_keras(optimizer, variables):
  for step in range(STEPS):
    optimizer.apply(gradients(step), variables)
  return [v.numpy() for v in variables]


def by_pure(optimizer, variables, jit_compile=False, pure=None):
  pure = pure or optimizer_lib.PureOptimizer(optimizer, variables)
  apply = pure.apply
  if jit_compile:
    apply = tf.function(apply, jit_compile=True)
  slots, values = pure.initial, [tf.constant(v.numpy()) for v in variables]
  for step in range(STEPS):
    slots, values = apply(slots, gradients(step), values)
  return [v.numpy() for v in values]


@pytest.mark.parametrize('make', MAKERS.values(), ids=MAKERS)
def test_equals_keras(make):
  variables = make_variables()
  before = [v.numpy() for v in variables]
  got = by_pure(make(), variables)
  for variable, value in zip(variables, before, strict=True):
    np.testing.assert_array_equal(variable, value)  # only read
  expected = by_keras(make(), variables)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
  assert not np.array_equal(got[0], before[0])


@pytest.mark.parametrize('name', choices.OPTIMIZERS)
def test_equals_keras_with_xla(name):
  variables = make_variables()
  got = by_pure(optimizer_lib.get(name, 0.05), variables, jit_compile=True)
  expected = by_keras(optimizer_lib.get(name, 0.05), variables)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_sgd_is_plain():
  variables = make_variables()
  start = [v.numpy() for v in variables]
  got = by_pure(optimizer_lib.get('sgd', 0.05), variables)
  for i, value in enumerate(start):
    total = sum(gradients(step)[i].numpy() for step in range(STEPS))
    np.testing.assert_allclose(got[i], value - 0.05 * total, rtol=1e-5)


def test_momentum_and_nesterov():
  momentum, nesterov = (
    optimizer_lib.get(name, 0.1).get_config()
    for name in ('momentum', 'nesterov')
  )
  assert momentum['momentum'] == nesterov['momentum'] == 0.9
  assert nesterov['nesterov'] and not momentum['nesterov']


def test_learning_rate():
  for name in choices.OPTIMIZERS:
    rate = optimizer_lib.get(name, 0.125).learning_rate
    assert float(rate) == 0.125
  mine = keras.optimizers.Adam(0.5)
  assert optimizer_lib.get(mine, 0.125) is mine


def test_variables_left_out_of_weight_decay():
  def make():
    optimizer = keras.optimizers.SGD(0.05, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=['bias'])
    return optimizer

  variables = make_variables(name='bias')
  got = by_pure(make(), variables)
  for a, b in zip(got, by_keras(make(), variables), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_constraints_are_kept():
  variables = make_variables()
  for variable in variables:
    variable.constraint = keras.constraints.NonNeg()
  got = by_pure(optimizer_lib.get('sgd', 0.05), variables)
  expected = by_keras(optimizer_lib.get('sgd', 0.05), variables)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert (a >= 0).all()
  assert any((a == 0).any() for a in got)


def test_slots_are_fresh_each_time():
  variables = make_variables()
  used = keras.optimizers.Adam(0.05)
  by_keras(used, make_variables())  # its own slots and step count are not ours
  pure = optimizer_lib.PureOptimizer(used, variables)
  first = by_pure(used, variables, pure=pure)
  again = by_pure(used, variables, pure=pure)
  fresh = by_pure(keras.optimizers.Adam(0.05), variables)
  for a, b, c in zip(first, again, fresh, strict=True):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
  assert used.iterations.numpy() == STEPS


def test_float64_variables_stay_float64():
  variables = make_variables('float64')
  pure = optimizer_lib.PureOptimizer(
    optimizer_lib.get('adamw', 0.05), variables
  )
  values = [tf.constant(v.numpy()) for v in variables]
  _, values = pure.apply(pure.initial, gradients(0, np.float64), values)
  assert {v.dtype for v in values} == {tf.float64}


REFUSED = {
  'accumulate': lambda: keras.optimizers.SGD(
    0.05, gradient_accumulation_steps=2
  ),
  'average weights': lambda: keras.optimizers.SGD(0.05, use_ema=True),
}


@pytest.mark.parametrize('reason', REFUSED)
def test_refused(reason):
  with pytest.raises(errors.InputError, match=f'^optimizer=.*{reason}'):
    optimizer_lib.PureOptimizer(REFUSED[reason](), make_variables())


def test_unknown_name():
  with pytest.raises(errors.InputError, match=r'^optimizer=adma: did you mean'):
    optimizer_lib.get('adma', 0.1)


class Halving(keras.optimizers.schedules.LearningRateSchedule):
  """A user's schedule, which is not registered with Keras."""

  def __call__(self, step):
    return 0.5 ** (tf.cast(step, tf.float32) + 1)

  def get_config(self):
    return {}


def test_a_schedule_need_not_be_registered():
  variable = keras.Variable([1.0])
  pure = optimizer_lib.PureOptimizer(
    keras.optimizers.SGD(Halving()), [variable]
  )
  _, [value] = pure.apply(pure.initial, [tf.ones([1])], [tf.ones([1])])
  assert value.numpy() == [0.5]


class Broken(keras.optimizers.SGD):
  def get_config(self):
    raise RuntimeError('no config')


def test_an_optimizer_that_cannot_be_copied_is_named():
  with pytest.raises(errors.InputError, match='no config') as caught:
    optimizer_lib.PureOptimizer(Broken(), [keras.Variable([1.0])])
  assert caught.value.argument == 'optimizer'
