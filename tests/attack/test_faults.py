"""Every file operation of a run fails once, or from then on.

A run on a bad disk ends with an error of the system that names the path, and
resumes on a good disk to the same bits as if nothing had happened.
"""

import errno
import os

import pytest

import safl_tf
from safl_tf.core import process as process_lib
from safl_tf.training import loop, metrics_log, run_directory
from safl_tf.util import errors
from tests import marks, tiny
from tests.attack import faults
from tests.binaries import programs

ROUNDS = 4
CODES = (errno.ENOSPC, errno.EACCES, errno.EIO)


@pytest.fixture(scope='module')
def process():
  """A process that is compiled once for all runs."""
  return process_lib.FederatedProcess(
    tiny.dense,
    tiny.clients(),
    safl_tf.build_safl(clients_per_round=1),  # incremental checkpoints
    safl_tf.LocalConfig(local_epochs=1, batch_size=8, learning_rate=0.02),
    jit_compile='false',
    executor='serial',
  )


def run(process, folder, rounds=ROUNDS):
  directory = folder and run_directory.RunDirectory(folder)
  schedule = loop.Schedule(rounds, checkpoint_every=1)
  return loop.run(process, schedule, 0, directory=directory, progress=False)


@pytest.fixture(scope='module')
def whole(process):
  return run(process, None)


@pytest.fixture(scope='module')
def operations(process, tmp_path_factory):
  """The file operations of a run that begins, and of one that resumes."""
  folder = tmp_path_factory.mktemp('good') / 'run'
  names = []
  for rounds in (2, ROUNDS):
    with faults.disk(folder) as disk:
      run(process, folder, rounds)
    names.append(disk.operations)
  return names


def check_resumed(process, folder, whole):
  """Resumes on a good disk: same bits, same rows, nothing left over."""
  result = run(process, folder)
  assert result.state.t == ROUNDS
  assert result.state.z_bar.tobytes() == whole.state.z_bar.tobytes()
  for k in range(4):
    one, other = result.state.client_models[k], whole.state.client_models[k]
    assert one.tobytes() == other.tobytes()
  rows = metrics_log.read_csv(folder / 'metrics.csv')
  assert [drop(row) for row in rows] == [drop(row) for row in whole.history]
  left = [p for p in folder.rglob('*') if '.partial-' in p.name]
  assert not left


def drop(row):
  return {k: v for k, v in row.items() if k not in metrics_log.MEASURED}


def attack(process, folder, whole, fails, code, rounds):
  """Trains on a bad disk, then on a good one."""
  with faults.disk(folder, fails, code) as disk:
    try:
      result = run(process, folder, rounds)
    except OSError as error:
      assert error.errno == code and str(folder) in str(error.filename)
    except errors.InputError as error:
      assert os.strerror(code) in str(error) or 'corrupt' in str(error)
    else:  # an operation that the run can do without
      assert result.state.z_bar.tobytes() == whole.state.z_bar.tobytes()
  check_resumed(process, folder, whole)
  return disk.failed


def test_a_run_has_file_operations(operations):
  begun, resumed = operations
  assert len(begun) > 60 and len(resumed) > 60
  wanted = {'open', 'write', 'fsync', 'replace', 'unlink', 'read'}
  assert wanted <= {*begun, *resumed}


def sweep(process, whole, folder, operations, step, forever):
  """Fails every `step`-th operation, of a new and of a resumed run."""
  tried = 0
  for resumes, names in enumerate(operations):
    for number in range(1, len(names) + 1, step):
      codes = CODES if step == 1 else (CODES[number % len(CODES)],)
      for code in codes:
        path = folder / f'{resumes}_{number}_{code}'
        if resumes:
          run(process, path, 2)
        at = (lambda n, k=number: n >= k) if forever else number.__eq__
        tried += attack(process, path, whole, at, code, ROUNDS) > 0
  return tried


def test_some_operations_fail(process, whole, operations, tmp_path):
  assert sweep(process, whole, tmp_path, operations, 9, False) > 10


@pytest.mark.slow
def test_a_disk_stays_full(process, whole, operations, tmp_path):
  assert sweep(process, whole, tmp_path, operations, 17, True) > 5


@pytest.mark.attack
@pytest.mark.parametrize('forever', [False, True])
def test_every_operation_fails(process, whole, operations, tmp_path, forever):
  tried = sweep(process, whole, tmp_path, operations, 1, forever)
  total = len(CODES) * sum(map(len, operations))
  print(f'{tried} of {total} failures')
  assert tried == total


@pytest.mark.parametrize('number', marks.some([1, 9, 40, 75], [40]))
@pytest.mark.parametrize('code', CODES)
def test_programs_report_it_in_one_line(call, dense, tmp_path, number, code):
  run_folder = tmp_path / 'run'
  command = (
    *programs.SMALL,
    '--jit_compile=false',
    f'--model={dense}',
    f'--output_dir={tmp_path}',
    '--experiment=run',
  )
  with faults.disk(run_folder, number.__eq__, code) as disk:
    outcome = call('train', *command)
  assert disk.failed == 1
  assert outcome.code == 1, outcome.err
  line = outcome.err.splitlines()[-1]
  assert line.startswith('safl-train: ') and str(run_folder) in line
  assert os.strerror(code) in line
  assert 'Traceback' not in outcome.err
  outcome = call('train', *command)
  assert outcome.code == 0, outcome.err
