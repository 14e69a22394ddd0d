"""hparams.json: what a run is, and the versions it began with."""

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from safl_tf.util import atomic_io, errors, versions

# Format of run directories; written to hparams.json and to checkpoints.
FORMAT = 5

_FILE = 'hparams.json'
_MISSING = object()

Folder = str | os.PathLike[str]


def git_commit(folder: Folder) -> str | None:
  """Returns the Git commit of the source in a directory.

  It ends in '-dirty' if tracked files were changed; it is None without Git, or
  if the directory is not tracked.
  """

  def git(*arguments: str) -> str:
    command = ['git', '-C', os.fspath(folder), *arguments]
    return subprocess.check_output(
      command, stderr=subprocess.DEVNULL, text=True, timeout=10
    ).strip()

  with contextlib.suppress(OSError, subprocess.SubprocessError):
    if git('ls-files', '.'):
      options = ('--always', '--abbrev=40', '--dirty', '--exclude=*')
      return git('describe', *options)
  return None


def create(
  identity: Mapping[str, Any],
  flags: Mapping[str, Any] | None,
  settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """Returns the contents for a new run.

  Args:
    identity: see `identity.of_run`.
    flags: of the program; None if Python code made the run.
    settings: of a run that Python code made, see `identity.settings`.
  """
  return {
    'format': FORMAT,
    'identity': dict(identity),
    'flags': None if flags is None else dict(flags),
    'settings': dict(settings or {}) if flags is None else None,
    'saved_round': 0,  # the newest checkpoint, by which a lost one is noticed
    'versions': versions.find(),
    'git_commit': git_commit(os.path.dirname(os.path.abspath(__file__))),
  }


def write(folder: Folder, hparams: Mapping[str, Any]) -> None:
  """Writes hparams.json."""
  atomic_io.write_json(os.path.join(folder, _FILE), hparams)


def read(folder: Folder, argument: str = 'experiment') -> dict[str, Any] | None:
  """Reads hparams.json; returns None if the file does not exist.

  Raises an `InputError` that names `argument` if the file is not what
  `write` wrote, or if another version of safl_tf wrote it.
  """
  hparams = _read_object(folder, _FILE, argument)
  if hparams is None:
    return None
  check_format(hparams.get('format', 0), folder, argument)
  fields = {
    'identity': dict,
    'flags': dict | None,
    'saved_round': int,
    'versions': dict,
  }
  _check_fields(hparams, folder, _FILE, fields, argument)
  return hparams


def read_json(
  folder: Folder, name: str, fields: Mapping[str, Any], argument: str
) -> dict[str, Any] | None:
  """Reads a JSON object of ours; returns None if the file does not exist.

  Args:
    folder: of the file.
    name: of the file.
    fields: name -> type of those that the object must have.
    argument: the argument that gave the folder, for errors.
  """
  content = _read_object(folder, name, argument)
  if content is not None:
    _check_fields(content, folder, name, fields, argument)
  return content


def _read_object(
  folder: Folder, name: str, argument: str
) -> dict[str, Any] | None:
  try:
    text = pathlib.Path(folder, name).read_text(encoding='utf-8')
    content = json.loads(text)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, RecursionError) as error:
    hint = f'{name} cannot be parsed ({errors.reason(error)})'
    raise errors.InputError(argument, folder, hint) from error
  if not isinstance(content, dict):
    hint = f'{name} must be a JSON object'
    raise errors.InputError(argument, folder, hint)
  return content


def _check_fields(
  content: Mapping[str, Any],
  folder: Folder,
  name: str,
  fields: Mapping[str, Any],
  argument: str,
) -> None:
  for field, kind in fields.items():
    if not isinstance(content.get(field, _MISSING), kind):
      hint = f'{name} has no valid field {field}'
      raise errors.InputError(argument, folder, hint)


def check_format(
  number: Any, folder: Folder, argument: str = 'experiment'
) -> None:
  """Raises an `InputError` if a run directory has another format."""
  if number != FORMAT:
    is_newer = isinstance(number, int) and number > FORMAT
    version = 'a newer' if is_newer else 'an older'
    remedy = 'choose another --experiment or use that version'
    if argument != 'experiment':
      remedy = 'use that version or train again'
    raise errors.InputError(
      argument, folder, f'was made by {version} version of safl_tf; {remedy}'
    )


def differing(
  old_flags: Mapping[str, Any],
  new_flags: Mapping[str, Any],
  ignore: Iterable[str] = (),
) -> dict[str, tuple[Any, Any]]:
  """Returns the changed flags as name -> (old, new), sorted by name.

  Compares the values as JSON; a missing flag counts as None.
  """
  old = json.loads(atomic_io.to_json(dict(old_flags)))
  new = json.loads(atomic_io.to_json(dict(new_flags)))
  names = sorted((old.keys() | new.keys()) - set(ignore))
  pairs = {name: (old.get(name), new.get(name)) for name in names}
  return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
