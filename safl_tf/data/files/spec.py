"""How data are asked for: names, forms such as csv:FILE, and their options.

Programs check flags with this before anything slow is imported.

  tfds:NAME      a TFDS data set for image classification
  npz:FILE       arrays, see `own_npz`
  csv:FILE       a table, see `own_csv`
  folder:FOLDER  a folder of images for each class, see `own_folder`
"""

import dataclasses
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from safl_tf.util import choices, errors, validation

TEST_FRACTION = 0.2

# Which forms, or names, an option is for.
OPTIONS = {
  'label_column': ('csv',),
  'client_column': ('csv',),
  'image_size': ('npz', 'csv', 'folder'),
  'test_fraction': ('npz', 'csv', 'folder'),
  'speech_dir': ('speech_commands',),
  'speech_words': ('speech_commands',),
}
_OWN = ('npz', 'csv', 'folder')

# What the flags of programs say of themselves.
HELP = {
  'dataset': 'The data: mnist_sample comes with the package; mnist, '
  'fashion_mnist, cifar10 and tfds:NAME are from TFDS, any set of images of '
  'one size with a class each; speech_commands is Google Speech Commands '
  'v0.01, through TFDS or from --speech_dir; npz:FILE (arrays x, y and maybe '
  'x_test, y_test, client), csv:FILE (a label and numbers in each line) and '
  'folder:FOLDER (a '
  'folder of images for each class, maybe in train/ and test/) are your own.',
  'label_column': "csv: the labels' column, by its name or, without a header, "
  'its number; by default label, y or target, or else the last.',
  'client_column': 'csv: the column that tells whose an example is; by default '
  'client, if there is one.',
  'image_size': 'H,W. folder: resizes all images. csv and npz: rows of H*W*C '
  'numbers become images, whole numbers in 0..255 pixels.',
  'test_fraction': 'npz, csv and folder without a test part: the share of each '
  f'class that is held out for testing, {TEST_FRACTION} by default',
  'speech_dir': 'speech_commands: the folder of the extracted archive.',
  'speech_words': 'speech_commands: the clips of all 30 words, the default, or '
  'of ten commands: yes, no, up, down, left, right, on, off, stop and go.',
}


@dataclasses.dataclass(frozen=True)
class Options:
  """How to read one's own data.

  Attributes:
    label_column: csv: the column of the labels; by default the one called
      label, y or target, or else the last.
    client_column: csv: the column that tells who an example comes from; by
      default the one called client, if there is one.
    image_size: height and width. Images in folders are resized to it; rows of
      numbers become images of it.
    test_fraction: the share that is held out of each class for testing, if the
      data have no test part; 1 for all.
    speech_dir: Speech Commands: the folder of the extracted archive.
    speech_words: Speech Commands: one of `choices.SPEECH_WORDS`; by default the
      first.
    class_names: what labels 0, 1, ... stand for, if that is known already.
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
  known = colon and form in ('tfds', *_OWN)
  return (form, rest) if known else ('', name)


def is_own(name: str) -> bool:
  """Whether it is the user's own data, from files."""
  return split(name)[0] in _OWN


def check(name: str) -> str:
  """The name as it is to be kept; refuses what can't be there."""
  form, rest = split(name)
  if not form:
    return _plain(name)
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


def _plain(name: str) -> str:
  """One of the names without a form; a path is told its form."""
  allowed = [*choices.DATASETS, *choices.DATASET_FORMS]
  path = os.path.expanduser(name)
  if name in allowed or not os.path.exists(path):
    return validation.choice('dataset', name, allowed)
  suffix = os.path.splitext(name)[1].lower().removeprefix('.')
  near = 'folder' if os.path.isdir(path) else suffix
  hint = f'did you mean {near}:{name}? ' if near in _OWN else ''
  raise errors.InputError(
    'dataset', name, f'{hint}must be one of {", ".join(allowed)}'
  )


def options(
  flags: Mapping[str, Any], class_names: Sequence[str] | None = None
) -> Options:
  """The options for the data set that flags name.

  Args:
    flags: values by name, with 'dataset'; None is for a default.
    class_names: see `Options`.

  Raises:
    InputError: one that is not for this data set, or can't be.
  """
  form, rest = split(flags['dataset'])
  given: dict[str, Any] = {}
  for name, forms in OPTIONS.items():
    value = flags.get(name)
    if value is None:
      continue
    if (form or rest) not in forms:
      told = ', '.join(f if f in choices.DATASETS else f'{f}:' for f in forms)
      raise errors.InputError(name, value, f'is for data from {told} only')
    given[name] = image_size(value) if name == 'image_size' else value
  known = None if class_names is None else tuple(class_names)
  return Options(**given, class_names=known)


def image_size(text: str) -> tuple[int, int]:
  """'28,28' -> (28, 28), height and width."""
  found = re.fullmatch(r'\s*([1-9]\d{0,4})\s*,\s*([1-9]\d{0,4})\s*', text)
  if not found:
    raise errors.InputError(
      'image_size', text, 'must be height and width in pixels, as 28,28'
    )
  return int(found[1]), int(found[2])


def short_name(name: str) -> str:
  """A name without its path, fit for a folder's name and a picture's title."""
  form, rest = split(name)
  if form in _OWN:
    rest = os.path.basename(os.path.abspath(rest))
    if form != 'folder':
      rest = os.path.splitext(rest)[0]
  return re.sub(r'[^\w.-]+', '_', rest).strip('.') or 'data'
