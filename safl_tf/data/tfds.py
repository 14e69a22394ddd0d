"""TensorFlow Datasets (TFDS) of images of one size with one label each."""

import contextlib
import difflib
import math
import os
import re
import tempfile
import urllib.parse
from typing import Any

import numpy as np

from safl_tf.data import dataset
from safl_tf.data.files import spec
from safl_tf.util import bounded_io, errors

_DEFAULT_FOLDER = '~/tensorflow_datasets'  # the default of TFDS
_CONNECTION_TIMEOUT = 5  # seconds
_TEST_FRACTION = 0.1  # of data sets without test examples


def load(name: str, data_dir: str | None = None) -> dataset.Dataset:
  """Loads the splits for training and testing.

  The test examples are the split test, or validation, or a tenth of each class
  of train, whichever exists first.
  `data_folder` describes `data_dir`; a prefix tfds: of the name is optional.
  """
  builder = _builder(name, data_folder(data_dir))
  splits = sorted(builder.info.splits)
  if 'train' not in splits:
    raise errors.InputError(
      'dataset', name, f'has no split train, but {", ".join(splits)}'
    )
  x, y, class_names = _read_split(name, builder, 'train')
  test_split = next((s for s in ('test', 'validation') if s in splits), None)
  if test_split is not None:
    x_test, y_test, _ = _read_split(name, builder, test_split)
  else:
    kept, held = dataset.hold_out(y, _TEST_FRACTION)
    x, y, x_test, y_test = x[kept], y[kept], x[held], y[held]
  return dataset.Dataset(
    spec.short_name(name), x, y, x_test, y_test, len(class_names), class_names
  )


def load_split(
  name: str, split: str = 'train', data_dir: str | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
  """Returns images uint8 [N, ...], labels int32 [N] and the class names.

  The split is in the notation of TFDS, such as train[:10%].
  """
  name = spec.check(f'tfds:{name}')
  return _read_split(name, _builder(name, data_folder(data_dir)), split)


def data_folder(data_dir: str | None) -> str:
  """Returns the folder of prepared TFDS data sets, which must exist if given.

  By default, it is TFDS_DATA_DIR, or else ~/tensorflow_datasets.
  """
  is_path = isinstance(data_dir, str | os.PathLike)
  if data_dir is not None and not (
    is_path and os.path.isdir(os.path.expanduser(data_dir))
  ):
    raise errors.InputError('data_dir', data_dir, 'must be an existing folder')
  folder = data_dir or os.environ.get('TFDS_DATA_DIR') or _DEFAULT_FOLDER
  return os.path.abspath(os.path.expanduser(folder))


def prepare(name: str, builder: Any, folder: str, remedy: str) -> None:
  """Downloads and prepares a data set unless `folder` already has it.

  The folder stays unchanged if the download fails. The error message has the
  name and the remedy.
  """
  if builder.data_path.exists():
    return
  is_new = not os.path.isdir(folder)
  try:
    for url in list(builder.url_infos or ())[:1]:
      _check_connection(url)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(
      prefix='download.', dir=folder, ignore_cleanup_errors=True
    ) as downloads:
      builder.download_and_prepare(download_dir=downloads)
  except Exception as error:
    reason = f'{type(error).__name__}: {errors.reason(error)}'
    raise errors.InputError(
      'dataset',
      name,
      f'not prepared in {folder} and cannot be downloaded ({reason}); {remedy}'
      ', or set --data_dir or TFDS_DATA_DIR to a folder that has it',
    ) from error
  finally:
    for path in [os.path.join(folder, builder.name)] + is_new * [folder]:
      with contextlib.suppress(OSError):  # removed only if empty
        os.rmdir(path)


def unreadable(name: str, folder: str, error: Exception) -> errors.InputError:
  """Returns the error for a prepared data set that cannot be read."""
  return errors.InputError(
    'dataset',
    name,
    f'{folder} cannot be read ({errors.reason(error)}); remove it and load it '
    'again, or set --data_dir or TFDS_DATA_DIR to another folder',
  )


def _builder(name: str, folder: str) -> Any:
  """Returns the builder of a suitable data set, prepared in `folder`."""
  import tensorflow_datasets as tfds

  plain = name.removeprefix('tfds:')
  home = os.path.join(folder, re.split('[:/]', plain)[0])
  try:
    builder = tfds.builder(plain, data_dir=folder)
  except tfds.core.DatasetNotFoundError as error:
    known = tfds.list_builders(with_community_datasets=False)
    near = difflib.get_close_matches(plain, known)
    hint = f'; did you mean tfds:{" or tfds:".join(near)}?' if near else ''
    raise errors.InputError(
      'dataset',
      f'tfds:{plain}',
      f'is neither known to TFDS nor prepared in {folder}{hint}',
    ) from error
  except Exception as error:
    if os.path.isdir(home):
      raise unreadable(name, home, error) from error
    raise errors.InputError(
      'dataset', name, f'TFDS refuses it ({errors.reason(error)})'
    ) from error
  misfit = _misfit(builder.info)
  if misfit is not None:
    raise errors.InputError('dataset', name, misfit)
  command = (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({plain!r}, data_dir={folder!r}).download_and_prepare()"'
  )
  remedy = f'use mnist_sample, or run {command} on a machine with a network'
  prepare(name, builder, folder, remedy)
  return builder


def _misfit(info: Any) -> str | None:
  """Returns why a data set is unsuitable, from its `DatasetInfo` alone."""
  import tensorflow_datasets as tfds

  keys = info.supervised_keys
  is_pair = isinstance(keys, tuple) and len(keys) == 2
  if not is_pair or not all(isinstance(key, str) for key in keys):
    return 'TFDS defines no pair of an input and a label for it'
  image, label = (info.features[key] for key in keys)
  if not isinstance(image, tfds.features.Image):
    return f'its input {keys[0]} is not an image'
  if not isinstance(label, tfds.features.ClassLabel) or not label.num_classes:
    return f'its label {keys[1]} is not a class'
  if None in image.shape:
    return 'its images are not all of one size'
  if image.np_dtype != np.uint8:
    return f'its images are {np.dtype(image.np_dtype).name}, not uint8'
  return None


def _read_split(
  name: str, builder: Any, split: str
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
  """Reads a split in the order of its files; TFDS checks the number of rows."""
  import tensorflow_datasets as tfds

  info = builder.info
  try:
    examples = info.splits[split].num_examples
  except Exception as error:
    known = ', '.join(sorted(info.splits))
    raise errors.InputError(
      'split', split, f'must be one of {known}, or a part such as train[:10%]'
    ) from error
  image = info.features[info.supervised_keys[0]]
  copies = 2  # TensorFlow's and NumPy's
  reason = bounded_io.shortage(copies * examples * math.prod(image.shape))
  if reason is not None:
    raise errors.InputError('dataset', name, f'split {split} {reason}')
  try:
    whole = builder.as_dataset(
      split=split, batch_size=-1, as_supervised=True, shuffle_files=False
    )
    x, y = tfds.as_numpy(whole)
  except Exception as error:
    raise unreadable(name, str(builder.data_path), error) from error
  class_names = tuple(info.features[info.supervised_keys[1]].names)
  if len(y) and not (y.min() >= 0 and y.max() < len(class_names)):
    raise errors.InputError(
      'dataset', name, f'has examples without a label in its split {split}'
    )
  return x, y.astype(np.int32), class_names


def _check_connection(url: str) -> None:
  """Raises within seconds if `url` is unreachable; TFDS retries for minutes."""
  import requests

  host = urllib.parse.urlsplit(url).hostname
  try:
    response = requests.head(url, timeout=_CONNECTION_TIMEOUT)
  except requests.RequestException as error:
    raise ConnectionError(f'no connection to {host}') from error
  if response.status_code >= 500:
    raise ConnectionError(f'{host} answers with error {response.status_code}')
