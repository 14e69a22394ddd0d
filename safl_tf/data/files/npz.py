"""npz:FILE, arrays written by `numpy.savez`.

  x, y            inputs [N, ...] and labels [N] or [N, 1], also under the
                  names that Keras uses, x_train and y_train
  x_test, y_test  test examples; optional
  client          the client id of each of the N examples; optional

Labels are whole numbers or names, see `tabular`; for regression, numbers [N] or
[N, d], and for several labels per example, 0 or 1 [N, d]. Other arrays are
refused, and so are arrays of Python objects because unpickling can run
arbitrary code.
"""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from safl_tf.data import arrays as arrays_lib
from safl_tf.data.files import tabular
from safl_tf.util import bounded_io, errors, validation

_NAMES = ('x', 'y', 'x_test', 'y_test', 'client')
_ALIASES = {'x_train': 'x', 'y_train': 'y'}
_ROW = 100  # bytes of memory for the text of a label or client id
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


class Header(NamedTuple):
  """The header of an array."""

  shape: tuple[int, ...]
  dtype: np.dtype


def check(path: str) -> bool:
  """Refuses unknown or missing arrays, and more than the memory holds.

  Returns whether there are test examples.
  """
  with open_archive(path) as archive:
    members = _members(archive)
    _check_memory(archive, members)
  return 'x_test' in members


def read(
  path: str, task: str = 'classification'
) -> tuple[tabular.Table, tabular.Table | None]:
  """Reads the training and the test examples and checks their shapes."""
  with open_archive(path) as archive:
    members = _members(archive)
    _check_memory(archive, members)
    arrays = {
      name: read_array(archive, member) for name, member in members.items()
    }
  train = _table(arrays, 'x', 'y', task)
  if 'client' in arrays:
    train = train._replace(client_ids=_clients(arrays['client'], len(train.x)))
  if 'x_test' not in arrays:
    return train, None
  test = _table(arrays, 'x_test', 'y_test', task)
  if test.x.shape[1:] != train.x.shape[1:]:
    raise tabular.DataError(
      f'x_test has rows of shape {list(test.x.shape[1:])}, but x of '
      f'{list(train.x.shape[1:])}'
    )
  if {train.x.dtype.kind, test.x.dtype.kind} == {'u', 'f'}:
    raise tabular.DataError(
      f'x_test is {test.x.dtype}, but x is {train.x.dtype}; save both in the '
      'same type and scale'
    )
  return train, test


@contextlib.contextmanager
def open_archive(path: str) -> Iterator[zipfile.ZipFile]:
  """Opens an .npz file; raises `tabular.DataError` or OSError."""
  with bounded_io.open_regular(path) as file:
    try:
      archive = zipfile.ZipFile(file)
    except Exception as error:  # a damaged archive can raise anything
      raise tabular.DataError(
        f'cannot be read ({errors.reason(error)})'
      ) from error
    yield archive


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
  """Returns the members by array; refuses unknown and repeated ones."""
  members: dict[str, zipfile.ZipInfo] = {}
  for member in archive.infolist():
    plain = array_name(member)
    name = _ALIASES.get(plain, plain)
    try:
      validation.choice('array', name, _NAMES)
    except errors.InputError as error:
      raise tabular.DataError(f'array {plain}: {error.hint}') from None
    if name in members:
      raise tabular.DataError(
        f'has arrays {array_name(members[name])} and {plain}; must have one of '
        'them'
      )
    if not member.filename.endswith('.npy'):
      raise tabular.DataError(f'array {plain} is not in the format of NumPy')
    members[name] = member
  has_test = members.keys() & {'x_test', 'y_test'}
  for name in _NAMES[:4] if has_test else _NAMES[:2]:
    if name not in members:
      there = ', '.join(map(array_name, members.values())) or 'none'
      raise tabular.DataError(f'there is no array {name}; there is {there}')
  return members


def array_name(member: zipfile.ZipInfo) -> str:
  """Returns the name of an array."""
  return member.filename.removesuffix('.npy')


def _check_memory(
  archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]
) -> None:
  """Refuses arrays that do not fit into memory, from their headers alone."""
  needed = 0
  for name, member in members.items():
    shape, dtype = read_header(archive, member)
    size = math.prod(shape)
    needed += size * dtype.itemsize
    if name in ('x', 'x_test'):  # become float32, and are copied once
      needed += size * (1 if dtype == np.uint8 else 4)
    else:
      needed += _ROW * shape[0]
  reason = bounded_io.shortage(needed)
  if reason is not None:
    raise tabular.DataError(reason)


def read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
  """Reads and checks the shape and the type of an array."""
  name = array_name(member)
  with _errors(name), archive.open(member) as file:
    try:
      version = np.lib.format.read_magic(file)
    except ValueError as error:
      raise tabular.DataError(
        f'array {name} is not in the format of NumPy'
      ) from error
    shape, _, dtype = _HEADERS[version](file)
    start = file.tell()
  if dtype.hasobject:
    raise tabular.DataError(
      f'array {name} holds Python objects; must hold numbers or names'
    )
  if not shape or min(shape) < 0:
    raise tabular.DataError(
      f'array {name} has shape {list(shape)}; must have rows'
    )
  size = math.prod(shape) * dtype.itemsize
  if member.file_size != start + size:
    raise tabular.DataError(
      f'array {name} is damaged: {member.file_size - start} bytes instead of '
      f'{size}'
    )
  return Header(shape, dtype)


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  """Reads an array and verifies its checksum; never unpickles."""
  with _errors(array_name(member)), archive.open(member) as file:
    array = np.lib.format.read_array(file, allow_pickle=False)
    file.read(1)  # at the end, the checksum is verified
  return array


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
  """Names the array in errors; a damaged archive can raise anything."""
  try:
    yield
  except (tabular.DataError, MemoryError):
    raise
  except Exception as error:
    raise tabular.DataError(
      f'array {name} cannot be read ({errors.reason(error)})'
    ) from error


def _clients(ids: np.ndarray, rows: int) -> np.ndarray:
  """Checks client ids."""
  if ids.dtype.kind not in 'biuU' or ids.shape != (rows,):
    raise tabular.DataError(
      f'client is an array of {ids.dtype} {list(ids.shape)}; must hold a '
      f'whole number or a name for each of the {rows} rows of x'
    )
  if ids.dtype.kind == 'U':
    for row, name in enumerate(ids.tolist()):
      if not arrays_lib.is_unicode(name):
        raise tabular.DataError(f'client, row {row} is not Unicode text')
  return ids


def _table(
  arrays: dict[str, np.ndarray], x: str, y: str, task: str
) -> tabular.Table:
  inputs, labels = arrays[x], arrays[y]
  if inputs.dtype.kind not in 'biuf' or inputs.ndim < 2:
    raise tabular.DataError(
      f'{x} is an array of {inputs.dtype} {list(inputs.shape)}; must hold '
      'numbers, with at least two axes'
    )
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  is_classes = task == 'classification'
  if is_classes and (labels.dtype.kind not in 'biufU' or labels.ndim != 1):
    raise tabular.DataError(
      f'{y} is an array of {labels.dtype} {list(labels.shape)}; must hold one '
      'whole number or name per row; if one-hot, save y.argmax(axis=1), and if '
      'these are no classes, give --task'
    )
  if len(inputs) != len(labels):
    raise tabular.DataError(
      f'{x} has {len(inputs)} rows, but {y} has {len(labels)}'
    )
  if not is_classes:
    return _other_targets(inputs, labels, y, task)
  if labels.dtype.kind == 'b':
    labels = labels.astype(np.int32)
  texts = [str(label) for label in labels.tolist()]
  return tabular.Table(inputs, texts, lambda row: f'{y}, row {row}')


def _other_targets(
  inputs: np.ndarray, y: np.ndarray, name: str, task: str
) -> tabular.Table:
  """Returns the table for numbers to predict, or several labels."""
  if y.dtype.kind not in 'biuf':
    raise tabular.DataError(
      f'{name} is an array of {y.dtype}; must hold numbers for --task={task}'
    )
  place = lambda row: f'{name}, row {row}'
  if task == 'multi_label':
    y = tabular.check_multi_label(y, lambda row, i: f'{place(row)}, label {i}')
  else:
    with np.errstate(over='ignore'):  # the caller refuses infinity
      y = y.astype(np.float32)
  names = tuple(map(str, range(y.shape[1]))) if y.ndim > 1 else ()
  return tabular.Table(inputs, [], place, targets=y, target_names=names)
