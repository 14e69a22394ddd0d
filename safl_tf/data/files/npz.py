"""npz:FILE, arrays written by `numpy.savez`.

  x, y            inputs [N, ...] and labels [N] or [N, 1], also under the
                  names that Keras uses, x_train and y_train
  x_test, y_test  test examples; optional
  client          the client id of each of the N examples; optional

Labels are whole numbers or names. Arrays of Python objects are refused because
unpickling can run arbitrary code.
"""

import zipfile
from typing import Any

import numpy as np

from safl_tf.data.files import tabular
from safl_tf.util import errors, validation

_NAMES = ('x', 'y', 'x_test', 'y_test', 'client')
_ALIASES = {'x_train': 'x', 'y_train': 'y'}


def check_names(path: str) -> None:
  """Refuses unknown or missing arrays without reading any."""
  try:
    with zipfile.ZipFile(path) as archive:
      members = [name.removesuffix('.npy') for name in archive.namelist()]
  except zipfile.BadZipFile as error:
    raise tabular.DataError(f'cannot be read ({error})') from error
  names = {_ALIASES.get(name, name) for name in members}
  for name in sorted(names):
    try:
      validation.choice('array', name, _NAMES)
    except errors.InputError as error:
      raise tabular.DataError(f'array {name}: {error.hint}') from None
  has_test = names & {'x_test', 'y_test'}
  for name in _NAMES[:4] if has_test else _NAMES[:2]:
    if name not in names:
      raise tabular.DataError(
        f'there is no array {name}; there is {", ".join(members) or "none"}'
      )


def read(path: str) -> tuple[tabular.Table, tabular.Table | None]:
  """Reads the training and the test examples and checks their shapes."""
  check_names(path)
  with np.load(path, allow_pickle=False) as archive:
    arrays = {_ALIASES.get(n, n): _array(archive, n) for n in archive.files}
  train = _table(arrays, 'x', 'y')
  if 'client' in arrays:
    ids = arrays['client']
    if ids.dtype.kind not in 'biuU' or ids.shape != (len(train.x),):
      raise tabular.DataError(
        f'client is an array of {ids.dtype} {list(ids.shape)}; must hold a '
        f'whole number or a name for each of the {len(train.x)} rows of x'
      )
    train = train._replace(client_ids=ids)
  if 'x_test' not in arrays:
    return train, None
  test = _table(arrays, 'x_test', 'y_test')
  if test.x.shape[1:] != train.x.shape[1:]:
    raise tabular.DataError(
      f'x_test has rows of shape {list(test.x.shape[1:])}, but x of '
      f'{list(train.x.shape[1:])}'
    )
  return train, test


def _array(archive: Any, name: str) -> np.ndarray:
  try:
    array = archive[name]
  except Exception as error:  # a damaged archive can raise anything
    if isinstance(error, ValueError) and 'Object arrays' in str(error):
      hint = 'holds Python objects; must hold numbers or names'
    else:
      hint = f'cannot be read ({errors.reason(error)})'
    raise tabular.DataError(f'array {name} {hint}') from error
  if not isinstance(array, np.ndarray):
    raise tabular.DataError(f'array {name} is not in the format of NumPy')
  return array


def _table(arrays: dict[str, np.ndarray], x: str, y: str) -> tabular.Table:
  inputs, labels = arrays[x], arrays[y]
  if inputs.dtype.kind not in 'biuf' or inputs.ndim < 2:
    raise tabular.DataError(
      f'{x} is an array of {inputs.dtype} {list(inputs.shape)}; must hold '
      'numbers, with at least two axes'
    )
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  if labels.dtype.kind not in 'biufU' or labels.ndim != 1:
    raise tabular.DataError(
      f'{y} is an array of {labels.dtype} {list(labels.shape)}; must hold one '
      'whole number or name per row; if one-hot, save y.argmax(axis=1)'
    )
  if len(inputs) != len(labels):
    raise tabular.DataError(
      f'{x} has {len(inputs)} rows, but {y} has {len(labels)}'
    )
  if labels.dtype.kind == 'b':
    labels = labels.astype(np.int32)
  texts = [str(label) for label in labels.tolist()]
  return tabular.Table(inputs, texts, lambda row: f'{y}, row {row}')
