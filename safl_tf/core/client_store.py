"""Stores each client's own model z_k between rounds.

A backend stores a model and returns a handle that reads it back. In memory the
handle is the model itself. In a memory-mapped file the handle owns a slot, and
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


class Backend(Protocol):
  """Stores models for a `ClientStore`."""

  def put(self, model: np.ndarray) -> Any:
    """Stores a model and returns its handle."""

  def get(self, handle: Any) -> np.ndarray:
    """Returns the model of a handle, in an array that never changes."""


class ClientStore:
  """The clients' models; initial ones for clients that never participated.

  A store is a value: `updated` returns a new one, which shares all unchanged
  models, and leaves the old one as it was. It takes space only for clients that
  participated. Threads may read it. `create` makes one.

  Args:
    initial: client -> its initial model, drawn on every access.
    backend: stores the models; in memory by default.
  """

  def __init__(
    self,
    initial: Callable[[int], np.ndarray],
    backend: Backend | None = None,
  ):
    self._initial = initial
    self._backend = backend or _Memory()
    self._handles: dict[int, Any] = {}
    self._versions: dict[int, int] = {}

  def __getitem__(self, k: int) -> np.ndarray:
    handle = self._handles.get(k)
    return self._initial(k) if handle is None else self._backend.get(handle)

  def __len__(self) -> int:
    return len(self._handles)

  def updated(self, models: Mapping[int, np.ndarray]) -> 'ClientStore':
    """Returns the store with the new models of some clients."""
    new = ClientStore(self._initial, self._backend)
    handles = {k: self._backend.put(model) for k, model in models.items()}
    new._handles = self._handles | handles
    new._versions = self._versions | dict.fromkeys(models, _new_version())
    return new

  @property
  def versions(self) -> Mapping[int, int]:
    """Client that participated -> a number unique to its model.

    Unlike the store it keeps no model alive.
    """
    return self._versions

  def changed_since(self, versions: Mapping[int, int] | None) -> list[int]:
    """Returns the sorted clients whose model differs from another store's.

    Args:
      versions: of the other store; None for a store without participants.
    """
    before = versions or {}
    return sorted(k for k, v in self._versions.items() if before.get(k) != v)

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the participants [r] and their models [r, P]."""
    ids = sorted(self._handles)
    models = [self[k] for k in ids]
    return {
      'client_ids': np.asarray(ids, np.int64),
      'client_models': np.stack(models) if models else np.zeros((0, 0)),
    }


def create(
  kind: str,
  initial: Callable[[int], np.ndarray],
  size: int,
  dtype: Any,
  directory: str | os.PathLike[str] | None = None,
) -> ClientStore:
  """Creates a store without participants.

  Args:
    kind: 'ram', or 'mmap' for a temporary file, which takes disk space instead
      of memory and disappears when the process ends, even if it is killed.
    initial: client -> its initial model.
    size: P, the length of a model.
    dtype: of a model.
    directory: of the file; it must exist when the first model is stored. None
      is the system's temporary directory.
  """
  if validation.choice('client_store', kind, choices.CLIENT_STORES) == 'ram':
    return ClientStore(initial)
  return ClientStore(initial, _MappedFile(size, np.dtype(dtype), directory))


class _Memory:
  """Stores models in memory."""

  def put(self, model: np.ndarray) -> np.ndarray:
    is_view = isinstance(model.base, np.ndarray)  # would keep its base alive
    return model.copy() if is_view else model

  def get(self, handle: np.ndarray) -> np.ndarray:
    return handle


class _Slot:
  """A slot of the file, freed with the last reference to this object."""

  __slots__ = ('_free', 'number')

  def __init__(self, number: int, free: list[int]):
    self.number = number
    self._free = free

  def __del__(self) -> None:
    self._free.append(self.number)  # atomic: may run at any time, in any thread


class _MappedFile:
  """Stores models in an unnamed file, mapped in segments as it grows.

  Accessed pages are dropped from the process's memory at once; they stay in the
  system's cache and in the file. A forked child must not store models.
  """

  def __init__(
    self,
    size: int,
    dtype: np.dtype,
    directory: str | os.PathLike[str] | None,
  ):
    self._size = size
    self._dtype = dtype
    self._directory = tempfile.gettempdir() if directory is None else directory
    self._row_bytes = size * dtype.itemsize
    self._rows = max(1, _SEGMENT_BYTES // self._row_bytes)  # in a segment
    self._file: Any = None
    self._segments: list[mmap.mmap] = []
    self._used = 0  # slots ever used
    self._free: list[int] = []  # slots free again
    self._growing = threading.Lock()

  def put(self, model: np.ndarray) -> _Slot:
    if model.shape != (self._size,):
      raise ValueError(f'a model has shape {model.shape}, not ({self._size},)')
    slot = self._take()
    with self._row(slot) as row:
      np.copyto(row, model, casting='equiv')
    return slot

  def get(self, handle: _Slot) -> np.ndarray:
    with self._row(handle) as row:
      return row.copy()

  @contextlib.contextmanager
  def _row(self, slot: _Slot) -> Iterator[np.ndarray]:
    """Maps a slot of the file."""
    segment, row = divmod(slot.number, self._rows)
    mapped, start = self._segments[segment], row * self._row_bytes
    yield np.ndarray(self._size, self._dtype, mapped, start)
    if hasattr(mmap, 'MADV_DONTNEED'):
      mapped.madvise(mmap.MADV_DONTNEED)  # also drops what was read ahead

  def _take(self) -> _Slot:
    """Returns a free slot."""
    with contextlib.suppress(IndexError):
      return _Slot(self._free.pop(), self._free)
    with self._growing:
      number = self._used
      if number == len(self._segments) * self._rows:
        self._grow()
      self._used += 1
    return _Slot(number, self._free)

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
        f"no space for {length / 1e6:.0f} MB more of clients' models "
        f'({error.strerror})',
        os.fspath(self._directory),
      ) from error
    self._segments.append(mmap.mmap(number, length, offset=count * length))
