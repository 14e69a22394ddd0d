import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import flat_model, seeds
from safl_tf.data import arrays
from safl_tf.util import errors
from tests import tiny

layers = keras.layers
X, _ = tiny.blobs(10)
SEED = np.zeros(2, np.int32)


def key(k):
  return seeds.pair(0, seeds.Role.INIT, k)


def outputs(flat, z, x, training=False, seed=SEED):
  parts = flat.unflatten(tf.constant(z), tf.constant(seed))
  return flat.apply(parts, x, training).outputs.numpy()


def head(*before):
  return keras.Sequential(
    [keras.Input((tiny.FEATURES,)), *before, layers.Dense(tiny.CLASSES)]
  )


@pytest.mark.parametrize('make, take', tiny.MODELS.values(), ids=tiny.MODELS)
def test_round_trips(make, take):
  x = take(X)
  flat = flat_model.FlatModel(make, x)
  z = flat.init(key(1))
  assert z.shape == (flat.size,) and z.dtype == np.float32
  # z -> tensors -> z, z -> Keras -> z, and both compute the same.
  parts = flat.unflatten(tf.constant(z), tf.constant(SEED))
  assert flat.flatten(parts).numpy().tobytes() == z.tobytes()
  model = flat.to_model(z)
  assert flat.read(model).tobytes() == z.tobytes()
  np.testing.assert_allclose(
    outputs(flat, z, x), model(x, training=False), rtol=1e-5, atol=1e-6
  )
  # A new model each time, of the architecture that was given.
  assert model is not flat.template and model is not flat.to_model(z)
  assert [v.path for v in model.variables] != []
  assert type(model) is type(flat.template)


@pytest.mark.parametrize('make, take', tiny.MODELS.values(), ids=tiny.MODELS)
def test_a_model_instead_of_a_function(make, take):
  x = take(X)
  model = make()
  expected = np.asarray(model(x, training=False))
  flat = flat_model.FlatModel(model, x)
  np.testing.assert_allclose(
    outputs(flat, flat.given, x), expected, rtol=1e-5, atol=1e-6
  )
  np.testing.assert_allclose(
    flat.to_model(flat.given)(x, training=False), expected, rtol=1e-6
  )
  # Its own weights are one start; another is drawn for each seed.
  assert not np.array_equal(flat.init(key(1)), flat.given)
  np.testing.assert_array_equal(model(x, training=False), expected)


def test_size_and_order():
  flat = flat_model.FlatModel(tiny.normalised, X)
  template = flat.template
  trained = [v.shape for v in template.trainable_variables]
  assert trained == [(8, 16), (16,), (16,), (16,), (16, 3), (3,)]
  moving = 16 + 16
  assert flat.size == sum(map(np.prod, trained)) + moving
  z = np.arange(flat.size, dtype=np.float32)
  parts = flat.unflatten(tf.constant(z), tf.constant(SEED))
  np.testing.assert_array_equal(
    np.concatenate([np.ravel(v) for v in parts.trainable]), z[:-moving]
  )
  averaged = [v for v in parts.non_trainable if v.dtype == tf.float32]
  np.testing.assert_array_equal(np.concatenate(averaged), z[-moving:])


def test_given_is_none_for_a_function():
  assert flat_model.FlatModel(tiny.dense, X).given is None


@pytest.mark.parametrize('make, take', tiny.MODELS.values(), ids=tiny.MODELS)
def test_init_is_a_function_of_the_seed(make, take):
  first, second = (flat_model.FlatModel(make, take(X)) for _ in range(2))
  z = first.init(key(1))
  assert first.init(key(1)).tobytes() == z.tobytes()
  assert second.init(key(1)).tobytes() == z.tobytes()
  assert not np.array_equal(first.init(key(2)), z)


def test_init_has_the_layers_distribution():
  units = 400
  make = lambda: head(
    layers.Dense(units, bias_initializer='ones'),
    layers.BatchNormalization(),
    layers.Dense(units, kernel_initializer='he_normal'),
  )
  model = flat_model.FlatModel(make, X)
  weights = model.to_model(model.init(key(1))).get_weights()
  glorot, ones, gamma, beta, mean, variance, he, zeros = weights[:8]
  # Glorot's uniform has the standard deviation sqrt(2 / (in + out)).
  spread = np.sqrt(2 / (tiny.FEATURES + units))
  assert glorot.std() == pytest.approx(spread, rel=0.05)
  assert np.abs(glorot).max() < spread * np.sqrt(3)
  assert np.abs(glorot.mean()) < 4 * spread / np.sqrt(glorot.size)
  assert he.std() == pytest.approx(np.sqrt(2 / units), rel=0.05)
  for constant, value in (ones, 1), (gamma, 1), (variance, 1):
    assert (constant == value).all()
  assert not (beta.any() or mean.any() or zeros.any())


def test_clients_draw_independently():
  flat = flat_model.FlatModel(lambda: head(layers.Dense(400)), X)
  kernels = [flat.init(key(k))[: 8 * 400] for k in range(1, 5)]
  correlation = np.corrcoef(kernels) - np.eye(4)
  assert np.abs(correlation).max() < 4 / np.sqrt(8 * 400)
  # And so do the layers of one model.
  twins = flat_model.FlatModel(
    lambda: head(layers.Dense(8), layers.Dense(8)), X
  )
  model = twins.to_model(twins.init(key(1)))
  assert not np.array_equal(model.weights[0], model.weights[2])


def test_shared_layer_is_drawn_once():
  flat = flat_model.FlatModel(tiny.shared_layer, X)
  assert flat.size == 8 * 8 + 8 + 8 * 3 + 3


def noise(shape, dtype=None):
  """An initializer that knows nothing of seeds."""
  return np.random.normal(size=shape).astype('float32')


@keras.saving.register_keras_serializable('tests')
class OwnInitializer(keras.Initializer):
  """Has a seed that only NumPy understands."""

  def __init__(self, seed=None):
    self.seed = seed

  def __call__(self, shape, dtype=None):
    rng = np.random.default_rng(self.seed or np.random.randint(2**31))
    return keras.ops.convert_to_tensor(rng.normal(size=shape), dtype)

  def get_config(self):
    return {'seed': self.seed}


@pytest.mark.parametrize('initializer', [noise, OwnInitializer()])
def test_initializers_without_a_keras_seed(initializer):
  make = lambda: head(layers.Dense(5, kernel_initializer=initializer))
  first, second = (flat_model.FlatModel(make, X) for _ in range(2))
  z = first.init(key(1))
  assert second.init(key(1)).tobytes() == z.tobytes()
  other = first.init(key(2))
  kernel, rest = slice(0, 40), slice(45, 60)  # of each of the dense layers
  assert not np.array_equal(other[kernel], z[kernel])
  assert not np.array_equal(other[rest], z[rest])


def test_slow_initializers_leave_numpys_generator_alone():
  flat = flat_model.FlatModel(
    lambda: head(layers.Dense(5, kernel_initializer=noise)), X
  )
  np.random.seed(5)
  expected = np.random.random(3)
  np.random.seed(5)
  flat.init(key(1))
  np.testing.assert_array_equal(np.random.random(3), expected)


def test_slow_initializers_in_threads():
  """The generators are global: two threads must not seed them at once."""
  flat = flat_model.FlatModel(
    lambda: head(layers.Dense(50, kernel_initializer=noise)), X
  )
  expected = {k: flat.init(key(k)) for k in range(8)}
  result = {}

  def work(numbers):
    for k in numbers:
      result[k] = flat.init(key(k))

  threads = [
    threading.Thread(target=work, args=(range(i, 8, 4),)) for i in range(4)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert all(np.array_equal(result[k], expected[k]) for k in range(8))


def test_float64():
  make = lambda: keras.Sequential(
    [
      keras.Input((tiny.FEATURES,), dtype='float64'),
      layers.Dense(tiny.CLASSES, dtype='float64'),
    ]
  )
  flat = flat_model.FlatModel(make, X.astype(np.float64))
  z = flat.init(key(1)) / 3
  assert z.dtype == np.float64
  assert flat.read(flat.to_model(z)).tobytes() == z.tobytes()
  parts = flat.unflatten(tf.constant(z), tf.constant(SEED))
  assert flat.flatten(parts).numpy().tobytes() == z.tobytes()


def test_seed_generators_are_set_anew():
  flat = flat_model.FlatModel(lambda: head(layers.Dropout(0.5)), X)
  z = flat.init(key(1))
  assert flat.size == 8 * 3 + 3  # generators are not part of the model
  run = lambda seed: outputs(flat, z, X, True, np.array(seed, np.int32))
  np.testing.assert_array_equal(run([1, 2]), run([1, 2]))
  assert not np.array_equal(run([1, 2]), run([1, 3]))
  assert not np.array_equal(run([-1, 2]), run([1, 2]))


def test_two_dropouts_differ():
  ones = np.ones((200, tiny.FEATURES), np.float32)

  class Both(keras.Model):
    def __init__(self):
      super().__init__()
      self.drops = [layers.Dropout(0.5), layers.Dropout(0.5)]
      self.dense = layers.Dense(1)

    def call(self, inputs, training=False):
      first, second = (drop(inputs, training=training) for drop in self.drops)
      return keras.ops.concatenate([first, second, self.dense(inputs)], axis=1)

  flat = flat_model.FlatModel(Both, ones)
  both = outputs(flat, flat.init(key(1)), ones, training=True)
  masks = both[:, :8] > 0, both[:, 8:16] > 0
  assert abs(np.corrcoef(masks[0].ravel(), masks[1].ravel())[0, 1]) < 0.1


def test_moving_statistics_are_updated():
  flat = flat_model.FlatModel(lambda: head(layers.BatchNormalization()), X)
  z = flat.init(key(1))
  parts = flat.unflatten(tf.constant(z), tf.constant(SEED))
  non_trainable = flat.apply(parts, X, training=True).non_trainable
  mean = next(v for v in non_trainable if v.dtype == tf.float32)
  np.testing.assert_allclose(mean, 0.01 * X.mean(axis=0), rtol=1e-4, atol=1e-6)
  after = flat.flatten(flat_model.Parts(parts.trainable, non_trainable))
  assert not np.array_equal(after, z)


def test_training_reaches_layers_through_a_call_that_does_not_take_it():
  class Model(keras.Model):
    def __init__(self):
      super().__init__()
      self.drop = layers.Dropout(0.5)
      self.dense = layers.Dense(tiny.CLASSES)

    def call(self, inputs):
      return self.dense(self.drop(inputs))

  flat = flat_model.FlatModel(Model, X)
  z = flat.init(key(1))
  still = outputs(flat, z, X, training=False)
  np.testing.assert_allclose(still, flat.to_model(z)(X), rtol=1e-6)
  assert not np.allclose(outputs(flat, z, X, training=True), still)


def test_layers_own_losses():
  make = lambda: head(layers.Dense(4, kernel_regularizer='l2'))
  flat = flat_model.FlatModel(make, X)
  z = flat.init(key(1))
  parts = flat.unflatten(tf.constant(z), tf.constant(SEED))
  extra = flat.apply(parts, X, training=True).extra
  assert float(extra) == pytest.approx(0.01 * (z[:32] ** 2).sum(), rel=1e-5)
  plain = flat_model.FlatModel(tiny.dense, X)
  parts = plain.unflatten(plain.init(key(1)), tf.constant(SEED))
  assert plain.apply(parts, X, training=True).extra == 0


def adapted():
  layer = layers.Normalization()
  layer.adapt(100 + 5 * X)
  return layer


ADAPTED = {
  'a layer': lambda: head(adapted()),
  'inside a model': lambda: head(keras.Sequential([adapted()])),
}


@pytest.mark.parametrize('make', ADAPTED.values(), ids=ADAPTED)
@pytest.mark.parametrize('as_model', [True, False])
def test_adapted_layers_keep_what_they_learned(make, as_model):
  x = 100 + 5 * X
  flat = flat_model.FlatModel(make() if as_model else make, x)
  z = flat.init(key(1))
  model = flat.to_model(z)
  kernel, bias = z[:24].reshape(8, 3), z[24:27]
  expected = (x - x.mean(axis=0)) / x.std(axis=0) @ kernel + bias
  np.testing.assert_allclose(
    outputs(flat, z, x), expected, rtol=1e-3, atol=1e-3
  )
  np.testing.assert_allclose(model(x), expected, rtol=1e-3, atol=1e-3)


def pretrained():
  """A function that freezes a layer with weights from elsewhere."""
  model = head(layers.Dense(5))
  model.layers[0].set_weights([np.full((8, 5), 0.25), np.full(5, -1.0)])
  model.layers[0].trainable = False
  return model


@pytest.mark.parametrize('as_model', [True, False])
def test_frozen_layers_keep_their_weights(as_model):
  flat = flat_model.FlatModel(pretrained() if as_model else pretrained, X)
  one, other = flat.init(key(1)), flat.init(key(2))
  assert flat.size == 5 * 3 + 3  # they are not part of z
  assert not np.array_equal(one, other)
  for z in one, other:
    frozen = flat.to_model(z).layers[0]
    assert not frozen.trainable
    assert (frozen.get_weights()[0] == 0.25).all()


def test_pretrained_weights_that_train_are_kept_too():
  def make():
    model = head(layers.Dense(5))
    model.layers[0].set_weights([np.full((8, 5), 0.25), np.full(5, -1.0)])
    return model

  flat = flat_model.FlatModel(make, X)
  z = flat.init(key(1))
  np.testing.assert_array_equal(z[:45], [0.25] * 40 + [-1] * 5)
  assert not np.array_equal(z[45:], flat.init(key(2))[45:])


def test_weights_a_function_draws_itself_follow_the_seed():
  def make():
    model = head(layers.Dense(5))
    model.layers[0].set_weights([noise((8, 5)), np.zeros(5)])
    return model

  first, second = (flat_model.FlatModel(make, X) for _ in range(2))
  assert first.init(key(1)).tobytes() == second.init(key(1)).tobytes()
  assert not np.array_equal(first.init(key(1))[:40], first.init(key(2))[:40])


def test_what_the_user_gave_may_change_later():
  model = pretrained()
  flat = flat_model.FlatModel(model, X)
  z = flat.init(key(1))
  model.layers[0].set_weights([np.zeros((8, 5)), np.zeros(5)])
  np.testing.assert_array_equal(flat.init(key(1)), z)
  assert (flat.to_model(z).layers[0].get_weights()[0] == 0.25).all()


def test_input_spec():
  flat = flat_model.FlatModel(tiny.named_inputs, tiny.named_halves(X))
  part = {'shape': [4], 'dtype': 'float32'}
  assert flat.input_spec == {'a': part, 'b': part}
  zeros = arrays.zeros_like_spec(flat.input_spec)
  assert {k: (v.shape, str(v.dtype)) for k, v in zeros.items()} == {
    'a': ((2, 4), 'float32'),
    'b': ((2, 4), 'float32'),
  }
  several = flat_model.FlatModel(tiny.two_inputs, tiny.halves(X)).input_spec
  assert [z.shape for z in arrays.zeros_like_spec(several)] == [(2, 4)] * 2


def test_lowered_models_must_have_the_same_variables():
  flat = flat_model.FlatModel(tiny.dense, X)
  with pytest.raises(ValueError, match='other variables'):
    flat.lower(tiny.functional())


@pytest.mark.parametrize('model', [3, 'lenet5', lambda: 'no model'])
def test_not_a_model(model):
  with pytest.raises(errors.InputError, match=r'^model=.*keras\.Model'):
    flat_model.FlatModel(model, X)


def test_a_model_must_be_built():
  with pytest.raises(errors.InputError, match='not built; pass a function'):
    flat_model.FlatModel(keras.Sequential([layers.Dense(3)]), X)
