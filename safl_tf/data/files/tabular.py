"""Converts the contents of data files to inputs and class numbers.

Labels are whole numbers or names. They are sorted and numbered 0, 1, ...

Labels that differ as text are different classes, unless they are plainly the
same whole number, such as 3, 3.0 and 3e0. 007 and 1_0 are names, not numbers.
"""

import decimal
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.data import arrays

# A label that is a number. 007 is none: a code of digits is a name.
_NUMBER = re.compile(
  r'[+-]?(0|[1-9]\d*|(?=\.\d))(\.\d*)?(e[+-]?\d{1,3})?'
  r'|[+-]?(nan|inf(inity)?)',
  re.ASCII | re.IGNORECASE,
)
_CANONICAL = re.compile(r'0|-?[1-9]\d*', re.ASCII)


class DataError(ValueError):
  """Describes an error in a data file and its location, without the path."""


class Table(NamedTuple):
  """Examples as read from a file.

  Attributes:
    x: inputs [N, ...].
    labels: labels as text [N].
    place: maps a row to its location in the file, for error messages.
    client_ids: the client of each example [N]; None if the file has none.
    names_only: whether labels are names even if they look like numbers.
    targets: numbers in place of labels [N, ...], unless for classification.
    target_names: a name for each of the numbers of an example.
    weights: the weight of each example [N], if any.
    categories: see `Dataset`.
  """

  x: np.ndarray
  labels: list[str]
  place: Callable[[int], str]
  client_ids: np.ndarray | None = None
  names_only: bool = False
  targets: np.ndarray | None = None
  target_names: tuple[str, ...] = ()
  weights: np.ndarray | None = None
  categories: dict[str, list[str]] | None = None


def class_names(table: Table) -> tuple[str, ...]:
  """Returns the distinct labels, sorted as numbers if all are numbers."""
  labels = set(table.labels)
  bad = {label for label in labels if not arrays.is_unicode(label)}
  if bad:
    row = next(i for i, text in enumerate(table.labels) if text in bad)
    raise DataError(f'{table.place(row)}: the label is not Unicode text')
  if not table.names_only:
    if all(map(_NUMBER.fullmatch, labels)):
      _refuse_fractions(table, labels)
    labels = {_normalize(label) for label in labels}
  if all(map(_CANONICAL.fullmatch, labels)):
    return tuple(sorted(labels, key=decimal.Decimal))
  return tuple(sorted(labels))


def encode(table: Table, names: Sequence[str]) -> np.ndarray:
  """Returns the index of each label in `names`, int32 [N].

  Whole numbers match in any notation, such as 3.0 for 3. If no name looks like
  a number, the labels 0, 1, ... stand for the names in order. With
  `table.names_only`, labels match the same text only.
  """
  index = {name: c for c, name in enumerate(names)}
  if not table.names_only and not any(map(looks_like_number, names)):
    index = {str(c): c for c in range(len(names))} | index
  notation = (lambda text: text) if table.names_only else _normalize
  codes = {
    text: index.get(text, index.get(notation(text), -1))
    for text in set(table.labels)
  }
  y = np.fromiter((codes[text] for text in table.labels), np.int32)
  if len(y) and y.min() < 0:
    row = int(np.argmin(y))
    raise DataError(
      f'{table.place(row)}: {table.labels[row]!r} is none of the known labels, '
      f'{preview(names)}'
    )
  return y


def check_multi_label(
  y: np.ndarray, place: Callable[[int, int], str]
) -> np.ndarray:
  """Returns labels [N, d] of 0 and 1 as int32.

  Args:
    y: numbers.
    place: maps a row and a label to their location in the file.
  """
  if y.ndim != 2 or y.shape[1] < 2:
    raise DataError(
      f'has labels of shape {list(y.shape)}; for --task=multi_label there must '
      'be several per example'
    )
  wrong = (y != 0) & (y != 1)
  if wrong.any():
    row, i = (int(k) for k in np.argwhere(wrong)[0])
    raise DataError(f'{place(row, i)}: {y[row, i]:g} is not 0 or 1')
  return y.astype(np.int32)


def inputs(
  parts: Sequence[np.ndarray], image_size: tuple[int, int] | None
) -> list[np.ndarray]:
  """Converts the inputs of each part to uint8 images or float32 arrays.

  uint8 images stay uint8; [N, H, W] gains a channel axis. `image_size` turns
  rows of numbers into images, of uint8 if all are whole numbers in 0..255 and
  one is above 1.
  """
  if image_size is None:
    is_gray = lambda x: x.dtype == np.uint8 and x.ndim == 3
    parts = [x[..., None] if is_gray(x) else x for x in parts]
    is_pixels = all(x.dtype == np.uint8 and x.ndim > 2 for x in parts)
  else:
    parts = [narrow(_images(x, image_size)) for x in parts]
    is_uint8 = all(x.dtype == np.uint8 for x in parts)
    is_pixels = is_uint8 and max(x.max(initial=0) for x in parts) > 1
  if is_pixels:
    return list(parts)
  with np.errstate(over='ignore'):  # the caller refuses infinity
    return [x.astype(np.float32, copy=False) for x in parts]


def narrow(x: np.ndarray) -> np.ndarray:
  """Converts to uint8 if all values are whole numbers in 0..255."""
  if x.dtype == np.uint8 or x.size == 0:
    return x
  if not (x.min() >= 0 and x.max() <= 255):  # true for NaN
    return x
  small = x.astype(np.uint8)
  return small if (small == x).all() else x


def preview(names: Sequence[str]) -> str:
  """Joins the first ten names with commas."""
  return ', '.join(names[:10]) + (', ...' if len(names) > 10 else '')


def _images(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Reshapes rows of H·W·C numbers to [N, H, W, C]."""
  height, width = size
  numbers = math.prod(x.shape[1:])
  fits = x.ndim == 2 or x.shape[1:3] == size
  if not fits or x.ndim > 4 or numbers % (height * width) or not numbers:
    raise DataError(
      f'rows of shape {list(x.shape[1:])} do not fit '
      f'--image_size={height},{width}'
    )
  return x.reshape(len(x), height, width, -1)


def looks_like_number(text: str) -> bool:
  """Returns whether Python reads a number here, also in 007, 1_0 or nan."""
  try:
    float(text)
  except ValueError:
    return False
  return True


def _refuse_fractions(table: Table, numbers: set[str]) -> None:
  """Refuses labels such as 0.5 and nan."""
  fractions = {text for text in numbers if _whole_number(text) is None}
  if fractions:
    row = next(i for i, text in enumerate(table.labels) if text in fractions)
    raise DataError(
      f'{table.place(row)}: {table.labels[row]} is not a whole number; labels '
      'must be whole numbers or names'
    )


def _whole_number(text: str) -> decimal.Decimal | None:
  """Returns the exact value of a whole number such as 3 or 3.0, else None."""
  if not _NUMBER.fullmatch(text):
    return None
  number = decimal.Decimal(text)
  is_whole = number.is_finite() and number == number.to_integral_value()
  return number if is_whole else None


def _normalize(text: str) -> str:
  """Returns the usual notation of a whole number, or the text."""
  if _CANONICAL.fullmatch(text):
    return text
  number = _whole_number(text)
  if number is None:
    return text
  return format(number.to_integral_value(), 'f') if number else '0'
