"""Failures around a program: one line, the right exit code, no traceback."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from binaries import program, sweep
from safl_tf.training import metrics_log
from safl_tf.util import atomic_io, errors
from tests.binaries import programs

ENTRY = 'from binaries import entry_points; entry_points.{}()'


def shell(line, folder, timeout=120, **options):
  """Runs a shell command, in which PYTHON stands for the interpreter."""
  return subprocess.run(
    line.replace('PYTHON', sys.executable),
    shell=True,
    cwd=folder,
    env={**os.environ, 'PYTHONPATH': str(programs.ROOT)},
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
    **options,
  )


def fail(error):
  """Runs a program whose main raises an error."""

  def main(flags):
    raise error

  program.run('safl-x', 'Fails.', lambda flags: None, main)


def system_error(number, *path):
  return OSError(number, os.strerror(number), *path)


FAILURES = [
  # error, exit code, message
  (
    system_error(errno.ENOSPC, '/a/b'),
    1,
    '/a/b: No space left on device; free some space, then give the same ',
  ),
  (system_error(errno.EDQUOT, '/a/b'), 1, '/a/b: Disk quota exceeded; free '),
  (system_error(errno.EFBIG, '/a/b'), 1, '/a/b: File too large; raise the li'),
  (system_error(errno.EACCES, '/a/b'), 1, '/a/b: Permission denied; change '),
  (system_error(errno.EROFS, '/a/b'), 1, '/a/b: Read-only file system; choose'),
  (system_error(errno.EISDIR, '/a/b'), 1, '/a/b: Is a directory'),
  (system_error(errno.ENOTDIR, '/a/b'), 1, '/a/b: Not a directory'),
  (system_error(errno.EMFILE, '/a/b'), 1, '/a/b: Too many open files; raise '),
  (system_error(errno.EIO, '/a/b'), 1, '/a/b: Input/output error; check the '),
  (system_error(errno.ENOENT, '/a/b'), 1, '/a/b: No such file or directory'),
  (system_error(errno.ENAMETOOLONG, '/a/b'), 1, '/a/b: File name too long'),
  (system_error(errno.EIO), 1, 'Input/output error; check the disk'),
  (OSError('odd\nthings'), 1, 'odd things'),
  (ConnectionResetError(errno.ECONNRESET, 'reset'), 1, 'reset'),
  (MemoryError('Unable to allocate 7 TiB'), 1, 'not enough memory; use less '),
  (MemoryError(), 1, 'not enough memory; use less '),
  (errors.RunError('the model\nis not finite'), 1, 'the model is not finite'),
  (errors.InputError('rounds', 0, 'must be 1'), 2, 'rounds=0: must be 1'),
  (KeyboardInterrupt(), 130, 'stopped; the same command resumes'),
]


@pytest.mark.parametrize(('error', 'code', 'message'), FAILURES)
def test_failure(monkeypatch, capfd, error, code, message):
  monkeypatch.setattr(sys, 'argv', ['safl-x'])
  with pytest.raises(SystemExit) as caught:
    fail(error)
  out, err = capfd.readouterr()
  assert (caught.value.code, out) == (code, '')
  assert err.startswith(f'safl-x: {message}')
  assert err.count('\n') == 1 and err.endswith('\n')


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('ResourceExhaustedError', 'logdir/events; No space left on device'),
    ('PermissionDeniedError', 'logdir/events; Permission denied'),
    ('NotFoundError', 'logdir; No such file or directory'),
    ('FailedPreconditionError', 'saved_model; Is a directory'),
    ('UnknownError', 'saved_model; Input/output error'),
    ('DataLossError', 'variables: checksum does not match'),
  ],
)
def test_failure_of_tensorflow(monkeypatch, capfd, name, message):
  import tensorflow as tf

  capfd.readouterr()
  monkeypatch.setattr(sys, 'argv', ['safl-x'])
  with pytest.raises(SystemExit) as caught:
    fail(getattr(tf.errors, name)(None, None, message))
  err = capfd.readouterr().err
  assert caught.value.code == 1
  assert err.startswith(f'safl-x: {message}') and err.count('\n') == 1
  assert ('free some space' in err) == ('No space' in message)


@pytest.mark.parametrize('number', [errno.EFBIG, errno.EIO])
def test_an_error_without_a_path_names_the_run(
  call, monkeypatch, tmp_path, number
):
  """As of metrics.csv, which stays open."""
  from safl_tf.training import loop

  def run(*args, **options):
    raise system_error(number)

  monkeypatch.setattr(loop, 'run', run)
  outcome = call('train', *programs.SMALL, f'--output_dir={tmp_path}')
  path = tmp_path / 'safl_mnist_sample'
  assert outcome.code == 1
  assert outcome.err.startswith(f'safl-train: {path}: {os.strerror(number)}; ')
  assert outcome.err.count('\n') == 1


def test_a_file_in_place_of_logdir(monkeypatch, capfd, tmp_path):
  """TensorFlow's error has no path."""
  (tmp_path / 'logdir').write_text('')
  log = metrics_log.MetricsLog(tmp_path)

  def main(flags):
    with program.locating(tmp_path):
      log.start([])

  monkeypatch.setattr(sys, 'argv', ['safl-x'])
  with pytest.raises(SystemExit) as caught:
    program.run('safl-x', 'Fails.', lambda flags: None, main)
  assert caught.value.code == 1
  line = capfd.readouterr().err.splitlines()[-1]
  assert line == f'safl-x: {tmp_path}: Not a directory'


@pytest.mark.parametrize('error', [ValueError('x'), TypeError('x'), KeyError()])
def test_a_bug_shows_its_traceback(monkeypatch, error):
  monkeypatch.setattr(sys, 'argv', ['safl-x'])
  with pytest.raises(type(error)):
    fail(error)


@pytest.mark.parametrize('number', [errno.ENOSPC, errno.EACCES, errno.EIO])
@pytest.mark.parametrize('operation', ['open', 'write', 'fsync', 'replace'])
def test_a_failing_write_names_the_file(
  call, monkeypatch, tmp_path, operation, number
):
  """The error of a descriptor has no path of its own."""

  def broken(*args, **options):
    raise system_error(number, *args[:1] * isinstance(args[0], str))

  def write_bytes(path, data):
    with atomic_io.replacing(path):
      raise system_error(number)

  command = ('partition', f'--output_dir={tmp_path}/own', '--num_clients=4')
  assert call(*command).code == 0
  before = programs.snapshot(tmp_path / 'own')
  if operation == 'open':
    monkeypatch.setattr(atomic_io, 'open', broken, raising=False)
  elif operation == 'write':
    monkeypatch.setattr(atomic_io, 'write_bytes', write_bytes)
  else:
    monkeypatch.setattr(os, operation, broken)
  outcome = call(*command, '--seed=1')
  assert (outcome.code, outcome.out) == (1, '')
  assert outcome.err.count('\n') == 1
  assert outcome.err.startswith(f'safl-partition: {tmp_path}/own/')
  assert os.strerror(number) in outcome.err
  assert programs.snapshot(tmp_path / 'own') == before


def test_file_size_limit(tmp_path):
  """A real limit, of 1 kB; the folder can be used again."""
  line = f'PYTHON -c "{ENTRY.format("partition")}" --output_dir=own'
  done = shell(f'ulimit -f 1; {line}', tmp_path)
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr == (
    'safl-partition: own/manifest.json: File too large; raise the limit of '
    'file sizes (ulimit -f)\n'
  )
  assert os.listdir(tmp_path / 'own') == ['.safl_tf']
  done = shell(line, tmp_path)
  assert (done.returncode, done.stderr) == (0, '')


# Redirection -> exit code, whether stdout and stderr are there to read.
STREAMS = {
  '>&-': (1, 'stdout: is closed; the output is incomplete'),
  '>/dev/full': (1, 'stdout: No space left on device; the output is incomp'),
  '2>&-': (0, None),
  '2>/dev/full': (0, None),
  '>&- 2>&-': (1, None),
  '>/dev/full 2>/dev/full': (1, None),
  '<&-': (0, None),
  '<&- >&- 2>&-': (1, None),
}


@pytest.mark.parametrize('streams', STREAMS)
@pytest.mark.parametrize('arguments', ['--help', '--preset=list', '--rounds=0'])
def test_closed_or_full_streams(tmp_path, streams, arguments):
  code, message = STREAMS[streams]
  line = f'PYTHON -c "{ENTRY.format("train")}" {arguments} {streams}'
  done = shell(line, tmp_path)
  if arguments == '--rounds=0':  # an error of the user
    assert done.returncode == 2
    assert 'Traceback' not in done.stderr
    if '2>' not in streams:
      assert done.stderr.startswith('safl-train: --rounds=0: ')
    return
  assert done.returncode == code
  expected = '' if message is None else f'safl-train: {message}'
  assert done.stderr.startswith(expected) and done.stderr.count('\n') <= 1
  assert bool(done.stdout) == ('>&-' not in streams.split() and code == 0)


def test_closed_pipe(tmp_path):
  line = f'PYTHON -c "{ENTRY.format("train")}" --help | head -1'
  done = shell(f"bash -c '{line}; exit ${{PIPESTATUS[0]}}'", tmp_path)
  assert (done.returncode, done.stderr) in ((0, ''), (1, ''))
  assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize('streams', ['>/dev/full', '>&- 2>&-'])
def test_files_are_complete_without_output(tmp_path, streams):
  line = f'PYTHON -c "{ENTRY.format("partition")}" --output_dir=own {streams}'
  assert shell(line, tmp_path).returncode == 1
  names = ['.safl_tf', 'heterogeneity.json', 'manifest.json', 'partition.png']
  assert sorted(os.listdir(tmp_path / 'own')) == names


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


BROKEN_HPARAMS = {
  'a list': '[]',
  'null': 'null',
  'a number': '3',
  'a string': '"x"',
  'empty': '',
  'no JSON': '{"format":',
  'no flags': f'{{"format": {metrics_log.FORMAT}}}',
  'flags a list': f'{{"format": {metrics_log.FORMAT}, "flags": []}}',
  'flags null': f'{{"format": {metrics_log.FORMAT}, "flags": null}}',
  'no text': b'\xff\xfe\x00',
}
HEADER = ','.join(metrics_log.COLUMNS)
ZEROS = ',0' * (len(metrics_log.COLUMNS) - 1)
BROKEN_METRICS = {
  'empty': '',
  'another header': 'a,b\n1,2\n',
  'a column less': f'{HEADER[:-7]}\n1{ZEROS[:-2]}\n',
  'words': f'{HEADER}\n{HEADER}\n',
  'a missing round': f'{HEADER}\n{ZEROS}\n',
  'another first round': f'{HEADER}\n2{ZEROS}\n',
  'a fraction of a round': f'{HEADER}\n0.5{ZEROS}\n',
  'no text': b'\xff\xfe\x00',
}


@pytest.fixture
def run(tmp_path):
  """A finished run of one round beside others, and how to change its files."""
  config = programs.config(
    f'--output_dir={tmp_path}/b', '--experiment=x_seed0', '--rounds=1'
  )
  path = tmp_path / 'a' / 'y_seed0'
  (path / 'checkpoints').mkdir(parents=True)
  (path / 'checkpoints' / 'round_000001.json').write_text('{}')
  (path / 'metrics.csv').write_text(f'{HEADER}\n1{ZEROS}\n')
  metrics_log.write_hparams(path, config.to_dict())
  return config, path


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_a_neighbour_is_found(run):
  config, path = run
  assert sweep.find_finished(config).path == path


@pytest.mark.parametrize('content', BROKEN_HPARAMS)
def test_a_neighbour_with_broken_hparams_is_skipped(run, content):
  config, path = run
  write(path / 'hparams.json', BROKEN_HPARAMS[content])
  assert sweep.find_finished(config) is None


def test_a_neighbour_that_cannot_be_read_is_skipped(run, monkeypatch):
  config, path = run
  listdir = os.listdir

  def refuse(folder='.'):
    if os.fspath(folder).startswith(str(path)):
      raise system_error(errno.EACCES, folder)
    return listdir(folder)

  monkeypatch.setattr(os, 'listdir', refuse)
  assert sweep.find_finished(config) is None


def test_a_broken_run_in_a_comparison_is_named(call, no_tensorflow, tmp_path):
  folder = tmp_path / 'mine'
  (folder / 'fedavg_seed7').mkdir(parents=True)
  (folder / '.safl_tf').write_text('comparison\n')
  (folder / 'fedavg_seed7' / 'hparams.json').write_text('{"format":')
  before = programs.snapshot(tmp_path)
  outcome = call('compare', f'--output_dir={tmp_path}', '--experiment=mine')
  programs.check_refused(
    outcome,
    'compare',
    f'--experiment={folder}/fedavg_seed7: ... hparams.json cannot be parsed',
  )
  assert programs.snapshot(tmp_path) == before


@pytest.mark.parametrize('content', BROKEN_METRICS)
def test_a_neighbour_with_broken_metrics_is_skipped(run, content):
  config, path = run
  write(path / 'metrics.csv', BROKEN_METRICS[content])
  assert sweep.find_finished(config) is None


@pytest.mark.parametrize('name', ['hparams.json', 'metrics.csv', 'checkpoints'])
def test_a_neighbour_with_another_kind_of_file_is_skipped(run, name):
  config, path = run
  if name == 'checkpoints':
    (path / name / 'round_000001.json').unlink()
    (path / name).rmdir()
    (path / name).write_text('')
  else:
    (path / name).unlink()
    (path / name).mkdir()
  assert sweep.find_finished(config) is None
