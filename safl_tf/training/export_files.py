"""The files of an export, with digests, replaced as a whole.

A new export is written to a folder `.new-*` beside the old one. Once it is
verified, that folder gets an `export.json` with the SHA-256 of its files. From
then on the new export counts: `install` moves the files into place, export.json
last, and `recover` does so after a kill. Only files that export.json lists with
their digest are ever replaced.

Does not import TensorFlow.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from safl_tf.util import atomic_io, errors

SAVED_MODEL = 'saved_model'
VERSION = '1'  # the subfolder of SAVED_MODEL, as TensorFlow Serving needs it
KERAS_FILE = 'model.keras'
TFLITE_FILE = 'model.tflite'
METADATA = 'export.json'
NEW = '.new-'

_OLD = '.old-'
_NEW_NAME = re.compile(rf'{re.escape(NEW)}\w{{8}}')


def read(folder: pathlib.Path) -> dict[str, Any]:
  """Reads export.json; returns no files if there is none.

  Raises:
    errors.RunError: the file is not one that `write` wrote.
  """
  path = folder / METADATA
  if not os.path.lexists(path):
    return {'files': {}, 'outputs': {}}
  try:
    info = json.loads(path.read_text(encoding='utf-8'))
  except (ValueError, RecursionError):
    info = None
  valid = isinstance(info, dict)
  for key in ('files', 'earlier_files', 'outputs'):
    valid = valid and isinstance(info.get(key, {}), dict)
  classes = info.get('class_names') if valid else None
  if classes is not None:
    valid = isinstance(classes, list)
    valid = valid and all(isinstance(name, str) for name in classes)
  if not valid:
    raise errors.RunError(
      f'{path}: is damaged, or not from safl_tf; move it to another folder'
    )
  return {'files': {}, 'outputs': {}, **info}


def write(
  new: pathlib.Path,
  folder: pathlib.Path,
  outputs: Mapping[str, str],
  metadata: Mapping[str, Any],
) -> None:
  """Writes the export.json of a new export that replaces one in a folder.

  Args:
    new: the folder with the files of the new export.
    folder: the folder that they are to be moved to.
    outputs: what the model outputs, such as 'logits', for each file.
    metadata: further JSON values.
  """
  files = {name: digest(new / name) for name in outputs}
  earlier = {n: d for n, d in _written(folder).items() if n not in files}
  info = {
    **metadata,
    'outputs': dict(outputs),
    'files': files,
    'earlier_files': earlier,
  }
  atomic_io.write_json(new / METADATA, info)


def is_current(
  folder: pathlib.Path, outputs: Mapping[str, str], metadata: Mapping[str, Any]
) -> bool:
  """Returns whether a folder has what `write` wrote, and unchanged."""
  try:
    info = read(folder)
  except errors.RunError:
    return False
  files, found = info.pop('files'), info.pop('outputs')
  info.pop('earlier_files', None)
  return info == metadata and all(
    name in files
    and found.get(name) == output
    and digest(folder / name) == files[name]
    for name, output in outputs.items()
  )


def find_saved_model(path: pathlib.Path) -> pathlib.Path | None:
  """Returns a SavedModel, or the highest numbered one in a folder, if any."""
  versions = [v for v in path.glob('[0-9]*') if v.name.isdecimal()]
  versions.sort(key=lambda v: int(v.name), reverse=True)
  for folder in (path, *versions):
    if (folder / 'saved_model.pb').is_file():
      return folder
  return None


def exported_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path beside export.json: a file, or the folder of versions."""
  path = pathlib.Path(path).resolve()
  is_version = path.name.isdecimal() and path.is_dir()
  return path.parent if is_version else path


def is_own(path: str | os.PathLike[str]) -> bool:
  """Returns whether export.json has the digest of a file or SavedModel."""
  path = exported_path(path)
  return _written(path.parent).get(path.name) == digest(path)


def check_own(folder: pathlib.Path, names: Iterable[str]) -> None:
  """Raises an error if files that safl_tf did not write would be replaced."""
  for name in names:
    path = folder / name
    if os.path.lexists(path) and (path.is_symlink() or not is_own(path)):
      raise errors.RunError(
        f'{path}: was changed or is not from safl_tf, and is not replaced; '
        'move it to another folder'
      )


def install(new: pathlib.Path, folder: pathlib.Path) -> None:
  """Replaces an export by a new one; if killed, `recover` repeats it."""
  names = list(read(new)['files'])
  check_own(folder, [name for name in names if (new / name).exists()])
  for name in names:
    if (new / name).exists():  # not yet moved
      _remove(folder / f'{_OLD}{name}')
      if (folder / name).exists():
        os.replace(folder / name, folder / f'{_OLD}{name}')
      os.replace(new / name, folder / name)
  atomic_io.sync_folder(folder)
  os.replace(new / METADATA, folder / METADATA)
  atomic_io.sync_folder(folder)
  for name in names:
    _remove(folder / f'{_OLD}{name}')
  shutil.rmtree(new)


def recover(folder: pathlib.Path) -> None:
  """Completes or removes what killed exports left in a folder.

  The caller must hold the lock of the folder, see `output_folder`.
  """
  for new in sorted(folder.glob(f'{NEW}*')):
    if _NEW_NAME.fullmatch(new.name) and new.is_dir():
      if (new / METADATA).exists():
        install(new, folder)
      else:
        shutil.rmtree(new)
  for name in (SAVED_MODEL, KERAS_FILE, TFLITE_FILE):
    if not os.path.lexists(folder / name):
      if os.path.lexists(folder / f'{_OLD}{name}'):
        os.replace(folder / f'{_OLD}{name}', folder / name)
    else:
      _remove(folder / f'{_OLD}{name}')


def digest(path: pathlib.Path) -> str | None:
  """Returns the SHA-256 of a file, or of the names and files of a folder.

  Returns None if there is no such file or folder. Links and special files in a
  folder are not opened.
  """
  if path.is_file():
    return _file_digest(path)
  if not path.is_dir():
    return None
  lines = []
  for folder, subfolders, names in os.walk(path):
    for name in [*names, *subfolders]:
      file = pathlib.Path(folder, name)
      plain = file.is_file() and not file.is_symlink()
      kind = 'folder' if file.is_dir() and not file.is_symlink() else 'other'
      content = _file_digest(file) if plain else kind
      lines.append([str(file.relative_to(path)), content])
  return hashlib.sha256(json.dumps(sorted(lines)).encode()).hexdigest()


def _written(folder: pathlib.Path) -> dict[str, str]:
  """Returns the digests of all files that exports to a folder wrote."""
  info = read(folder)
  return {**info.get('earlier_files', {}), **info['files']}


def _file_digest(path: pathlib.Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _remove(path: pathlib.Path) -> None:
  """Deletes a file or folder, if it exists."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)
