"""Data files of checkpoints, written in one pass and read in pieces.

A data file is an .npz that NumPy can read. It contains arrays of any name, the
ids of some clients, `client_ids` [c], and their models, `client_models` [c, P].
The models are never all in memory at once.
"""

import errno
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from safl_tf.core import client_store
from safl_tf.util import atomic_io

_IDS, _MODELS = 'client_ids.npy', 'client_models.npy'
_PIECE_BYTES = 64 << 20

File = dict[str, Any]  # name, bytes, sha256 and model_dtype


class CorruptError(Exception):
  """A file is corrupt; the message names it and states the cause."""


def write(
  path: str,
  arrays: Mapping[str, np.ndarray],
  client_models: client_store.ClientStore | None = None,
  ids: Sequence[int] = (),
) -> tuple[File, dict[str, Any]]:
  """Writes arrays of any dtype but object, and the models of some clients.

  Without `client_models` it writes the arrays alone.

  Returns the file's entry for the manifest, and that of each array.
  """
  like = np.zeros(0)
  if client_models is not None and client_models.versions:
    like = client_models[next(iter(client_models.versions))]
  with atomic_io.replacing(path) as file:
    writer: Any = _HashingWriter(file)  # implements what zipfile needs
    with zipfile.ZipFile(writer, 'w', zipfile.ZIP_STORED) as archive:
      entries = {
        name: _write_array(writer, archive, f'{name}.npy', array)
        for name, array in arrays.items()
      }
      if client_models is not None:
        _write_array(writer, archive, _IDS, np.array(ids, np.int64))
        _write_models(archive, client_models, ids, like)
  entry = {
    'name': os.path.basename(path),
    'bytes': writer.bytes,
    'sha256': writer.hash.hexdigest(),
    'model_dtype': like.dtype.name,
  }
  return entry, entries


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


def read_models(folder: str, file: File) -> Iterator[dict[int, np.ndarray]]:
  """Yields the models of a verified file in pieces, by client."""
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
    with archive.open(_IDS) as member:
      ids = np.lib.format.read_array(member, allow_pickle=False).tolist()
    with archive.open(_MODELS) as member:
      np.lib.format.read_magic(member)
      (_, size), _, stored = np.lib.format.read_array_header_1_0(member)
      dtype = _dtype(stored, file['model_dtype'])
      length = size * dtype.itemsize
      step = max(1, _PIECE_BYTES // max(1, length))
      for i in range(0, len(ids), step):
        yield {  # each with its own memory, so that each can be freed
          k: np.frombuffer(member.read(length), dtype)
          for k in ids[i : i + step]
        }


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


def _write_models(
  archive: zipfile.ZipFile,
  client_models: client_store.ClientStore,
  ids: Sequence[int],
  like: np.ndarray,
) -> None:
  """Adds the array of models, all with the shape and dtype of `like`."""
  header = {
    'descr': np.lib.format.dtype_to_descr(like.dtype),
    'fortran_order': False,
    'shape': (len(ids), like.size),
  }
  with archive.open(_MODELS, 'w', force_zip64=True) as member:
    np.lib.format.write_array_header_1_0(member, header)
    for k in ids:
      model = client_models[k]
      if (model.shape, model.dtype) != (like.shape, like.dtype):
        raise ValueError(f'the model of client {k} has another type')
      member.write(model.tobytes())


def _dtype(stored: np.dtype, name: str) -> np.dtype:
  """Returns the dtype by name where .npy stores only bytes, as bfloat16."""
  if stored.name == name or stored.kind != 'V':
    return stored
  import ml_dtypes

  return np.dtype(getattr(ml_dtypes, name))
