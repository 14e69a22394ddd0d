"""csv:FILE, a UTF-8 table with one example per line.

Commas, semicolons or tabs separate the columns: the one that is most frequent
in the first line. The first line is a header if no cell of it is a number, or
if a cell is label, target, client or the name of a requested column. Columns
without a header are called 1, 2, ...

The label column is the requested one, or the one called label, y or target (in
any case), or the last one that is not the client column. The client column is
the requested one, or the one called client. All other columns are features:
finite numbers. Labels are whole numbers or names. Blank lines are skipped.
"""

import csv
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.data.files import spec, tabular
from safl_tf.util import errors

_BLOCK = 1 << 22  # cells, or bytes, that are read at once
_FLOAT32_LIMIT = (2 - 2.0**-24) * 2.0**127  # rounds to infinity
_DELIMITERS = (',', ';', '\t')
_LABELS = ('label', 'y', 'target')
_CLIENTS = ('client',)
_HEADER_WORDS = ('label', 'target', 'client')  # y may be the name of a class


class Layout(NamedTuple):
  """The columns of a file.

  Attributes:
    names: the name of each column.
    label: the index of the label column.
    client: the index of the client column, if any.
    delimiter: the separator of columns.
    line: the number of the first line that is not blank.
    has_header: whether that line is a header.
  """

  names: list[str]
  label: int
  client: int | None
  delimiter: str
  line: int
  has_header: bool

  @property
  def features(self) -> list[int]:
    """The indices of the feature columns."""
    return [
      i for i in range(len(self.names)) if i not in (self.label, self.client)
    ]

  @property
  def skipped_lines(self) -> int:
    """The number of lines up to the header."""
    return self.line if self.has_header else 0


def read_layout(path: str, options: spec.Options) -> Layout:
  """Returns the layout, from the first line that is not blank."""
  lines = enumerate(_lines(path), start=1)
  line, first = next((pair for pair in lines if pair[1].strip()), (0, ''))
  if not first:
    raise tabular.DataError('is empty')
  delimiter = max(_DELIMITERS, key=first.count)
  cells = next(csv.reader([first.strip('\r\n')], delimiter=delimiter))
  names = [cell.strip() for cell in cells]
  numbers = {name for name in names if _is_finite(name)}
  requested = {options.label_column, options.client_column} - numbers
  has_header = not numbers or any(
    name in requested or name.lower() in _HEADER_WORDS for name in names
  )
  if not has_header:
    names = [str(i + 1) for i in range(len(names))]
  for i, name in enumerate(names):
    if not name:
      raise tabular.DataError(f'line {line}: column {i + 1} has no name')
    if name in names[:i]:
      raise tabular.DataError(f'line {line}: column {name} appears twice')
  label = _find(names, 'label_column', options.label_column, _LABELS)
  client = _find(names, 'client_column', options.client_column, _CLIENTS)
  if label is None:
    label = len(names) - (2 if client == len(names) - 1 else 1)
  layout = Layout(names, label, client, delimiter, line, has_header)
  if label == client or not layout.features:
    raise tabular.DataError(
      f'line {line}: columns {", ".join(names)}; must be a label and at least '
      'one feature, separated by commas, semicolons or tabs'
    )
  return layout


def read(path: str, options: spec.Options) -> tabular.Table:
  """Reads the file; x is [N, features], uint8 if it fits, else float32."""
  layout = read_layout(path, options)
  _, cells = next(_rows(path, layout), (0, []))
  if len(cells) != len(layout.names) or _is_irregular(path):
    _check(path, layout)  # where pandas is too lenient
  try:
    x, labels, clients = _parse(path, layout)
  except ValueError as error:
    _check(path, layout)  # locates what pandas refuses
    raise tabular.DataError(
      f'cannot be read ({errors.reason(error)})'
    ) from error

  def place(row: int) -> str:
    line, _ = next(itertools.islice(_rows(path, layout), row, None))
    return f'line {line}, column {layout.names[layout.label]}'

  client_ids = None if layout.client is None else np.array(clients)
  return tabular.Table(x, labels, place, client_ids)


def _find(
  names: list[str], flag: str, requested: str | None, usual: Sequence[str]
) -> int | None:
  """Returns the index of the requested column, or of one with a usual name."""
  if requested is None:
    lower = [name.lower() for name in names]
    return next((lower.index(name) for name in usual if name in lower), None)
  if requested not in names:
    raise tabular.DataError(
      f'has no column {requested} (--{flag}); its columns are '
      f'{tabular.preview(names)}'
    )
  return names.index(requested)


def _parse(
  path: str, layout: Layout
) -> tuple[np.ndarray, list[str], list[str]]:
  """Returns features, labels and clients; raises ValueError for a bad cell.

  Pandas pads short lines with empty cells.
  """
  import pandas as pd

  width = len(layout.names)
  text = [i for i in (layout.label, layout.client) if i is not None]
  features: list[np.ndarray] = []
  columns: dict[int, list[str]] = {i: [] for i in text}
  with open(path, encoding='utf-8-sig', newline='') as file:
    for _ in range(layout.skipped_lines):
      file.readline()
    for frame in pd.read_csv(
      file,
      sep=layout.delimiter,
      header=None,
      names=range(width),
      dtype=dict.fromkeys(text, object),
      na_filter=False,
      skipinitialspace=True,
      float_precision='round_trip',
      low_memory=False,
      chunksize=max(_BLOCK // width, 1),
    ):
      for i in text:
        cells = frame[i].str.strip().tolist()
        if '' in cells:
          raise ValueError('a cell is empty')
        columns[i] += cells
      numbers = frame[layout.features]
      with np.errstate(over='ignore'):
        x = numbers.to_numpy(np.float64).astype(np.float32)
      if not np.isfinite(x).all() or 'bool' in map(str, numbers.dtypes):
        raise ValueError('a cell is not a finite number')
      features.append(tabular.narrow(x))
  labels = columns[layout.label]
  clients = [] if layout.client is None else columns[layout.client]
  return np.concatenate(features), labels, clients


def _check(path: str, layout: Layout) -> None:
  """Raises a `DataError` that locates the first bad line or cell."""
  line, width = 0, len(layout.names)
  for line, cells in _rows(path, layout):
    if len(cells) != width:
      raise tabular.DataError(
        f'line {line} has {len(cells)} columns, but line {layout.line} has '
        f'{width}'
      )
    for i, cell in enumerate(cells):
      is_text = i in (layout.label, layout.client)
      if not (cell.strip() if is_text else _is_finite(cell)):
        text = cell.strip()
        reason = f': {text!r} is not a finite number' if text else ' is empty'
        raise tabular.DataError(
          f'line {line}, column {layout.names[i]}{reason}'
        )
  if not line:
    raise tabular.DataError('has a header but no examples')


def _rows(path: str, layout: Layout) -> Iterator[tuple[int, list[str]]]:
  """Yields the line number and the cells of each example."""
  skipped = layout.skipped_lines
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
  with open(path, 'rb') as file:
    for number, line in enumerate(file, start=1):
      try:
        yield line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError as error:
        raise tabular.DataError(
          f'line {number} is not UTF-8 text; save the file as UTF-8'
        ) from error


def _is_irregular(path: str) -> bool:
  """Returns whether a file has quotes or NULs."""
  with open(path, 'rb') as file:
    return any(
      b'"' in block or b'\0' in block
      for block in iter(lambda: file.read(_BLOCK), b'')
    )


def _is_finite(cell: str) -> bool:
  """Returns whether a cell is a number within the range of float32."""
  try:
    return abs(float(cell)) < _FLOAT32_LIMIT
  except ValueError:
    return False
