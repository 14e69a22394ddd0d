"""From what a file holds to examples: labels to numbers, a share for testing.

Labels need not be 0, 1, ...: whole numbers or names are sorted and numbered.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.core import seeds
from safl_tf.util import errors


class DataError(ValueError):
  """What is wrong with the data, and where; without the file's name."""


class Table(NamedTuple):
  """Examples as they were read.

  Attributes:
    x: inputs [N, ...].
    labels: what is written for a label [N].
    place: row -> where it is in the file, for messages.
    client: who each example comes from [N], if that is known.
  """

  x: np.ndarray
  labels: list[str]
  place: Callable[[int], str]
  client: np.ndarray | None = None


class Tables(NamedTuple):
  """What a reader finds; `test` is None if there is no test part."""

  train: Table
  test: Table | None


def class_names(table: Table) -> tuple[str, ...]:
  """The labels there are, sorted: as numbers if all are numbers."""
  values = {text: _number(text) for text in set(table.labels)}
  if None in values.values():
    return tuple(sorted({_plain(text) for text in values}))
  broken = {text for text, value in values.items() if not _is_whole(value)}
  if broken:
    row = next(i for i, text in enumerate(table.labels) if text in broken)
    raise DataError(
      f'{table.place(row)}: {table.labels[row]} is not a whole number; labels '
      'must be whole numbers or names'
    )
  return tuple(sorted({_plain(text) for text in values}, key=int))


def encode(table: Table, names: Sequence[str]) -> np.ndarray:
  """The labels' places among `names`: int32 [N].

  A whole number that is written in another way, such as 3.0, is the same label.
  Where no name is a number, 0, 1, ... stand for the names in their order.
  """
  index = {name: c for c, name in enumerate(names)}
  if all(_number(name) is None for name in names):
    index = {str(c): c for c in range(len(names))} | index
  known = {text: index.get(_plain(text), -1) for text in set(table.labels)}
  y = np.fromiter((known[text] for text in table.labels), np.int32)
  if len(y) and y.min() < 0:
    row = int(np.argmin(y))
    few = ', '.join(names[:10]) + (', ...' if len(names) > 10 else '')
    raise DataError(
      f'{table.place(row)}: {table.labels[row]!r} is none of the known labels, '
      f'{few}'
    )
  return y


def hold_out(y: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
  """Rows for training and rows for testing, always the same.

  Of each class, `fraction` of the examples, rounded, are drawn for testing; one
  is left for training, unless all are asked for. Both lists are in order.
  """
  if fraction == 1:
    return np.arange(0), np.arange(len(y))
  is_test = np.zeros(len(y), bool)
  for label in np.unique(y):
    rows = np.flatnonzero(y == label)
    size = min(math.floor(fraction * len(rows) + 0.5), len(rows) - 1)
    rng = seeds.generator(0, seeds.Role.PARTITION, 0, int(label))
    is_test[rng.permutation(rows)[:size]] = True
  if not is_test.any():
    raise errors.InputError(
      'test_fraction', fraction, 'no class has enough examples to hold one out'
    )
  return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def inputs(
  parts: Sequence[np.ndarray], image_size: tuple[int, int] | None
) -> list[np.ndarray]:
  """The parts' inputs as models get them: uint8 pixels, or else float32.

  uint8 images stay as they are; [N, H, W] gets a channel. With `image_size`
  rows of numbers become images; where all are whole numbers in 0..255 and some
  are above 1, they are pixels.
  """
  if image_size is None:
    gray = [x.dtype == np.uint8 and x.ndim == 3 for x in parts]
    found = [
      x[..., None] if is_gray else x
      for x, is_gray in zip(parts, gray, strict=True)
    ]
    pixels = all(x.dtype == np.uint8 and x.ndim > 2 for x in found)
  else:
    found = [narrow(_images(x, image_size)) for x in parts]
    small = all(x.dtype == np.uint8 for x in found)
    pixels = small and max(x.max(initial=0) for x in found) > 1
  if pixels:
    return found
  with np.errstate(over='ignore'):  # infinity is told of later
    return [x.astype(np.float32, copy=False) for x in found]


def narrow(x: np.ndarray) -> np.ndarray:
  """As uint8, if all are whole numbers in 0..255."""
  if x.dtype == np.uint8 or x.size == 0:
    return x
  if not (x.min() >= 0 and x.max() <= 255):  # also where there is NaN
    return x
  small = x.astype(np.uint8)
  return small if (small == x).all() else x


def _images(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Rows of H·W·C numbers, or images, as [N, H, W, C]."""
  height, width = size
  numbers = math.prod(x.shape[1:])
  fits = x.ndim == 2 or x.shape[1:3] == size
  if not fits or x.ndim > 4 or numbers % (height * width) or not numbers:
    raise DataError(
      f'rows of shape {list(x.shape[1:])} are no images of '
      f'--image_size={height},{width}'
    )
  return x.reshape(len(x), height, width, -1)


def _number(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None


def _is_whole(value: float | None) -> bool:
  return value is not None and value.is_integer()


def _plain(text: str) -> str:
  """A whole number in the usual way of writing it, or the text."""
  value = _number(text)
  if value is None or not value.is_integer():
    return text
  try:
    return str(int(text))
  except ValueError:  # such as 3.0
    return str(int(value))
