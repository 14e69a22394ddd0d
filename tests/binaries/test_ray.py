"""Programs and scripts of users on Ray's workers."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import keras
import psutil
import pytest

from safl_tf.training import metrics_log
from tests.binaries import programs


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """Flags of small runs, with a model that compiles fast."""
  path = tmp_path_factory.mktemp('model') / 'linear.keras'
  keras.Sequential(
    [
      keras.Input((28, 28, 1)),
      keras.layers.Flatten(),
      keras.layers.Dense(10, kernel_initializer='zeros'),
    ]
  ).save(path)
  rate = '--learning_rate=1e-6'
  return (*programs.SMALL, f'--model={path}', rate, '--jit_compile=false')


@pytest.mark.slow
def test_a_comparison(call, tmp_path, small):
  """Its runs share workers, and change executors when they resume."""

  def compare(*options):
    flags = ('--algorithms=fedavg,safl', f'--output_dir={tmp_path}', *small)
    outcome = call('compare', *flags, *options)
    assert outcome.code == 0, outcome.err
    return outcome

  compare('--experiment=a', '--rounds=3')
  compare('--experiment=b', '--rounds=1', '--executor=threads')
  on_ray = ('--executor=ray', '--ray_chunk=3')
  outcome = compare('--experiment=b', '--rounds=2', *on_ray)
  assert outcome.err.count('Ray workers at ') == 1
  assert outcome.err.count(', workers 1\n') == 2
  compare('--experiment=b', '--rounds=3')
  for name in ('fedavg_seed0', 'safl_seed0'):
    run = tmp_path / 'b' / name
    programs.check_equal(run, tmp_path / 'a' / name)
    rows = metrics_log.read_csv(run / 'metrics.csv')
    assert [row['workers'] for row in rows] == [None, 1, None]


REFUSED = {
  'other executor': (
    ['--ray_workers=2'],
    '--ray_workers=2: has no effect with --executor=auto; it is for '
    '--executor=ray',
  ),
  'address': (
    ['--executor=ray', '--ray_address=there'],
    '--ray_address=there: must be local, auto or HOST:PORT',
  ),
  'chunk': (
    ['--executor=ray', '--ray_chunk=0'],
    '--ray_chunk=0: must be a whole number in [1, 1000000]',
  ),
}


def test_refused(tmp_path):
  outcomes = programs.call_light(
    [('train', flags, tmp_path) for flags, _ in REFUSED.values()]
  )
  for outcome, (_, message) in zip(outcomes, REFUSED.values(), strict=True):
    assert outcome.code == 2
    assert ' '.join(message.split()) in ' '.join(outcome.err.split())
  assert not list(tmp_path.iterdir())


def test_nobody_answers(call, tmp_path, small):
  flags = ('--executor=ray', '--ray_address=127.0.0.1:9', *small)
  outcome = call('train', f'--output_dir={tmp_path}', *flags)
  assert outcome.code == 2
  assert outcome.err.startswith('safl-train: --ray_address=127.0.0.1:9: noth')
  assert not list(tmp_path.iterdir())


LAYERS = """
import keras

class Scaled(keras.layers.Layer):
  def call(self, inputs):
    return 0.5 * inputs
"""
SCRIPT = """
import keras
import numpy as np

import layers
import safl_tf


class Shifted(keras.layers.Layer):
  def call(self, inputs):
    return inputs + 1.0


def model():
  return keras.Sequential(
    [keras.Input((4,)), layers.Scaled(), Shifted(), keras.layers.Dense(3)]
  )


x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
y = np.arange(60) % 3
clients = safl_tf.ClientData.from_arrays(x, y, np.split(np.arange(60), 6))


def make(executor):
  algorithm = safl_tf.build_safl()
  return safl_tf.FederatedProcess(model, clients, algorithm, executor=executor)


one, other = make('threads'), make(safl_tf.RayConfig(workers=3))
state = one.initialize(0)
for _ in range(2):
  expected, _ = one.next(state)
  state, metrics = other.next(state)
equal = expected.z_bar.tobytes() == state.z_bar.tobytes()
print('equal' if equal else 'differs', metrics.workers.alive, flush=True)
while True:
  state, _ = other.next(state)
"""


@pytest.fixture
def short_folder():
  """A folder with a short name, which the sockets of Ray need."""
  folder = pathlib.Path(tempfile.mkdtemp(prefix='s', dir='/tmp'))
  yield folder
  shutil.rmtree(folder)


@pytest.mark.slow
def test_a_script_and_its_end(tmp_path, short_folder):
  """Own layers travel; a script that is killed leaves no process."""
  (tmp_path / 'layers.py').write_text(LAYERS)
  (tmp_path / 'script.py').write_text(SCRIPT)
  process = subprocess.Popen(
    [sys.executable, tmp_path / 'script.py'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={
      **os.environ,
      'HOME': str(short_folder),
      'PYTHONPATH': str(programs.ROOT),
      'TMPDIR': str(short_folder),
    },
  )
  line = process.stdout.readline()
  if line != 'equal 3\n':
    process.kill()
    pytest.fail(line + process.communicate()[1][-4000:])
  children = psutil.Process(process.pid).children(recursive=True)
  titles = {child.pid: child.name() for child in children}
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=60)
  # Ray's agents look for its head during a minute, and then end.
  names = ('ray::DashboardAgent', 'ray::RuntimeEnvAgent')
  agents = [child for child in children if titles[child.pid] in names]
  others = [child for child in children if child not in agents]
  _, left = psutil.wait_procs(others, timeout=60)
  assert not left
  for child in agents:
    with contextlib.suppress(psutil.Error):
      child.kill()
  assert not (short_folder / '.ray').exists()
