import keras
import numpy as np
import pytest

from safl_tf.models import lenet5


def images(total=8, shape=(28, 28, 1)):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (total, *shape), dtype=np.uint8)


def test_number_of_parameters_equals_the_paper():
  """conv5-6, conv5-16, FC-120, FC-84, FC-10 with 4×4×16 features between."""
  counts = [
    5 * 5 * 1 * 6 + 6,
    5 * 5 * 6 * 16 + 16,
    4 * 4 * 16 * 120 + 120,
    120 * 84 + 84,
    84 * 10 + 10,
  ]
  assert counts == [156, 2_416, 30_840, 10_164, 850]
  model = lenet5.lenet5()
  assert [n for n in (w.count_params() for w in model.layers) if n] == counts
  assert model.count_params() == 44_426


def test_maps_pixels_to_logits():
  model = lenet5.lenet5()
  assert model.input_shape == (None, 28, 28, 1)
  assert model.inputs[0].dtype == 'uint8'
  assert model.layers[-1].activation is keras.activations.linear
  x = images()
  # The model scales uint8 pixels to [0, 1].
  first = keras.Sequential(model.layers[:1])
  np.testing.assert_allclose(first(x), x / np.float32(255), rtol=1e-6)
  outputs = model(x).numpy()
  assert outputs.shape == (8, 10)
  assert (outputs < 0).any()


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
def test_activation(activation):
  model = lenet5.lenet5(activation=activation)
  expected = keras.activations.get(activation)
  hidden = [w for w in model.layers[:-1] if hasattr(w, 'activation')]
  assert len(hidden) == 4
  assert all(layer.activation is expected for layer in hidden)


def test_other_shapes_and_classes():
  model = lenet5.lenet5((32, 32, 3), 7)
  assert model(images(2, (32, 32, 3))).shape == (2, 7)


def test_floats_are_not_scaled():
  keras.utils.set_random_seed(0)
  pixels = lenet5.lenet5()
  floats = lenet5.lenet5(input_dtype='float32')
  assert floats.inputs[0].dtype == 'float32'
  kinds = [[type(w) for w in model.layers] for model in (floats, pixels)]
  assert kinds[0] == kinds[1][1:]
  floats.set_weights(pixels.get_weights())
  x = images()
  np.testing.assert_allclose(
    floats(x / np.float32(255)), pixels(x), rtol=1e-4, atol=1e-5
  )
  assert not np.allclose(floats(x.astype(np.float32)), pixels(x), atol=1e-3)


@pytest.mark.slow
def test_trains_with_fit():
  keras.utils.set_random_seed(0)
  x, y = np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10
  x[np.arange(40), 2 * y + 4] = 255  # a line for each class
  model = lenet5.lenet5()
  model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  losses = model.fit(x, y, epochs=12, verbose=0).history['loss']
  assert losses[-1] < 0.5 * losses[0]


def test_saves_and_loads(tmp_path):
  model, x = lenet5.lenet5(), images()
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(loaded(x), model(x))
