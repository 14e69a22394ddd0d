"""csv:FILE, a table with an example in each line.

Columns are separated by commas, semicolons or tabs, whichever the first line
has most of. The first line is a header if no cell of it is a number, or one is
label, target, client or a column's name that is asked for. Without a header the
columns are called 1, 2, ...

The label is in the column that is asked for, or is called label, y or target
(in capitals or not), or else in the last one but the client's. Who an example
comes from is in the column that is asked for, or is called client. All others
are features, and must be finite numbers. Labels are whole numbers or names.
Empty lines are skipped.
"""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from safl_tf.data.files import spec, tabular

_BLOCK = 1 << 22  # bytes that are looked at together
_DELIMITERS = (',', ';', '\t')
_LABELS = ('label', 'y', 'target')
_CLIENTS = ('client',)
# 'y' is not among them: it may be a class's name.
_ONLY_IN_HEADERS = ('label', 'target', 'client')


class Head(NamedTuple):
  """How a file is laid out.

  Attributes:
    names: of the columns.
    label: the number of the label's column.
    client: the number of the client's column, if there is one.
    delimiter: between columns.
    line: the number of the first line, which may be a header.
    is_header: whether it is.
  """

  names: list[str]
  label: int
  client: int | None
  delimiter: str
  line: int
  is_header: bool

  @property
  def features(self) -> list[int]:
    """The numbers of the other columns."""
    apart = (self.label, self.client)
    return [i for i in range(len(self.names)) if i not in apart]


class _Block(NamedTuple):
  """Some of a file's rows."""

  x: np.ndarray  # [rows, features]
  labels: list[str]
  clients: list[str]
  lines: np.ndarray  # their numbers in the file


def head(path: str, options: spec.Options) -> Head:
  """The layout; reads the beginning of the file only."""
  with open(path, 'rb') as file:
    return _head(file, options)


def read(path: str, options: spec.Options) -> tabular.Tables:
  """The whole file; x is uint8 [N, features] if that holds it, or float32."""
  with open(path, 'rb') as file:
    layout = _head(file, options)
    blocks = list(_blocks(file, layout))
  if not blocks:
    raise tabular.DataError('there is no line but the header')
  small = all(block.x.dtype == np.uint8 for block in blocks)
  dtype = np.uint8 if small else np.float32
  x = np.concatenate([block.x for block in blocks], dtype=dtype)
  lines = np.concatenate([block.lines for block in blocks])
  labels = list(itertools.chain.from_iterable(b.labels for b in blocks))
  client = None
  if layout.client is not None:
    client = np.array([name for block in blocks for name in block.clients])
  place = lambda row: f'line {lines[row]}, column {layout.names[layout.label]}'
  return tabular.Tables(tabular.Table(x, labels, place, client), None)


def _head(file: BinaryIO, options: spec.Options) -> Head:
  """The layout; leaves the file at its first row."""
  for line, raw in enumerate(file, start=1):
    first = _decode(raw.removeprefix(b'\xef\xbb\xbf'), line).strip('\r\n')
    if first.strip():
      break
  else:
    raise tabular.DataError('is empty')
  delimiter = max(_DELIMITERS, key=first.count)
  cells = next(csv.reader([first], delimiter=delimiter))
  names = [cell.strip() for cell in cells]
  numbers = {name for name in names if _is_number(name)}
  asked = {options.label_column, options.client_column} - numbers
  is_header = not numbers or any(
    name in asked or name.lower() in _ONLY_IN_HEADERS for name in names
  )
  if not is_header:
    names = [str(i + 1) for i in range(len(names))]
  _check_names(names, line)
  label = _find(names, 'label_column', options.label_column, _LABELS)
  client = _find(names, 'client_column', options.client_column, _CLIENTS)
  if label is None:
    label = len(names) - (2 if client == len(names) - 1 else 1)
  found = Head(names, label, client, delimiter, line, is_header)
  if label == client or not found.features:
    raise tabular.DataError(
      f'line {line}: columns {", ".join(names)}; must be a label and at least '
      'one feature, separated by commas, semicolons or tabs'
    )
  if not is_header:
    file.seek(-len(raw), io.SEEK_CUR)
  return found


def _check_names(names: list[str], line: int) -> None:
  if '' in names:
    number = names.index('') + 1
    raise tabular.DataError(f'line {line}: column {number} has no name')
  if len(set(names)) < len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise tabular.DataError(f'line {line}: column {twice} is there twice')


def _find(
  names: list[str], flag: str, asked: str | None, usual: Sequence[str]
) -> int | None:
  """The number of the column that is asked for, or has a usual name."""
  if asked is not None and asked not in names:
    few = ', '.join(names[:10]) + (', ...' if len(names) > 10 else '')
    raise tabular.DataError(
      f'has no column {asked} (--{flag}); its columns are {few}'
    )
  if asked is not None:
    return names.index(asked)
  lower = [name.lower() for name in names]
  return next((lower.index(name) for name in usual if name in lower), None)


def _blocks(file: BinaryIO, layout: Head) -> Iterator[_Block]:
  """The rows, some at a time; small whole numbers in a fast way."""
  line = layout.line + layout.is_header
  while raw := file.readlines(_BLOCK):
    data = b''.join(raw)
    if line == layout.line:
      data = data.removeprefix(b'\xef\xbb\xbf')
    cells = _small_numbers(data, len(layout.names), layout.delimiter)
    if cells is not None:
      yield _fast_block(cells, line, layout)
    else:
      block = _slow_block(data, line, layout)
      if block.labels:
        yield block
    line += len(raw)


def _small_numbers(
  data: bytes, width: int, delimiter: str
) -> np.ndarray | None:
  """The cells [rows, width] of plain lines of numbers in 0..999, else None.

  None too for numbers with leading zeros, which might be names.
  """
  data = data.replace(b'\r\n', b'\n').rstrip(b'\n') + b'\n'
  text = np.frombuffer(data, np.uint8)
  is_end = (text == ord(delimiter)) | (text == ord('\n'))
  ends = np.flatnonzero(is_end)
  lengths = np.diff(ends, prepend=-1) - 1
  digits = text - ord('0')
  if (
    len(ends) % width
    or lengths.min() < 1
    or lengths.max() > 3
    or ((digits > 9) != is_end).any()
    or ((lengths > 1) & (digits[ends - lengths] == 0)).any()
  ):
    return None
  is_line_end = (text[ends] == ord('\n')).reshape(-1, width)
  if is_line_end[:, :-1].any() or not is_line_end[:, -1].all():
    return None
  cells = digits[ends - 1].astype(np.int16)
  cells += np.where(lengths > 1, digits[ends - 2], 0) * np.int16(10)
  cells += np.where(lengths > 2, digits[ends - 3], 0) * np.int16(100)
  return cells.reshape(-1, width)


def _fast_block(cells: np.ndarray, line: int, layout: Head) -> _Block:
  x = tabular.narrow(cells[:, layout.features])
  column = lambda i: [str(value) for value in cells[:, i].tolist()]
  return _Block(
    x if x.dtype == np.uint8 else x.astype(np.float32),
    column(layout.label),
    [] if layout.client is None else column(layout.client),
    np.arange(line, line + len(cells)),
  )


def _slow_block(data: bytes, line: int, layout: Head) -> _Block:
  """Any numbers and names, as the csv module reads them."""
  width = len(layout.names)
  text = io.StringIO(_decode(data, line), newline='')
  reader = csv.reader(
    text, delimiter=layout.delimiter, strict=True, skipinitialspace=True
  )
  rows: list[list[str]] = []
  lines: list[int] = []
  try:
    for row in reader:
      if len(row) == width:
        rows.append(row)
        lines.append(line + reader.line_num - 1)
      elif len(row) > 1 or (row and row[0].strip()):
        raise tabular.DataError(
          f'line {line + reader.line_num - 1} has {len(row)} columns, but line '
          f'{layout.line} has {width}'
        )
  except csv.Error as error:
    where = line + reader.line_num - 1
    raise tabular.DataError(f'line {where}: {error}') from error
  columns: dict[int, list[str]] = {}
  apart = [i for i in range(width) if i not in layout.features]
  for i in reversed(apart):
    columns[i] = [row.pop(i).strip() for row in rows]
    if '' in columns[i]:
      where = lines[columns[i].index('')]
      raise tabular.DataError(
        f'line {where}, column {layout.names[i]} is empty'
      )
  names = [layout.names[i] for i in layout.features]
  return _Block(
    _numbers(rows, lines, names),
    columns[layout.label],
    [] if layout.client is None else columns[layout.client],
    np.array(lines, np.int64),
  )


def _numbers(
  rows: list[list[str]], lines: list[int], names: list[str]
) -> np.ndarray:
  """The cells [rows, features], narrowed if possible."""
  try:
    with np.errstate(over='ignore'):
      x = np.array(rows, np.float32).reshape(len(rows), len(names))
    if np.isfinite(x).all():
      return tabular.narrow(x)
  except ValueError:
    pass
  for row, line in zip(rows, lines, strict=True):
    for cell, name in zip(row, names, strict=True):
      if not _is_number(cell):
        told = f': {cell.strip()!r} is not a finite number'
        raise tabular.DataError(
          f'line {line}, column {name}{told if cell.strip() else " is empty"}'
        )
  return tabular.narrow(np.array([list(map(float, row)) for row in rows]))


def _decode(data: bytes, line: int) -> str:
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    where = line + data.count(b'\n', 0, error.start)
    raise tabular.DataError(
      f'line {where} is not UTF-8 text; save the file as UTF-8'
    ) from error


def _is_number(cell: str) -> bool:
  """Whether it is a number that float32 holds."""
  try:
    with np.errstate(over='ignore'):
      return bool(np.isfinite(np.float32(float(cell))))
  except ValueError:
    return False
