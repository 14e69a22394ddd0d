import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import winograd_conv

layers = keras.layers


def gradients(function, x, variables, slope):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
    total = tf.reduce_sum(y * slope)
  return [y, *tape.gradient(total, [x, *variables])]


def assert_close(mine, wanted):
  """The largest error is small beside the largest element."""
  assert np.abs(mine - np.float32(wanted)).max() < 1e-5 * np.abs(wanted).max()


def compared(kind, shape, jit_compile, pool=None, **options):
  """Returns output and gradients of our layer, of Conv2D, and in float64."""
  rng = np.random.default_rng(0)
  x, results, values = rng.normal(size=(3, *shape)), [], None
  for cls, dtype in (
    (kind, 'float32'),
    (layers.Conv2D, 'float32'),
    (layers.Conv2D, 'float64'),
  ):
    layer = cls(8, 3, dtype=dtype, **options)
    layer.build((None, *shape))
    values = values or [0.3 * rng.normal(size=v.shape) for v in layer.weights]
    layer.set_weights(values)
    native = cls is layers.Conv2D and pool is not None
    apply = (lambda x, c=layer: pool(c(x))) if native else layer
    inputs = tf.constant(x, dtype)
    slope = np.random.default_rng(1).normal(size=apply(inputs).shape)
    slope = tf.constant(slope, dtype)
    run = lambda x, apply=apply, layer=layer, slope=slope: gradients(
      apply, x, [v.value for v in layer.weights], slope
    )
    compiled = tf.function(run, jit_compile=jit_compile and cls is kind)
    results.append(compiled(inputs))
  return results


@pytest.mark.parametrize('jit_compile', [True, False])
@pytest.mark.parametrize('padding', ['same', 'valid'])
@pytest.mark.parametrize('shape', [(8, 8, 5), (7, 10, 3), (3, 4, 2)])
def test_equals_a_convolution(shape, padding, jit_compile):
  ours, native, exact = compared(
    winograd_conv.WinogradConv2D,
    shape,
    jit_compile,
    padding=padding,
    activation=None,
  )
  for mine, other, wanted in zip(ours, native, exact, strict=True):
    assert mine.shape == other.shape
    assert_close(mine, wanted)


@pytest.mark.parametrize('use_bias', [True, False])
@pytest.mark.parametrize('activation', ['relu', None])
@pytest.mark.parametrize('shape', [(8, 8, 5), (6, 10, 3), (2, 4, 2)])
def test_equals_convolution_and_pooling(shape, activation, use_bias):
  ours, _, exact = compared(
    winograd_conv.WinogradConvPool2D,
    shape,
    jit_compile=True,
    pool=lambda y: tf.nn.max_pool2d(y, 2, 2, 'VALID'),
    padding='same',
    activation=activation,
    use_bias=use_bias,
  )
  for mine, wanted in zip(ours, exact, strict=True):
    assert_close(mine, wanted)


def test_error_against_float64():
  """Is that stated in the module: 2e-6, about 12 times a native one's."""
  ours, native, exact = compared(
    winograd_conv.WinogradConv2D, (16, 16, 64), True, padding='same'
  )
  for mine, other, wanted in zip(ours, native, exact, strict=True):
    scale = np.linalg.norm(wanted)
    mine_off, other_off = (
      np.linalg.norm(np.float64(a) - wanted) / scale for a in (mine, other)
    )
    assert mine_off < 3e-6
    assert mine_off < 20 * other_off


def test_a_stride_is_not_replaced():
  model = keras.Sequential(
    [keras.Input((8, 8, 2)), layers.Conv2D(4, 3, strides=2)]
  )
  assert not winograd_conv.can_replace(model.layers[0])
