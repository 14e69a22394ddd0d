"""Makes the N-th file operation in a folder fail, as a bad disk would."""

import builtins
import contextlib
import io
import os

import pytest

# Functions of os whose first argument is a path or a file descriptor.
_OS = (
  'fsync',
  'link',
  'listdir',
  'mkdir',
  'open',
  'remove',
  'rename',
  'replace',
  'rmdir',
  'scandir',
  'truncate',
  'unlink',
  'write',
)
_FILE = ('flush', 'read', 'readinto', 'write')


class Disk:
  """Counts the operations in a folder and fails some of them.

  Attributes:
    operations: the names of all operations so far.
    failed: how many of them failed.
  """

  def __init__(self, folder, fails, code):
    self._folder = os.path.realpath(folder)
    self._fails = fails
    self._code = code
    self.operations = []
    self.failed = 0

  def check(self, name, place):
    """Counts an operation in the folder; raises an OSError if it fails."""
    path = self._path(place)
    if path is None or not path.startswith(self._folder):
      return
    self.operations.append(name)
    if self._fails(len(self.operations)):
      self.failed += 1
      raise OSError(self._code, os.strerror(self._code), path)

  def _path(self, place):
    if isinstance(place, int):
      with contextlib.suppress(OSError):
        return os.readlink(f'/proc/self/fd/{place}')
      return None
    with contextlib.suppress(TypeError):
      return os.path.realpath(os.fsdecode(place))
    return None


class _File:
  """A file whose operations may fail."""

  def __init__(self, file, disk, path):
    self._file = file
    self._disk = disk
    self._path = path

  def __getattr__(self, name):
    value = getattr(self._file, name)
    if name not in _FILE:
      return value

    def call(*args):
      self._disk.check(name, self._path)
      return value(*args)

    return call

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._file.close()

  def __iter__(self):
    return iter(self._file)


@contextlib.contextmanager
def disk(folder, fails=lambda number: False, code=0):
  """Yields the `Disk` that all Python code in this process uses meanwhile."""
  faulty = Disk(folder, fails, code)
  really_open = builtins.open

  def open_(file, *args, **kwargs):
    faulty.check('open', file)
    opened = really_open(file, *args, **kwargs)
    return _File(opened, faulty, file)

  def wrap(name):
    function = getattr(os, name)

    def call(place='.', *args, **kwargs):
      faulty.check(name, place)
      return function(place, *args, **kwargs)

    return call

  with pytest.MonkeyPatch.context() as patch:
    for name in _OS:
      patch.setattr(os, name, wrap(name))
    patch.setattr(builtins, 'open', open_)
    patch.setattr(io, 'open', open_)
    yield faulty
