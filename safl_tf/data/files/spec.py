"""Names of data sets, such as mnist or csv:FILE, and their options.

Programs check flags with this module, which imports nothing slow.

  tfds:NAME      a TFDS data set of images, see `safl_tf.data.tfds`
  npz:FILE       arrays, see `npz`
  csv:FILE       a table, see `csv`
  folder:FOLDER  a folder of images per class, see `image_folder`
"""

import dataclasses
import errno
import os
import re
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safl_tf.util import choices, errors, validation

TEST_FRACTION = 0.2

_FILES = ('npz', 'csv', 'folder')

# The formats, or names, of data sets that an option applies to.
OPTIONS = {
  'label_column': ('csv',),
  'client_column': ('csv',),
  'weight_column': ('csv',),
  'categorical': ('csv',),
  'task': ('csv', 'npz'),
  'image_size': _FILES,
  'test_fraction': _FILES,
  'speech_dir': ('speech_commands',),
  'speech_words': ('speech_commands',),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """Options for reading a data set; flags of the same names describe them.

  Attributes:
    image_size: height and width.
    test_fraction: in (0, 1]; None holds nothing out.
    class_names: the names of labels 0, 1, ..., if known already.
    categories: column -> its categories, if known already.
    data_sha256: the digest of data files, see `loader.inspect`; not checked
      if None.
  """

  label_column: str | None = None
  client_column: str | None = None
  weight_column: str | None = None
  categorical: tuple[str, ...] = ()
  task: str = 'classification'
  image_size: tuple[int, int] | None = None
  test_fraction: float | None = TEST_FRACTION
  speech_dir: str | None = None
  speech_words: str | None = None
  class_names: tuple[str, ...] | None = None
  categories: Mapping[str, Sequence[str]] | None = None
  data_sha256: str | None = None

  def __post_init__(self) -> None:
    if self.test_fraction is not None:
      validation.limited('test_fraction', self.test_fraction)
    validation.choice('task', self.task, choices.TASKS)


def split(name: str) -> tuple[str, str]:
  """'csv:a.csv' -> ('csv', 'a.csv'); a plain name -> ('', name)."""
  form, colon, rest = name.partition(':')
  known = colon and form in ('tfds', *_FILES)
  return (form, rest) if known else ('', name)


def is_user_data(name: str) -> bool:
  """Returns whether the data set is read from data files."""
  return split(name)[0] in _FILES


def check(name: str) -> str:
  """Returns the canonical name; refuses unknown names and missing files."""
  form, rest = split(name)
  if not form:
    return _check_plain(name)
  if form == 'tfds':
    if not re.fullmatch(r'[\w.:/+-]+', rest):
      raise errors.InputError(
        'dataset', name, "must be tfds: and a data set's name, as tfds:cifar100"
      )
    return rest if rest in choices.TFDS_DATASETS else name
  path = os.path.expanduser(rest)
  _check_path(name, path, 'folder' if form == 'folder' else 'file')
  if form == 'npz' and not zipfile.is_zipfile(path):
    raise errors.InputError(
      'dataset', name, 'must be a .npz file as numpy.savez writes it'
    )
  return f'{form}:{path}'


def _check_path(name: str, path: str, kind: str) -> None:
  """Refuses a path that is not a folder, or a file, that can be read."""
  try:
    mode = os.stat(path).st_mode
  except (FileNotFoundError, NotADirectoryError, ValueError):
    raise errors.InputError('dataset', name, f'there is no such {kind}') from (
      None
    )
  except OSError as error:
    raise errors.InputError(
      'dataset', name, f'cannot be read ({error.strerror})'
    ) from error
  if not (stat.S_ISDIR(mode) if kind == 'folder' else stat.S_ISREG(mode)):
    article = 'a' if kind == 'folder' else 'a regular'
    raise errors.InputError('dataset', name, f'is not {article} {kind}')
  if not os.access(path, os.R_OK):
    raise errors.InputError(
      'dataset', name, f'cannot be read ({os.strerror(errno.EACCES)})'
    )


def _check_plain(name: str) -> str:
  """Checks a name without a format; suggests the format of a path."""
  allowed = [*choices.DATASETS, *choices.DATASET_FORMS]
  path = os.path.expanduser(name)
  if name in allowed or not os.path.exists(path):
    return validation.choice('dataset', name, allowed)
  suffix = os.path.splitext(name)[1].lower().removeprefix('.')
  near = 'folder' if os.path.isdir(path) else suffix
  hint = f'did you mean {near}:{name}? ' if near in _FILES else ''
  raise errors.InputError(
    'dataset', name, f'{hint}must be one of {", ".join(allowed)}'
  )


def options(
  flags: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> Options:
  """Returns the options that flags give; refuses those of other data sets.

  Args:
    flags: values by name, including 'dataset'; None means the default.
    metadata: that of a model trained on other data, if any; see
      `Dataset.metadata`.
  """
  form, rest = split(flags['dataset'])
  given: dict[str, Any] = {}
  for name, forms in OPTIONS.items():
    value = flags.get(name)
    if value is None:
      continue
    if (form or rest) not in forms:
      known = ', '.join(f if f in choices.DATASETS else f'{f}:' for f in forms)
      raise errors.InputError(name, value, f'is for data from {known} only')
    given[name] = _PARSERS.get(name, lambda text: text)(value)
  metadata = metadata or {}
  names = metadata.get('class_names')
  return Options(
    **given,
    class_names=None if names is None else tuple(names),
    categories=metadata.get('categories'),
    data_sha256=flags.get('data_sha256'),
  )


def image_size(text: str) -> tuple[int, int]:
  """'28,28' -> (28, 28), height and width."""
  number = r'\s*([1-9]\d{0,4})\s*'
  match = re.fullmatch(f'{number},{number}', text, re.ASCII)
  if not match:
    raise errors.InputError(
      'image_size', text, 'must be height and width in pixels, as 28,28'
    )
  return int(match[1]), int(match[2])


_PARSERS: dict[str, Callable[[str], Any]] = {
  'image_size': image_size,
  'categorical': lambda text: tuple(name.strip() for name in text.split(',')),
}


def short_name(name: str) -> str:
  """Returns a name without its path, for folder names and plot titles."""
  form, rest = split(name)
  if form in _FILES:
    rest = os.path.basename(os.path.abspath(rest))
    if form != 'folder':
      rest = os.path.splitext(rest)[0]
  return re.sub(r'[^\w.-]+', '_', rest).strip('.') or 'data'
