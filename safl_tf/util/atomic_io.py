"""Files that are either wholly there or not there at all.

A file is written under a temporary name beside its place, forced to the disk
and renamed. Whoever is killed half-way leaves the old file untouched and at
most a leftover with a name of its own, which `remove_leftovers` clears away.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from safl_tf.util import errors

PREFIX = '.partial-'
SUFFIX = '.tmp'


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
  """A file to write to, which becomes `path` when the block ends well.

  Args:
    path: where the file shall be. Its folder must exist.

  Yields:
    The temporary file, open for writing.
  """
  folder, name = os.path.split(os.path.abspath(path))
  temporary = os.path.join(
    folder, f'{PREFIX}{name}-{secrets.token_hex(4)}{SUFFIX}'
  )
  try:
    with open(temporary, 'xb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise
  sync_folder(folder)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
  """Puts `data` in the file, atomically."""
  with replacing(path) as file:
    file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
  """Puts `text` in the file as UTF-8, atomically."""
  write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
  """Puts `obj` in the file as JSON with sorted keys, atomically."""
  write_text(path, to_json(obj))


def to_json(obj: Any, indent: int | None = 2) -> str:
  """JSON with sorted keys; NumPy's scalars are written as Python's numbers.

  Without `indent` it is in one line, and several times as quick.
  """
  return json.dumps(obj, sort_keys=True, indent=indent, default=_number) + '\n'


def remove_leftovers(folder: str | os.PathLike[str]) -> int:
  """Removes what killed writers left in the folder; returns how many files.

  Only for a folder that no other process writes to at that time: see
  `run_lock`.
  """
  removed = 0
  with contextlib.suppress(FileNotFoundError):
    for name in os.listdir(folder):
      if name.startswith(PREFIX) and name.endswith(SUFFIX):
        os.unlink(os.path.join(folder, name))
        removed += 1
  return removed


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Forces the folder's names to the disk, where the file system can."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP):
      raise
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def run_lock(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Holds the folder of a run, which is made if it isn't there.

  The kernel lets go of the lock when the process ends, however it ends.

  Args:
    folder: the run's folder; the lock is its file `.lock`, which stays.

  Yields:
    Nothing.

  Raises:
    errors.InputError: another process holds the folder, or it cannot be made.
  """
  try:
    os.makedirs(folder, exist_ok=True)
    lock = os.open(os.path.join(folder, '.lock'), os.O_RDWR | os.O_CREAT)
  except OSError as error:
    raise errors.InputError(
      'experiment', folder, f'cannot be written to: {error.strerror}'
    ) from error
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    os.close(lock)
    raise errors.InputError(
      'experiment',
      folder,
      'another process is training in this folder; wait until it ends or '
      'choose another --experiment',
    ) from error
  try:
    yield
  finally:
    fcntl.flock(lock, fcntl.LOCK_UN)  # for forked children too
    os.close(lock)


def _number(value: Any) -> Any:
  """What JSON writes for a value that it doesn't know."""
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'{value!r} cannot be written as JSON')
