import threading
import time

import pytest

from safl_tf import errors, executors, names
from safl_tf.executors import serial, threads

EXECUTORS = {
  'serial': serial.serial(),
  'threads': threads.threads(4),
  'one thread': threads.threads(1),
}


@pytest.mark.parametrize('execute', EXECUTORS.values(), ids=EXECUTORS)
def test_updates_come_in_the_devices_order(execute):
  def local_update(task):
    time.sleep(0.002 * (task % 3))  # the first is not the fastest
    return task * task

  updates = execute(local_update, lambda k: k + 1, [4, 1, 7, 2, 0, 5])
  assert list(updates) == [25, 4, 64, 9, 1, 36]
  assert list(execute(local_update, lambda k: k, [])) == []


@pytest.mark.parametrize('execute', EXECUTORS.values(), ids=EXECUTORS)
@pytest.mark.parametrize('broken', ['task', 'update'])
def test_errors_are_raised(execute, broken):
  def fail(value):
    raise RuntimeError(f'device {value}')

  keep = lambda value: value
  task, update = (fail, keep) if broken == 'task' else (keep, fail)
  with pytest.raises(RuntimeError, match='device 3'):
    list(execute(update, task, [3]))


def test_threads_run_side_by_side():
  """Each waits for the other: one after the other they would time out."""
  meet = threading.Barrier(2)
  execute = threads.threads(2)
  updates = execute(lambda task: meet.wait(timeout=10), lambda k: k, [0, 1])
  assert sorted(updates) == [0, 1]


def test_names():
  assert ('auto', *executors.EXECUTORS) == names.EXECUTORS
  for name in names.EXECUTORS:
    assert list(executors.get(name)(lambda k: k, lambda k: k, [1, 2])) == [1, 2]
  with pytest.raises(
    errors.InputError, match=r'^executor=thread: did you mean'
  ):
    executors.get('thread')


def test_auto(monkeypatch):
  made = []
  for name in executors.EXECUTORS:
    monkeypatch.setitem(
      executors.EXECUTORS, name, lambda name=name: made.append(name)
    )
  executors.get('auto', on_gpu=False)
  executors.get('auto', on_gpu=True)
  assert made == ['threads', 'serial']
