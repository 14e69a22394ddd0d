import keras
import numpy as np
import pytest

from safl_tf.models import light_vgg


def conv(kernel, before, after):
  return kernel * kernel * before * after + after


def images(total, shape):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (total, *shape), dtype=np.uint8)


@pytest.mark.parametrize(
  'shape, classes, expected',
  [
    ((32, 32, 3), 10, 519_690),
    ((28, 28, 1), 10, 518_538),
    ((59, 13, 1), 30, 521_118),
  ],
)
def test_parameters(shape, classes, expected):
  counts = [
    conv(3, shape[2], 64),
    conv(3, 64, 128),
    *[conv(3, 128, 128)] * 3,
    conv(1, 128, classes),
  ]
  assert sum(counts) == expected
  model = light_vgg.light_vgg(shape, classes)
  assert [n for n in (w.count_params() for w in model.layers) if n] == counts
  assert model.output_shape == (None, classes)


def test_small_inputs_can_be_pooled_four_times():
  model = light_vgg.light_vgg((59, 13, 1), 30)
  pools = [w for w in model.layers if isinstance(w, keras.layers.MaxPooling2D)]
  assert [tuple(w.output.shape[1:3]) for w in pools] == [
    (30, 7),
    (15, 4),
    (8, 2),
    (4, 1),
  ]


def test_maps_pixels_to_logits():
  model = light_vgg.light_vgg((16, 16, 3), 5)
  assert model.inputs[0].dtype == 'uint8'
  convs = [w for w in model.layers if isinstance(w, keras.layers.Conv2D)]
  assert convs[-1].activation is keras.activations.linear
  assert all(w.activation is keras.activations.relu for w in convs[:-1])
  x = images(4, (16, 16, 3))
  first = keras.Sequential(model.layers[:1])
  np.testing.assert_allclose(first(x), x / np.float32(255), rtol=1e-6)
  assert model(x).shape == (4, 5)


def test_floats_are_not_scaled():
  keras.utils.set_random_seed(0)
  floats = light_vgg.light_vgg((59, 13, 1), 30, input_dtype='float32')
  assert floats.inputs[0].dtype == 'float32'
  assert floats.count_params() == 521_118
  pixels = light_vgg.light_vgg((59, 13, 1), 30)
  floats.set_weights(pixels.get_weights())
  x = images(4, (59, 13, 1))
  outputs = floats(x / np.float32(255))
  assert outputs.shape == (4, 30)
  np.testing.assert_allclose(outputs, pixels(x), rtol=1e-4, atol=1e-5)


def test_trains_with_fit():
  keras.utils.set_random_seed(0)
  x, y = images(8, (8, 8, 1)), np.arange(8) % 2
  x[y == 1, 4:] = 0
  model = light_vgg.light_vgg((8, 8, 1), 2)
  model.compile(
    keras.optimizers.Adam(0.001),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  losses = model.fit(x, y, epochs=10, verbose=0).history['loss']
  assert losses[-1] < 0.5 * losses[0]


def test_saves_and_loads(tmp_path):
  model, x = light_vgg.light_vgg((8, 8, 1), 3), images(4, (8, 8, 1))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(loaded(x), model(x))
