import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import max_pool
from tests.models.fast import derivatives

layers = keras.layers


@pytest.mark.parametrize('jit_compile', [True, False])
@pytest.mark.parametrize('padding', ['valid', 'same'])
@pytest.mark.parametrize('size', [(8, 6), (7, 6), (8, 5), (3, 3)])
def test_equals_native_pooling(size, padding, jit_compile):
  """Bit for bit, also where elements are equal: the first counts."""
  rng = np.random.default_rng(0)
  x = tf.constant(rng.integers(0, 3, (5, *size, 4)), tf.float32)
  native = layers.MaxPooling2D(2, padding=padding)
  model = keras.Sequential([keras.Input((*size, 4)), native])
  even = all(n % 2 == 0 for n in size)
  assert max_pool.can_replace(native) == (even or padding == 'valid')
  if not max_pool.can_replace(native):
    return
  ours = max_pool.MaxPool2x2.from_config(native.get_config())
  slope = tf.constant(rng.normal(size=model(x).shape), tf.float32)
  run = lambda x, layer: derivatives.outputs_and_gradients(layer, x, slope)
  compiled = tf.function(run, jit_compile=jit_compile)
  for mine, other in zip(compiled(x, ours), run(x, model), strict=True):
    np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
  'layer',
  [
    layers.MaxPooling2D(3),
    layers.MaxPooling2D(2, strides=1),
    layers.MaxPooling2D((2, 1)),
    layers.AveragePooling2D(2),
  ],
)
def test_other_pooling_is_not_replaced(layer):
  keras.Sequential([keras.Input((8, 8, 2)), layer])
  assert not max_pool.can_replace(layer)
