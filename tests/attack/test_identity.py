"""A run resumes as the same run, or not at all.

Each case changes one thing that results depend on and resumes: the run is
refused, the message names what differs, and no file changes.
"""

import dataclasses
import functools
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.util import errors
from safl_tf.util import versions as versions_lib
from tests import tiny
from tests.binaries import programs

pytestmark = pytest.mark.usefixtures('no_outputs')

CONFIG = safl_tf.LocalConfig(local_epochs=1, batch_size=8, learning_rate=0.02)
X, Y = tiny.blobs(71)
TEST = tiny.blobs(40, seed=1)
SIZES = (20, 13, 31, 7)
SHIFT = 0.5


def changed_at(array, place):
  """A copy with one element changed by the smallest amount."""
  other = array.copy()
  flat = other.reshape(-1)
  if flat.dtype.kind == 'f':
    flat[place] = np.nextafter(flat[place], np.float32(9))
  else:
    flat[place] = (flat[place] + 1) % tiny.CLASSES
  return other


class Scale(keras.layers.Layer):
  """A user's layer."""

  factor = 1.0

  def call(self, inputs):
    return self.factor * inputs


class OtherScale(Scale):
  """The same layer after its code was edited."""

  def call(self, inputs):
    return 2.0 * inputs


OtherScale.__name__ = OtherScale.__qualname__ = 'Scale'


def model(activation='tanh', layers=(), **options):
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      keras.layers.Dense(5, activation=activation, **options),
      *layers,
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


def frozen():
  network = model()
  network.layers[0].trainable = False
  return network


def normalising(mean):
  layer = keras.layers.Normalization(mean=mean, variance=1.0)
  return keras.Sequential(
    [keras.Input((tiny.FEATURES,)), layer, keras.layers.Dense(tiny.CLASSES)]
  )


def given(value):
  """A model object with these weights."""
  network = model()
  network.set_weights([np.full_like(w, value) for w in network.get_weights()])
  return network


def shifted_mix(shift):
  def mix(seed, t, z_bar, z):
    return safl_tf.mix.replace()(seed, t, z_bar + 0 * shift, z)

  return mix


def halved(seed, t, z_bar, z, weight=0.5):
  mixed = safl_tf.mix.replace()(seed, t, z_bar, z)
  return mixed._replace(w=weight * z_bar + (1 - weight) * z)


def global_mix(seed, t, z_bar, z):
  return safl_tf.mix.replace()(seed, t, z_bar * SHIFT, z)


def with_mix(rule):
  return dataclasses.replace(safl_tf.build_safl(), mix=rule)


def clients(x=X, y=Y, sizes=SIZES, names=None, num_classes=tiny.CLASSES):
  ends = np.cumsum(sizes)
  parts = np.split(np.arange(ends[-1]), ends[:-1])
  return safl_tf.ClientData.from_arrays(x, y, parts, names, num_classes)


def train(folder, model=model, rounds=1, data=None, **options):
  defaults = {'config': CONFIG, 'test_data': TEST, 'jit_compile': 'false'}
  return safl_tf.train(
    model,
    clients() if data is None else data,
    rounds=rounds,
    output_dir=folder,
    progress=False,
    **(defaults | options),
  )


def config(**changes):
  return {'config': dataclasses.replace(CONFIG, **changes)}


def algorithm(rule):
  return {'algorithm': with_mix(rule)}


def scheduled(rate):
  return safl_tf.LocalConfig(
    1, 8, optimizer=keras.optimizers.SGD(tiny.ConstantRate(rate))
  )


# What was trained first, what is resumed, and the names of what differs.
CASES = {
  'activation': ({}, {'model': functools.partial(model, 'relu')}, ['model']),
  'activation and inputs': (
    {},
    {'model': functools.partial(model, 'relu'), 'data': clients(-7 * X)},
    ['inputs', 'model'],
  ),
  'initializer': (
    {},
    {'model': functools.partial(model, kernel_initializer='he_normal')},
    ['model', 'initial_weights'],
  ),
  'dropout': (
    {'model': lambda: model(layers=[keras.layers.Dropout(0.1)])},
    {'model': lambda: model(layers=[keras.layers.Dropout(0.2)])},
    ['model'],
  ),
  'code of a layer': (
    {'model': lambda: model(layers=[Scale()])},
    {'model': lambda: model(layers=[OtherScale()])},
    ['model'],
  ),
  'frozen layer': ({}, {'model': frozen}, ['model']),
  'statistics': (
    {'model': functools.partial(normalising, 0.0)},
    {'model': functools.partial(normalising, 1.0)},
    ['model'],
  ),
  'given weights': (
    {'model': given(0.1), 'init': 'shared'},
    {'model': given(0.2), 'init': 'shared'},
    ['initial_weights'],
  ),
  'init': ({}, {'init': 'shared'}, ['initial_weights']),
  'one input': ({}, {'data': clients(changed_at(X, 300))}, ['inputs']),
  'type of inputs': (
    {},
    {'data': clients(X.astype(np.float64))},
    ['inputs'],
  ),
  'one label': ({}, {'data': clients(y=changed_at(Y, 50))}, ['labels']),
  'partition': (
    {},
    {'data': clients(sizes=(20, 14, 30, 7))},
    ['partition'],
  ),
  'names of clients': ({}, {'data': clients(names='abcd')}, ['partition']),
  'one test input': (
    {},
    {'test_data': (changed_at(TEST[0], 77), TEST[1])},
    ['test_inputs'],
  ),
  'one test label': (
    {},
    {'test_data': (TEST[0], changed_at(TEST[1], 7))},
    ['test_labels'],
  ),
  'no test data': ({}, {'test_data': None}, ['test_inputs', 'test_labels']),
  'seed': ({}, {'seed': 1}, ['seed was 0, is 1']),
  'eval_every': ({}, {'eval_every': 2}, ['eval_every was 1, is 2']),
  'algorithm': ({}, {'algorithm': safl_tf.build_fed_avg()}, ['mix']),
  'epsilon': (
    {},
    {'algorithm': safl_tf.build_safl(epsilon=0.4)},
    ['epsilon=0.3', 'epsilon=0.4'],
  ),
  'selection': (
    {},
    {'algorithm': safl_tf.build_safl(fraction=0.5)},
    ['select'],
  ),
  'gate': ({}, {'algorithm': safl_tf.build_extended_safl()}, ['gate']),
  'aggregator': (
    {},
    {
      'algorithm': dataclasses.replace(
        safl_tf.build_safl(), aggregate=safl_tf.aggregate.coordinate_median()
      )
    },
    ['aggregate'],
  ),
  'closed-over array': (
    algorithm(shifted_mix(np.float32(1))),
    algorithm(shifted_mix(np.float32(2))),
    ['mix'],
  ),
  'closed-over tensor': (
    algorithm(shifted_mix(tf.constant(1.0))),
    algorithm(shifted_mix(tf.constant(2.0))),
    ['mix'],
  ),
  'lambda': (
    algorithm(lambda *args: halved(*args)),
    algorithm(lambda *args: halved(*args, 0.25)),
    ['mix'],
  ),
  'partial': (
    algorithm(functools.partial(halved, weight=0.5)),
    algorithm(functools.partial(halved, weight=0.25)),
    ['mix'],
  ),
  'name': (
    algorithm(safl_tf.named('a', halved)),
    algorithm(safl_tf.named('b', halved)),
    ["mix was named('a'), is named('b')"],
  ),
  'local_epochs': ({}, config(local_epochs=2), ['local_epochs was 1, is 2']),
  'batch_size': ({}, config(batch_size=9), ['batch_size was 8, is 9']),
  'learning_rate': ({}, config(learning_rate=0.03), ['learning_rate was 0.02']),
  'optimizer': ({}, config(optimizer='adam'), ['optimizer was sgd, is adam']),
  'loss': ({}, {'loss': 'paper'}, ['loss was categorical, is paper']),
  'reduction': ({}, config(loss_reduction='mean'), ['loss_reduction']),
  'client work': (
    {},
    {'algorithm': registry.build('safl', proximal_mu=0.1)},
    ['client_work'],
  ),
  'proximal_mu': (
    {'algorithm': registry.build('safl', proximal_mu=0.1)},
    {'algorithm': registry.build('safl', proximal_mu=0.2)},
    ['client_work'],
  ),
  'schedule': (
    {'config': scheduled(0.01)},
    {'config': scheduled(0.02)},
    ['optimizer'],
  ),
  'attack': ({}, {'attack': safl_tf.Attack('sign_flip', 0.5)}, ['attack']),
  'attack strength': (
    {'attack': safl_tf.Attack('sign_flip', 0.5)},
    {'attack': safl_tf.Attack('sign_flip', 0.5, 2.0)},
    ['attack'],
  ),
  'compiler': ({}, {'jit_compile': 'true'}, ['jit_compile was False, is True']),
  'stacked clients': ({}, {'executor': 'vectorized'}, ['stack was None, is ']),
  'size of stacks': (
    {'executor': 'vectorized', 'stack': 2},
    {'executor': 'vectorized', 'stack': 4},
    ['stack was 2, is 4'],
  ),
  'fewer rounds': ({'rounds': 2}, {'rounds': 1}, ['rounds=1']),
}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The folder of a run of one round; not to be changed."""
  folder = tmp_path_factory.mktemp('trained')
  train(folder)
  return folder


@pytest.fixture
def run(trained, tmp_path):
  """A copy of that folder."""
  return shutil.copytree(trained, tmp_path / 'run')


@pytest.mark.parametrize('case', CASES)
def test_another_run_is_refused(case, run):
  first, second, names = CASES[case]
  if first:
    run = run.parent / 'other'
    train(run, **first)
  before = programs.snapshot(run)
  with pytest.raises(errors.InputError) as caught:
    train(run, **({'rounds': 2} | second))
  for name in names:
    assert name in str(caught.value)
  assert '\n' not in str(caught.value)
  assert programs.snapshot(run) == before


def test_a_changed_global_variable_is_refused(tmp_path, monkeypatch):
  train(tmp_path, **algorithm(global_mix))
  monkeypatch.setitem(globals(), 'SHIFT', 0.25)
  with pytest.raises(errors.InputError, match='mix'):
    train(tmp_path, rounds=2, **algorithm(global_mix))


@pytest.mark.parametrize('package', ['tensorflow', 'keras', 'numpy', 'safl_tf'])
def test_another_version_is_refused(run, monkeypatch, package):
  versions = {**versions_lib.find(), package: '0.1'}
  monkeypatch.setattr(versions_lib, 'find', lambda: versions)
  with pytest.raises(errors.InputError, match=rf'{package} was .*, is 0\.1'):
    train(run, rounds=2)


def test_a_rule_that_cannot_be_described_is_refused(tmp_path):
  rng = np.random.default_rng(0)

  def mix(seed, t, z_bar, z):
    return halved(seed, t, z_bar, z, rng.random())

  with pytest.raises(errors.InputError, match=r'safl_tf\.named'):
    train(tmp_path / 'run', **algorithm(mix))
  assert not (tmp_path / 'run').exists()
  train(None, **algorithm(mix))  # nothing to recognise without a folder
  train(tmp_path / 'run', **algorithm(safl_tf.named('random', mix)))


class Noisy(keras.layers.Layer):
  """A layer with a hidden state."""

  def call(self, inputs):
    return inputs + GENERATOR.random()


GENERATOR = np.random.default_rng(0)


def test_a_model_that_cannot_be_described_is_refused(tmp_path):
  noisy = lambda: model(layers=[Noisy()])
  with pytest.raises(errors.InputError, match='leave that out') as caught:
    train(tmp_path / 'run', noisy)
  assert caught.value.argument == 'model' and caught.value.value == 'Noisy'
  assert not (tmp_path / 'run').exists()
  train(None, noisy)


SAME = {
  'executor': {'executor': 'serial'},
  'store': {'client_store': 'mmap'},
  'checkpoints': {'checkpoint_every': 1, 'keep_checkpoints': 3},
  'equal arrays': {'data': clients(X.copy(), Y.astype(np.int64))},
  'equal model': {'model': lambda: model()},
  'goal': {'stop_at_accuracy': 1.0},
}


@pytest.fixture(scope='module')
def whole():
  return train(None, rounds=2)


@pytest.mark.parametrize('case', SAME)
def test_what_leaves_the_bits_equal_may_change(case, run, whole):
  resumed = train(run, rounds=2, **SAME[case])
  assert resumed.state.z_bar.tobytes() == whole.state.z_bar.tobytes()


def test_another_processor_is_warned_of(run, monkeypatch):
  monkeypatch.setattr(versions_lib, 'cpu', lambda: 'Another 9000')
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  train(run, rounds=2)
  assert len(lines) == 1 and 'another processor' in lines[0]
  assert 'Another 9000' in lines[0]


def test_a_run_without_its_mark_is_recognised(run):
  """As after `cp -r run/* elsewhere`, which leaves out hidden files."""
  (run / '.safl_tf').unlink()
  assert train(run, rounds=2).state.t == 2
