"""Each client's own model z_k, between rounds.

Where the models are is up to a backend, which takes a model and returns a handle
that it can be read back with. In memory the handle is the model itself. In a
memory-mapped file it owns a place in the file, and gives it back when the last
store that has the handle is gone: so an old store stays what it was for as long
as anyone has it, and costs nothing afterwards.
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
  """Keeps models; see `ClientStore`."""

  def put(self, model: np.ndarray) -> Any:
    """Keeps a model; returns its handle."""

  def get(self, handle: Any) -> np.ndarray:
    """The model of a handle, in an array that does not change any more."""


class ClientStore:
  """The clients' models; one that never took part has its initial model.

  A store is a value: `updated` gives a new one that shares all models that did
  not change, and the old one stays as it was. It costs memory, or space in a
  file, for the clients that took part, not for all there are. Threads may read
  from it; see `create` for how to make one.

  Args:
    initial: client -> its initial model, drawn when it is first asked for.
    backend: where the models are; in memory by default.
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
    """The store after some clients trained."""
    new = ClientStore(self._initial, self._backend)
    handles = {k: self._backend.put(model) for k, model in models.items()}
    new._handles = self._handles | handles
    new._versions = self._versions | dict.fromkeys(models, _new_version())
    return new

  @property
  def versions(self) -> Mapping[int, int]:
    """The clients that took part -> a number that only this model has.

    Unlike the store it keeps no model alive.
    """
    return self._versions

  def changed_since(self, versions: Mapping[int, int] | None) -> list[int]:
    """The clients, in order, that have another model than a store had.

    Args:
      versions: of that store; None stands for one in which no client took part.
    """
    before = versions or {}
    return sorted(k for k, v in self._versions.items() if before.get(k) != v)

  def to_arrays(self) -> dict[str, np.ndarray]:
    """The clients that took part [r] and their models [r, P], in memory."""
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
  folder: str | os.PathLike[str] | None = None,
) -> ClientStore:
  """A store in which no client took part yet.

  Args:
    kind: 'ram', or 'mmap' for models in a temporary file, which takes disk
      space instead of memory and is gone when the process ends, however it
      ends.
    initial: client -> its initial model.
    size: P, the length of a model.
    dtype: of a model.
    folder: where the file shall be; it must exist when the first model is
      stored. None is the system's folder for such files.
  """
  if validation.choice('client_store', kind, choices.CLIENT_STORES) == 'ram':
    return ClientStore(initial)
  return ClientStore(initial, _MappedFile(size, np.dtype(dtype), folder))


class _Memory:
  """Keeps models in memory."""

  def put(self, model: np.ndarray) -> np.ndarray:
    is_part = isinstance(model.base, np.ndarray)  # would keep the whole alive
    return model.copy() if is_part else model

  def get(self, handle: np.ndarray) -> np.ndarray:
    return handle


class _Slot:
  """A place in the file, which is free again when nobody has this object."""

  __slots__ = ('_free', 'number')

  def __init__(self, number: int, free: list[int]):
    self.number = number
    self._free = free

  def __del__(self) -> None:
    self._free.append(self.number)  # one step: at any time, in any thread


class _MappedFile:
  """Keeps models in a file without a name, mapped piece by piece as it grows.

  What was touched is at once dropped from the process's memory; it stays in the
  system's cache, and in the file. A forked child must not store models.
  """

  def __init__(
    self,
    size: int,
    dtype: np.dtype,
    folder: str | os.PathLike[str] | None,
  ):
    self._size = size
    self._dtype = dtype
    self._folder = tempfile.gettempdir() if folder is None else folder
    self._row_bytes = size * dtype.itemsize
    self._rows = max(1, _SEGMENT_BYTES // self._row_bytes)  # in a segment
    self._file: Any = None
    self._segments: list[mmap.mmap] = []
    self._taken = 0  # slots that were ever in use
    self._free: list[int] = []  # those that are not any more
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
    """A slot's place in the file."""
    segment, row = divmod(slot.number, self._rows)
    mapped, start = self._segments[segment], row * self._row_bytes
    yield np.ndarray(self._size, self._dtype, mapped, start)
    if hasattr(mmap, 'MADV_DONTNEED'):
      mapped.madvise(mmap.MADV_DONTNEED)  # also what was read ahead

  def _take(self) -> _Slot:
    """A slot that nobody has."""
    with contextlib.suppress(IndexError):
      return _Slot(self._free.pop(), self._free)
    with self._growing:
      number = self._taken
      if number == len(self._segments) * self._rows:
        self._grow()
      self._taken += 1
    return _Slot(number, self._free)

  def _grow(self) -> None:
    """Makes room for another segment's models."""
    if self._file is None:
      self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
      weakref.finalize(self, self._file.close)
    unit = mmap.ALLOCATIONGRANULARITY
    length = -(-self._rows * self._row_bytes // unit) * unit
    count = len(self._segments)
    number = self._file.fileno()
    try:
      if hasattr(os, 'posix_fallocate'):  # a full disk is seen now, and told
        os.posix_fallocate(number, count * length, length)
      else:
        os.ftruncate(number, (count + 1) * length)
    except OSError as error:
      os.ftruncate(number, count * length)
      raise OSError(
        error.errno,
        f"no room for {length / 1e6:.0f} MB more of clients' models "
        f'({error.strerror})',
        os.fspath(self._folder),
      ) from error
    self._segments.append(mmap.mmap(number, length, offset=count * length))
