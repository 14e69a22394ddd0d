"""Processes that do tasks, and what remains of them."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from binaries import pool
from safl_tf.util import errors
from tests.binaries import pool_tasks, programs


def make(processes):
  return pool.Pool(pool_tasks.do, processes, pool_tasks.describe)


def test_a_process_stays_for_several_tasks():
  with make(1) as workers:
    first = workers.call(('process', None)).result
    done = list(workers.map([('process', None), ('return', 3)]))
    assert [d.result for d in done] == [first, 3]
    assert first != os.getpid()
  assert not psutil.pid_exists(first)


def test_failures_are_reported_and_lose_nothing_else(capfd):
  tasks = [
    ('kill', None),
    ('return', 1),
    ('input', 2),
    ('run', 'a  line'),
    ('bug', 'x'),
    ('exit', 5),
    ('return', 2),
  ]
  with make(1) as workers:
    done = {d.task: d for d in workers.map(tasks)}
  assert [d.task for d in done.values()] == tasks
  assert [d.result for d in done.values() if not d.error] == [1, 2]
  found = {task[0]: d.error for task, d in done.items() if d.error}
  assert str(found['kill']).startswith('its process was killed')
  assert str(found['exit']) == 'its process ended with exit code 5'
  assert isinstance(found['input'], errors.InputError)
  assert found['input'].hint == 'is wrong'
  assert str(found['run']) == 'a line'
  assert isinstance(found['bug'], errors.RunError)
  assert 'KeyError' in str(found['bug'])
  assert 'pool_tasks.py' in capfd.readouterr().err  # a traceback


def test_processes_share_the_cores():
  cores = sorted(os.sched_getaffinity(0))
  with make(2) as workers:
    done = list(workers.map([('cores', None)] * 2))
  shares = [d.result[0] for d in done]
  assert all(d.result[1] == str(len(cores)) for d in done)
  if len(cores) > 1:
    assert sorted(shares[0] + shares[1]) == cores


def test_errors_of_the_parent_end_the_processes():
  with pytest.raises(KeyboardInterrupt), make(1) as workers:
    process = workers.call(('process', None)).result
    raise KeyboardInterrupt
  assert not psutil.pid_exists(process)


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_their_parent(number):
  script = (
    'from tests.binaries import test_pool\n'
    'with test_pool.make(1) as workers:\n'
    '  print(workers.call(("process", None)).result, flush=True)\n'
    '  workers.call(("sleep", 100))'
  )
  parent = subprocess.Popen(
    [sys.executable, '-c', script],
    cwd=programs.ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )
  child = psutil.Process(int(parent.stdout.readline()))
  parent.send_signal(number)
  parent.communicate(timeout=30)
  child.wait(timeout=30)
  deadline = time.monotonic() + 30
  while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
    assert time.monotonic() < deadline
    time.sleep(0.05)
