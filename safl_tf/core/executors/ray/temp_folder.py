"""The temporary folder of a local Ray; those of killed processes are deleted.

A lock in the folder, which the kernel releases when its process ends, says
whether it is in use.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
import time
from typing import IO

_PREFIX = 'safl_ray_'
_LOCK = '.lock'
_NEW_SECONDS = 60.0  # in which a folder may not be locked yet


class TempFolder:
  """A new folder, locked until `close` deletes it.

  Attributes:
    path: the folder.
  """

  def __init__(self) -> None:
    _delete_unused()
    self.path = tempfile.mkdtemp(prefix=_PREFIX)
    self._lock = _locked(pathlib.Path(self.path), 'x')

  def close(self) -> None:
    """Deletes the folder."""
    shutil.rmtree(self.path, ignore_errors=True)
    if self._lock is not None:
      self._lock.close()


def _delete_unused() -> None:
  """Deletes folders of processes that were killed."""
  for folder in pathlib.Path(tempfile.gettempdir()).glob(f'{_PREFIX}*'):
    with contextlib.suppress(OSError):
      found = folder.stat()
      is_own = found.st_uid == os.getuid()
      if is_own and time.time() > found.st_mtime + _NEW_SECONDS:
        lock = _locked(folder, 'r')
        if lock is not None:
          shutil.rmtree(folder, ignore_errors=True)
          lock.close()


def _locked(folder: pathlib.Path, mode: str) -> IO[str] | None:
  """Returns the locked file of a folder; None if another process has it."""
  lock = open(folder / _LOCK, mode)  # noqa: SIM115
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    lock.close()
    return None
  return lock
