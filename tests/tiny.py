"""Small problems and models that the tests share."""

import keras
import numpy as np

from safl_tf.data import client_data

FEATURES = 8
CLASSES = 3


def blobs(total=240, seed=0):
  """Clusters that are far apart: x float32 [N, 8], y int32 [N]."""
  rng = np.random.default_rng(seed)
  centres = 2 * np.eye(CLASSES, FEATURES) - 0.5
  y = rng.integers(0, CLASSES, total).astype(np.int32)
  x = centres[y] + 0.3 * rng.normal(size=(total, FEATURES))
  return x.astype(np.float32), y


def clients(sizes=(20, 13, 31, 7), x=None, y=None):
  """Clients of these sizes, which hold consecutive rows."""
  if x is None:
    x, y = blobs(sum(sizes))
  ends = np.cumsum(sizes)
  parts = np.split(np.arange(ends[-1]), ends[:-1])
  return client_data.ClientData.from_arrays(
    x, y, parts, num_classes=int(y.max()) + 1
  )


def dense():
  """8 -> 5 tanh -> 3 logits: 63 parameters."""
  return keras.Sequential(
    [
      keras.Input((FEATURES,)),
      keras.layers.Dense(5, activation='tanh'),
      keras.layers.Dense(CLASSES),
    ]
  )


def normalised():
  """Batch normalisation and dropout between dense layers."""
  return keras.Sequential(
    [
      keras.Input((FEATURES,)),
      keras.layers.Dense(16, activation='relu'),
      keras.layers.BatchNormalization(momentum=0.8),
      keras.layers.Dropout(0.2),
      keras.layers.Dense(CLASSES),
    ]
  )


def functional():
  """Two branches that meet."""
  entry = keras.Input((FEATURES,))
  left = keras.layers.Dense(8, activation='relu')(entry)
  right = keras.layers.Dense(8, activation='tanh')(entry)
  both = keras.layers.Add()([left, right])
  return keras.Model(entry, keras.layers.Dense(CLASSES)(both))


@keras.saving.register_keras_serializable('tests')
class Subclassed(keras.Model):
  """A model with a `call` of its own, built when it is first called."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.hidden = keras.layers.Dense(8, activation='relu')
    self.out = keras.layers.Dense(CLASSES)

  def call(self, inputs):
    return self.out(self.hidden(inputs))


@keras.saving.register_keras_serializable('tests')
class Built(Subclassed):
  """The same with a `build`."""

  def build(self, input_shape):
    self.hidden.build(input_shape)
    self.out.build((*input_shape[:-1], 8))
    self.built = True


def shared_layer():
  """One layer, used twice."""
  entry = keras.Input((FEATURES,))
  again = keras.layers.Dense(FEATURES, activation='tanh')
  x = again(again(entry))
  return keras.Model(entry, keras.layers.Dense(CLASSES)(x))


def nested():
  """A model in a model."""
  inner = keras.Sequential(
    [keras.layers.Dense(6, activation='tanh'), keras.layers.Dropout(0.1)]
  )
  return keras.Sequential(
    [keras.Input((FEATURES,)), inner, keras.layers.Dense(CLASSES)]
  )


def two_inputs():
  """Takes a tuple: half of the features each."""
  entries = [keras.Input((4,)), keras.Input((4,))]
  hidden = [keras.layers.Dense(6, activation='relu')(e) for e in entries]
  both = keras.layers.Concatenate()(hidden)
  return keras.Model(entries, keras.layers.Dense(CLASSES)(both))


def named_inputs():
  """Takes a dict: half of the features each."""
  entries = {name: keras.Input((4,), name=name) for name in ('a', 'b')}
  both = keras.layers.Concatenate()(list(entries.values()))
  return keras.Model(entries, keras.layers.Dense(CLASSES)(both))


def halves(x):
  return x[:, :4], x[:, 4:]


def named_halves(x):
  return dict(zip('ab', halves(x), strict=True))


# What a user may bring: a function that makes it, and what it takes of x.
MODELS = {
  'sequential': (dense, lambda x: x),
  'batch norm and dropout': (normalised, lambda x: x),
  'functional': (functional, lambda x: x),
  'subclassed': (Subclassed, lambda x: x),
  'subclassed with build': (Built, lambda x: x),
  'shared layer': (shared_layer, lambda x: x),
  'nested': (nested, lambda x: x),
  'tuple of inputs': (two_inputs, halves),
  'dict of inputs': (named_inputs, named_halves),
}


class ConstantRate(keras.optimizers.schedules.LearningRateSchedule):
  """A user's learning-rate schedule, which is not registered with Keras."""

  def __init__(self, rate):
    self.rate = rate

  def __call__(self, step):
    return self.rate

  def get_config(self):
    return {'rate': self.rate}
