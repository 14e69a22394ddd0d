"""Equal graphs share a compiled function; everything else does not."""

import collections
import dataclasses
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import shared_function
from tests import marks, tiny, tiny_rounds


@pytest.fixture(autouse=True)
def functions(monkeypatch):
  """The functions that are shared, at first none."""
  empty = collections.OrderedDict()
  monkeypatch.setattr(shared_function, '_functions', empty)
  return empty


def rounds(algorithm=tiny_rounds.SAFL, seed=0, **options):
  trainer = tiny_rounds.make(algorithm, **options)
  return tiny_rounds.run(trainer, 2, seed)[0][-1]


def compare_with_own(functions, number, *args, **options):
  """A run that shares functions with those before is the run by itself."""
  shared = rounds(*args, **options)
  assert len(functions) == number
  functions.clear()
  tiny_rounds.check_same(shared, rounds(*args, **options))


@pytest.mark.parametrize('jit_compile', ['false', 'true'])
@pytest.mark.parametrize(
  'executor', marks.some(['threads', 'vectorized'], ['threads'])
)
def test_other_seeds_data_and_numbers_share(functions, executor, jit_compile):
  options = {'executor': executor, 'jit_compile': jit_compile}
  build = safl_tf.build_extended_safl
  rounds(build(), **options)
  clients = tiny.clients((21, 12, 31, 7, 1, 16), *tiny.blobs(88, seed=1))
  rate = dataclasses.replace(tiny_rounds.CONFIG, learning_rate=0.3)
  compare_with_own(
    functions,
    1,
    build(epsilon=0.7, temperature=2, nu=0.1),
    seed=5,
    clients=clients,
    config=rate,
    **options,
  )


OTHERS = {
  'algorithm': {'algorithm': safl_tf.build_fed_avg()},
  'granularity': {'algorithm': safl_tf.build_safl(mix_granularity='model')},
  'optimizer': {
    'config': dataclasses.replace(tiny_rounds.CONFIG, optimizer='adam')
  },
  'batch size': {
    'config': dataclasses.replace(tiny_rounds.CONFIG, batch_size=4)
  },
  'model': {'model': tiny.functional},
  'loss': {'loss': 'paper'},
  'xla': {'jit_compile': 'true'},
}


@pytest.mark.parametrize('options', OTHERS.values(), ids=OTHERS)
def test_other_graphs_do_not_share(functions, options):
  rounds()
  compare_with_own(functions, 2, **options)


def test_activations_differ(functions):
  def make(activation):
    layers = [keras.Input((tiny.FEATURES,))]
    layers += [keras.layers.Dense(5, activation), keras.layers.Dense(3)]
    return keras.Sequential(layers)

  rounds(model=lambda: make('tanh'))
  compare_with_own(functions, 2, model=lambda: make('relu'))


@pytest.mark.parametrize('jit_compile', ['false', 'true'])
def test_frozen_weights_are_those_of_the_run(functions, jit_compile):
  def make(value):
    frozen = keras.layers.Dense(
      6, kernel_initializer=keras.initializers.Constant(value), trainable=False
    )
    entry = keras.Input((tiny.FEATURES,))
    return keras.Sequential([entry, frozen, keras.layers.Dense(3)])

  rounds(model=lambda: make(0.1), jit_compile=jit_compile)
  options = {'model': lambda: make(0.5), 'jit_compile': jit_compile}
  compare_with_own(functions, 1, **options)


def call(function, *args):
  signature = [tf.TensorSpec.from_tensor(tf.constant(a)) for a in args]
  return shared_function.SharedFunction(function, signature, False)


def test_random_numbers_that_go_on_are_not_shared(functions):
  function = lambda x: x + tf.random.uniform([], seed=1)
  found = []
  for _ in range(2):
    tf.random.set_seed(3)
    shared = call(function, 1.0)
    found.append([float(shared(1.0)) for _ in range(3)])
  assert not functions
  assert found[0] == found[1]
  assert len(set(found[0])) == 3


def test_names_of_outputs_count(functions):
  for name in 'ab':
    assert call(lambda x: {name: x + 1}, 1.0)(1.0) == {name: 2.0}  # noqa: B023
  assert len(functions) == 2


def test_few_functions_are_kept(functions, monkeypatch):
  monkeypatch.setattr(shared_function, '_MAX_FUNCTIONS', 3)
  calls = [call(lambda x, c=c: x + c, 1.0) for c in range(5)]
  assert [float(f(1.0)) for f in calls] == [1, 2, 3, 4, 5]
  assert len(functions) == 3
  assert [float(f(1.0)) for f in calls] == [1, 2, 3, 4, 5]


def test_data_are_not_kept(functions):
  trainer = tiny_rounds.make()
  tiny_rounds.run(trainer, 1)
  x = weakref.ref(trainer.trainer_of(trainer.initialize(0))._data[0][0])
  assert x() is not None
  del trainer
  gc.collect()
  assert functions and x() is None


def test_rounds_of_steps():
  from safl_tf.core import client_trainer

  found = [client_trainer._round_up(n) for n in range(1, 101)]
  assert found[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
  assert all(n <= up <= 1.25 * n for n, up in enumerate(found, 1))
  assert len(set(found)) < 25
  assert np.all(np.diff(found) >= 0)
