"""Loads data files: npz:FILE, csv:FILE and folder:FOLDER.

The modules `npz`, `csv` and `image_folder` describe the formats. Inputs are
uint8 pixels or float32 values: [N, height, width, channels] for images and
[N, features] for tables.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from safl_tf.data import dataset, examples
from safl_tf.data.files import csv, image_folder, npz, spec, tabular
from safl_tf.util import bounded_io, errors


def load(name: str, options: spec.Options) -> dataset.Dataset:
  """Loads and checks data files; errors name the file and the location.

  Without test examples in the files, `options.test_fraction` of each class is
  held out; if it is None, there are no test examples.
  """
  with _input_errors(name):
    form, path = spec.split(name)
    if form == 'csv':
      train, test = csv.read(path, options), None
    elif form == 'npz':
      train, test = npz.read(path, options.task)
    else:
      train, test = image_folder.read(path, options.image_size)
    _check_unchanged(name, options)
    tables = {'x': train} if test is None else {'x': train, 'x_test': test}
    for part, table in tables.items():
      if not table.x.size:
        raise tabular.DataError(
          f'{part} of shape {list(table.x.shape)} is empty'
        )
    classes, ys = _targets(list(tables.values()), options)
    xs = tabular.inputs([t.x for t in tables.values()], options.image_size)
    for part, x, y in zip(tables, xs, ys, strict=True):
      try:
        examples.check(x, y)
      except errors.InputError as error:
        place = part.replace('x', error.argument)
        raise tabular.DataError(
          f'{place} has {error.value}; {error.hint}'
        ) from error
    client_ids, ws = train.client_ids, [train.weights, None]
    if test is None:
      rows: Any = (slice(None), slice(0))
      if options.test_fraction is not None:
        rows = dataset.hold_out(ys[0], options.test_fraction)
      xs, ys = [xs[0][part] for part in rows], [ys[0][part] for part in rows]
      client_ids = None if client_ids is None else client_ids[rows[0]]
      if train.weights is not None:
        ws = [train.weights[part] for part in rows]
  return dataset.Dataset(
    spec.short_name(name),
    *(xs[0], ys[0], xs[1], ys[1]),
    len(classes) if options.task == 'classification' else None,
    classes,
    client_ids,
    task=options.task,
    w_train=ws[0],
    w_test=ws[1],
    categories=train.categories,
  )


def _targets(
  tables: list[tabular.Table], options: spec.Options
) -> tuple[tuple[str, ...], list[np.ndarray]]:
  """Returns the names of the classes, and the targets of each table."""
  train, known = tables[0], options.class_names
  if options.task == 'classification':
    classes = known or tabular.class_names(train)
    if len(classes) < 2:
      raise tabular.DataError(
        f'{train.place(0)}: all labels are {classes[0]}; there must be at '
        'least two'
      )
    return classes, [tabular.encode(table, classes) for table in tables]
  ys = [table.targets for table in tables if table.targets is not None]
  if ys[-1].shape[1:] != ys[0].shape[1:]:
    raise tabular.DataError(
      f'y_test has rows of shape {list(ys[-1].shape[1:])}, but y of '
      f'{list(ys[0].shape[1:])}'
    )
  if options.task == 'regression':
    return (), ys
  if known and known != train.target_names:
    raise tabular.DataError(
      f'has labels {tabular.preview(train.target_names)}; must have those of '
      f'the model, {tabular.preview(known)}'
    )
  return train.target_names, ys


def inspect(name: str, options: spec.Options) -> tuple[str, bool]:
  """Checks names of columns, arrays and images, without TensorFlow.

  Returns:
    The SHA-256 of the files, and whether they have test examples.
  """
  form, path = spec.split(name)
  digest = hashlib.sha256()
  has_test = False
  with _input_errors(name):
    if form == 'folder':
      train, test = image_folder.scan(path, options.image_size)
      has_test = bool(test)
      for file in [*train, *test]:
        digest.update(os.fsencode(file.relative_to(path)) + b'\0')
        digest.update(_file_digest(os.fspath(file)))
    else:
      if form == 'csv':
        csv.read_layout(path, options)
      else:
        has_test = npz.check(path)
      digest.update(_file_digest(path))
  return digest.hexdigest(), has_test


def _check_unchanged(name: str, options: spec.Options) -> None:
  """Refuses files that are not those of `options.data_sha256`."""
  expected = options.data_sha256
  if expected is not None and inspect(name, options)[0] != expected:
    raise errors.InputError('dataset', name, 'has changed meanwhile')


@contextlib.contextmanager
def _input_errors(name: str) -> Iterator[None]:
  """Raises errors in files as an `InputError` of the argument dataset."""
  try:
    yield
  except tabular.DataError as error:
    hint = errors.one_line(str(error))
    raise errors.InputError('dataset', name, hint) from error
  except OSError as error:
    hint = f'cannot be read ({error.strerror or error})'
    path = spec.split(name)[1]
    if error.filename not in (None, path):
      hint = f'{os.path.relpath(os.fspath(error.filename), path)} {hint}'
    raise errors.InputError('dataset', name, errors.one_line(hint)) from error
  except MemoryError as error:
    raise errors.InputError(
      'dataset', name, 'does not fit into memory'
    ) from error


def _file_digest(path: str) -> bytes:
  """Returns the SHA-256 of a file, cached until its state changes."""
  stat = os.stat(path)
  # The last number changes with the file, whatever is done to the others.
  state = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
  return _cached_digest(path, state)


@functools.cache
def _cached_digest(path: str, state: tuple[int, ...]) -> bytes:
  del state
  with bounded_io.open_regular(path) as file:
    return hashlib.file_digest(file, 'sha256').digest()
