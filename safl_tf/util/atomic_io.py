"""Atomic file writes.

A file is written under a temporary name in the same directory, synced to disk
and renamed. A killed writer leaves the old file intact, and at most a temporary
file that `remove_leftovers` deletes.
"""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

PREFIX = '.partial-'
SUFFIX = '.tmp'
_LEFTOVER = re.compile(rf'{re.escape(PREFIX)}.*\w{{8}}{re.escape(SUFFIX)}')


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
  """Yields a temporary file that replaces `path` if the block succeeds.

  The directory of `path` must exist.
  """
  folder, name = os.path.split(os.path.abspath(path))
  temporary = os.path.join(
    folder, f'{PREFIX}{name}-{secrets.token_hex(4)}{SUFFIX}'
  )
  try:
    with naming(path), open(temporary, 'xb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):  # the first error is the cause
      os.unlink(temporary)
    raise
  sync_folder(folder)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds the path to an OSError of a file operation that does not name it."""
  try:
    yield
  except OSError as error:
    if error.errno is not None and error.filename is None:
      error.filename = os.fspath(path)
    raise


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
  """Writes bytes atomically."""
  with replacing(path) as file:
    file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
  """Writes text atomically, as UTF-8."""
  write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
  """Writes an object atomically, as JSON with sorted keys."""
  write_text(path, to_json(obj))


def to_json(obj: Any, indent: int | None = 2) -> str:
  """Returns JSON with sorted keys; NumPy scalars become Python numbers.

  With `indent=None` the JSON is one line and several times as fast to write.
  """
  return json.dumps(obj, sort_keys=True, indent=indent, default=_number) + '\n'


def remove_leftovers(folder: str | os.PathLike[str]) -> int:
  """Deletes the temporary files of killed writers; returns their number.

  The caller must hold the lock of the folder, see `output_folder`.
  """
  removed = 0
  with contextlib.suppress(FileNotFoundError):
    for name in os.listdir(folder):
      path = os.path.join(folder, name)
      if _LEFTOVER.fullmatch(name) and not os.path.isdir(path):
        os.unlink(path)
        removed += 1
  return removed


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Syncs a directory's entries to disk, if the file system supports it."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP):
      error.filename = os.fspath(folder)
      raise
  finally:
    os.close(descriptor)


def _number(value: Any) -> Any:
  """Converts a NumPy scalar to a Python number, for JSON."""
  import numpy as np

  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'{value!r} cannot be written as JSON')
