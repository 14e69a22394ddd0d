"""Stores arrays of clients between rounds: their own models z_k, and others.

A backend stores an array and returns a handle that reads it back. In memory the
handle has the array itself. In a memory-mapped file the handle owns a slot, and
frees it when the last store that has the handle is gone. So an old store stays
valid for as long as it is referenced, and costs nothing afterwards.
"""

import contextlib
import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from safl_tf.util import choices, validation

_SEGMENT_BYTES = 64 << 20
_new_version = itertools.count(1).__next__


class Handle(Protocol):
  """An array in a backend, which keeps it while the handle exists."""

  @property
  def backend(self) -> 'Backend':
    """The backend with the array."""

  def read(self) -> np.ndarray:
    """Returns the array; it never changes."""


class Backend(Protocol):
  """Stores arrays for a `ClientStore`."""

  def put(self, array: np.ndarray) -> Handle:
    """Stores an array and returns its handle."""


class ClientStore:
  """An array of each client; initial ones for clients that have none stored.

  The arrays have any shape, and any dtype but object, the same for all clients.
  A client with several arrays, such as a model and a control variate, has one
  in each of several stores.

  A store is a value: `updated` returns a new one, which shares all unchanged
  arrays, and leaves the old one as it was. It takes space only for clients with
  a stored array. Threads may read it. `create` makes one.

  Args:
    initial: client -> its initial array, drawn on every access.
    backend: stores the arrays; in memory by default.
  """

  def __init__(
    self,
    initial: Callable[[int], np.ndarray],
    backend: Backend | None = None,
  ):
    self._initial = initial
    self._backend = backend or _Memory()
    self._handles: dict[int, Handle] = {}
    self._versions: dict[int, int] = {}

  def __getitem__(self, k: int) -> np.ndarray:
    handle = self._handles.get(k)
    return self._initial(k) if handle is None else handle.read()

  def __len__(self) -> int:
    return len(self._handles)

  # Every client has an array, so that a loop over them would never end.
  __iter__ = None

  def put(self, array: np.ndarray) -> Handle:
    """Stores an array for `updated`; it takes space while the handle exists."""
    if array.dtype.hasobject:
      raise ValueError(f'an array has dtype {array.dtype}')
    return self._backend.put(array)

  def updated(self, arrays: Mapping[int, np.ndarray | Handle]) -> 'ClientStore':
    """Returns the store with new arrays of some clients.

    Args:
      arrays: client -> its array, or a handle that `put` returned.
    """
    new = ClientStore(self._initial, self._backend)
    handles = {k: self._handle(array) for k, array in arrays.items()}
    new._handles = self._handles | handles
    new._versions = self._versions | dict.fromkeys(arrays, _new_version())
    return new

  def on(
    self, kind: str, directory: str | os.PathLike[str] | None = None
  ) -> 'ClientStore':
    """Returns a store of another kind that has the initial arrays only.

    Args:
      kind: see `create`.
      directory: see `create`.
    """
    return create(kind, self._initial, directory)

  @property
  def versions(self) -> Mapping[int, int]:
    """Client with a stored array -> a number unique to that array.

    Unlike the store it keeps no array alive.
    """
    return self._versions

  def changed_since(self, versions: Mapping[int, int] | None) -> list[int]:
    """Returns the sorted clients whose array differs from another store's.

    Args:
      versions: of the other store; None for a store of initial arrays.
    """
    before = versions or {}
    return sorted(k for k, v in self._versions.items() if before.get(k) != v)

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns `ids` [r] and `arrays` [r, ...], of clients with a stored one."""
    ids = sorted(self._handles)
    arrays = [self[k] for k in ids]
    return {
      'ids': np.asarray(ids, np.int64),
      'arrays': np.stack(arrays) if arrays else np.zeros((0, 0)),
    }

  def _handle(self, array: np.ndarray | Handle) -> Handle:
    if isinstance(array, np.ndarray):
      return self.put(array)
    if getattr(array, 'backend', None) is not self._backend:
      raise ValueError(f'{array!r:.60} is no array and no handle of this store')
    return array


def create(
  kind: str,
  initial: Callable[[int], np.ndarray],
  directory: str | os.PathLike[str] | None = None,
) -> ClientStore:
  """Creates a store of initial arrays.

  Args:
    kind: 'ram', or 'mmap' for a temporary file, which takes disk space instead
      of memory and disappears when the process ends, even if it is killed. Its
      first array determines shape and dtype of the others.
    initial: client -> its initial array.
    directory: of the file; it must exist when the first array is stored. None
      is the system's temporary directory.
  """
  if validation.choice('client_store', kind, choices.CLIENT_STORES) == 'ram':
    return ClientStore(initial)
  return ClientStore(initial, _MappedFile(directory))


class _Array:
  """A handle of an array in memory."""

  __slots__ = ('_array', 'backend')

  def __init__(self, array: np.ndarray, backend: Backend):
    is_view = isinstance(array.base, np.ndarray)  # would keep its base alive
    self._array = array.copy() if is_view else array
    self.backend = backend

  def read(self) -> np.ndarray:
    return self._array


class _Memory:
  """Stores arrays in memory."""

  def put(self, array: np.ndarray) -> Handle:
    return _Array(array, self)


class _Slot:
  """A slot of the file, freed with the last reference to this object."""

  __slots__ = ('backend', 'number')

  def __init__(self, number: int, backend: '_MappedFile'):
    self.number = number
    self.backend = backend

  def __del__(self) -> None:
    # Atomic: may run at any time, in any thread.
    self.backend.free.append(self.number)

  def read(self) -> np.ndarray:
    with self.backend.row(self.number) as row:
      return row.copy()


class _MappedFile:
  """Stores arrays in an unnamed file, mapped in segments as it grows.

  Accessed pages are dropped from the process's memory at once; they stay in the
  system's cache and in the file. A forked child must not store arrays.
  """

  def __init__(self, directory: str | os.PathLike[str] | None):
    self._directory = tempfile.gettempdir() if directory is None else directory
    self._type: tuple[tuple[int, ...], np.dtype] | None = None
    self._row_bytes = self._rows = 0  # of an array; in a segment
    self._file: Any = None
    self._segments: list[mmap.mmap] = []
    self._used = 0  # slots ever used
    self.free: list[int] = []  # slots free again
    self._growing = threading.Lock()

  def put(self, array: np.ndarray) -> Handle:
    self._check(array)
    if not array.nbytes:
      return _Array(array, self)
    slot = self._take()
    with self.row(slot.number) as row:
      row[...] = array
    return slot

  @contextlib.contextmanager
  def row(self, number: int) -> Iterator[np.ndarray]:
    """Maps a slot of the file."""
    assert self._type is not None
    segment, row = divmod(number, self._rows)
    mapped, start = self._segments[segment], row * self._row_bytes
    yield np.ndarray(*self._type, mapped, start)
    if hasattr(mmap, 'MADV_DONTNEED'):
      mapped.madvise(mmap.MADV_DONTNEED)  # also drops what was read ahead

  def _check(self, array: np.ndarray) -> None:
    """Refuses an array of another type than the first one's."""
    with self._growing:
      if self._type is None:
        self._type = array.shape, array.dtype
        self._row_bytes = array.nbytes
        self._rows = max(1, _SEGMENT_BYTES // max(1, array.nbytes))
    if (array.shape, array.dtype) != self._type:
      shape, dtype = self._type
      raise ValueError(
        f'an array is {array.dtype} {list(array.shape)}, but the others of the '
        f'store are {dtype} {list(shape)}'
      )

  def _take(self) -> _Slot:
    """Returns a free slot."""
    with contextlib.suppress(IndexError):
      return _Slot(self.free.pop(), self)
    with self._growing:
      number = self._used
      if number == len(self._segments) * self._rows:
        self._grow()
      self._used += 1
    return _Slot(number, self)

  def _grow(self) -> None:
    """Appends a segment to the file."""
    if self._file is None:
      from safl_tf.util import atomic_io

      self._file = tempfile.TemporaryFile(  # noqa: SIM115
        dir=self._directory,
        prefix=atomic_io.PREFIX,  # `remove_leftovers` deletes it where
        suffix=atomic_io.SUFFIX,  # the file system has no unnamed files
      )
      weakref.finalize(self, self._file.close)
    unit = mmap.ALLOCATIONGRANULARITY
    length = -(-self._rows * self._row_bytes // unit) * unit
    count = len(self._segments)
    number = self._file.fileno()
    try:
      if hasattr(os, 'posix_fallocate'):  # a full disk fails now
        os.posix_fallocate(number, count * length, length)
      else:
        os.ftruncate(number, (count + 1) * length)
    except OSError as error:
      os.ftruncate(number, count * length)
      raise OSError(
        error.errno,
        f"no space for {length / 1e6:.0f} MB more of clients' arrays "
        f'({error.strerror})',
        os.fspath(self._directory),
      ) from error
    self._segments.append(mmap.mmap(number, length, offset=count * length))
