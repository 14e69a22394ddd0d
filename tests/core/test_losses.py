import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import losses
from safl_tf.util import errors


def outputs(total=20, classes=10, seed=0):
  return np.random.default_rng(seed).normal(size=(total, classes)) * 3


def softmax(logits):
  e = np.exp(logits - logits.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def paper(y, y_hat):
  """-sum_i (y_i ln y_hat_i + (1 - y_i) ln(1 - y_hat_i)), as printed."""
  truth = np.eye(y_hat.shape[1])[y]
  return -(truth * np.log(y_hat) + (1 - truth) * np.log(1 - y_hat)).sum(axis=1)


def run(name, from_logits, y, values):
  loss = losses.get(name, from_logits)
  return loss(tf.constant(y, tf.int32), tf.constant(values, tf.float32)).numpy()


Y = np.arange(20) % 10


@pytest.mark.parametrize('from_logits', [True, False])
def test_uniform_predictions(from_logits):
  values = np.zeros((1, 10)) if from_logits else np.full((1, 10), 0.1)
  assert -(math.log(0.1) + 9 * math.log(0.9)) == pytest.approx(3.2508, abs=5e-5)
  assert math.log(10) == pytest.approx(2.3026, abs=5e-5)
  (h,) = run('paper', from_logits, [3], values)
  (c,) = run('categorical', from_logits, [3], values)
  assert h == pytest.approx(-(math.log(0.1) + 9 * math.log(0.9)), rel=1e-6)
  assert c == pytest.approx(math.log(10), rel=1e-6)


@pytest.mark.parametrize('from_logits', [True, False])
def test_equal_numpy(from_logits):
  y_hat = softmax(outputs())
  values = outputs() if from_logits else y_hat
  np.testing.assert_allclose(
    run('categorical', from_logits, Y, values),
    -np.log(y_hat[np.arange(20), Y]),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    run('paper', from_logits, Y, values), paper(Y, y_hat), rtol=1e-5
  )


def test_equal_keras():
  truth = np.eye(10)[Y]
  np.testing.assert_allclose(
    run('categorical', True, Y, outputs()),
    keras.losses.categorical_crossentropy(truth, outputs(), from_logits=True),
    rtol=1e-5,
  )
  # Keras averages over the classes where the paper sums.
  np.testing.assert_allclose(
    run('paper', True, Y, outputs()),
    10 * keras.losses.binary_crossentropy(truth, softmax(outputs())).numpy(),
    rtol=1e-4,
  )


@pytest.mark.parametrize('name', ['categorical', 'paper'])
@pytest.mark.parametrize('from_logits', [True, False])
def test_certain_predictions_are_finite(name, from_logits):
  values = np.array([[1.0, 0, 0], [1, 0, 0]])
  if from_logits:
    values = (values - 0.5) * 1000
  y = tf.constant([0, 1])
  with tf.GradientTape() as tape:
    inputs = tf.constant(values, tf.float32)
    tape.watch(inputs)
    loss = losses.get(name, from_logits)(y, inputs)
  assert np.isfinite(loss).all()
  assert np.isfinite(tape.gradient(loss, inputs)).all()
  assert loss[0] < 1e-5 < 10 < loss[1]


@pytest.mark.parametrize('name', ['categorical', 'paper'])
def test_gradients_of_logits(name):
  """Against differences of the NumPy formula."""
  values = outputs(5)
  y = Y[:5]

  def total(v):
    y_hat = softmax(v)
    if name == 'paper':
      return paper(y, y_hat).sum()
    return -np.log(y_hat[np.arange(5), y]).sum()

  with tf.GradientTape() as tape:
    inputs = tf.constant(values, tf.float32)
    tape.watch(inputs)
    loss = tf.reduce_sum(losses.get(name, True)(tf.constant(y), inputs))
  gradient = tape.gradient(loss, inputs).numpy()
  step = 1e-5
  for i, j in np.ndindex(values.shape):
    change = np.zeros_like(values)
    change[i, j] = step
    expected = (total(values + change) - total(values - change)) / (2 * step)
    assert gradient[i, j] == pytest.approx(expected, abs=2e-5)


def test_activate():
  values = tf.constant(outputs())
  np.testing.assert_allclose(
    losses.activate(values, 'softmax'), softmax(outputs())
  )
  np.testing.assert_allclose(
    losses.activate(values, 'sigmoid'), 1 / (1 + np.exp(-outputs()))
  )
  assert losses.activate(values, None) is values


def test_refused():
  with pytest.raises(errors.InputError, match=r'^loss=hinge: must be one of'):
    losses.get('hinge', True)
