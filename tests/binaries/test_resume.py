"""A run that is killed and resumed has the results of an uninterrupted one."""

import functools
import os
import shutil
import signal
import time

import pytest

from safl_tf.reporting import plots
from safl_tf.training import checkpoint, export, metrics_log
from safl_tf.util import errors, output_folder
from tests.binaries import programs

ROUNDS = 22
COMMAND = (
  '--num_clients=16',
  '--mean_examples=60',
  '--jit_compile=false',
  f'--rounds={ROUNDS}',
  '--checkpoint_every=2',
  '--export=none',
  '--experiment=run',
)


@pytest.fixture(scope='module')
def wide(tmp_path_factory):
  """A model whose checkpoints take a while to write."""
  import keras

  path = tmp_path_factory.mktemp('models') / 'wide.keras'
  layers = keras.layers
  model = keras.Sequential(
    [
      keras.Input((28, 28, 1), dtype='uint8'),
      layers.Rescaling(1 / 255),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dropout(0.1),
      layers.Dense(10),
    ]
  )
  model.save(path)
  return path


def newest_round(run):
  return max(checkpoint.Checkpoints(run / 'checkpoints').rounds())


def check_equal(run, reference):
  """Bit for bit: the global model, the clients' models and the metrics."""
  ours, theirs = programs.newest(run), programs.newest(reference)
  assert newest_round(run) == newest_round(reference)
  assert set(ours) == set(theirs) >= {'z_bar', 'clients/z/arrays'}
  for name, array in theirs.items():
    assert ours[name].dtype == array.dtype
    assert ours[name].tobytes() == array.tobytes()
  assert programs.metrics(run) == programs.metrics(reference)


def rounds_done(run):
  """The rounds in metrics.csv, also while it is being written."""
  try:
    return (run / 'metrics.csv').read_bytes().count(b'\n') - 1
  except FileNotFoundError:
    return 0


def is_saving(run):
  """Whether a checkpoint is half-written right now."""
  try:
    names = os.listdir(run / 'checkpoints')
  except FileNotFoundError:
    return False
  data = {name.removesuffix('.npz') for name in names if '.npz' in name}
  whole = {name.removesuffix('.json') for name in names}
  return bool(data - whole)  # a temporary file's name has .npz in it too


def file_number(run):
  """Changes when a start rewrites metrics.csv."""
  path = run / 'metrics.csv'
  return path.stat().st_ino if path.exists() else None


def kill_when(moment, run, command):
  """Starts a training, kills it at a moment of it; its stderr until then."""
  before = file_number(run)
  process = programs.start('-m', 'binaries.train', *command)
  try:
    limit = time.monotonic() + 120
    while file_number(run) == before or not moment():
      assert process.poll() is None, process.communicate()
      assert time.monotonic() < limit
      time.sleep(0.0005)
  finally:
    process.kill()
    _, err = process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert rounds_done(run) < ROUNDS
  return err


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, wide):
  model = f'--model={wide}'
  folders = [tmp_path / 'reference', tmp_path / 'killed']
  reference, run = (folder / 'run' for folder in folders)
  first, second = ((*COMMAND, model, f'--output_dir={f}') for f in folders)
  between_checkpoints = lambda: rounds_done(run) >= 5
  kill_when(between_checkpoints, run, second)
  while_saving = lambda: rounds_done(run) >= 8 and is_saving(run)
  too_late = lambda: rounds_done(run) >= 11  # if no save is observed
  kill_when(lambda: while_saving() or too_late(), run, second)
  about_to_save = lambda: rounds_done(run) >= 14
  err = kill_when(about_to_save, run, second)
  assert f'resuming {run} after round ' in err

  process = programs.start('-m', 'binaries.train', *second)
  assert programs.call('train', *first) == 0  # meanwhile, the reference
  out, err = process.communicate(timeout=120)
  assert process.returncode == 0, err
  assert f'files          {run}\n' in out
  check_equal(run, reference)
  left = {path.name for path in (run / 'checkpoints').iterdir()}
  last, before = f'round_{ROUNDS:06d}', f'round_{ROUNDS - 2:06d}'
  wanted = {f'{n}.{kind}' for n in (last, before) for kind in ('npz', 'json')}
  assert left == wanted


@pytest.fixture(scope='module')
def command(dense):
  return (
    *programs.SMALL,
    '--rounds=4',
    '--checkpoint_every=2',
    '--jit_compile=false',
    f'--model={dense}',
  )


@pytest.fixture(scope='module')
def reference(tmp_path_factory, command):
  """A run of four rounds with checkpoints of the second and fourth."""
  folder = tmp_path_factory.mktemp('reference')
  assert programs.call('train', *command, f'--output_dir={folder}') == 0
  return folder / 'safl_mnist_sample'


@pytest.fixture
def run(reference, tmp_path):
  """The same run, to be changed."""
  shutil.copytree(reference, tmp_path / reference.name)
  return tmp_path / reference.name


@pytest.fixture
def again(call, command, run, monkeypatch):
  """Runs the command in that folder once more, without pictures."""
  monkeypatch.setattr(plots, 'write_all', lambda *args: None)
  return functools.partial(
    call, 'train', *command, f'--output_dir={run.parent}'
  )


@pytest.mark.parametrize('kind', ['npz', 'json'])
def test_corrupt_checkpoint(run, reference, again, kind):
  newest = run / 'checkpoints' / f'round_000004.{kind}'
  data = bytearray(newest.read_bytes())
  data[len(data) // 2] ^= 1
  newest.write_bytes(data)
  outcome = again()
  assert outcome.code == 0
  [warning] = [line for line in outcome.err.splitlines() if 'Check' in line]
  assert str(newest) in warning and 'falling back to round 2' in warning
  assert f'resuming {run} after round 2' in outcome.err
  check_equal(run, reference)


def test_all_checkpoints_corrupt(run, again):
  for path in run.glob('checkpoints/*.npz'):
    path.write_bytes(path.read_bytes()[:-1])
  before = programs.snapshot(run / 'checkpoints')
  outcome = again()
  assert outcome.code == 2
  assert outcome.err.startswith(f'safl-train: --experiment={run}: ')
  assert 'all checkpoints are corrupt' in outcome.err
  assert outcome.err.count('\n') == 1
  assert programs.snapshot(run / 'checkpoints') == before
  assert len(metrics_log.read_csv(run / 'metrics.csv')) == 4


def test_folder_in_use(run, again):
  before = programs.snapshot(run)
  with output_folder.opened(run, 'run', 'experiment'):
    outcome = again('--rounds=6')
  assert outcome.code == 2
  assert outcome.err == (
    f'safl-train: --experiment={run}: another process is writing to '
    'this folder; wait until it ends or choose another folder\n'
  )
  assert programs.snapshot(run) == before


def test_export_is_under_the_lock(run, again, monkeypatch):
  def export_while_locked(*args, **options):
    with (
      pytest.raises(errors.InputError, match='another process'),
      output_folder.opened(run, 'run', 'experiment'),
    ):
      pass
    exports.append(args)

  exports = []
  monkeypatch.setattr(export, 'export', export_while_locked)
  assert again('--export=both').code == 0
  assert len(exports) == 1
