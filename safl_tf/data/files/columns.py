"""The columns of a csv file by their purpose: labels, weights, categories.

A column of categories becomes one feature per category, 1 where the cell is the
category and else 0. Such features follow the numeric ones, in the order of the
columns; the categories of a column are sorted. Columns of categories are the
requested ones and those in which every cell starts with a letter and is not
nan or infinity.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.data.files import spec, tabular

_FLOAT32_LIMIT = (2 - 2.0**-24) * 2.0**127  # rounds to infinity
_MAX_CATEGORIES = 100
_NUMBER = re.compile(r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?', re.ASCII)
_LABELS = ('label', 'y', 'target')


class Column(NamedTuple):
  """A column as text; `place` maps a row to its location in the file."""

  name: str
  cells: list[str]
  place: Callable[[int], str]


def requested(options: spec.Options) -> set[str | None]:
  """Returns the names of the columns that the user named one by one."""
  given = options.label_column
  labels = () if given is None else given.split(',')
  others = (options.client_column, options.weight_column)
  return {*others, *options.categorical, *(options.categories or ()), *labels}


def find(
  names: list[str], flag: str, requested: str | None, *usual: str
) -> int | None:
  """Returns the index of the requested column, or of one with a usual name."""
  if requested is None:
    for name in usual:
      matches = [i for i, other in enumerate(names) if other.lower() == name]
      if len(matches) > 1:
        raise tabular.DataError(
          f'has columns {names[matches[0]]} and {names[matches[1]]}; '
          f'choose one with --{flag}'
        )
      if matches:
        return matches[0]
    return None
  if requested not in names:
    raise tabular.DataError(
      f'has no column {requested} (--{flag}); its columns are '
      f'{tabular.preview(names)}'
    )
  return names.index(requested)


def find_labels(
  names: list[str], options: spec.Options, client: int | None
) -> list[int]:
  """Returns the indices of the label columns; one for classification."""
  given = options.label_column
  parts = [given]
  several = options.task != 'classification' and given not in names
  if given is not None and several:
    parts = [part.strip() for part in given.split(',')]
  found = [find(names, 'label_column', part, *_LABELS) for part in parts]
  last = len(names) - (2 if client == len(names) - 1 else 1)
  return [last if i is None else i for i in found]


def find_categories(names: list[str], options: spec.Options) -> list[int]:
  """Returns the indices of the columns that are known to hold categories."""
  known = options.categories
  wanted = options.categorical if known is None else tuple(known)
  found = {find(names, 'categorical', name) for name in wanted}
  return sorted(i for i in found if i is not None)


def is_word(cell: str) -> bool:
  """Returns whether a cell is the name of a category, and plainly no number."""
  return cell[:1].isalpha() and not tabular.looks_like_number(cell)


def is_finite(cell: str) -> bool:
  """Returns whether a cell is a decimal number within the range of float32."""
  return bool(_NUMBER.fullmatch(cell)) and abs(float(cell)) < _FLOAT32_LIMIT


def one_hot(
  column: Column, found: bool, known: Sequence[str] | None
) -> tuple[np.ndarray, list[str]]:
  """Returns one feature per category, uint8 [N, C], and the categories.

  Args:
    column: the cells.
    found: whether nobody asked for it: then all cells must be words.
    known: the categories, if they are those of other data.
  """
  if found:
    for row, cell in enumerate(column.cells):
      if not is_word(cell):
        raise tabular.DataError(
          f'{column.place(row)}: {cell!r} is not like {column.cells[0]!r} '
          'above; if both are categories, give '
          f'--categorical={column.name}'
        )
  names = sorted(set(column.cells)) if known is None else list(known)
  if known is None and len(names) > _MAX_CATEGORIES:
    raise tabular.DataError(
      f'column {column.name} has {len(names)} categories, more than '
      f'{_MAX_CATEGORIES}; number or group them, or remove the column'
    )
  index = {name: c for c, name in enumerate(names)}
  codes = np.array([index.get(cell, -1) for cell in column.cells])
  if len(codes) and codes.min() < 0:
    row = int(np.argmin(codes))
    raise tabular.DataError(
      f'{column.place(row)}: {column.cells[row]!r} is none of the known '
      f'categories, {tabular.preview(names)}'
    )
  return np.eye(len(names), dtype=np.uint8)[codes], names


def numbers(column: Column) -> np.ndarray:
  """Returns the cells as finite numbers, float32 [N]."""
  for row, cell in enumerate(column.cells):
    if not is_finite(cell):
      raise tabular.DataError(
        f'{column.place(row)}: {cell!r} is not a finite number'
      )
  return np.array(column.cells, np.float64).astype(np.float32)


def weights(column: Column) -> np.ndarray:
  """Returns the cells as numbers that are not negative, nor all zero."""
  found = numbers(column)
  if found.min() < 0:
    row = int(np.argmax(found < 0))
    raise tabular.DataError(
      f'{column.place(row)}: a weight must not be below 0'
    )
  if not found.any():
    raise tabular.DataError(f'column {column.name} has no positive weight')
  return found


def targets(labels: Sequence[Column], task: str) -> np.ndarray | None:
  """Returns numbers [N] or [N, d], or int32 [N, d] of 0 and 1.

  None for classification.
  """
  if task == 'classification':
    return None
  found = np.stack([numbers(column) for column in labels], axis=1)
  if task == 'multi_label':
    return tabular.check_multi_label(
      found, lambda row, i: f'{labels[i].place(row)}'
    )
  return found[:, 0] if len(labels) == 1 else found
