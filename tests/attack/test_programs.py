"""Failures around a program: one line, the right exit code, no traceback."""

import errno
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from binaries import program
from safl_tf.util import atomic_io, errors
from tests import marks
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


def test_an_error_of_tensorflow_without_a_path(monkeypatch, capfd, tmp_path):
  (tmp_path / 'logdir').write_text('')

  def main(flags):
    with program.locating(tmp_path):
      tf.summary.create_file_writer(str(tmp_path / 'logdir'))

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


@pytest.mark.parametrize(
  'number',
  marks.some([errno.ENOSPC, errno.EACCES, errno.EIO], [errno.ENOSPC]),
)
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
