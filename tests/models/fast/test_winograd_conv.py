import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import winograd_conv
from tests import marks
from tests.models.fast import derivatives

layers = keras.layers


def compared(shape, jit_compile=True, **options):
  """Returns outputs and gradients of our layer, of Keras's, and in float64."""
  rng = np.random.default_rng(0)
  x, values = rng.normal(size=(3, *shape)), None
  slope = np.random.default_rng(1).normal(size=(3, *shape[:2], 8))
  ours, native = winograd_conv.WinogradConvPool2D, layers.Conv2D
  results = []
  for kind, dtype in (
    (ours, 'float32'),
    (native, 'float32'),
    (native, 'float64'),
  ):
    layer = kind(8, 3, padding='same', dtype=dtype, **options)
    layer.build((None, *shape))
    values = values or [0.3 * rng.normal(size=v.shape) for v in layer.weights]
    layer.set_weights(values)
    pool = layers.MaxPooling2D(2, dtype=dtype)
    apply = layer if kind is ours else lambda x, c=layer, p=pool: p(c(x))
    run = lambda *args, apply=apply, layer=layer: (
      derivatives.outputs_and_gradients(apply, *args, layer.weights)
    )
    compiled = tf.function(run, jit_compile=jit_compile and kind is ours)
    results.append(compiled(tf.constant(x, dtype), tf.constant(slope, dtype)))
  return results


@pytest.mark.parametrize('jit_compile', [True, False])
@pytest.mark.parametrize('use_bias', [True, False])
@pytest.mark.parametrize('activation', ['relu', None])
@pytest.mark.parametrize(
  'shape',
  marks.some([((8, 8, 5),), ((6, 10, 3),), ((2, 4, 2),)], [((6, 10, 3),)]),
)
def test_equals_convolution_and_pooling(
  shape, activation, use_bias, jit_compile
):
  """The largest error is small beside the largest element."""
  ours, native, exact = compared(
    shape, jit_compile, activation=activation, use_bias=use_bias
  )
  for mine, other, wanted in zip(ours, native, exact, strict=True):
    assert mine.shape == other.shape
    off = np.abs(mine - np.float32(wanted)).max()
    assert off < 1e-5 * np.abs(wanted).max()


def test_error_against_float64():
  """Is that stated in the module: 2e-6, about 12 times a native one's."""
  ours, native, exact = compared((16, 16, 64))
  for mine, other, wanted in zip(ours, native, exact, strict=True):
    scale = np.linalg.norm(wanted)
    mine_off, other_off = (
      np.linalg.norm(np.float64(a) - wanted) / scale for a in (mine, other)
    )
    assert mine_off < 3e-6
    assert mine_off < 20 * other_off


@pytest.mark.parametrize(
  'options', [{'strides': 2}, {'kernel_size': 5}, {'padding': 'valid'}]
)
def test_other_convolutions_are_not_replaced(options):
  usual = {'kernel_size': 3, 'padding': 'same'}
  conv, pool = layers.Conv2D(4, **usual | options), layers.MaxPooling2D(2)
  keras.Sequential([keras.Input((8, 8, 2)), conv, pool])
  assert not winograd_conv.can_replace(conv, pool)
