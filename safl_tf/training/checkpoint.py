"""What a run can be resumed from.

A checkpoint of round 12 is two files: `round_000012.npz` with the arrays and
`round_000012.json`, its manifest, with the run's metadata, what the first must
be (size and SHA-256) and a checksum over itself. The manifest is written last
and removed first, so a checkpoint is there if and only if its manifest is.
Nothing is pickled, and nothing is read that was not verified.

Of the clients' models, `client_ids` [c] and `client_models` [c, P], a data file
has those that changed since the checkpoint before. The manifest lists under
`files`, oldest first, the earlier data files that have the others, and its own;
a model counts where it comes last. A data file stays as long as a checkpoint
that is kept needs it. A checkpoint has all models, and needs no earlier file,

- if at least half of them changed,
- if its files would together be twice as large as that one file, or
- if they would be more than `_MOST_FILES`.

So the checkpoints of a run in which all clients take part stand alone. In any
other run the writing is at most twice what changed (and 1/200 of all models),
and the files that a checkpoint needs are at most twice what there is.

The manifest also has the place and SHA-256 of each other array, so that the
global model can be read alone, whatever the number of clients.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from safl_tf.core import client_store
from safl_tf.training import checkpoint_io
from safl_tf.util import atomic_io, errors, validation

_FORMAT = 3
_NAME = re.compile(r'round_(\d{6,})\.(npz|json)')
_CORRUPT = '.corrupt'
_MOST_FILES = 200


class Restored(NamedTuple):
  """A checkpoint that was read.

  Attributes:
    round_number: the round it is of.
    arrays: all but the clients' models.
    meta: the run's metadata.
    client_models: the clients' models, if they were asked for.
  """

  round_number: int
  arrays: dict[str, np.ndarray]
  meta: dict[str, Any]
  client_models: client_store.ClientStore | None


class _Base(NamedTuple):
  """What the next checkpoint may build on: the one last saved or restored."""

  round_number: int
  files: list[checkpoint_io.File]
  versions: Mapping[int, int]


class Checkpoints:
  """The checkpoints in one folder.

  Only one process at a time may write there: see `atomic_io.run_lock`.
  """

  def __init__(self, folder: str | os.PathLike[str], keep: int = 2):
    """Makes nothing on the disk yet.

    Args:
      folder: where the checkpoints are; made by the first `save`.
      keep: how many of the newest are kept.
    """
    self.folder = os.fspath(folder)
    self.keep = validation.integer('keep', keep, 1)
    self._base: _Base | None = None

  def rounds(self) -> list[int]:
    """The rounds that have a checkpoint, oldest first; none is verified."""
    return self._numbers('json')

  def save(
    self,
    round_number: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    client_models: client_store.ClientStore,
  ) -> int:
    """Writes a checkpoint, then removes those beyond `keep`.

    Args:
      round_number: a round after every one that has a checkpoint.
      arrays: arrays of any shape and of any dtype but object, by name.
      meta: what JSON can hold; tuples come back as lists, keys as strings.
      client_models: the clients' models.

    Returns:
      The number of bytes written.
    """
    existing = self.rounds()
    if existing and round_number <= existing[-1]:
      raise ValueError(
        f'round {round_number} cannot be saved after round {existing[-1]}'
      )
    os.makedirs(self.folder, exist_ok=True)
    atomic_io.remove_leftovers(self.folder)

    base = self._to_build_on(arrays, client_models)
    ids = client_models.changed_since(base and base.versions)
    data = self._path(round_number, 'npz')
    own, described = checkpoint_io.write(data, arrays, client_models, ids)
    manifest = {
      'format': _FORMAT,
      'round': round_number,
      'files': [*(base.files if base else ()), own],
      'arrays': described,
      'meta': meta,
    }
    manifest = json.loads(
      atomic_io.to_json(manifest, None)
    )  # as it will be read
    manifest['checksum'] = _checksum(manifest)
    path = self._path(round_number, 'json')
    atomic_io.write_json(path, manifest)

    self._base = _Base(round_number, manifest['files'], client_models.versions)
    self._remove_old()
    return own['bytes'] + os.path.getsize(path)

  def restore_latest(
    self,
    client_models: client_store.ClientStore | None = None,
    repair: bool = True,
  ) -> Restored | None:
    """Reads the newest checkpoint that verifies.

    Newer ones that don't verify are reported and renamed to `*.corrupt`.

    Args:
      client_models: the run's store before the first round, to put the models into.
        Without it, they are neither read nor verified.
      repair: whether to rename; not if another process may be training here.

    Returns:
      The checkpoint, or None when the folder has none.

    Raises:
      errors.InputError: there are checkpoints and all of them are corrupt.
        None is renamed then, so that a run is never restarted in silence.
    """
    corrupt: list[tuple[int, checkpoint_io.CorruptError]] = []
    for number in reversed(self.rounds()):
      try:
        restored = self._read(number, client_models)
      except checkpoint_io.CorruptError as error:
        corrupt.append((number, error))
        continue
      for bad, wrong in corrupt:
        logging.warning(
          'Checkpoint %s; falling back to round %d.', wrong, number
        )
        if repair:
          self._set_aside(bad)
      return restored
    if corrupt:
      raise errors.InputError(
        'experiment',
        self.folder,
        f'all checkpoints are corrupt ({"; ".join(str(e) for _, e in corrupt)})'
        '; a new --experiment starts afresh',
      )
    return None

  def _to_build_on(
    self,
    arrays: Mapping[str, np.ndarray],
    client_models: client_store.ClientStore,
  ) -> _Base | None:
    """The base of the next checkpoint, unless that is to have all models."""
    base = self._base
    if base is None or self.rounds()[-1:] != [base.round_number]:
      return None  # not what is on the disk
    if base.versions.keys() - client_models.versions.keys():
      return None  # not what led to this state
    changed, count = (
      len(client_models.changed_since(base.versions)),
      len(client_models),
    )
    if 2 * changed >= count or len(base.files) >= _MOST_FILES:
      return None
    model = client_models[next(iter(client_models.versions))].nbytes
    rest = sum(array.nbytes for array in arrays.values())
    earlier = sum(file['bytes'] for file in base.files)
    if earlier + rest + changed * model > 2 * (rest + count * model):
      return None
    try:
      for file in base.files:
        checkpoint_io.check_size(self.folder, file)
    except checkpoint_io.CorruptError:
      return None
    return base

  def _read(
    self, number: int, client_models: client_store.ClientStore | None
  ) -> Restored:
    """A round's checkpoint; what is read of it is verified."""
    manifest = self._manifest(number)
    data, own = manifest['files'], manifest['files'][-1]
    if client_models is not None:
      for file in data:
        checkpoint_io.verify(self.folder, file)
    arrays = checkpoint_io.read_arrays(self.folder, own, manifest['arrays'])
    if client_models is not None:
      for file in data:
        for models in checkpoint_io.read_models(self.folder, file):
          client_models = client_models.updated(models)
      self._base = _Base(number, data, client_models.versions)
    return Restored(number, arrays, manifest['meta'], client_models)

  def _remove_old(self) -> None:
    """Removes checkpoints beyond `keep` and data that no other one needs."""
    rounds = self.rounds()
    for number in rounds[: -self.keep]:
      os.unlink(self._path(number, 'json'))
    atomic_io.sync_folder(self.folder)
    needed = set()
    for number in rounds[-self.keep :]:
      try:
        needed |= {file['name'] for file in self._manifest(number)['files']}
      except checkpoint_io.CorruptError:
        return  # it can't be told what it needs
    for number in self._numbers('npz'):
      path = self._path(number, 'npz')
      if os.path.basename(path) not in needed:
        os.unlink(path)

  def _set_aside(self, number: int) -> None:
    """Renames a checkpoint so that it counts no more: the manifest first.

    An older one does not need its data file, and all newer ones are set aside.
    """
    for kind in ('json', 'npz'):
      path = self._path(number, kind)
      if os.path.exists(path):
        os.replace(path, path + _CORRUPT)

  def _manifest(self, number: int) -> dict[str, Any]:
    """The manifest of a round, which is what was written for it."""
    path = self._path(number, 'json')
    try:
      with open(path, encoding='utf-8') as file:
        manifest = json.load(file)
    except (ValueError, RecursionError) as error:
      raise checkpoint_io.CorruptError(
        f'{path} cannot be parsed: {error}'
      ) from error
    is_dict = type(manifest) is dict
    checksum = manifest.pop('checksum', None) if is_dict else None
    if checksum is None or checksum != _checksum(manifest):
      raise checkpoint_io.CorruptError(f'{path} does not match its checksum')
    if manifest['round'] != number:
      raise checkpoint_io.CorruptError(
        f'{path} is of round {manifest["round"]}'
      )
    if manifest.get('format') != _FORMAT:
      raise checkpoint_io.CorruptError(
        f'{path} was written by another version of safl_tf'
      )
    return manifest

  def _path(self, number: int, kind: str) -> str:
    return os.path.join(self.folder, f'round_{number:06d}.{kind}')

  def _numbers(self, kind: str) -> list[int]:
    """The rounds of the files of one kind, in order."""
    if not os.path.isdir(self.folder):
      return []
    matches = map(_NAME.fullmatch, os.listdir(self.folder))
    return sorted(int(m[1]) for m in matches if m and m[2] == kind)


def _checksum(manifest: dict[str, Any]) -> str:
  """SHA-256 over a manifest's content, whatever its layout."""
  return hashlib.sha256(atomic_io.to_json(manifest, None).encode()).hexdigest()
