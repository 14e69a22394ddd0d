"""Only what a training step changes is part of z, uploaded and averaged."""

import random
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import executors, flat_model, seeds
from safl_tf.training import run_directory
from safl_tf.util import errors
from tests import marks, tiny, tiny_rounds

pytestmark = pytest.mark.usefixtures('no_outputs')

layers = keras.layers
X, Y = tiny.blobs(88)
SEED = tf.zeros([2], tf.int32)


def model(*before, hidden=5):
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      *before,
      layers.Dense(hidden, activation='tanh', name='hidden'),
      layers.Dense(tiny.CLASSES),
    ]
  )


def frozen(*before):
  network = model(*before)
  network.get_layer('hidden').trainable = False
  return network


def key(k):
  return seeds.pair(0, seeds.Role.INIT, k)


def paths(flat):
  return [tensor.path.split('/')[-1] for tensor in flat.layout.tensors]


@keras.saving.register_keras_serializable('tests')
class Counter(layers.Layer):
  """Counts its calls in training, or those in inference."""

  def __init__(self, counts_training, dtype_of_count='float32', **kwargs):
    super().__init__(**kwargs)
    self.counts_training = counts_training
    self.dtype_of_count = dtype_of_count

  def build(self, input_shape):
    self.count = self.add_weight(
      shape=(),
      initializer='zeros',
      dtype=self.dtype_of_count,
      trainable=False,
      name='count',
    )

  def call(self, inputs, training=False):
    if bool(training) == self.counts_training:
      self.count.assign(self.count + 1)
    return inputs

  def get_config(self):
    own = {
      'counts_training': self.counts_training,
      'dtype_of_count': self.dtype_of_count,
    }
    return {**super().get_config(), **own}


class Unfathomable(keras.Model):
  """Can be computed, but not traced."""

  def __init__(self):
    super().__init__()
    self.norm = frozen_norm()
    self.out = layers.Dense(3)

  def build(self, input_shape):
    self.norm.build(input_shape)
    self.out.build(input_shape)
    self.built = True

  def call(self, inputs):
    return self.out(self.norm(tf.constant(np.asarray(inputs))))


def adapted():
  layer = layers.Normalization()
  layer.adapt(3 + 2 * X)
  return layer


def frozen_norm():
  return layers.BatchNormalization(trainable=False)


# a model -> the tensors of z besides those that are trained, and what is fixed
MODELS = {
  'nothing': (model, [], 0),
  'dropout': (lambda: model(layers.Dropout(0.5)), [], 0),
  'frozen dense': (frozen, [], 2),
  'batch normalization': (
    lambda: model(layers.BatchNormalization()),
    ['moving_mean', 'moving_variance'],
    0,
  ),
  'frozen batch normalization': (lambda: model(frozen_norm()), [], 4),
  'both': (
    lambda: model(frozen_norm(), layers.BatchNormalization()),
    ['moving_mean', 'moving_variance'],
    4,
  ),
  'normalization': (lambda: model(adapted()), [], 3),
  'counts training': (lambda: model(Counter(True)), ['count'], 0),
  'counts inference': (lambda: model(Counter(False)), [], 1),
  'counts training in integers': (lambda: model(Counter(True, 'int32')), [], 1),
  'cannot be traced': (
    Unfathomable,
    ['gamma', 'beta', 'moving_mean', 'moving_variance'],
    0,
  ),
}


@pytest.mark.parametrize('case', MODELS)
def test_what_travels(case):
  make, travels, num_fixed = MODELS[case]
  flat = flat_model.FlatModel(make, X)
  template = flat.template
  trained = [v.path.split('/')[-1] for v in template.trainable_variables]
  assert paths(flat) == [*trained, *travels]
  assert len(flat.fixed) == num_fixed
  z = flat.init(key(1))
  parts = flat.unflatten(tf.constant(z), SEED)
  assert flat.flatten(parts).numpy().tobytes() == z.tobytes()
  built = flat.to_model(z)
  assert flat.read(built).tobytes() == z.tobytes()
  for i, value in flat.fixed.items():
    np.testing.assert_array_equal(built.non_trainable_variables[i], value)
  np.testing.assert_allclose(
    flat.apply(parts, X, training=False)[0],
    built(X, training=False),
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.parametrize('executor', executors.EXECUTORS)
def test_a_counter_is_averaged(executor):
  trainer = tiny_rounds.make(
    safl_tf.build_fed_avg(),
    lambda: model(Counter(True), Counter(True, 'int32')),
    tiny.clients((40, 8, 40), X, Y),
    executor=executor,
  )
  (_, state), _ = tiny_rounds.run(trainer, 1)
  counts = [state.client_models[k][-1] for k in range(3)]
  assert counts == [10, 2, 10]  # two epochs in batches of 8
  counters = trainer.get_model(state).layers[:2]
  expected = (80 * 10 + 8 * 2) / 88
  assert float(counters[0].count) == pytest.approx(expected)
  assert int(counters[1].count) == 0  # integers are the template's


def test_values_that_are_not_finite_are_refused_in_frozen_layers_too():
  broken = frozen()
  broken.get_layer('hidden').bias.assign([0, np.inf, 0, 0, 0])
  with pytest.raises(errors.InputError, match='weights that are not finite'):
    flat_model.FlatModel(broken, X)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_dtype_of_the_layout(dtype):
  """That of what travels."""
  make = lambda: keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      layers.Dense(4, trainable=False, dtype='float64'),
      layers.Dense(3, dtype=dtype),
    ]
  )
  flat = flat_model.FlatModel(make, X)
  assert flat.layout.dtype == flat.dtype == flat.init(key(1)).dtype == dtype


def test_frozen_random_weights_are_those_of_a_fixed_seed():
  pretrained = frozen()
  one = flat_model.FlatModel(pretrained, X)
  first, second = (flat_model.FlatModel(frozen, X) for _ in range(2))
  for i, value in first.fixed.items():
    np.testing.assert_array_equal(value, second.fixed[i])
  kernel = pretrained.get_layer('hidden').kernel
  np.testing.assert_array_equal(one.fixed[0], kernel)
  assert not np.array_equal(first.fixed[0], kernel)
  assert not np.array_equal(first.init(key(1)), first.init(key(2)))
  # The user's generators go on as if there had been no template.
  np.random.seed(1)
  expected = np.random.random()
  np.random.seed(1)
  states = []
  for seed in 1, 2:
    random.seed(seed)
    flat_model.FlatModel(frozen, X)
    states.append(random.getstate())
  assert np.random.random() == expected
  assert states[0] != states[1]


def test_model_functions_may_train():
  """The generators are seeded by one thread at a time, not once in it."""

  def make():
    flat_model.FlatModel(tiny.dense, X)
    return tiny.dense()

  assert flat_model.FlatModel(make, X).size == 63


def normalised_images():
  rescale = layers.Normalization(mean=None)
  rescale.adapt(3 + 2 * X.reshape(-1, 2, 4, 1))
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      layers.Reshape((2, 4, 1)),
      rescale,
      layers.Conv2D(3, 2, padding='same', activation='tanh'),
      layers.Flatten(),
      layers.Dense(tiny.CLASSES),
    ]
  )


def test_lowered_models_have_the_fixed_values():
  states = {}
  for executor in 'serial', 'vectorized':
    trainer = tiny_rounds.make(model=normalised_images, executor=executor)
    states[executor] = tiny_rounds.run(trainer, 2)[0][-1]
  np.testing.assert_allclose(
    states['serial'].z_bar, states['vectorized'].z_bar, rtol=1e-4, atol=1e-5
  )


def mobile_net():
  base = keras.applications.MobileNetV2(
    input_shape=(32, 32, 3),
    weights=None,
    alpha=0.35,
    include_top=False,
    pooling='avg',
  )
  base.trainable = False
  return keras.Sequential([base, layers.Dense(3)])


@pytest.mark.slow
def test_a_frozen_base_is_not_uploaded():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(20, 32, 32, 3)).astype(np.float32)
  y = (np.arange(20) % 3).astype(np.int32)
  states = {}
  for executor in executors.EXECUTORS:
    trainer = tiny_rounds.make(
      model=mobile_net,
      clients=tiny.clients((8, 7, 5), x, y),
      executor=executor,
      config=safl_tf.LocalConfig(
        local_epochs=1, batch_size=4, learning_rate=0.02
      ),
    )
    (_, *after), metrics = tiny_rounds.run(trainer, 2)
    assert trainer.model.size == 1280 * 3 + 3 == 3843
    assert [m.bytes_up for m in metrics] == [3 * 15372] * 2
    assert [m.bytes_down for m in metrics] == [0, 3 * 15372]
    assert after[-1].client_models[0].shape == (3843,)
    states[executor] = after[-1]
  tiny_rounds.check_same(states['threads'], states['serial'])
  np.testing.assert_allclose(
    states['vectorized'].z_bar, states['serial'].z_bar, rtol=1e-5, atol=1e-7
  )


ROUND_TRIPS = {
  'frozen dense': frozen,
  'frozen batch normalization': lambda: model(frozen_norm()),
  'normalization': lambda: frozen(adapted()),
  'counters': lambda: model(Counter(True), Counter(True, 'int32')),
  'nothing is fixed': model,
}


@pytest.mark.parametrize('make', ROUND_TRIPS.values(), ids=ROUND_TRIPS)
@pytest.mark.parametrize('as_model', marks.some([False, True], [True]))
def test_runs_are_loaded_with_what_is_fixed(make, as_model, tmp_path):
  given = make
  if as_model:
    given = make()
    for variable in given.non_trainable_variables:
      variable.assign(variable + 2)
  result = tiny_rounds.train(given, tmp_path)
  loaded = run_directory.load(tmp_path)
  np.testing.assert_array_equal(loaded.model(X), result.model(X))
  pairs = zip(loaded.model.weights, result.model.weights, strict=True)
  assert all(np.array_equal(mine, other) for mine, other in pairs)
  assert set(loaded.metadata) == {'round', 'class_names'}
  is_written = (tmp_path / 'fixed_weights.npz').exists()
  assert is_written is bool(result.process.model.fixed)


def test_other_frozen_weights_are_another_run(tmp_path):
  first = frozen()
  tiny_rounds.train(first, tmp_path)
  hidden = first.get_layer('hidden')
  hidden.kernel.assign(hidden.kernel + 1)
  with pytest.raises(errors.InputError, match='initial_weights was'):
    tiny_rounds.train(first, tmp_path, rounds=2)


@pytest.mark.slow
def test_functions_with_random_frozen_layers_resume_elsewhere(tmp_path):
  script = textwrap.dedent("""
    import sys
    from tests import tiny_rounds
    from tests.core import test_travelling as own
    tiny_rounds.train(own.frozen, sys.argv[1], int(sys.argv[2]))
  """)
  for rounds in '2', '3':
    command = [sys.executable, '-c', script, tmp_path / 'run', rounds]
    subprocess.run(command, check=True)
  resumed = tiny_rounds.train(frozen, tmp_path / 'run', 4)
  whole = tiny_rounds.train(frozen, tmp_path / 'whole', 4)
  tiny_rounds.check_same(resumed.state, whole.state)
  assert len(resumed.history) == 4
