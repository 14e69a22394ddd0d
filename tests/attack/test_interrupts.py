"""Ctrl-C and SIGTERM at any moment: one line, exit code 130 or 143."""

import os
import shutil
import signal
import time

import pytest

from tests.attack.test_programs import ENTRY
from tests.binaries import programs


def interrupt(folder, delay, *signals, name='train', arguments=()):
  """Signals a program some time after its start; its exit code and stderr."""
  process = programs.start('-c', ENTRY.format(name), *arguments, cwd=folder)
  try:
    path = f'/proc/{process.pid}/status'
    deadline = time.monotonic() + 60
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:  # Python itself leaves it
      assert time.monotonic() < deadline and process.poll() is None
      with open(path) as status:
        lines = dict(line.split(':', 1) for line in status)
      caught = int(lines['SigCgt'], 16)
      time.sleep(0.001)
    time.sleep(delay)
    for number in signals:
      process.send_signal(number)
    _, err = process.communicate(timeout=60)
  finally:
    process.kill()
  return process.returncode, err


FOREVER = ('--num_clients=4', '--mean_examples=60', '--rounds=100000')
needs_proc = pytest.mark.skipif(
  not os.path.exists('/proc/self/status'), reason='needs /proc'
)


def check_stopped(folder, delay, *signals):
  code, err = interrupt(folder, delay, *signals, arguments=FOREVER)
  assert code == 128 + signals[0]
  assert err.splitlines()[-1] == 'safl-train: stopped; the same command resumes'
  assert 'Traceback' not in err and 'Error' not in err


@needs_proc
@pytest.mark.parametrize(
  ('delay', 'signals'),
  [
    (0, [signal.SIGINT]),
    (0.3, [signal.SIGINT, signal.SIGINT]),
    (2, [signal.SIGINT]),
    (0.1, [signal.SIGTERM]),
  ],
)
def test_ctrl_c(tmp_path, delay, signals):
  check_stopped(tmp_path, delay, *signals)


@needs_proc
@pytest.mark.attack
@pytest.mark.parametrize('delay', [i / 10 for i in range(80)])
def test_ctrl_c_at_any_time(tmp_path, delay):
  check_stopped(tmp_path, delay, signal.SIGINT)


@needs_proc
@pytest.mark.parametrize('name', ['evaluate', 'theory'])
def test_ctrl_c_of_a_program_that_does_not_resume(tmp_path, name):
  code, err = interrupt(tmp_path, 0, signal.SIGINT, name=name)
  assert (code, err) == (130, f'safl-{name}: stopped\n')


# Sends SIGINT when a module is imported.
WHILE_IMPORTING = """
import os, signal, sys
class Finder:
  def find_spec(self, name, *args):
    if name == "{}":
      os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
AT_EXIT = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""
TENSORFLOW = 'tensorflow.python.eager.context'


@pytest.mark.parametrize(
  ('code', 'arguments'),
  [
    (WHILE_IMPORTING.format('absl.flags'), '--help'),
    (WHILE_IMPORTING.format('binaries.program'), '--help'),
    (WHILE_IMPORTING.format('numpy'), '--rounds=1'),
    (WHILE_IMPORTING.format('tensorflow'), '--rounds=1'),
    (WHILE_IMPORTING.format(TENSORFLOW), '--rounds=1'),
    (AT_EXIT, '--help'),
    (AT_EXIT, '--rounds=0'),
  ],
)
def test_ctrl_c_while_importing_and_at_exit(tmp_path, code, arguments):
  code += ENTRY.format('train')
  process = programs.start('-c', code, arguments, cwd=tmp_path)
  _, err = process.communicate(timeout=120)
  assert process.returncode == 130
  assert err.splitlines()[-1] == 'safl-train: stopped; the same command resumes'
  assert 'Traceback' not in err


@pytest.mark.attack
@pytest.mark.parametrize(
  ('number', 'code'),
  [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_stopped_while_an_export_is_verified(
  finished, call, tmp_path, number, code
):
  run = tmp_path / 'run'
  shutil.copytree(finished, run)
  for attempt in range(2):  # without and with an earlier export
    process = programs.start('-c', ENTRY.format('export'), f'--run={run}')
    deadline = time.monotonic() + 120
    while not list((run / 'export').glob('.new-*/check.npz')):
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err == ('' if code < 0 else 'safl-export: stopped\n')
    assert (run / 'export' / 'export.json').exists() == bool(attempt)
    assert call('export', f'--run={run}').code == 0
    names = ['.safl_tf', 'export.json', 'model.keras', 'saved_model']
    assert sorted(os.listdir(run / 'export')) == names
