"""One's own data, from files: npz:FILE, csv:FILE and folder:FOLDER.

The forms are told of in `npz`, `csv` and `image_folder`. Inputs are uint8
pixels, or float32 as they are: [N, height, width, channels] for images and
[N, features] for tables.
"""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from safl_tf.data import arrays
from safl_tf.data.files import csv, image_folder, npz, spec, tabular
from safl_tf.util import errors


class OwnData(NamedTuple):
  """See `sources.Dataset`."""

  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  class_names: tuple[str, ...]
  client: np.ndarray | None


def load(name: str, options: spec.Options) -> OwnData:
  """Reads and checks it all.

  Args:
    name: a form and a path, such as csv:flowers.csv.
    options: how to read it.

  Raises:
    InputError: data that don't fit; it tells the file and the place in it.
  """
  with _named(name):
    train, test = _read(*spec.split(name), options)
    for part, table in (('', train), ('_test', test)):
      if table is not None and not table.x.size:
        raise tabular.DataError(
          f'x{part} of shape {list(table.x.shape)} is empty'
        )
    classes = options.class_names or tabular.class_names(train)
    if len(classes) < 2:
      raise tabular.DataError(
        f'{train.place(0)}: all labels are {classes[0]}; there must be two '
        'at least'
      )
    y = tabular.encode(train, classes)
    if test is not None:
      y_test = tabular.encode(test, classes)
      x, x_test = tabular.inputs([train.x, test.x], options.image_size)
      _check('x', x, y)
      _check('x_test', x_test, y_test)
      client = train.client
      return OwnData(x, y, x_test, y_test, len(classes), classes, client)
    [x] = tabular.inputs([train.x], options.image_size)
    _check('x', x, y)
    kept, held = tabular.hold_out(y, options.test_fraction)
    return OwnData(
      x[kept],
      y[kept],
      x[held],
      y[held],
      len(classes),
      classes,
      None if train.client is None else train.client[kept],
    )


def inspect(name: str, options: spec.Options) -> str:
  """Looks at what is seen fast, without TensorFlow; a digest of the files.

  Raises:
    InputError: what is wrong with names: of columns, arrays or files.
  """
  form, path = spec.split(name)
  digest = hashlib.sha256()
  with _named(name):
    if form == 'folder':
      listing = image_folder.scan(path)
      for _, file in [*listing.train, *(listing.test or [])]:
        digest.update(str(file.relative_to(path)).encode() + b'\0')
        digest.update(_file_digest(os.fspath(file)))
    else:
      if form == 'csv':
        csv.head(path, options)
      else:
        npz.check(path)
      digest.update(_file_digest(path))
  return digest.hexdigest()


def _read(form: str, path: str, options: spec.Options) -> tabular.Tables:
  if form == 'csv':
    return csv.read(path, options)
  if form == 'npz':
    return npz.read(path)
  return image_folder.read(path, options.image_size)


def _check(name: str, x: np.ndarray, y: np.ndarray) -> None:
  """Refuses numbers that are not finite."""
  try:
    arrays.examples(x, y)
  except errors.InputError as error:
    raise tabular.DataError(
      f'{name} has {error.value}; {error.hint}'
    ) from error


@contextmanager
def _named(name: str) -> Iterator[None]:
  """Tells which data set is wrong."""
  try:
    yield
  except tabular.DataError as error:
    raise errors.InputError('dataset', name, str(error)) from error
  except OSError as error:
    raise errors.InputError(
      'dataset', name, f'cannot be read ({error.strerror or error})'
    ) from error


def _file_digest(path: str) -> bytes:
  """SHA-256 of a file; read only once unless it changes."""
  stat = os.stat(path)
  return _known_digest(path, stat.st_size, stat.st_mtime_ns)


@functools.cache
def _known_digest(path: str, size: int, changed: int) -> bytes:
  del size, changed
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').digest()
