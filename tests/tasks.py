"""Small problems of all kinds of tasks that tests share."""

import keras
import numpy as np
import tensorflow as tf

from safl_tf.data import client_data

layers = keras.layers
SIZES = (20, 13, 31, 7)
_X = np.random.default_rng(0).normal(size=(sum(SIZES), 6)).astype(np.float32)
_W = np.random.default_rng(1).normal(size=(6, 3))
_NUMBERS = (_X @ _W).astype(np.float32)
_TOKENS = np.random.default_rng(2).integers(1, 9, (sum(SIZES), 5))
_LENGTHS = np.random.default_rng(3).integers(1, 6, sum(SIZES))
_PADDED = np.where(np.arange(5) < _LENGTHS[:, None], _TOKENS, 0)
_WEIGHTS = np.random.default_rng(4).uniform(0.1, 3, sum(SIZES))
_TEXT = np.where(_NUMBERS[:, 0] > 0, 'a good day', 'no luck')


def dense(units, activation=None):
  """A function that returns a model with one hidden layer."""
  return lambda: keras.Sequential(
    [
      keras.Input((6,)),
      layers.Dense(5, 'tanh'),
      layers.Dense(units, activation),
    ]
  )


def recurrent(mask=False):
  """A function that returns a model of tokens with logits at each position."""
  return lambda: keras.Sequential(
    [
      keras.Input((5,), dtype='int32'),
      layers.Embedding(9, 4, mask_zero=mask),
      layers.SimpleRNN(6, return_sequences=True),
      layers.Dense(9),
    ]
  )


def of_text():
  """A model of text with a vocabulary that was adapted."""
  words = layers.TextVectorization(output_sequence_length=4)
  words.adapt(_TEXT)
  return keras.Sequential(
    [
      keras.Input((), dtype='string'),
      words,
      layers.Embedding(12, 4),
      layers.GlobalAveragePooling1D(),
      layers.Dense(2),
    ]
  )


def clients(x, y, sizes=SIZES, **options):
  """Clients of these sizes, which hold consecutive rows."""
  ends = np.cumsum(sizes)
  parts = np.split(np.arange(ends[-1]), ends[:-1])
  return client_data.ClientData.from_arrays(x, y, parts, **options)


def pinball(y, outputs):
  """A user's loss."""
  error = y - outputs
  return tf.reduce_mean(tf.maximum(0.7 * error, -0.3 * error), axis=-1)


class Cubic(keras.losses.Loss):
  """A user's class."""

  def call(self, y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)


_CLASSES = _NUMBERS.argmax(axis=1)
_YES = (_NUMBERS[:, 0] > 0).astype(int)
_ANY = (_NUMBERS > 0).astype(int)
_IGNORED = np.where(_PADDED == 0, -1, _TOKENS)
_OF = keras.losses
_SPARSE = _OF.SparseCategoricalCrossentropy

# name -> model function, x, y, loss for us and for Keras, options of the data
TASKS = {
  'classes': (dense(3), _X, _CLASSES, _SPARSE(from_logits=True), {}),
  'smoothed': (
    dense(3),
    _X,
    np.eye(3, dtype=np.float32)[_CLASSES],
    _OF.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    {},
  ),
  'binary': (dense(1, 'sigmoid'), _X, _YES, 'binary_crossentropy', {}),
  'several labels': (
    dense(3),
    _X,
    _ANY,
    _OF.BinaryCrossentropy(from_logits=True),
    {},
  ),
  'one number': (dense(1), _X, _NUMBERS[:, 0], 'mse', {}),
  'three numbers': (dense(3), _X, _NUMBERS, _OF.Huber(), {}),
  'own function': (dense(3), _X, _NUMBERS, pinball, {}),
  'own class': (dense(1), _X, _NUMBERS[:, 0], Cubic(), {}),
  'tokens': (recurrent(), _TOKENS, _TOKENS, _SPARSE(from_logits=True), {}),
  'masked tokens': (
    recurrent(mask=True),
    _PADDED,
    _TOKENS,
    _SPARSE(from_logits=True),
    {},
  ),
  'ignored tokens': (
    recurrent(),
    _PADDED,
    _IGNORED,
    _SPARSE(from_logits=True, ignore_class=-1),
    {},
  ),
  'weighted': (dense(3), _X, _NUMBERS, 'mae', {'sample_weight': _WEIGHTS}),
  'weighted tokens': (
    recurrent(),
    _TOKENS,
    _TOKENS,
    _SPARSE(from_logits=True),
    {'sample_weight': _WEIGHTS[:, None] * np.linspace(0, 1, 5)},
  ),
  'text': (of_text, _TEXT, _YES, _SPARSE(from_logits=True), {}),
}


def data(name):
  """The clients of a task."""
  _, x, y, _, options = TASKS[name]
  return clients(x, y, **options)
