"""csv:FILE, a UTF-8 table with one example per line.

Commas, semicolons or tabs separate the columns: the one that is most frequent
in the first line. The first line is a header if no cell of it looks like a
number, or if a cell is label, target, client or the name of a requested column.
Columns without a header are called 1, 2, ...

The label column is the requested one, or the one called label, y or target (in
any case), or the last one that is not the client column. The client column is
the requested one, or the one called client. All other columns are features:
finite decimal numbers such as -1.5e3, or categories, see `columns`. Labels are
whole numbers or names, see `tabular`; client ids are names. For other tasks
there may be several label columns, of numbers. Spaces and tabs around a cell
are not part of it. Blank lines are skipped.
"""

import collections
import csv
import functools
import itertools
import os
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from safl_tf.data.files import columns, spec, tabular
from safl_tf.util import bounded_io

_BLOCK = 1 << 21  # cells that are read at once
_MAX_LINE = 1 << 24  # bytes
_MEMORY = 2  # bytes of memory for a byte of the file
_BLANKS = ' \t\r\n'
_DELIMITERS = {',': 'commas', ';': 'semicolons', '\t': 'tabs'}
_HEADER_WORDS = ('label', 'target', 'client')  # y may be the name of a class


class Layout(NamedTuple):
  """The columns of a file, by their indices.

  Attributes:
    names: the name of each column.
    labels: the label column, or several.
    client: the client column, if any.
    weight: the column of weights, if any.
    categories: the columns of categories.
    found: those of them that nobody asked for.
    delimiter: between columns.
    line: the number of the first line that is not blank.
    skipped: the number of lines up to the header; 0 without one.
  """

  names: list[str]
  labels: list[int]
  client: int | None
  weight: int | None
  categories: list[int]
  found: list[int]
  delimiter: str
  line: int
  skipped: int

  @property
  def text(self) -> list[int]:
    """The columns that are not numeric features."""
    others = [i for i in (self.client, self.weight) if i is not None]
    return [*self.labels, *others, *self.categories]

  @property
  def features(self) -> list[str]:
    """The columns of the inputs, in the order of the features."""
    numeric = [i for i in range(len(self.names)) if i not in self.text]
    return [self.names[i] for i in (*numeric, *self.categories)]


def read_layout(path: str, options: spec.Options) -> Layout:
  """Returns the layout, from the first line that is not blank."""
  lines = enumerate(_lines(path), start=1)
  line, first = next((pair for pair in lines if pair[1].strip()), (0, ''))
  if not first:
    raise tabular.DataError('is empty')
  delimiter = _delimiter(first, line)
  try:
    cells = next(
      csv.reader([first.strip('\r\n')], delimiter=delimiter, strict=True)
    )
  except csv.Error as error:
    raise tabular.DataError(f'line {line}: {error}') from error
  names = [cell.strip(_BLANKS) for cell in cells]
  numbers = {name for name in names if tabular.looks_like_number(name)}
  requested = {*columns.requested(options), options.label_column} - numbers
  has_header = not numbers or any(
    name in requested or name.lower() in _HEADER_WORDS for name in names
  )
  if not has_header:
    names = [str(i + 1) for i in range(len(names))]
  if '' in names:
    position = names.index('') + 1
    raise tabular.DataError(f'line {line}: column {position} has no name')
  name, count = collections.Counter(names).most_common(1)[0]
  if count > 1:
    raise tabular.DataError(f'line {line}: column {name} appears twice')
  client = columns.find(names, 'client_column', options.client_column, 'client')
  labels = columns.find_labels(names, options, client)
  weight = columns.find(names, 'weight_column', options.weight_column)
  categories = columns.find_categories(names, options)
  skipped = line if has_header else 0
  layout = Layout(
    names, labels, client, weight, categories, [], delimiter, line, skipped
  )
  used = layout.text
  if len(set(used)) < len(used) or not set(range(len(names))) - {
    *labels,
    client,
    weight,
  }:
    raise tabular.DataError(
      f'line {line}: columns {tabular.preview(names)}; must be a label and at '
      'least one feature, separated by commas, semicolons or tabs, each for '
      'one purpose'
    )
  if options.categories is not None:
    return layout
  _, first_row = next(_rows(path, layout), (0, []))
  found = [
    i
    for i, cell in enumerate(first_row[: len(names)])
    if i not in used and columns.is_word(cell.strip(_BLANKS))
  ]
  return layout._replace(categories=sorted(categories + found), found=found)


def read(path: str, options: spec.Options) -> tabular.Table:
  """Reads the file; x is [N, features], uint8 if it fits, else float32."""
  layout = read_layout(path, options)
  try:
    x, cells = _read_plain(path, layout)
  except ValueError:
    x, cells = _read_any(path, layout)

  def column(i: int) -> columns.Column:
    def place(row: int) -> str:
      line, _ = next(itertools.islice(_rows(path, layout), row, None))
      return f'line {line}, column {layout.names[i]}'

    return columns.Column(layout.names[i], cells[i], place)

  categories = {}
  for i in layout.categories:
    name, known = layout.names[i], options.categories
    features, categories[name] = columns.one_hot(
      column(i), i in layout.found, None if known is None else known[name]
    )
    x = np.concatenate([x, features], axis=1)
  labels = [column(i) for i in layout.labels]
  return tabular.Table(
    x,
    labels[0].cells,
    labels[0].place,
    None if layout.client is None else np.array(cells[layout.client]),
    targets=columns.targets(labels, options.task),
    target_names=tuple(label.name for label in labels),
    weights=None
    if layout.weight is None
    else columns.weights(column(layout.weight)),
    categories=categories or None,
  )


def _read_plain(
  path: str, layout: Layout
) -> tuple[np.ndarray, dict[int, list[str]]]:
  """Reads a file without quotes, several times as fast as `_read_any`.

  Returns:
    The numeric features, and the cells of the other columns by index.

  Raises:
    ValueError: `_read_any` must read the file, or describe the error in it.
  """
  texts: dict[int, list[str]] = {i: [] for i in layout.text}
  blocks: list[np.ndarray] = []
  lines = itertools.islice(_lines(path), layout.skipped, None)
  rows = (line for line in lines if line.strip(' \r\n'))
  size = max(_BLOCK // len(layout.names), 1)
  while block := list(itertools.islice(rows, size)):
    try:
      x, cells = _parse(block, layout, np.int32)  # four times as fast
    except (ValueError, DeprecationWarning):
      x, cells = _parse(block, layout, np.float32)
    blocks.append(tabular.narrow(x.astype(np.float32, copy=False)))
    for i in texts:
      texts[i] += cells[i]
  return np.concatenate(blocks), texts


def _parse(
  lines: list[str], layout: Layout, dtype: type
) -> tuple[np.ndarray, dict[int, list[str]]]:
  """Parses lines that are not blank; returns the same as `_read_plain`."""
  texts: dict[int, list[str]] = {i: [] for i in layout.text}

  def store(column: list[str], cell: str) -> int:
    column.append(cell.strip(_BLANKS))
    return 0

  # Older versions of NumPy truncate 1.5 to an integer, with a warning.
  with warnings.catch_warnings(action='error', category=DeprecationWarning):
    x: np.ndarray = np.loadtxt(
      lines,
      dtype,
      comments=None,
      delimiter=layout.delimiter,
      converters={i: functools.partial(store, texts[i]) for i in texts},
      ndmin=2,
    )
  cells = itertools.chain(*texts.values())
  if any(not cell or '"' in cell for cell in cells):
    raise ValueError('a cell is empty or quoted')
  if x.shape[1] != len(layout.names) or not np.isfinite(x).all():
    raise ValueError('a line is too long, or a number is not finite')
  return np.delete(x, layout.text, axis=1), texts


def _read_any(
  path: str, layout: Layout
) -> tuple[np.ndarray, dict[int, list[str]]]:
  """Returns the same as `_read_plain`; locates the first bad line or cell."""
  texts: dict[int, list[str]] = {i: [] for i in layout.text}
  width = len(layout.names)
  x = []
  for line, cells in _rows(path, layout):
    if len(cells) != width:
      raise tabular.DataError(
        f'line {line} has {len(cells)} columns, but line {layout.line} has '
        f'{width}'
      )
    for i, cell in enumerate(cells):
      text = cell.strip(_BLANKS if i in texts else None)
      if not text or not (i in texts or columns.is_finite(text)):
        reason = f': {text!r} is not a finite number' if text else ' is empty'
        raise tabular.DataError(
          f'line {line}, column {layout.names[i]}{reason}'
        )
    for i, column in texts.items():
      column.append(cells[i].strip(_BLANKS))
    numbers = [cell for i, cell in enumerate(cells) if i not in texts]
    x.append(np.array(numbers, np.float64).astype(np.float32))
  if not x:
    raise tabular.DataError('has a header but no examples')
  return tabular.narrow(np.stack(x)), texts


def _rows(path: str, layout: Layout) -> Iterator[tuple[int, list[str]]]:
  """Yields the line number and the cells of each example."""
  skipped = layout.skipped
  reader = csv.reader(
    itertools.islice(_lines(path), skipped, None),
    delimiter=layout.delimiter,
    strict=True,
    skipinitialspace=True,
  )
  try:
    for cells in reader:
      if len(cells) > 1 or (cells and cells[0].strip()):
        yield skipped + reader.line_num, cells
  except csv.Error as error:
    line = skipped + reader.line_num
    raise tabular.DataError(f'line {line}: {error}') from error


def _lines(path: str) -> Iterator[str]:
  """Yields the decoded lines."""
  with bounded_io.open_regular(path) as file:
    reason = bounded_io.shortage(_MEMORY * os.fstat(file.fileno()).st_size)
    if reason is not None:
      raise tabular.DataError(reason)
    for number in itertools.count(1):
      line = file.readline(_MAX_LINE + 1)
      if not line:
        return
      if len(line) > _MAX_LINE:
        raise tabular.DataError(
          f'line {number} is longer than {_MAX_LINE:,} bytes'
        )
      body = line.removesuffix(b'\n').removesuffix(b'\r')
      if b'\0' in body:
        raise tabular.DataError(
          f'line {number} has a NUL byte; save the file as UTF-8'
        )
      if b'\r' in body:
        raise tabular.DataError(
          f'line {number} has a carriage return inside; end lines with a '
          'newline'
        )
      try:
        yield line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError as error:
        raise tabular.DataError(
          f'line {number} is not UTF-8 text; save the file as UTF-8'
        ) from error


def _delimiter(line: str, number: int) -> str:
  """Returns the most frequent delimiter outside of quotes."""
  plain = re.sub(r'"[^"]*"', '', line)
  first, second, _ = sorted(_DELIMITERS, key=plain.count, reverse=True)
  count = plain.count(first)
  if count and count == plain.count(second):
    raise tabular.DataError(
      f'line {number} has as many {_DELIMITERS[first]} as '
      f'{_DELIMITERS[second]}; one must separate the columns, and numbers have '
      'decimal points'
    )
  return first
