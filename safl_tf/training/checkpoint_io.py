"""Data files of checkpoints, written in one pass and read in pieces.

A data file is an .npz that NumPy can read. It contains arrays of any name and,
for each store, the ids of some clients, `NAME/ids` [c], and their arrays,
`NAME/arrays` [c, ...]. The arrays of a store are never all in memory at once.
"""

import errno
import hashlib
import io
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from safl_tf.core import client_store
from safl_tf.util import atomic_io

_IDS, _ARRAYS = '/ids.npy', '/arrays.npy'  # after the name of a store
_PIECE_BYTES = 64 << 20

File = dict[str, Any]  # name, bytes and sha256
Stores = Mapping[str, client_store.ClientStore]


class CorruptError(Exception):
  """A file is corrupt; the message names it and states the cause."""


def write(
  path: str,
  arrays: Mapping[str, np.ndarray],
  stores: Stores,
  ids: Mapping[str, list[int]],
) -> tuple[File, dict[str, Any], dict[str, str]]:
  """Writes arrays of any dtype but object, and some clients' of each store.

  Returns entries for the manifest: the file's, each array's, and the name of
  each store's dtype.
  """
  dtypes = {}
  with atomic_io.replacing(path) as file:
    writer: Any = _HashingWriter(file)  # implements what zipfile needs
    with zipfile.ZipFile(writer, 'w', zipfile.ZIP_STORED) as archive:
      entries = {
        name: _write_array(writer, archive, f'{name}.npy', array)
        for name, array in arrays.items()
      }
      for name, store in stores.items():
        saved = np.array(ids[name], np.int64)
        _write_array(writer, archive, name + _IDS, saved)
        dtype = _write_clients(archive, name, store, ids[name])
        dtypes[name] = dtype.name
  entry = {
    'name': os.path.basename(path),
    'bytes': writer.bytes,
    'sha256': writer.hash.hexdigest(),
  }
  return entry, entries, dtypes


def check_size(folder: str, file: File) -> str:
  """Returns the path of a data file that exists and has its size."""
  path = os.path.join(folder, file['name'])
  try:
    size = os.path.getsize(path)
  except FileNotFoundError as error:
    raise CorruptError(f'{path} is missing') from error
  if size != file['bytes']:
    raise CorruptError(f'{path} has {size} bytes instead of {file["bytes"]}')
  return path


def verify(folder: str, file: File) -> None:
  """Checks the size and SHA-256 of a data file."""
  path = check_size(folder, file)
  with open(path, 'rb') as opened:
    digest = hashlib.file_digest(opened, 'sha256').hexdigest()
  if digest != file['sha256']:
    raise CorruptError(f'{path} does not match its SHA-256')


def read_arrays(
  folder: str, file: File, entries: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """Reads and verifies the arrays, but not the rest of the file."""
  path = check_size(folder, file)
  arrays = {}
  with open(path, 'rb') as opened:
    for name, entry in entries.items():
      opened.seek(entry['offset'])
      data = opened.read(entry['bytes'])
      if hashlib.sha256(data).hexdigest() != entry['sha256']:
        raise CorruptError(f'{path} does not match its SHA-256 of {name}')
      array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
      arrays[name] = array.view(_dtype(array.dtype, entry['dtype']))
  return arrays


def read_stores(
  folder: str, file: File, dtypes: Mapping[str, str]
) -> Iterator[tuple[str, dict[int, np.ndarray]]]:
  """Yields the stores of a verified file in pieces: name, arrays by client.

  Args:
    folder: of the file.
    file: its entry.
    dtypes: the names of the stores' dtypes.
  """
  path = os.path.join(folder, file['name'])
  try:
    opened = zipfile.ZipFile(path)
  except zipfile.BadZipFile as error:  # of a verified file: the disk failed
    cause = error.__context__
    if not isinstance(cause, OSError):
      cause = OSError(errno.EIO, os.strerror(errno.EIO))
    with atomic_io.naming(path):
      raise cause from None
  with opened as archive:
    for name, dtype_name in dtypes.items():
      with archive.open(name + _IDS) as member:
        ids = np.lib.format.read_array(member, allow_pickle=False).tolist()
      with archive.open(name + _ARRAYS) as member:
        np.lib.format.read_magic(member)
        (_, *shape), _, stored = np.lib.format.read_array_header_1_0(member)
        dtype = _dtype(stored, dtype_name)
        length = math.prod(shape) * dtype.itemsize
        step = max(1, _PIECE_BYTES // max(1, length))
        for i in range(0, len(ids), step):
          yield (
            name,
            {  # each with its own memory, so that each can be freed
              k: np.ndarray(shape, dtype, member.read(length))
              for k in ids[i : i + step]
            },
          )


class _HashingWriter:
  """Writes to a file, and hashes and counts the bytes; cannot seek."""

  def __init__(self, file: Any):
    self._file = file
    self.hash = hashlib.sha256()
    self.bytes = 0

  def write(self, data: bytes) -> int:
    self.hash.update(data)
    self.bytes += len(data)
    return self._file.write(data)

  def flush(self) -> None:
    self._file.flush()


def _write_array(
  writer: _HashingWriter,
  archive: zipfile.ZipFile,
  name: str,
  array: np.ndarray,
) -> dict[str, Any]:
  """Adds an array; returns its entry for the manifest."""
  with archive.open(name, 'w', force_zip64=True) as member:
    offset, inner = writer.bytes, _HashingWriter(member)
    np.lib.format.write_array(inner, array, allow_pickle=False)
  return {
    'dtype': array.dtype.name,
    'offset': offset,
    'bytes': inner.bytes,
    'sha256': inner.hash.hexdigest(),
  }


def _write_clients(
  archive: zipfile.ZipFile,
  name: str,
  store: client_store.ClientStore,
  ids: list[int],
) -> np.dtype:
  """Adds some clients' arrays of a store; returns their dtype."""
  some_id = next(iter(store.versions), None)
  like = np.zeros(0) if some_id is None else store[some_id]
  header = {
    'descr': np.lib.format.dtype_to_descr(like.dtype),
    'fortran_order': False,
    'shape': (len(ids), *like.shape),
  }
  with archive.open(name + _ARRAYS, 'w', force_zip64=True) as member:
    np.lib.format.write_array_header_1_0(member, header)
    for k in ids:
      array = store[k]
      if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ValueError(f'{name} of client {k} has another type')
      member.write(array.tobytes())
  return like.dtype


def _dtype(stored: np.dtype, name: str) -> np.dtype:
  """Returns the dtype by name where .npy stores only bytes, as bfloat16."""
  dtype = stored
  if stored.name != name and stored.kind == 'V':
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
  if dtype.hasobject:  # NumPy would take the bytes of the file for addresses
    raise CorruptError(f'an array of {name} holds Python objects')
  return dtype
