import dataclasses
import functools
import itertools
import subprocess
import sys
import textwrap
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import client_config, client_update, executors, process
from safl_tf.core.executors import base, vectorized
from safl_tf.data import client_data
from safl_tf.models import lenet5, light_vgg
from safl_tf.util import choices, errors
from tests import marks, tiny, tiny_rounds

SIZES = (20, 13, 31, 7, 1, 16)
CONFIG = client_config.LocalConfig(
  local_epochs=2, batch_size=8, learning_rate=0.02
)
NAMES = tuple(executors.EXECUTORS)
OTHERS = ('threads', 'vectorized')
# The same sums in another order: float32 rounding through a few steps.
CLOSE = {'rtol': 1e-4, 'atol': 2e-5}


def images(shape, sizes=(9, 4, 13), seed=0):
  """Clients with random pictures, and batches of 8 that are often short."""
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (sum(sizes), *shape), np.uint8)
  return tiny.clients(sizes, x, rng.integers(0, 10, sum(sizes)))


def normalised_images():
  """Convolutions with batch normalisation and dropout between them."""
  layers = keras.layers
  return keras.Sequential(
    [
      keras.Input((8, 8, 1), dtype='uint8'),
      layers.Rescaling(1 / 255),
      layers.Conv2D(4, 3, strides=2, padding='same'),
      layers.BatchNormalization(momentum=0.8),
      layers.ReLU(),
      layers.Dropout(0.3),
      layers.Flatten(),
      layers.Dense(10),
    ]
  )


@keras.saving.register_keras_serializable('tests')
class Centred(keras.layers.Layer):
  """A user's layer that looks across the batch."""

  def call(self, inputs):
    return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)


def centred():
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      Centred(),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


PROBLEMS = {
  'lenet5': (lenet5.lenet5, lambda: images((28, 28, 1))),
  'light_vgg': (
    functools.partial(light_vgg.light_vgg, (8, 8, 3)),
    lambda: images((8, 8, 3)),
  ),
  'batch norm and dropout': (normalised_images, lambda: images((8, 8, 1))),
  'across the batch': (centred, lambda: tiny.clients(SIZES)),
}
EXTENDED = safl_tf.build_extended_safl(nu=0.4)  # all there is in a round


SAFL = safl_tf.build_safl()


def make(executor, algorithm=SAFL, model=tiny.dense, clients=None, **options):
  options = {'config': CONFIG, 'jit_compile': 'false', **options}
  return process.FederatedProcess(
    model,
    tiny.clients(SIZES) if clients is None else clients,
    algorithm,
    executor=executor,
    **options,
  )


def run(trainer, rounds=2, seed=0):
  state, metrics = trainer.initialize(seed), None
  for _ in range(rounds):
    state, metrics = trainer.next(state)
  return state, metrics


@functools.cache
def reference(problem):
  """Step by step and uncompiled."""
  model, clients = PROBLEMS[problem]
  return run(make('serial', EXTENDED, model, clients()))


@pytest.mark.parametrize(
  'executor, problem',
  marks.some(
    itertools.product(OTHERS, PROBLEMS),
    [('threads', problem) for problem in PROBLEMS if problem != 'lenet5']
    + [('vectorized', 'lenet5'), ('vectorized', 'across the batch')],
  ),
)
def test_same_results(executor, problem):
  state, metrics = reference(problem)
  model, clients = PROBLEMS[problem]
  other, measured = run(
    make(executor, EXTENDED, model, clients(), jit_compile='auto')
  )
  np.testing.assert_allclose(other.z_bar, state.z_bar, **CLOSE)
  mine, others = (
    state.client_models.to_arrays(),
    other.client_models.to_arrays(),
  )
  np.testing.assert_array_equal(mine['ids'], others['ids'])
  np.testing.assert_allclose(others['arrays'], mine['arrays'], **CLOSE)
  np.testing.assert_array_equal(measured.sent, metrics.sent)
  np.testing.assert_allclose(measured.delta, metrics.delta, atol=1e-6)
  assert measured.kept_local == pytest.approx(metrics.kept_local, rel=1e-6)
  assert measured.train_loss == pytest.approx(metrics.train_loss, rel=1e-4)


@pytest.mark.parametrize('executor', marks.some(OTHERS, ['vectorized']))
def test_same_results_with_examples_held_out(executor):
  config = dataclasses.replace(CONFIG, holdout=0.3)
  state, metrics = run(make('serial', EXTENDED, config=config))
  other, measured = run(make(executor, EXTENDED, config=config))
  np.testing.assert_allclose(other.z_bar, state.z_bar, **CLOSE)
  np.testing.assert_array_equal(measured.sent, metrics.sent)
  np.testing.assert_allclose(measured.delta, metrics.delta, **CLOSE)
  _, without = run(make(executor, EXTENDED))
  assert not np.allclose(measured.delta, without.delta)


@pytest.mark.parametrize('stack', marks.some([1, 2, 4, 6], [4]))
@pytest.mark.parametrize(
  'model', marks.some([tiny.dense, tiny.normalised], [tiny.normalised])
)
def test_stacks_of_any_size(model, stack):
  """Six clients: with four to a stack, the last has two idle rows."""
  expected, _ = run(make('serial', model=model))
  state, _ = run(make('vectorized', model=model, stack=stack))
  np.testing.assert_allclose(state.z_bar, expected.z_bar, **CLOSE)


@pytest.mark.parametrize(
  'name',
  marks.some(
    tiny.MODELS,
    ['batch norm and dropout', 'subclassed', 'shared layer', 'dict of inputs'],
  ),
)
def test_vectorized_takes_what_users_bring(name):
  model, form = tiny.MODELS[name]
  x, y = tiny.blobs(sum(SIZES))
  parts = np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1])
  clients = client_data.ClientData.from_arrays(
    form(x), y, parts, num_classes=tiny.CLASSES
  )
  options = {'model': model, 'clients': clients, 'from_logits': True}
  expected, _ = run(make('serial', **options))
  state, _ = run(make('vectorized', **options))
  np.testing.assert_allclose(state.z_bar, expected.z_bar, **CLOSE)


@pytest.mark.parametrize(
  'optimizer', marks.some(['nesterov', 'adam', 'adamw'], ['adam'])
)
@pytest.mark.parametrize('executor', OTHERS)
def test_optimizers_with_slots(executor, optimizer):
  config = client_config.LocalConfig(2, 8, 0.01, optimizer)
  expected, _ = run(make('serial', config=config))
  state, _ = run(make(executor, config=config))
  np.testing.assert_allclose(state.z_bar, expected.z_bar, **CLOSE)


@pytest.mark.parametrize(
  'executor, jit',
  marks.some(
    itertools.product(NAMES, ('false', 'true')),
    [('serial', 'false'), ('vectorized', 'false'), ('threads', 'true')],
  ),
)
def test_exactness(executor, jit):
  """Same seed, same bits; ε = 1 is FedAvg; `next` is a function."""
  safl = safl_tf.build_safl(fraction=0.7)
  trainer = make(executor, safl, jit_compile=jit)
  state, _ = run(trainer, 2)
  tiny_rounds.check_same(
    state, run(make(executor, safl, jit_compile=jit), 2)[0]
  )
  tiny_rounds.check_same(trainer.next(state)[0], trainer.next(state)[0])
  other, _ = run(trainer, 2, seed=1)
  assert not np.array_equal(state.z_bar, other.z_bar)
  full = safl_tf.build_safl(epsilon=1.0, fraction=0.7)
  averaged = safl_tf.build_fed_avg(fraction=0.7)
  one, two = (
    run(make(executor, a, jit_compile=jit), 2)[0] for a in (full, averaged)
  )
  tiny_rounds.check_same(one, two)


@pytest.mark.parametrize('jit', ['false', 'true'])
def test_serial_and_threads_agree_bit_by_bit(jit):
  """They do the same arithmetic, in pieces or as a whole."""
  model = tiny.normalised if jit == 'false' else tiny.dense
  one, other = (
    run(make(executor, EXTENDED, model, jit_compile=jit), 3)[0]
    for executor in ('serial', 'threads')
  )
  tiny_rounds.check_same(one, other)


def test_what_xla_cannot_compile_is_refused():
  by_numpy = lambda x: tf.ensure_shape(
    tf.numpy_function(np.tanh, [x], tf.float32), x.shape
  )
  model = lambda: keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      keras.layers.Lambda(by_numpy),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )
  trainer = make('threads', model=model, jit_compile='true')
  with pytest.raises(errors.InputError) as caught:
    run(trainer, 1)
  assert str(caught.value).startswith('jit_compile=true: XLA cannot compile')
  assert 'jit_compile=false' in caught.value.hint


@pytest.mark.parametrize('executor', NAMES)
def test_nothing_is_traced_twice(executor):
  """Whatever the cohort and the clients' sizes."""
  algorithm = safl_tf.build_extended_safl(fraction=0.5)
  trainer = make(executor, algorithm, jit_compile='true')
  state, _ = run(trainer, 2)
  traces = trainer.num_traces
  for _ in range(6):
    state, _ = trainer.next(state)
  assert trainer.num_traces == traces > 0


@pytest.mark.parametrize('executor', NAMES)
def test_a_client_that_diverges_is_dropped(executor):
  """And leaves no trace in the others."""
  linear = lambda: keras.Sequential(
    [keras.Input((tiny.FEATURES,)), keras.layers.Dense(tiny.CLASSES)]
  )
  x, y = tiny.blobs(sum(SIZES))
  huge = x.copy()
  huge[20:33] *= 1e30  # client 1's
  broken, sound = (
    run(make(executor, SAFL, linear, tiny.clients(SIZES, features, y)), 1)
    for features in (huge, x)
  )
  np.testing.assert_array_equal(broken[1].dropped, [1])
  for k in (0, 2, 3, 4, 5):
    one, other = (result[0].client_models[k] for result in (broken, sound))
    assert one.tobytes() == other.tobytes()


def test_a_step_is_not_inlined_into_the_loop():
  """Or oneDNN would not compute the gradient of max-pooling."""
  trainer = make('threads', SAFL, jit_compile='false')
  state, _ = run(trainer, 1)
  [compiled] = trainer.trainer_of(state)._executor._rounds
  graph = compiled._function._function.get_concrete_function().graph
  functions = graph.as_graph_def().library.function
  assert [f.attr['_noinline'].b for f in functions].count(True) == 1


class Place:
  """Stands in for a compiled round."""

  def __init__(self, number=0):
    self.number = number

  def __call__(self, task):
    time.sleep(0.002 * (task % 3))  # the first is not the fastest
    return task * task


def test_a_pool_keeps_the_order():
  pool = base.Pool([Place(), Place(), Place()], window=8)
  result = pool.map(lambda k: k + 1, [4, 1, 7, 2, 0, 5])
  assert list(result) == [25, 4, 64, 9, 1, 36]
  assert list(pool.map(lambda k: k, [])) == []


@pytest.mark.parametrize('broken', ['task', 'round'])
def test_a_pool_raises_errors_and_goes_on(broken):
  def fail(value):
    if value == 3:
      raise RuntimeError(f'client {value}')
    return value

  keep = lambda value: value
  make_task, place = (fail, keep) if broken == 'task' else (keep, fail)
  pool = base.Pool([place], window=8)
  with pytest.raises(RuntimeError, match='client 3'):
    list(pool.map(make_task, [3]))
  assert list(pool.map(make_task, [1, 2])) == [1, 2]  # the place is free again


def test_a_pool_uses_all_workers_at_once():
  """Each waits for the other: one after the other they would time out."""
  meet = threading.Barrier(2)
  seen = []

  def place(number):
    def run_here(task):
      seen.append(number)
      if task > 2:
        meet.wait(timeout=10)
      return task

    return run_here

  pool = base.Pool([place(0), place(1)], window=8)
  assert list(pool.map(lambda k: k, [1, 2, 5, 6])) == [1, 2, 5, 6]
  assert sorted(seen[2:]) == [0, 1]


def test_the_first_call_of_a_worker_is_in_the_calling_thread():
  """Also again, if it failed: it traces what the user wrote."""
  threads = []

  def worker(task):
    threads.append(threading.current_thread())
    if task is None:
      raise ZeroDivisionError
    return task

  pool = base.Pool([worker, worker], window=8)
  for _ in range(2):
    with pytest.raises(ZeroDivisionError):
      list(pool.map(lambda k: k, [None, 1]))
  assert list(pool.map(lambda k: k, [5, 6, 7])) == [5, 6, 7]
  here = threading.main_thread()
  assert threads[:3] == [here] * 3 and here not in threads[3:]


def test_names():
  assert ('auto', *executors.EXECUTORS, 'ray') == choices.EXECUTORS
  assert executors.resolve('auto', on_gpu=False) == 'threads'
  assert executors.resolve('auto', on_gpu=True) == 'vectorized'
  assert executors.resolve('serial', on_gpu=True) == 'serial'
  with pytest.raises(
    errors.InputError, match=r'^executor=thread: did you mean'
  ):
    executors.resolve('thread')
  with pytest.raises(errors.InputError, match=r'^stack=0: must be'):
    make('vectorized', stack=0)


@pytest.mark.parametrize(
  'step, memory, most, expected',
  [(10, 400, 64, 10), (10, 400, 4, 4), (1000, 400, 64, 1), (7, 280, 64, 10)],
)
def test_as_many_as_fit(step, memory, most, expected):
  """A quarter of the memory may be taken."""
  assert vectorized.fitting(step, memory, most) == expected


@pytest.mark.parametrize(
  'cohort, places, most, expected',
  [(50, 1, 64, 50), (50, 1, 32, 25), (10, 2, 8, 5), (9, 2, 4, 3), (1, 4, 8, 1)],
)
def test_stacks_are_balanced(cohort, places, most, expected):
  assert vectorized.balanced(cohort, places, most) == expected


def test_bytes_of_a_step_follow_the_batch():
  """At least the gathered pictures, and in proportion to their number."""

  def measured(batch_size):
    config = client_config.LocalConfig(batch_size=batch_size)
    clients = images((28, 28, 1))
    trainer = make('serial', SAFL, lenet5.lenet5, clients)
    update = client_update.ClientUpdate(
      trainer.model,
      trainer.task,
      trainer.algorithm,
      config,
      (clients.x, clients.y, None),
    )
    return vectorized.step_bytes(update, update.signature(3))

  small, large = measured(10), measured(100)
  # One layer alone, the first convolution, has 24·24·6 float32 an image.
  assert large - small > 90 * 24 * 24 * 6 * 4
  assert 2 < large / small < 10


TWO_DEVICES = """
  import sys
  import tensorflow as tf

  cpu = tf.config.list_physical_devices('CPU')[0]
  two = [tf.config.LogicalDeviceConfiguration()] * 2
  tf.config.set_logical_device_configuration(cpu, two)

  from safl_tf.core.executors import base
  from tests import tiny_rounds
  from tests.core import test_executors

  executor = sys.argv[1]
  options = {'stack': 2} if executor == 'vectorized' else {}
  used = []
  original = base.to_numpy

  def spy(update):
    used.append(update.kept['z'].device[-5:])
    return original(update)

  base.to_numpy = spy
  one = test_executors.make(executor, device='cpu:1', **options)
  expected, _ = test_executors.run(one, 3)
  assert set(used) == {'CPU:1'}, used
  used.clear()
  both = test_executors.make(executor, device='cpu', **options)
  state, _ = test_executors.run(both, 3)
  assert set(used) == {'CPU:0', 'CPU:1'}, used
  assert both.num_traces == 2, both.num_traces
  tiny_rounds.check_same(state, expected)
  print('side by side')
"""


@pytest.mark.parametrize('executor', marks.some(OTHERS, ['threads']))
def test_two_devices_of_a_kind_in_parallel(executor):
  """Two logical CPU devices stand in for two GPUs."""
  program = textwrap.dedent(TWO_DEVICES)
  done = subprocess.run(
    [sys.executable, '-c', program, executor], capture_output=True, text=True
  )
  assert done.stdout == 'side by side\n', done.stderr[-2000:]
