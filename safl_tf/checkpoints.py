"""What a run can be resumed from.

A checkpoint of round 12 is two files: `round_000012.npz` with the arrays and
`round_000012.json`, its manifest, with the size and SHA-256 of the first, the
run's metadata and a checksum over itself. The manifest is written last and
removed first, so a checkpoint is there if and only if its manifest is. Nothing
is pickled.
"""

import hashlib
import json
import os
import re
import zipfile
from typing import Any, BinaryIO, cast

import numpy as np
from absl import logging

from safl_tf import checks, errors, files

_NAME = re.compile(r'round_(\d{6,})\.(npz|json)')
_CORRUPT = '.corrupt'


class Checkpoints:
  """The checkpoints in one folder.

  Only one process at a time may write there: see `files.run_lock`.
  """

  def __init__(self, folder: str | os.PathLike[str], keep: int = 2):
    """Makes nothing on the disk yet.

    Args:
      folder: where the checkpoints are; made by the first `save`.
      keep: how many of the newest are kept.
    """
    self.folder = os.fspath(folder)
    self.keep = checks.integer('keep', keep, 1)

  def rounds(self) -> list[int]:
    """The rounds that have a checkpoint, oldest first; none is verified."""
    return self._numbers('json')

  def save(
    self,
    round_number: int,
    arrays: dict[str, np.ndarray],
    meta: dict[str, Any],
  ) -> int:
    """Writes a checkpoint, then removes those beyond `keep`.

    Args:
      round_number: a round after every one that has a checkpoint.
      arrays: arrays of any shape and of any dtype but object, by name.
      meta: what JSON can hold; tuples come back as lists, keys as strings.

    Returns:
      The number of bytes written.
    """
    existing = self.rounds()
    if existing and round_number <= existing[-1]:
      raise ValueError(
        f'round {round_number} cannot be saved after round {existing[-1]}'
      )
    os.makedirs(self.folder, exist_ok=True)
    files.remove_leftovers(self.folder)

    data = self._path(round_number, 'npz')
    with files.replacing(data) as file:
      digest = _write_arrays(file, arrays)
    manifest = {
      'round': round_number,
      'bytes': os.path.getsize(data),
      'sha256': digest,
      'dtypes': {name: array.dtype.name for name, array in arrays.items()},
      'meta': meta,
    }
    manifest = json.loads(files.to_json(manifest))  # as it will be read back
    manifest['checksum'] = _checksum(manifest)
    path = self._path(round_number, 'json')
    files.write_json(path, manifest)

    self._remove_old()
    return manifest['bytes'] + os.path.getsize(path)

  def restore_latest(
    self, repair: bool = True
  ) -> tuple[int, dict[str, np.ndarray], dict[str, Any]] | None:
    """Reads the newest checkpoint that verifies.

    Newer ones that don't verify are reported and renamed to `*.corrupt`.

    Args:
      repair: whether to rename; not if another process may be training here.

    Returns:
      (round, arrays, meta), or None when the folder has no checkpoint.

    Raises:
      errors.InputError: there are checkpoints and all of them are corrupt.
        None is renamed then, so that a run is never restarted in silence.
    """
    corrupt: list[tuple[int, _CorruptError]] = []
    for number in reversed(self.rounds()):
      try:
        arrays, meta = self._read(number)
      except _CorruptError as error:
        corrupt.append((number, error))
        continue
      for bad, wrong in corrupt:
        logging.warning(
          'Checkpoint %s; falling back to round %d.', wrong, number
        )
        if repair:
          self._set_aside(bad)
      return number, arrays, meta
    if corrupt:
      raise errors.InputError(
        'experiment',
        self.folder,
        f'all checkpoints are corrupt ({"; ".join(str(e) for _, e in corrupt)})'
        '; a new --experiment starts afresh',
      )
    return None

  def _read(self, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, meta) of a round's checkpoint, verified."""
    manifest = _read_manifest(self._path(number, 'json'), number)
    path = self._path(number, 'npz')
    try:
      with open(path, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        if size != manifest['bytes']:
          raise _CorruptError(
            f'{path} has {size} bytes instead of {manifest["bytes"]}'
          )
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
        if digest != manifest['sha256']:
          raise _CorruptError(f'{path} does not match its SHA-256')
        file.seek(0)
        return _read_arrays(file, manifest['dtypes']), manifest['meta']
    except FileNotFoundError as error:
      raise _CorruptError(f'{path} is missing') from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
      raise _CorruptError(f'{path} cannot be parsed: {error}') from error

  def _remove_old(self) -> None:
    """Removes checkpoints beyond `keep` and data that has no manifest."""
    rounds = self.rounds()
    for number in rounds[: -self.keep]:
      os.unlink(self._path(number, 'json'))
    files.sync_folder(self.folder)
    for number in set(self._numbers('npz')) - set(rounds[-self.keep :]):
      os.unlink(self._path(number, 'npz'))

  def _set_aside(self, number: int) -> None:
    """Renames a checkpoint so that it counts no more: the manifest first."""
    for kind in ('json', 'npz'):
      path = self._path(number, kind)
      if os.path.exists(path):
        os.replace(path, path + _CORRUPT)

  def _path(self, number: int, kind: str) -> str:
    return os.path.join(self.folder, f'round_{number:06d}.{kind}')

  def _numbers(self, kind: str) -> list[int]:
    """The rounds of the files of one kind, in order."""
    if not os.path.isdir(self.folder):
      return []
    matches = map(_NAME.fullmatch, os.listdir(self.folder))
    return sorted(int(m[1]) for m in matches if m and m[2] == kind)


class _CorruptError(Exception):
  """Names a file and says what is wrong with it."""


class _HashingWriter:
  """Passes bytes on to a file and hashes them; cannot seek."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.hash = hashlib.sha256()

  def write(self, data: Any) -> int:
    self.hash.update(data)
    return self._file.write(data)

  def flush(self) -> None:
    self._file.flush()


def _write_arrays(file: BinaryIO, arrays: dict[str, np.ndarray]) -> str:
  """Writes an uncompressed .npz in one pass; returns its SHA-256.

  `np.savez` takes the names as keyword arguments, some of which it keeps for
  itself; here any name will do.
  """
  writer = _HashingWriter(file)
  file = cast(BinaryIO, writer)  # as much of one as zipfile needs
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED) as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)
  return writer.hash.hexdigest()


def _read_arrays(
  file: BinaryIO, dtypes: dict[str, str]
) -> dict[str, np.ndarray]:
  """The arrays of an .npz; dtypes that it doesn't know come back by name."""
  arrays = {}
  with np.load(file, allow_pickle=False) as archive:
    for name, dtype in dtypes.items():
      array = archive[name]
      if array.dtype.name != dtype and array.dtype.kind == 'V':
        import ml_dtypes  # bfloat16 and its kin, which .npy keeps as raw bytes

        array = array.view(getattr(ml_dtypes, dtype))
      arrays[name] = array
  return arrays


def _read_manifest(path: str, number: int) -> dict[str, Any]:
  """A manifest that is what was written for this round."""
  try:
    with open(path, encoding='utf-8') as file:
      manifest = json.load(file)
  except (ValueError, RecursionError) as error:
    raise _CorruptError(f'{path} cannot be parsed: {error}') from error
  checksum = manifest.pop('checksum', None) if type(manifest) is dict else None
  if checksum is None or checksum != _checksum(manifest):
    raise _CorruptError(f'{path} does not match its checksum')
  if manifest['round'] != number:
    raise _CorruptError(f'{path} is of round {manifest["round"]}')
  return manifest


def _checksum(manifest: dict[str, Any]) -> str:
  """SHA-256 over a manifest's content, whatever its layout."""
  return hashlib.sha256(files.to_json(manifest).encode()).hexdigest()
