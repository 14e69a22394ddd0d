"""npz:FILE, arrays that `numpy.savez` wrote.

  x, y            inputs [N, ...] and labels [N] or [N, 1]; Keras's own names,
                  x_train and y_train, mean the same
  x_test, y_test  for testing; may be absent
  client          who each of the N examples comes from; may be absent

Labels are whole numbers or names. Arrays of Python objects are not read, as
that could run a stranger's code.
"""

import zipfile
from typing import Any

import numpy as np

from safl_tf.data.files import tabular
from safl_tf.util import errors, validation

_NAMES = ('x', 'y', 'x_test', 'y_test', 'client')
_SAME = {'x_train': 'x', 'y_train': 'y'}


def check(path: str) -> None:
  """Refuses a file whose arrays have other names; reads none of them."""
  try:
    with zipfile.ZipFile(path) as archive:
      found = [name.removesuffix('.npy') for name in archive.namelist()]
  except zipfile.BadZipFile as error:
    raise tabular.DataError(f'cannot be read ({error})') from error
  plain = [_SAME.get(name, name) for name in found]
  for name in plain:
    try:
      validation.choice('array', name, _NAMES)
    except errors.InputError as error:
      raise tabular.DataError(f'array {name}: {error.hint}') from None
  needed = {'x', 'y'}
  if {'x_test', 'y_test'} & set(plain):
    needed |= {'x_test', 'y_test'}
  missing = sorted(needed - set(plain))
  if missing:
    raise tabular.DataError(
      f'there is no array {missing[0]}; there is {", ".join(found) or "none"}'
    )


def read(path: str) -> tabular.Tables:
  """All arrays, checked but for their values."""
  check(path)
  with np.load(path, allow_pickle=False) as archive:
    found = {_SAME.get(n, n): _array(archive, n) for n in archive.files}
  train = _table(found, 'x', 'y')
  if 'client' in found:
    client = found['client']
    if client.dtype.kind not in 'biuU' or client.shape != (len(train.x),):
      raise tabular.DataError(
        f'client is an array of {client.dtype} {list(client.shape)}; must hold '
        f'a whole number or a name for each of the {len(train.x)} rows of x'
      )
    train = train._replace(client=client)
  if 'x_test' not in found:
    return tabular.Tables(train, None)
  test = _table(found, 'x_test', 'y_test')
  if test.x.shape[1:] != train.x.shape[1:]:
    raise tabular.DataError(
      f'x_test has rows of shape {list(test.x.shape[1:])}, but x of '
      f'{list(train.x.shape[1:])}'
    )
  return tabular.Tables(train, test)


def _array(archive: Any, name: str) -> np.ndarray:
  try:
    found = archive[name]
  except Exception as error:  # whatever a broken archive may cause
    if isinstance(error, ValueError) and 'Object arrays' in str(error):
      told = 'holds Python objects; must hold numbers or names'
    else:
      told = f'cannot be read ({errors.reason(error)})'
    raise tabular.DataError(f'array {name} {told}') from error
  if not isinstance(found, np.ndarray):
    raise tabular.DataError(f'array {name} is not as NumPy writes it')
  return found


def _table(found: dict[str, np.ndarray], x: str, y: str) -> tabular.Table:
  inputs, labels = found[x], found[y]
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
