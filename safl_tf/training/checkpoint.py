"""Incremental, verified checkpoints.

The checkpoint of round 12 consists of two files: `round_000012.npz` with the
arrays, and the manifest `round_000012.json` with the run's metadata, the size
and SHA-256 of the data file and a checksum of itself. The manifest is written
last and deleted first, so that a checkpoint exists if and only if its manifest
does. Nothing is pickled, and all data are verified when they are read.

A checkpoint builds on its base: the last but one checkpoint. So the checkpoints
form two chains in turn, and the newest two have no file in common: damage to
any one file leaves one of them usable. With `keep=1` there is one chain, and
the base is the last checkpoint.

A data file contains, for each store of clients' arrays, such as their models,
the clients `NAME/ids` [c] and arrays `NAME/arrays` [c, ...] that changed since
the base. The manifest lists under `files`, oldest first, the earlier data files
with the other clients' arrays, and its own data file; the last occurrence of an
array is valid. A data file is kept while a checkpoint needs it. A checkpoint
has the arrays of all clients, and needs no earlier file,

- if at least half of the bytes of clients' arrays changed since the base,
- if its files together would be twice as large as that one file,
- if it would need more than `_MAX_FILES` files, or
- if this process has neither saved nor restored the base, as in the first
  checkpoint of a resumed run with `keep` of 2 or more.

So in a run in which all clients participate, each checkpoint is independent. In
other runs a chain gets at most twice the arrays that changed since its last
checkpoint (plus 1/200 of all), and a checkpoint's files are at most twice as
large as all arrays. The second chain at most doubles both.

The manifest also has the dtype of each store, and the offset and SHA-256 of
each other array, so that the global model can be read without the stores.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from safl_tf.core import client_store
from safl_tf.training import checkpoint_io
from safl_tf.training import hparams as hparams_lib
from safl_tf.util import atomic_io, errors, validation

_NAME = re.compile(r'round_(\d{6,})\.(npz|json)')
_MAX_FILES = 200


class Restored(NamedTuple):
  """A checkpoint of a round; `stores` is empty unless requested."""

  round_number: int
  arrays: dict[str, np.ndarray]
  meta: dict[str, Any]
  stores: dict[str, client_store.ClientStore]


class _Base(NamedTuple):
  """A checkpoint saved or restored, on which a later one may build."""

  round_number: int
  files: list[checkpoint_io.File]
  versions: dict[str, Mapping[int, int]]  # of each store


class Checkpoints:
  """The checkpoints in a directory.

  Only one process at a time may write them: see `output_folder`.

  Args:
    folder: the directory; created by the first `save`.
    keep: number of checkpoints to keep.
  """

  def __init__(self, folder: str | os.PathLike[str], keep: int = 2):
    self.folder = os.fspath(folder)
    self.keep = validation.limited('keep', keep, 'keep_checkpoints')
    self._bases: list[_Base] = []  # the last of each chain, oldest first

  def rounds(self) -> list[int]:
    """Returns the rounds with a checkpoint, oldest first; verifies none."""
    return self._rounds_of('json')

  def save(
    self,
    round_number: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    stores: checkpoint_io.Stores,
  ) -> int:
    """Writes a checkpoint, then deletes those beyond `keep`.

    Args:
      round_number: a round after all rounds with a checkpoint.
      arrays: named arrays of any shape and any dtype but object.
      meta: JSON values; tuples are restored as lists, keys as strings.
      stores: named stores of clients' arrays.

    Returns the number of bytes written.
    """
    existing = self.rounds()
    if existing and round_number <= existing[-1]:
      raise ValueError(
        f'round {round_number} cannot be saved after round {existing[-1]}'
      )
    os.makedirs(self.folder, exist_ok=True)
    atomic_io.remove_leftovers(self.folder)

    base = self._find_base(arrays, stores)
    ids = _changed(stores, base)
    data_path = self._path(round_number, 'npz')
    file, entries, dtypes = checkpoint_io.write(data_path, arrays, stores, ids)
    manifest = {
      'format': hparams_lib.FORMAT,
      'round': round_number,
      'files': [*(base.files if base else ()), file],
      'arrays': entries,
      'stores': dtypes,
      'meta': meta,
    }
    manifest = json.loads(atomic_io.to_json(manifest, None))  # as when read
    manifest['checksum'] = _checksum(manifest)
    path = self._path(round_number, 'json')
    atomic_io.write_json(path, manifest)

    saved = _Base(round_number, manifest['files'], _versions(stores))
    self._bases = [*self._bases[-1:], saved]
    self._delete_old()
    return file['bytes'] + os.path.getsize(path)

  def restore_latest(
    self,
    stores: checkpoint_io.Stores | None = None,
    repair: bool = True,
    only: int | None = None,
  ) -> Restored | None:
    """Reads the newest intact checkpoint; returns None if there is none.

    Logs newer, corrupt checkpoints and renames them to `*.corrupt`. If all are
    corrupt, raises an `InputError` and renames none: the run must not silently
    start again.

    Args:
      stores: all stores, as before the first round, to restore the clients'
        arrays to. Without them, these are neither read nor verified.
      repair: whether to rename; must be False if another process may be
        training here.
      only: the round to read, of those with a checkpoint, instead of all.
    """
    corrupt: dict[int, checkpoint_io.CorruptError] = {}
    for number in reversed(self.rounds() if only is None else [only]):
      try:
        restored = self._read(number, stores)
      except checkpoint_io.CorruptError as error:
        corrupt[number] = error
        continue
      for bad, cause in corrupt.items():
        logging.warning(
          'Checkpoint %s; falling back to round %d.', cause, number
        )
        # The manifest first; no older checkpoint needs the data file.
        paths = [self._path(bad, kind) for kind in ('json', 'npz') if repair]
        for path in filter(os.path.exists, paths):
          os.replace(path, path + '.corrupt')
      return restored
    if corrupt:
      details = '; '.join(map(str, corrupt.values()))
      raise errors.InputError(
        'experiment',
        self.folder,
        f'all checkpoints are corrupt ({details}); choose another '
        '--experiment to start over',
      )
    return None

  def read_client(
    self, round_number: int, name: str, k: int
  ) -> np.ndarray | None:
    """Reads one client's array of a store; None if it has none.

    Args:
      round_number: a round with a checkpoint.
      name: of the store.
      k: the client.
    """
    array = None
    try:
      manifest = self._read_manifest(round_number)
      stores = manifest['stores']
      dtypes = {name: stores[name]} if name in stores else {}
      for file in manifest['files']:
        checkpoint_io.verify(self.folder, file)
        for _, piece in checkpoint_io.read_stores(self.folder, file, dtypes):
          array = piece.get(k, array)
    except checkpoint_io.CorruptError as error:
      raise errors.InputError('experiment', self.folder, str(error)) from error
    return array

  def _find_base(
    self,
    arrays: Mapping[str, np.ndarray],
    stores: checkpoint_io.Stores,
  ) -> _Base | None:
    """Returns the base of the next checkpoint; None if it has all clients."""
    chains = min(self.keep, 2)
    bases = self._bases[-chains:]
    newest = self.rounds()[-chains:]
    if len(bases) < chains or newest != [base.round_number for base in bases]:
      return None  # not the newest on disk
    base = bases[0]
    if base.versions.keys() != stores.keys():
      return None
    for name, store in stores.items():
      if base.versions[name].keys() - store.versions.keys():
        return None  # not an ancestor of this state
    total = _bytes(stores, _changed(stores, None))
    changed = _bytes(stores, _changed(stores, base))
    if 2 * changed >= total or len(base.files) >= _MAX_FILES:
      return None
    rest = sum(array.nbytes for array in arrays.values())
    earlier = sum(file['bytes'] for file in base.files)
    if earlier + rest + changed > 2 * (rest + total):
      return None
    try:
      for file in base.files:
        checkpoint_io.check_size(self.folder, file)
    except checkpoint_io.CorruptError:
      return None
    return base

  def _read(
    self, number: int, initial: checkpoint_io.Stores | None
  ) -> Restored:
    """Reads and verifies the checkpoint of a round."""
    manifest = self._read_manifest(number)
    files = manifest['files']
    entries = manifest['arrays']
    arrays = checkpoint_io.read_arrays(self.folder, files[-1], entries)
    stores = dict(initial or {})
    if initial is not None:
      dtypes = manifest['stores']
      if stores.keys() != dtypes.keys():
        raise ValueError(f'stores are {sorted(dtypes)}, not {sorted(stores)}')
      for file in files:
        checkpoint_io.verify(self.folder, file)
      for file in files:
        for name, piece in checkpoint_io.read_stores(self.folder, file, dtypes):
          stores[name] = stores[name].updated(piece)
      self._bases = [_Base(number, files, _versions(stores))]
    return Restored(number, arrays, manifest['meta'], stores)

  def _delete_old(self) -> None:
    """Deletes checkpoints beyond `keep`, and data files that none needs."""
    rounds = self.rounds()
    for number in rounds[: -self.keep]:
      os.unlink(self._path(number, 'json'))
    atomic_io.sync_folder(self.folder)
    needed = set()
    for number in rounds[-self.keep :]:
      try:
        files = self._read_manifest(number)['files']
      except checkpoint_io.CorruptError:
        return  # unknown which files it needs
      needed |= {file['name'] for file in files}
    for number in self._rounds_of('npz'):
      path = self._path(number, 'npz')
      if os.path.basename(path) not in needed:
        os.unlink(path)

  def _read_manifest(self, number: int) -> dict[str, Any]:
    """Reads and verifies the manifest of a round."""
    path = self._path(number, 'json')
    try:
      manifest = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
      raise checkpoint_io.CorruptError(
        f'{path} cannot be parsed: {error}'
      ) from error
    checksum = type(manifest) is dict and manifest.pop('checksum', None)
    if checksum != _checksum(manifest):
      raise checkpoint_io.CorruptError(f'{path} does not match its checksum')
    if manifest['round'] != number:
      raise checkpoint_io.CorruptError(
        f'{path} is of round {manifest["round"]}'
      )
    hparams_lib.check_format(manifest.get('format', 0), self.folder)
    return manifest

  def _path(self, number: int, kind: str) -> str:
    return os.path.join(self.folder, f'round_{number:06d}.{kind}')

  def _rounds_of(self, kind: str) -> list[int]:
    """Returns the sorted rounds of the files of a kind, 'json' or 'npz'."""
    if not os.path.isdir(self.folder):
      return []
    matches = map(_NAME.fullmatch, os.listdir(self.folder))
    return sorted(int(m[1]) for m in matches if m and m[2] == kind)


def _versions(stores: checkpoint_io.Stores) -> dict[str, Mapping[int, int]]:
  return {name: store.versions for name, store in stores.items()}


def _changed(
  stores: checkpoint_io.Stores, base: _Base | None
) -> dict[str, list[int]]:
  """Returns the clients of each store that changed; all without a base."""
  return {
    name: store.changed_since(base and base.versions[name])
    for name, store in stores.items()
  }


def _bytes(stores: checkpoint_io.Stores, ids: Mapping[str, list[int]]) -> int:
  """Returns the size of some clients' arrays."""
  return sum(
    len(ids[name]) * store[ids[name][0]].nbytes
    for name, store in stores.items()
    if ids[name]
  )


def _checksum(manifest: dict[str, Any]) -> str:
  """Returns the SHA-256 of a manifest's content, independent of layout."""
  return hashlib.sha256(atomic_io.to_json(manifest, None).encode()).hexdigest()
