"""Output folders: marked as written by safl_tf, and locked by one process.

Programs write only into a folder that is new, empty, or marked by a file
`.safl_tf` with the kind of its contents, such as `run`. The mark is the first
file in a folder and stays; it is also the lock of the folder, which the kernel
releases when the process ends. A folder inside a marked one must belong there,
as the runs of a comparison do.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
from collections.abc import Iterator

from safl_tf.util import atomic_io, errors

MARK = '.safl_tf'
# Kind of a folder -> the kinds of folders that it may be directly inside of.
_PARENTS = {
  'run': ('comparison', 'reproduction', 'sweep'),
  'export': ('run',),
  'clients': ('partition',),
}

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
  try:
    names = sorted(os.listdir(folder))
  except FileNotFoundError:
    names = []
  except OSError as error:
    if error.errno != errno.ENAMETOOLONG:
      raise
    hint = f'must be the name of a folder ({error.strerror})'
    raise errors.InputError(argument, path, hint) from error
  if MARK in names:
    marked = _kind(folder)
    if marked not in ('', kind):
      hint = f'is the folder of a {marked}; choose another folder'
      raise errors.InputError(argument, path, hint)
  elif names and not is_own:
    raise errors.InputError(
      argument,
      path,
      f'has files that safl_tf did not write, such as {names[0]}; choose a new '
      'or an empty folder',
    )
  parents = folder.resolve().parents
  parent = next((p for p in parents if (p / MARK).is_file()), None)
  if parent and _kind(parent) not in ('', *_PARENTS.get(kind, ())):
    hint = f'is inside {parent}, the folder of a {_kind(parent)}'
    raise errors.InputError(argument, path, f'{hint}; choose another folder')


def _kind(folder: pathlib.Path) -> str:
  """Returns the kind in a folder's mark."""
  with open(folder / MARK, encoding='utf-8', errors='replace') as mark:
    return mark.read(40).strip()


@contextlib.contextmanager
def opened(
  path: Path, kind: str, argument: str, is_own: bool = False
) -> Iterator[None]:
  """Creates, marks and locks a folder; see `check`.

  Deletes the temporary files that killed writers left in it.

  Raises:
    errors.InputError: the folder belongs to others or is being written to.
  """
  check(path, kind, argument, is_own)  # before anything is created
  os.makedirs(path, exist_ok=True)
  mark = os.path.join(path, MARK)
  lock = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
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
      with atomic_io.naming(mark):
        os.write(lock, f'{kind}\n'.encode())
        os.fsync(lock)
    for folder, subfolders, names in os.walk(path):
      if folder != os.fspath(path) and MARK in names:
        subfolders.clear()  # has a lock of its own
      else:
        atomic_io.remove_leftovers(folder)
    try:
      yield
    finally:
      fcntl.flock(lock, fcntl.LOCK_UN)  # for forked children too
  finally:
    os.close(lock)
