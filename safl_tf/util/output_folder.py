"""Output folders: marked as written by safl_tf, and locked by one process.

Programs write only into a folder that is new, empty, or marked by a file
`.safl_tf` with the kind of its contents, such as `run`. The mark is the first
file in a folder and stays; it is also the lock of the folder, which the kernel
releases when the process ends.
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from safl_tf.util import errors

MARK = '.safl_tf'

Path = str | os.PathLike[str]


def check(path: Path, kind: str, argument: str, is_own: bool = False) -> None:
  """Refuses a folder that others own or that cannot be written to.

  Args:
    path: the folder; need not exist.
    kind: of the contents: 'run', 'comparison', ...
    argument: the argument or flag that gave the folder, for errors.
    is_own: whether the contents prove the kind, even if the mark was lost.
  """
  folder = pathlib.Path(path)
  existing = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
  if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
    hint = f'{existing} is not a folder that can be written to'
    raise errors.InputError(argument, path, hint)
  if existing != folder:
    return
  names = sorted(os.listdir(folder))
  if MARK in names:
    found = (folder / MARK).read_text(encoding='utf-8').strip()
    if found not in ('', kind):
      raise errors.InputError(
        argument, path, f'is the folder of a {found}; choose another folder'
      )
  elif names and not is_own:
    raise errors.InputError(
      argument,
      path,
      f'has files that safl_tf did not write, such as {names[0]}; choose a new '
      'or an empty folder',
    )


@contextlib.contextmanager
def opened(
  path: Path, kind: str, argument: str, is_own: bool = False
) -> Iterator[None]:
  """Creates, marks and locks a folder; see `check`.

  Raises:
    errors.InputError: the folder belongs to others or is being written to.
  """
  check(path, kind, argument, is_own)  # before anything is created
  os.makedirs(path, exist_ok=True)
  lock = os.open(os.path.join(path, MARK), os.O_RDWR | os.O_CREAT, 0o644)
  try:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise errors.InputError(
        argument,
        path,
        'another process is writing to this folder; wait until it ends or '
        'choose another folder',
      ) from error
    check(path, kind, argument, is_own)
    if not os.fstat(lock).st_size:
      os.write(lock, f'{kind}\n'.encode())
      os.fsync(lock)
    try:
      yield
    finally:
      fcntl.flock(lock, fcntl.LOCK_UN)  # for forked children too
  finally:
    os.close(lock)
