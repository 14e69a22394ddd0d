import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.models.fast import folded_conv
from tests.models.fast import derivatives

POOLS = {
  'average': keras.layers.AveragePooling2D,
  'max': keras.layers.MaxPooling2D,
}


def make_pair(shape, filters, kernel, pooling, lowering, **kwargs):
  """Returns the folded layer and the plain layers with the same weights."""
  layer = folded_conv.FoldedConvPool2D(
    filters, kernel, pooling=pooling, lowering=lowering, **kwargs
  )
  conv = keras.layers.Conv2D(filters, kernel, **kwargs)
  pool = POOLS[pooling](2)
  layer.build((None, *shape))
  conv.build((None, *shape))
  rng = np.random.default_rng(0)
  weights = [rng.normal(size=v.shape) * 0.3 for v in conv.weights]
  layer.set_weights(weights)
  conv.set_weights(weights)
  return layer, lambda x: pool(conv(x)), conv


def check(shape, filters, kernel, pooling, lowering, jit_compile, **kwargs):
  layer, plain, conv = make_pair(
    shape, filters, kernel, pooling, lowering, **kwargs
  )
  rng = np.random.default_rng(1)
  x = tf.constant(rng.normal(size=(3, *shape)).astype(np.float32))
  upstream = rng.normal(size=plain(x).shape).astype(np.float32)
  expected = derivatives.outputs_and_gradients(plain, x, upstream, conv.weights)
  run = lambda x: derivatives.outputs_and_gradients(
    layer, x, upstream, layer.weights
  )
  if jit_compile:
    run = tf.function(run, jit_compile=True)
  for got, wanted in zip(run(x), expected, strict=True):
    # Float32 sums of up to 7·7·3 products, or of a few hundred in gradients.
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize('lowering', ['matmul', 'conv'])
@pytest.mark.parametrize('pooling', ['average', 'max'])
@pytest.mark.parametrize('padding', ['valid', 'same'])
@pytest.mark.parametrize('kernel', [3, 5, 7])
def test_equals_conv_activation_pool(kernel, padding, pooling, lowering):
  options = {'padding': padding, 'activation': 'tanh'}
  check((12, 15, 3), 4, kernel, pooling, lowering, False, **options)


@pytest.mark.parametrize('lowering', ['matmul', 'conv'])
@pytest.mark.parametrize(
  'kernel, padding, pooling',
  [(3, 'valid', 'max'), (5, 'valid', 'average'), (7, 'same', 'max')],
)
def test_equals_with_xla(kernel, padding, pooling, lowering):
  options = {'padding': padding, 'activation': 'tanh'}
  check((12, 15, 3), 4, kernel, pooling, lowering, True, **options)


@pytest.mark.parametrize('lowering', ['matmul', 'conv'])
@pytest.mark.parametrize('padding', ['valid', 'same'])
@pytest.mark.parametrize(
  'shape, filters, kernel',
  [
    ((28, 28, 1), 6, 5),  # LeNet-5's
    ((12, 12, 6), 16, 5),
    ((9, 9, 1), 1, 3),
    ((8, 11, 2), 3, 3),
    ((7, 7, 5), 2, 5),
    ((6, 6, 2), 3, 1),
    ((3, 4, 1), 2, 3),
  ],
)
def test_shapes(shape, filters, kernel, padding, lowering):
  if padding == 'valid' and min(shape[:2]) - kernel + 1 < 2:
    padding = 'same'
  check(shape, filters, kernel, 'average', lowering, False, padding=padding)
  layer = folded_conv.FoldedConvPool2D(filters, kernel, padding=padding)
  assert layer.compute_output_shape((None, *shape)) == (
    None,
    *[(n - (kernel - 1) * (padding == 'valid')) // 2 for n in shape[:2]],
    filters,
  )


@pytest.mark.parametrize('lowering', ['matmul', 'conv'])
@pytest.mark.parametrize('activation', [None, 'relu', 'sigmoid'])
def test_activations_and_no_bias(activation, lowering):
  for pooling in POOLS:
    check(
      (10, 10, 2),
      3,
      3,
      pooling,
      lowering,
      False,
      activation=activation,
      use_bias=False,
    )


def test_ties_get_the_same_gradient():
  """Of equal phases the first gets the gradient of max pooling."""
  layer, plain, conv = make_pair((4, 4, 1), 1, 3, 'max', 'matmul')
  x = tf.ones([1, 4, 4, 1])
  upstream = tf.ones([1, 1, 1, 1])
  got, expected = (
    derivatives.outputs_and_gradients(function, x, upstream, weights)
    for function, weights in ((layer, layer.weights), (plain, conv.weights))
  )
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize('lowering', ['matmul', 'conv'])
def test_saves_and_loads(tmp_path, lowering):
  model = keras.Sequential(
    [
      keras.Input((10, 10, 2)),
      folded_conv.FoldedConvPool2D(
        3,
        3,
        pooling='max',
        padding='same',
        activation='relu',
        use_bias=False,
        kernel_initializer='he_normal',
        lowering=lowering,
      ),
    ]
  )
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  x = np.random.default_rng(0).normal(size=(2, 10, 10, 2))
  np.testing.assert_array_equal(loaded(x), model(x))
  assert loaded.layers[0].get_config() == model.layers[0].get_config()
  assert loaded.layers[0].lowering == lowering


def test_trains_with_fit():
  keras.utils.set_random_seed(0)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(32, 8, 8, 1)).astype(np.float32)
  y = (x.mean(axis=(1, 2, 3)) > 0).astype(np.int32)
  model = keras.Sequential(
    [
      keras.Input((8, 8, 1)),
      folded_conv.FoldedConvPool2D(4, 3, activation='relu'),
      keras.layers.Flatten(),
      keras.layers.Dense(2),
    ]
  )
  model.compile(
    keras.optimizers.Adam(0.02),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  losses = model.fit(x, y, epochs=30, verbose=0).history['loss']
  assert losses[-1] < 0.3 * losses[0]


def test_half_precision_computes_in_half_precision():
  layer = folded_conv.FoldedConvPool2D(2, 3, dtype='mixed_bfloat16')
  y = layer(np.ones((1, 6, 6, 1), np.float32))
  assert y.dtype == tf.bfloat16
  assert layer.kernel.dtype == 'float32'


@pytest.mark.parametrize(
  'argument, value',
  [
    ('kernel_size', 4),
    ('kernel_size', 0),
    ('kernel_size', (3, 5)),
    ('filters', 0),
    ('pooling', 'min'),
    ('padding', 'full'),
    ('lowering', 'fft'),
    ('strides', 2),
    ('dilation_rate', 2),
    ('groups', 2),
  ],
)
def test_refused(argument, value):
  arguments = {'filters': 2, 'kernel_size': 3, argument: value}
  with pytest.raises(ValueError, match=argument):
    folded_conv.FoldedConvPool2D(**arguments)
