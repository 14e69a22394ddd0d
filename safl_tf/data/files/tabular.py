"""Converts the contents of data files to inputs and class numbers.

Labels are whole numbers or names. They are sorted and numbered 0, 1, ...
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class DataError(ValueError):
  """Describes an error in a data file and its location, without the path."""


class Table(NamedTuple):
  """Examples as read from a file.

  Attributes:
    x: inputs [N, ...].
    labels: labels as text [N].
    place: maps a row to its location in the file, for error messages.
    client_ids: the client of each example [N]; None if the file has none.
  """

  x: np.ndarray
  labels: list[str]
  place: Callable[[int], str]
  client_ids: np.ndarray | None = None


def class_names(table: Table) -> tuple[str, ...]:
  """Returns the distinct labels, sorted as numbers if all are numbers."""
  labels = set(table.labels)
  names = {_normalize(label) for label in labels}
  if not all(map(_is_number, labels)):
    return tuple(sorted(names))
  fractions = {label for label in labels if _whole_number(label) is None}
  if fractions:
    row = next(i for i, text in enumerate(table.labels) if text in fractions)
    raise DataError(
      f'{table.place(row)}: {table.labels[row]} is not a whole number; labels '
      'must be whole numbers or names'
    )
  return tuple(sorted(names, key=int))


def encode(table: Table, names: Sequence[str]) -> np.ndarray:
  """Returns the index of each label in `names`, int32 [N].

  Whole numbers match in any notation, such as 3.0 for 3. If no name is a
  number, the labels 0, 1, ... stand for the names in order.
  """
  index = {name: c for c, name in enumerate(names)}
  if not any(map(_is_number, names)):
    index = {str(c): c for c in range(len(names))} | index
  codes = {text: index.get(_normalize(text), -1) for text in set(table.labels)}
  y = np.fromiter((codes[text] for text in table.labels), np.int32)
  if len(y) and y.min() < 0:
    row = int(np.argmin(y))
    raise DataError(
      f'{table.place(row)}: {table.labels[row]!r} is none of the known labels, '
      f'{preview(names)}'
    )
  return y


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


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _whole_number(text: str) -> int | None:
  """Returns the value of a whole number such as 3, 03 or 3.0, else None."""
  try:
    return int(text)
  except ValueError:
    is_whole = _is_number(text) and float(text).is_integer()
    return int(float(text)) if is_whole else None


def _normalize(text: str) -> str:
  """Returns the usual notation of a whole number, or the text."""
  number = _whole_number(text)
  return text if number is None else str(number)
