"""Whether the outputs of users' models are logits."""

import functools

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.core import losses, task, task_resolution
from safl_tf.util import errors
from tests import tiny, tiny_rounds

layers = keras.layers
X, Y = tiny.blobs(300)
CLIENTS = tiny.clients((100, 100, 100), X, Y)
CROSS = keras.losses.SparseCategoricalCrossentropy


def chain(*after):
  return keras.Sequential([keras.Input((8,)), layers.Dense(4), *after])


def graph(*after):
  entry = keras.Input((8,))
  x = layers.Dense(4)(entry)
  for layer in after:
    x = layer(x)
  return keras.Model(entry, x)


def nested(inner):
  return chain(keras.Sequential(inner))


def compiled(model, loss):
  model.compile(loss=loss)
  return model


class Doubled(layers.Dense):
  def call(self, inputs):
    return 2 * super().call(inputs)


class OwnCall(keras.Sequential):
  def call(self, inputs, training=None):
    return keras.ops.softmax(super().call(inputs))


# a model whose last layer says it -> whether outputs are logits
KNOWN = {
  'dense': (lambda: chain(layers.Dense(3)), True),
  'softmax': (lambda: chain(layers.Dense(3, activation='softmax')), False),
  'softmax of TensorFlow': (
    lambda: chain(layers.Dense(3, activation=losses.tf.nn.softmax)),
    False,
  ),
  'softmax as a layer of a layer': (
    lambda: chain(layers.Dense(3, activation=layers.Softmax())),
    False,
  ),
  'log_softmax': (lambda: chain(layers.Dense(3, 'log_softmax')), True),
  'Softmax': (lambda: chain(layers.Dense(3), layers.Softmax()), False),
  'Activation': (
    lambda: chain(layers.Dense(3), layers.Activation('softmax')),
    False,
  ),
  'Activation that does nothing': (
    lambda: chain(layers.Dense(3, 'softmax'), layers.Activation('linear')),
    False,
  ),
  'dropout after softmax': (
    lambda: chain(layers.Dense(3, 'softmax'), layers.Dropout(0.1)),
    False,
  ),
  'a reshaped softmax': (
    lambda: chain(
      layers.Reshape((1, 4)), layers.Dense(3, 'softmax'), layers.Flatten()
    ),
    False,
  ),
  'functional': (lambda: graph(layers.Dense(3)), True),
  'functional with softmax': (
    lambda: graph(layers.Dense(3, activation='softmax')),
    False,
  ),
  'an operation': (lambda: graph(layers.Dense(3), keras.ops.softmax), False),
  'a nested chain': (lambda: nested([layers.Dense(3, 'softmax')]), False),
  'a nested graph': (
    lambda: graph(keras.Sequential([layers.Dense(3), layers.Softmax()])),
    False,
  ),
  'a nested model that only reshapes': (
    lambda: chain(
      layers.Dense(3, 'softmax'), keras.Sequential([layers.Dropout(0.1)])
    ),
    False,
  ),
  'lenet5': (lambda: safl_tf.lenet5((16, 16, 1)), True),
  'light_vgg': (lambda: safl_tf.light_vgg((8, 8, 1)), True),
  'compiled for logits': (
    lambda: compiled(tiny.Subclassed(), CROSS(from_logits=True)),
    True,
  ),
  'compiled by name': (
    lambda: compiled(tiny.Subclassed(), 'sparse_categorical_crossentropy'),
    False,
  ),
  'compiled with a function': (
    lambda: compiled(
      tiny.Subclassed(), keras.losses.sparse_categorical_crossentropy
    ),
    False,
  ),
  'compiled with a partial': (
    lambda: compiled(
      tiny.Subclassed(),
      functools.partial(
        keras.losses.sparse_categorical_crossentropy, from_logits=True
      ),
    ),
    True,
  ),
}


@pytest.mark.parametrize('make, expected', KNOWN.values(), ids=KNOWN)
def test_known(make, expected):
  model, y = make(), np.zeros(2, np.int32)
  x = np.zeros((2, *(model.input_shape[1:] if model.built else (8,))))
  found = task_resolution.resolve(
    task.Options(), task.of_compiled(model), model, model(x), y, None
  )
  assert found.options.from_logits is expected
  assert found.activation == ('softmax' if expected else None)


# a model -> what the message says about it
UNKNOWN = {
  'subclassed': (tiny.Subclassed, 'its class, Subclassed'),
  'a call of its own': (lambda: OwnCall([layers.Dense(3)]), 'OwnCall'),
  'Lambda': (
    lambda: chain(layers.Dense(3), layers.Lambda(lambda x: x)),
    r'\(Lambda\)',
  ),
  'relu': (lambda: chain(layers.Dense(3, activation='relu')), r'\(Dense\)'),
  'a function of the user': (
    lambda: chain(layers.Dense(3, activation=lambda x: x)),
    r'\(Dense\)',
  ),
  'a layer of the user': (lambda: chain(Doubled(3)), r'\(Doubled\)'),
  'a normalisation': (
    lambda: chain(layers.Dense(3), layers.BatchNormalization()),
    r'\(BatchNormalization\)',
  ),
  'a sum': (
    lambda: graph(lambda x: layers.Add()([layers.Dense(3)(x)] * 2)),
    r'\(Add\)',
  ),
  'softmax over pairs': (
    lambda: chain(
      layers.Reshape((2, 2)), layers.Dense(3, 'softmax'), layers.Flatten()
    ),
    r'\(Dense\)',
  ),
  'softmax over the batch': (
    lambda: chain(layers.Dense(3), layers.Softmax(axis=0)),
    r'\(Softmax\)',
  ),
}


@pytest.mark.parametrize('make, text', UNKNOWN.values(), ids=UNKNOWN)
def test_unknown(make, text):
  hint = f'^model=.*{text}; pass from_logits=True or False, or compile'
  with pytest.raises(errors.InputError, match=hint):
    tiny_rounds.make(model=make, clients=CLIENTS)
  for given in True, False:
    trainer = tiny_rounds.make(
      model=make, clients=CLIENTS, from_logits=given, loss='categorical'
    )
    assert trainer.task.options.from_logits is given


def test_a_loss_of_the_user_needs_no_word():
  own = lambda y, outputs: keras.losses.sparse_categorical_crossentropy(
    y, outputs, from_logits=True
  )
  model = compiled(chain(layers.Dense(3, activation='relu')), own)
  task = tiny_rounds.make(model=model, clients=CLIENTS).task
  assert task.options.from_logits is None and task.accuracy == 'class'


CONTRADICTIONS = {
  'logits, softmax': (
    {'model': lambda: chain(layers.Dense(3, 'softmax')), 'from_logits': True},
    '^from_logits=True: its last layer, .* has a softmax; leave',
  ),
  'probabilities, no activation': (
    {'model': tiny.dense, 'from_logits': False},
    '^from_logits=False: its last layer, .* has no activation; leave',
  ),
  'compiled for probabilities': (
    {'model': compiled(chain(layers.Dense(3)), CROSS())},
    '^model=.*compiled with from_logits=False, but .* pass from_logits=True',
  ),
  'compiled for logits': (
    {
      'model': compiled(
        chain(layers.Dense(3, 'softmax')), CROSS(from_logits=True)
      )
    },
    '^model=.*compiled with from_logits=True, but .* pass from_logits=False',
  ),
  'sigmoid': (
    {'model': lambda: chain(layers.Dense(3, activation='sigmoid'))},
    '^model=.*sigmoid outputs.* use softmax or no activation',
  ),
  'sigmoid, said to be probabilities': (
    {
      'model': lambda: chain(layers.Dense(3, 'sigmoid')),
      'from_logits': False,
    },
    '^model=.*sigmoid outputs',
  ),
  'sigmoid as a layer': (
    {'model': lambda: chain(layers.Dense(3), layers.Activation('sigmoid'))},
    '^model=.*sigmoid outputs',
  ),
}


@pytest.mark.parametrize(
  'options, hint', CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_contradictions(options, hint):
  with pytest.raises(errors.InputError, match=hint):
    tiny_rounds.make(clients=CLIENTS, **options)


def test_the_argument_wins_over_a_compiled_loss():
  model = compiled(chain(layers.Dense(3)), CROSS())
  trainer = tiny_rounds.make(model=model, clients=CLIENTS, from_logits=True)
  assert trainer.task.activation == 'softmax'


def test_outputs_are_never_looked_at():
  """Logits that look like probabilities on the first rows stay logits."""
  model = chain(layers.Dense(3))
  for layer in model.layers:
    layer.set_weights([0 * w + 1 / 3 for w in layer.get_weights()])
  model.layers[-1].kernel.assign(np.zeros((4, 3)))
  outputs = model(X[:2]).numpy()
  np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-6)
  trainer = tiny_rounds.make(model=model, clients=CLIENTS)
  assert trainer.task.activation == 'softmax'
