import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import patch_conv
from tests.models.fast import derivatives

layers = keras.layers
SHAPE = (11, 9, 3)
VARIANTS = {
  f'{kernel} {padding} stride {stride} dilation {dilation}': {
    'kernel_size': kernel,
    'padding': padding,
    'strides': stride,
    'dilation_rate': dilation,
  }
  for kernel, padding, (stride, dilation) in itertools.product(
    [1, 2, 3, (5, 3), 7], ['valid', 'same'], [(1, 1), (2, 1), ((1, 2), 1)]
  )
}
VARIANTS['3 same dilation 2'] = {
  'kernel_size': 3,
  'padding': 'same',
  'dilation_rate': 2,
}
VARIANTS['3 valid dilation 2'] = {'kernel_size': 3, 'dilation_rate': (2, 1)}


@pytest.mark.parametrize('options', VARIANTS.values(), ids=VARIANTS)
def test_equals_the_native_layer(options):
  """Forward, and the gradients of input, kernel and bias."""
  rng = np.random.default_rng(0)
  options = {'activation': 'tanh', 'bias_initializer': 'ones', **options}
  native, ours = (
    kind(4, **options) for kind in (layers.Conv2D, patch_conv.PatchConv2D)
  )
  for layer in (native, ours):
    layer.build((None, *SHAPE))
  ours.set_weights(native.get_weights())
  x = tf.constant(rng.normal(size=(5, *SHAPE)), tf.float32)
  slope = tf.constant(rng.normal(size=(5, 11, 9, 4)), tf.float32)
  outputs, expected = (
    derivatives.outputs_and_gradients(layer, x, slope, layer.weights)
    for layer in (ours, native)
  )
  assert outputs[0].shape == ours.compute_output_shape((5, *SHAPE))
  for mine, other in zip(outputs, expected, strict=True):
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_weights_and_configuration_equal_the_native_layer(tmp_path):
  native = layers.Conv2D(4, 3, name='same_name')
  ours = patch_conv.PatchConv2D.from_config(native.get_config())
  assert ours.get_config() == native.get_config()
  model = keras.Sequential([keras.Input(SHAPE), ours])
  model.save(tmp_path / 'model.keras')
  again = keras.models.load_model(tmp_path / 'model.keras')
  assert type(again.layers[0]) is patch_conv.PatchConv2D
  x = np.ones((2, *SHAPE), np.float32)
  np.testing.assert_array_equal(again(x), model(x))


@pytest.mark.parametrize(
  'layer, expected',
  [
    (layers.Conv2D(4, 3), True),
    (layers.Conv2D(6, 3, groups=3), False),
    (layers.SeparableConv2D(4, 3), False),
    (layers.Dense(4), False),
  ],
)
def test_can_replace(layer, expected):
  keras.Sequential([keras.Input(SHAPE), layer])
  assert patch_conv.can_replace(layer) is expected
