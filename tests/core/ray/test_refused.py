"""What Ray's workers cannot run is refused; processes that are closed go on."""

import dataclasses
import threading

import keras
import pytest

import safl_tf
from safl_tf.core.executors.ray import cluster
from safl_tf.core.executors.ray import workers as workers_lib
from safl_tf.util import errors, hardware
from tests import tiny, tiny_rounds

ONE = safl_tf.RayConfig(workers=1)


def test_too_many_local_workers():
  cores = hardware.num_cores()
  config = safl_tf.RayConfig(workers=max(cores, 4) + 1)
  message = f'^ray_workers={config.workers}: this machine has {cores} cores'
  with pytest.raises(errors.InputError, match=message):
    tiny_rounds.make(executor=config)


@pytest.fixture(scope='module')
def ray():
  with workers_lib.find(ONE, 'auto').held():
    yield ONE


def locked_model():
  """A function with something that stays in its process."""
  lock = threading.Lock()

  def model():
    with lock:
      return tiny.dense()

  return model


def test_a_model_that_cannot_travel(ray):
  message = (
    r'^model=sequential.*: cannot be sent to Ray workers \(.*lock.*\); pass a '
    'function that returns it, with what it needs inside'
  )
  with pytest.raises(errors.InputError, match=message):
    tiny_rounds.make(executor=ray, model=locked_model())


def test_rules_that_cannot_travel(ray):
  lock = threading.Lock()

  def mix(*arguments):
    with lock:
      return safl_tf.mix.anneal()(*arguments)

  algorithm = dataclasses.replace(
    tiny_rounds.SAFL, mix=safl_tf.named('locked', mix)
  )
  message = r'^algorithm=.*: cannot be sent to Ray workers \(.*lock.*\); keep '
  with pytest.raises(errors.InputError, match=message):
    tiny_rounds.make(executor=ray, algorithm=algorithm)


@pytest.mark.slow
def test_a_model_that_workers_cannot_build(ray):
  """The user's error, with the place, and the workers stay."""

  def model():
    if threading.current_thread() is not threading.main_thread():
      raise KeyError('only here')  # workers build in a thread of Ray's
    return tiny.dense()

  with pytest.raises(errors.InputError, match='only here') as caught:
    trainer = tiny_rounds.make(executor=ray, model=model)
    trainer.next(trainer.initialize(0))
  assert 'on the worker on ' in caught.value.__notes__[0]
  other = tiny_rounds.make(executor=ray)
  assert other.next(other.initialize(0))[1].workers.lost == 0


def test_a_stateful_layer_travels(ray):
  """Counters and generators are part of what each process builds."""
  trainer = tiny_rounds.make(
    executor=ray,
    model=lambda: keras.Sequential(
      [
        keras.Input((tiny.FEATURES,)),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(tiny.CLASSES),
      ]
    ),
  )
  state, _ = trainer.next(trainer.initialize(0))
  again, _ = trainer.next(trainer.initialize(0))
  tiny_rounds.check_same(state, again)


def test_nobody_answers():
  message = r'^ray_address=127.0.0.1:9: nothing answers there'
  with pytest.raises(errors.InputError, match=message):
    cluster._check_answers('127.0.0.1:9')


@pytest.mark.slow
def test_a_closed_process_goes_on(ray, monkeypatch):
  trainer = tiny_rounds.make(executor=ray)
  expected, _ = tiny_rounds.run(tiny_rounds.make(), 2)
  state, metrics = trainer.next(trainer.initialize(0))
  assert metrics.workers.alive == 1
  workers = workers_lib.find(ray, 'auto')
  monkeypatch.setattr(workers, '_holders', 0)
  trainer.close()
  trainer.close()
  assert workers._session is None
  state, metrics = trainer.next(state)
  tiny_rounds.check_same(state, expected[-1])
  assert (metrics.workers.alive, metrics.workers.lost) == (1, 0)
