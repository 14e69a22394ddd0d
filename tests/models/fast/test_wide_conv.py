import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import wide_conv
from tests.models.fast import derivatives

layers = keras.layers


@pytest.mark.parametrize('kernel', [1, 3, (5, 3)])
@pytest.mark.parametrize('activation', ['relu', None])
@pytest.mark.parametrize('use_bias', [True, False])
def test_equals_the_native_layers(kernel, activation, use_bias):
  """Forward, and the gradients of input, kernel and bias."""
  rng = np.random.default_rng(0)
  conv = layers.Conv2D(
    40, kernel, padding='same', activation=activation, use_bias=use_bias
  )
  ours = wide_conv.WideConvPool2D.from_config(conv.get_config())
  for layer in (conv, ours):
    layer.build((None, 8, 6, 5))
  values = [0.1 * rng.normal(size=v.shape) for v in conv.weights]
  conv.set_weights(values)
  ours.set_weights(values)
  x = tf.constant(rng.normal(size=(7, 8, 6, 5)), tf.float32)
  slope = tf.constant(rng.normal(size=(7, 4, 3, 40)), tf.float32)
  pool = layers.MaxPooling2D(2)
  native = lambda x: pool(conv(x))
  outputs, expected = (
    derivatives.outputs_and_gradients(function, x, slope, layer.weights)
    for function, layer in ((ours, ours), (native, conv))
  )
  assert outputs[0].shape == ours.compute_output_shape(x.shape)
  for mine, other in zip(outputs, expected, strict=True):
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_saves_and_loads(tmp_path):
  ours = wide_conv.WideConvPool2D(4, 3, padding='same', activation='relu')
  model = keras.Sequential([keras.Input((8, 8, 3)), ours])
  model.save(tmp_path / 'model.keras')
  again = keras.models.load_model(tmp_path / 'model.keras')
  x = np.ones((2, 8, 8, 3), np.float32)
  np.testing.assert_array_equal(again(x), model(x))


def conv(**options):
  usual = {'kernel_size': 3, 'padding': 'same', 'activation': 'relu'}
  return layers.Conv2D(8, **{**usual, **options})


POOL = layers.MaxPooling2D


@pytest.mark.parametrize(
  'first, second, size, expected',
  [
    (conv(), POOL(2), 8, True),
    (conv(), POOL(2, padding='same'), 8, True),
    (conv(activation=None), POOL(2), 8, True),
    (conv(), POOL(2, padding='same'), 7, False),
    (conv(), POOL(3), 8, False),
    (conv(), POOL(2, strides=1), 8, False),
    (conv(), layers.AveragePooling2D(2), 8, False),
    (conv(padding='valid'), POOL(2), 8, False),
    (conv(activation='tanh'), POOL(2), 8, False),
    (conv(strides=2), POOL(2), 8, False),
    (conv(kernel_size=2), POOL(2), 8, False),
    (conv(activity_regularizer='l2'), POOL(2), 8, False),
  ],
)
def test_can_replace(first, second, size, expected):
  keras.Sequential([keras.Input((size, size, 2)), first, second])
  assert wide_conv.can_replace(first, second) is expected
  assert not wide_conv.can_replace(first, None)
