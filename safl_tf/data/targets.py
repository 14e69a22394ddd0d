"""Checks of what models learn to predict, and of the weights of examples.

Targets y are class numbers, int32 [N]; float32 [N] or [N, ...] for regression;
or int32 [N, ...] for several labels (0 or 1 each) or tokens per example.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.util import errors, validation

_MAX_ROWS = np.iinfo(np.int32).max
_MAX_CLASSES = 10**6
_INT32 = np.iinfo(np.int32)


def class_numbers(
  y: Any, class_names: Iterable[Any] | None = None
) -> tuple[np.ndarray, list[str]]:
  """Numbers classes that are names or whole numbers with gaps.

  Args:
    y: the class of each example [N]: text, a pandas categorical, or whole
      numbers such as 3, 7, 1000000.
    class_names: the names of classes 0, 1, ..., such as those of the training
      data. None means the distinct values of y in order; for a categorical, its
      categories.

  Returns:
    The class numbers, int32 [N], and the names of the classes. Pass both to
    `ClientData.from_arrays`.

  Raises:
    InputError: a value of y is not among `class_names`.

  Example:
    ```pycon
    >>> numbers, names = safl_tf.class_numbers(['rose', 'lily', 'rose'])
    >>> numbers.tolist(), names
    ([1, 0, 1], ['lily', 'rose'])
    >>> safl_tf.class_numbers(['lily'], class_names=names)[0].tolist()
    [0]
    ```
  """
  values, names = _classes(y)
  if class_names is not None:
    names = check_names(class_names)
  index = {name: c for c, name in enumerate(names)}
  numbers = np.fromiter((index.get(v, -1) for v in values), np.int32)
  if numbers.min() < 0:
    row = int(np.argmin(numbers))
    few = ', '.join(names[:10]) + (', ...' if len(names) > 10 else '')
    raise errors.InputError(
      'y', f'{values[row]!r} in row {row}', f'must be one of the classes {few}'
    )
  return numbers, names


def read(
  y: Any, class_names: Iterable[Any] | None = None
) -> tuple[np.ndarray, list[str] | None]:
  """Checks targets, as `ClientData.from_arrays` takes them.

  Returns:
    y as int32 or float32, not copied if it is that already, and the names of
    the classes if they are given or y holds names.
  """
  if _is_categorical(y):
    return class_numbers(y, class_names)
  if arrays.is_frame(y):
    y = arrays.from_frame('y', y)
    if isinstance(y, dict) and len(y) == 1:
      [y] = y.values()
    if isinstance(y, dict):
      columns = ', '.join(y)
      hint = 'must be numbers, or one column of names'
      raise errors.InputError('y', f'columns {columns}', hint)
  y = arrays.array('y', y)
  if y.size == 0:
    raise errors.InputError('y', 'no labels', 'must hold at least one')
  if y.ndim == 0:
    raise errors.InputError('y', 'a single value', 'must hold one per example')
  if y.ndim == 2 and y.shape[1] == 1:
    y = y[:, 0]
  if len(y) > _MAX_ROWS:
    raise errors.InputError(
      'y', f'{len(y)} labels', f'must be at most {_MAX_ROWS}'
    )
  if y.dtype.kind in 'USO' and y.ndim == 1:
    return class_numbers(y, class_names)
  names = None if class_names is None else check_names(class_names)
  if y.dtype.kind == 'f' and y.dtype.itemsize <= 8:
    if names is not None:
      hint = f'y holds numbers of {y.dtype}, not classes'
      raise errors.InputError('class_names', f'{len(names)} names', hint)
    with np.errstate(over='ignore'):
      y = y.astype(np.float32, copy=False)
    arrays.check_finite('y', y)
    return y, None
  if y.dtype.kind not in 'biu':
    raise errors.InputError(
      'y',
      f'array of {y.dtype}',
      'must hold class numbers 0, 1, ..., names, or float targets',
    )
  return _integers(y), names


def check_names(class_names: Iterable[Any]) -> list[str]:
  """Returns the names of classes as a list of distinct text."""
  takes = 'a list of names or None'
  if isinstance(class_names, str):
    raise errors.InputError(
      'class_names', repr(class_names), f'must be {takes}'
    )
  validation.instance('class_names', class_names, Iterable, takes)
  names = [str(name) for name in class_names]
  if not names:
    raise errors.InputError('class_names', 'none', 'must hold at least one')
  first: dict[str, int] = {}
  for c, name in enumerate(names):
    if first.setdefault(name, c) != c:
      raise errors.InputError('class_names', name, 'must be there only once')
    if not arrays.is_unicode(name):
      raise errors.InputError('class_names', ascii(name), 'must be Unicode')
  return names


def num_classes(
  y: np.ndarray, given: int | None = None, names: list[str] | None = None
) -> int | None:
  """Returns the number of classes; None if y holds other targets.

  It is the number of names, the given number or max(y) + 1. Refuses labels
  that do not fit.
  """
  if not is_classes(y):
    if given is not None:
      hint = f'y holds {describe(y)}, not class numbers; leave it out'
      raise errors.InputError('num_classes', given, hint)
    return None
  if given is None and names is None:
    given = int(y.max()) + 1
    if given > _MAX_CLASSES:
      raise errors.InputError(
        'y',
        f'{given - 1} in row {int(np.argmax(y))}',
        f'must be below {_MAX_CLASSES}; number the classes 0, 1, ... with '
        'safl_tf.class_numbers',
      )
    return given
  if given is not None:
    given = validation.integer('num_classes', given, low=1, high=_MAX_CLASSES)
  if names is not None:
    if given not in (None, len(names)):
      hint = f'must be {len(names)} or omitted: so many classes have names'
      raise errors.InputError('num_classes', given, hint)
    given = len(names)
  assert given is not None
  if y.max() >= given:
    row = int(np.argmax(y >= given))
    raise errors.InputError(
      'y', f'{y[row]} in row {row}', f'must be below num_classes={given}'
    )
  return given


def is_classes(y: np.ndarray) -> bool:
  """Returns whether checked targets are class numbers."""
  return y.ndim == 1 and y.dtype.kind == 'i'


def describe(y: np.ndarray) -> str:
  """Returns the type and the shape of targets, such as 'float32 [N, 3]'."""
  return f'{y.dtype} [{", ".join(["N", *map(str, y.shape[1:])])}]'


def refuse_without_classes(
  name: str, value: Any, y: np.ndarray, hint: str = ''
) -> None:
  """Refuses an argument that needs class numbers if y holds none."""
  if not is_classes(y):
    reason = f'needs class numbers, but y holds {describe(y)}{hint}'
    raise errors.InputError(name, value, reason)


def weights(sample_weight: Any, y: np.ndarray) -> np.ndarray:
  """Checks the weights of examples, or of the tokens of each example.

  Returns:
    float32 with the shape of y, or of its first axes.
  """
  name = 'sample_weight'
  w = arrays.array(name, sample_weight)
  if w.dtype.kind not in 'biuf' or w.dtype.itemsize > 8:
    raise errors.InputError(name, f'array of {w.dtype}', 'must hold numbers')
  if w.ndim == 2 and y.ndim == 1 and w.shape[1] == 1:
    w = w[:, 0]
  if w.ndim == 0 or w.shape != y.shape[: w.ndim]:
    shapes = [list(y.shape[:i]) for i in range(1, y.ndim + 1)]
    raise errors.InputError(
      name,
      f'array of shape {list(w.shape)}',
      f'must have the shape {" or ".join(map(str, shapes))}',
    )
  with np.errstate(over='ignore'):
    w = w.astype(np.float32, copy=False)
  arrays.check_finite(name, w)
  negative = (w < 0).reshape(len(w), -1).any(axis=1)
  if negative.any():
    place = f'a negative weight in row {int(np.argmax(negative))}'
    raise errors.InputError(name, place, 'must be at least 0')
  if not w.any():
    raise errors.InputError(name, 'zeros', 'must hold a positive weight')
  return w


def _integers(y: np.ndarray) -> np.ndarray:
  """Converts whole numbers to int32; those of [N] must be class numbers."""
  low, hint = (0, 'a class number: 0, 1, ...; see safl_tf.class_numbers')
  if y.ndim > 1:
    low, hint = (_INT32.min, 'a number of 32 bits')
  invalid = (y < low) | (y > _INT32.max - 1)
  if invalid.any():
    place = np.unravel_index(int(np.argmax(invalid)), y.shape)
    raise errors.InputError(
      'y', f'{y[place]} in row {place[0]}', f'must be {hint}'
    )
  return y.astype(np.int32, copy=False)


def _classes(y: Any) -> tuple[list[str], list[str]]:
  """Returns the class of each example and all classes, in order, as text."""
  if _is_categorical(y):
    y = getattr(y, 'cat', y)
    names = [str(category) for category in y.categories]
    codes = np.asarray(y.codes)
    if len(codes) and codes.min() < 0:
      place = f'a missing value in row {int(np.argmin(codes))}'
      raise errors.InputError('y', place, 'must be there; drop or fill it')
    values = [names[code] for code in codes]
  else:
    y = arrays.array('y', y)
    if y.ndim == 2 and y.shape[1] == 1:
      y = y[:, 0]
    if y.ndim != 1:
      raise errors.InputError(
        'y', f'array of shape {list(y.shape)}', 'must hold one class per row'
      )
    if y.dtype.kind in 'biu':
      names = [str(value) for value in np.unique(y).tolist()]
      values = [str(value) for value in y.tolist()]
    elif y.dtype.kind in 'USO':
      values = arrays.texts('y', y)
      names = sorted(set(values))
    else:
      raise errors.InputError(
        'y', f'array of {y.dtype}', 'must hold names or whole numbers'
      )
  if not values:
    raise errors.InputError('y', 'no labels', 'must hold at least one')
  return values, check_names(names)


def _is_categorical(y: Any) -> bool:
  """Returns whether y is a pandas Categorical, or a Series of one."""
  y = getattr(y, 'cat', y)
  return hasattr(y, 'categories') and hasattr(y, 'codes')
