"""Names of data sets, such as mnist or csv:FILE, and their options.

Programs check flags with this module, which imports nothing slow.

  tfds:NAME      a TFDS data set of images, see `safl_tf.data.tfds`
  npz:FILE       arrays, see `npz`
  csv:FILE       a table, see `csv`
  folder:FOLDER  a folder of images per class, see `image_folder`
"""

import dataclasses
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from safl_tf.util import choices, errors, validation

TEST_FRACTION = 0.2

_FILES = ('npz', 'csv', 'folder')

# The formats, or names, of data sets that an option applies to.
OPTIONS = {
  'label_column': ('csv',),
  'client_column': ('csv',),
  'image_size': _FILES,
  'test_fraction': _FILES,
  'speech_dir': ('speech_commands',),
  'speech_words': ('speech_commands',),
}

# Help of the flags.
HELP = {
  'dataset': 'Data set. mnist_sample is bundled; mnist, fashion_mnist, cifar10 '
  'and tfds:NAME come from TFDS and must have images of one size with one '
  'class each; speech_commands is Google Speech Commands v0.01, from TFDS or '
  '--speech_dir. Data files: npz:FILE (arrays x and y, optionally x_test, '
  'y_test and client), csv:FILE (a label and numbers in each line), '
  'folder:FOLDER (a folder of images per class, optionally in train/ and '
  'test/).',
  'label_column': 'csv: label column, by name or, without a header, by number; '
  'by default label, y or target, or else the last.',
  'client_column': 'csv: column of client ids; by default client, if present.',
  'image_size': 'H,W. folder: resizes all images. csv and npz: reshapes rows '
  'of H*W*C numbers to images; whole numbers in 0..255 become pixels.',
  'test_fraction': 'npz, csv and folder without test examples: share of each '
  f'class to hold out for testing, {TEST_FRACTION} by default',
  'speech_dir': 'speech_commands: folder of the extracted archive.',
  'speech_words': 'speech_commands: clips of all 30 words, the default, or of '
  'ten commands: yes, no, up, down, left, right, on, off, stop and go.',
}


@dataclasses.dataclass(frozen=True)
class Options:
  """How to read a data set; `HELP` describes each option.

  Attributes:
    label_column: csv: the label column.
    client_column: csv: the column of client ids.
    image_size: height and width.
    test_fraction: the share of each class to hold out for testing, in (0, 1].
    speech_dir: Speech Commands: the folder of the extracted archive.
    speech_words: Speech Commands: one of `choices.SPEECH_WORDS`.
    class_names: the names of labels 0, 1, ..., if known already.
  """

  label_column: str | None = None
  client_column: str | None = None
  image_size: tuple[int, int] | None = None
  test_fraction: float = TEST_FRACTION
  speech_dir: str | None = None
  speech_words: str | None = None
  class_names: tuple[str, ...] | None = None

  def __post_init__(self) -> None:
    validation.real(
      'test_fraction', self.test_fraction, low=0, high=1, open_low=True
    )


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
  if form == 'folder':
    if not os.path.isdir(path):
      raise errors.InputError('dataset', name, 'there is no such folder')
  elif not os.path.isfile(path):
    raise errors.InputError('dataset', name, 'there is no such file')
  if form == 'npz' and not zipfile.is_zipfile(path):
    raise errors.InputError(
      'dataset', name, 'must be a .npz file as numpy.savez writes it'
    )
  return f'{form}:{path}'


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
  flags: Mapping[str, Any], class_names: Sequence[str] | None = None
) -> Options:
  """Returns the options for the data set that flags name.

  Args:
    flags: values by name, including 'dataset'; None means the default.
    class_names: see `Options`.

  Raises:
    InputError: an option does not apply to the data set or is invalid.
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
    given[name] = image_size(value) if name == 'image_size' else value
  names = None if class_names is None else tuple(class_names)
  return Options(**given, class_names=names)


def image_size(text: str) -> tuple[int, int]:
  """'28,28' -> (28, 28), height and width."""
  match = re.fullmatch(r'\s*([1-9]\d{0,4})\s*,\s*([1-9]\d{0,4})\s*', text)
  if not match:
    raise errors.InputError(
      'image_size', text, 'must be height and width in pixels, as 28,28'
    )
  return int(match[1]), int(match[2])


def short_name(name: str) -> str:
  """Returns a name without its path, for folder names and plot titles."""
  form, rest = split(name)
  if form in _FILES:
    rest = os.path.basename(os.path.abspath(rest))
    if form != 'folder':
      rest = os.path.splitext(rest)[0]
  return re.sub(r'[^\w.-]+', '_', rest).strip('.') or 'data'
