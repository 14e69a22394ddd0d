"""Models that users bring: weights, objects, functions and files."""

import functools
import logging

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.util import errors
from tests import tiny, tiny_rounds
from tests.binaries import programs

ONE_STEP = safl_tf.LocalConfig(local_epochs=1)

layers = keras.layers
X, Y = tiny.blobs(300)
CLIENTS = tiny.clients((100, 100, 100), X, Y)
CONFIG = safl_tf.LocalConfig(local_epochs=1, batch_size=20, learning_rate=0.01)
CROSS = keras.losses.SparseCategoricalCrossentropy


def chain(*after):
  return keras.Sequential([keras.Input((8,)), layers.Dense(4), *after])


def test_fed_ma_keeps_what_the_user_said():
  make = lambda: chain(layers.Dense(3, activation='relu'))
  algorithm = safl_tf.build_fed_ma('bbp', fedma_schedule='oneshot')
  trainer = tiny_rounds.make(algorithm, make, CLIENTS, from_logits=True)
  states, _ = tiny_rounds.run(trainer, 2)
  task = trainer.trainer_of(states[-1]).task
  assert task.options.from_logits and task.activation == 'softmax'
  assert trainer.get_model(states[-1]).count_params() >= 51


@pytest.fixture(scope='module')
def trained():
  keras.utils.set_random_seed(0)
  model = tiny.dense()
  model.compile(keras.optimizers.Adam(0.02), CROSS(from_logits=True))
  model.fit(X, Y, epochs=30, verbose=0)
  assert accuracy(model) > 0.98
  return model


def accuracy(model):
  return np.mean(np.argmax(model(X), axis=1) == Y)


def test_a_model_starts_from_its_weights(trained, caplog):
  with caplog.at_level(logging.INFO, logger='absl'):
    result = safl_tf.train(
      trained, CLIENTS, rounds=1, config=CONFIG, test_data=(X, Y)
    )
  assert 'clients start from the weights of the given model' in caplog.text
  assert result.history[0]['test_accuracy'] > 0.98
  with caplog.at_level(logging.INFO, logger='absl'):
    fresh = safl_tf.train(
      trained,
      CLIENTS,
      rounds=1,
      config=CONFIG,
      init='per_client',
      test_data=(X, Y),
    )
  assert 'each client draws its own initial model' in caplog.text
  assert fresh.history[0]['test_accuracy'] < 0.9


@pytest.mark.parametrize('init', ['auto', 'per_client'])
def test_a_model_of_the_user_does_not_change(trained, init):
  optimizer, loss = trained.optimizer, trained.loss
  before = [v.numpy() for v in (*trained.variables, *optimizer.variables)]
  safl_tf.train(trained, CLIENTS, rounds=2, config=CONFIG, init=init)
  after = [v.numpy() for v in (*trained.variables, *optimizer.variables)]
  assert all(map(np.array_equal, before, after))
  assert trained.optimizer is optimizer and trained.loss is loss
  assert all(layer.trainable for layer in trained.layers)


def test_functions_draw_for_each_client(caplog):
  with caplog.at_level(logging.INFO, logger='absl'):
    trainer = tiny_rounds.make(clients=CLIENTS)
    (state, _), _ = tiny_rounds.run(trainer, 1)
  clients = state.client_models
  assert trainer.init == 'per_client'
  assert 'each client draws its own initial model' in caplog.text
  assert not np.array_equal(clients[0], clients[1])
  with caplog.at_level(logging.INFO, logger='absl'):
    shared = tiny_rounds.make(
      safl_tf.build_fed_sgd(), clients=CLIENTS, config=ONE_STEP
    )
    tiny_rounds.run(shared, 1)
  assert shared.init == 'shared'
  assert 'clients start from one drawn model' in caplog.text


ONE = tiny.dense()
LAYER = layers.Dense(3)
FROZEN = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
FROZEN.trainable = False


@pytest.mark.parametrize(
  'make',
  [lambda: ONE, functools.lru_cache(tiny.dense), lambda: chain(LAYER)],
  ids=['one model', 'cached', 'one layer'],
)
def test_functions_must_return_new_models(make):
  with pytest.raises(errors.InputError, match='a new model with new weights'):
    tiny_rounds.make(model=make)


def test_functions_may_share_what_is_frozen():
  make = lambda: keras.Sequential([FROZEN, layers.Dense(3)])
  states, _ = tiny_rounds.run(tiny_rounds.make(model=make), 1)
  assert np.isfinite(states[1].z_bar).all()


def broken():
  model = tiny.dense()
  model.layers[-1].bias.assign([0, np.nan, 0])
  return model


class NoConfig(keras.Model):
  def __init__(self, units):
    super().__init__()
    self.out = layers.Dense(units)

  def call(self, inputs):
    return self.out(inputs)


def called(model):
  model(X[:2])
  return model


REFUSED = {
  'NaN in a model': ({'model': broken()}, 'weights that are not finite'),
  'NaN by a function': ({'model': broken}, 'weights that are not finite'),
  'no configuration': (
    {'model': called(NoConfig(3)), 'from_logits': True},
    'cannot be rebuilt by Keras .* pass a function that returns it',
  ),
  'a function that fails': (
    {'model': lambda: 1 / 0},
    r'\(division by zero\)',
  ),
  'a function with arguments': (
    {'model': lambda units: chain(layers.Dense(units))},
    'missing 1 required positional argument',
  ),
  'FedSGD for each client': (
    {
      'algorithm': safl_tf.build_fed_sgd(),
      'config': ONE_STEP,
      'init': 'per_client',
    },
    'starts from a shared model; use auto',
  ),
}


@pytest.mark.parametrize('options, hint', REFUSED.values(), ids=REFUSED)
def test_refused(options, hint):
  with pytest.raises(errors.InputError, match=hint):
    tiny_rounds.make(**options)


def image_model(path, *after, loss=None):
  model = keras.Sequential(
    [
      keras.Input((28, 28, 1), dtype='uint8'),
      layers.Rescaling(1 / 255),
      layers.Flatten(),
      *after,
    ]
  )
  if loss is not None:
    model.compile(loss=loss)
  model.save(path)
  return f'--model={path}'


# arguments of safl-train besides those of a small run -> the message
TRAIN = {
  'a built-in model': (
    lambda path: ['--model=lenet5', '--from_logits'],
    '--from_logits=True: has no effect with --model=lenet5; it is for ',
  ),
  'relu': (
    lambda path: [image_model(path, layers.Dense(10, 'relu'))],
    '--model= ... unknown from ... pass from_logits=True or False',
  ),
  'sigmoid': (
    lambda path: [image_model(path, layers.Dense(10, 'sigmoid'))],
    '--model= ... use softmax or no activation',
  ),
  'a contradiction': (
    lambda path: [
      image_model(path, layers.Dense(10, 'softmax')),
      '--from_logits',
    ],
    '--from_logits=True: its last layer',
  ),
  'another contradiction': (
    lambda path: [image_model(path, layers.Dense(10), loss=CROSS())],
    '--model= ... is compiled with from_logits=False',
  ),
}


@pytest.mark.parametrize('arguments, message', TRAIN.values(), ids=TRAIN)
def test_safl_train(arguments, message, call, tmp_path):
  given = arguments(tmp_path / 'own.keras')
  folder = tmp_path / 'runs'
  outcome = call('train', *programs.SMALL, *given, f'--output_dir={folder}')
  programs.check_refused(outcome, 'train', message)
  assert not folder.exists()


def test_safl_train_starts_from_the_weights_of_a_file(call, tmp_path):
  path = tmp_path / 'own.keras'
  loss = CROSS(from_logits=True)
  given = image_model(path, layers.Dense(10, 'relu'), loss=loss)
  outcome = call(
    'train',
    *programs.SMALL,
    given,
    '--learning_rate=1e-30',
    f'--output_dir={tmp_path}',
    '--experiment=run',
  )
  assert outcome.code == 0
  assert 'clients start from the weights of the given model' in outcome.err
  weights = keras.models.load_model(path, compile=False).get_weights()
  before = np.concatenate([w.ravel() for w in weights])
  after = programs.newest(tmp_path / 'run')['z_bar']
  np.testing.assert_allclose(after, before, atol=1e-20)


# arguments of safl-evaluate -> the message
EVALUATE = {
  'relu': (
    lambda path: [image_model(path, layers.Dense(10, 'relu'))],
    '--model= ... own.keras: ... pass from_logits=True or False',
  ),
  'sigmoid': (
    lambda path: [image_model(path, layers.Dense(10, 'sigmoid'))],
    '--model= ... use softmax or no activation',
  ),
  'a contradiction': (
    lambda path: [image_model(path, layers.Dense(10)), '--nofrom_logits'],
    '--from_logits=False: its last layer',
  ),
}


@pytest.mark.parametrize('arguments, message', EVALUATE.values(), ids=EVALUATE)
def test_safl_evaluate(arguments, message, call, tmp_path):
  outcome = call('evaluate', *arguments(tmp_path / 'own.keras'))
  programs.check_refused(outcome, 'evaluate', message)


def test_safl_evaluate_takes_a_word_for_it(call, tmp_path):
  given = image_model(tmp_path / 'own.keras', layers.Dense(10, 'relu'))
  scores = {}
  for word in '--from_logits', '--nofrom_logits':
    outcome = call('evaluate', given, word)
    assert outcome.code == 0
    scores[word] = outcome.out
  assert len(set(scores.values())) == 2  # the loss differs


def test_safl_evaluate_knows_runs(call, finished):
  outcome = call('evaluate', f'--model={finished}', '--nofrom_logits')
  programs.check_refused(
    outcome, 'evaluate', '--from_logits=False: is True for this model; leave'
  )
