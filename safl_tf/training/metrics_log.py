"""Records of a run: metrics.csv, TensorBoard events and clients.csv."""

import csv
import io
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil

from safl_tf.util import atomic_io, errors

if TYPE_CHECKING:
  import pandas as pd

# The columns of metrics.csv after `round`, and their tags in TensorBoard.
TAGS = {
  'test_accuracy': 'test/accuracy',
  'test_top5_accuracy': 'test/top5_accuracy',
  'test_loss': 'test/loss',
  'train_loss': 'train/loss',
  'p': 'annealing/p',
  'kept_local': 'annealing/kept_local',
  'selected': 'clients/selected',
  'uploaded': 'clients/uploaded',
  'dropped': 'clients/dropped',
  'malicious': 'clients/malicious',
  'bytes_up': 'traffic/bytes_up',
  'bytes_down': 'traffic/bytes_down',
  'total_bytes_up': 'traffic/total_bytes_up',
  'total_bytes_down': 'traffic/total_bytes_down',
  'delta_p50': 'gate/delta_p50',
  'delta_p90': 'gate/delta_p90',
  'q_p10': 'gate/q_p10',
  'q_p50': 'gate/q_p50',
  'seconds': 'cost/seconds',
  'rss_mb': 'cost/rss_mb',
  'workers': 'workers/alive',
  'workers_lost': 'workers/lost',
  'bytes_to_workers': 'workers/bytes_sent',
  'bytes_from_workers': 'workers/bytes_received',
  'missing': 'clients/missing',
  'wire_bytes_up': 'traffic/wire_bytes_up',
  'wire_bytes_down': 'traffic/wire_bytes_down',
}
COLUMNS = ('round', *TAGS)
# Columns that differ between two runs of the same command.
MEASURED = (
  'seconds',
  'rss_mb',
  'workers',
  'workers_lost',
  'bytes_to_workers',
  'bytes_from_workers',
  'missing',
  'wire_bytes_up',
  'wire_bytes_down',
)

CLIENTS, CLIENT_SIZES = 'clients.csv', 'client_sizes.csv'

_SCALAR = 1  # SummaryMetadata's DATA_CLASS_SCALAR

Folder = str | os.PathLike[str]
Row = Mapping[str, float | int | None]


class MetricsLog:
  """Writes a row per round to `metrics.csv` and to TensorBoard's `logdir/`.

  A row has a value for each column: `COLUMNS` and those of `start`. A missing
  value or None becomes an empty cell. Floats in metrics.csv round-trip exactly;
  TensorBoard's are float32, the only type that all its readers display.
  """

  def __init__(self, folder: Folder):
    self.path = os.path.join(folder, 'metrics.csv')
    self.logdir = os.path.join(folder, 'logdir')
    self._columns: tuple[str, ...] = COLUMNS
    self._csv: BinaryIO | None = None
    self._events: Any = None

  def start(self, history: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Rewrites the files with these rows, deleting any others.

    Call it before `append`.

    Args:
      history: the rows up to the checkpoint from which the run resumes; none in
        a new run.
      columns: besides `COLUMNS`: test_NAME, of a metric of the test data, and
        client_NAME, of statistics over clients.
    """
    import tensorflow as tf

    self.close()
    tested = [c for c in columns if c.startswith('test_') and c not in TAGS]
    others = [c for c in columns if not c.startswith('test_')]
    at = COLUMNS.index('test_loss') + 1
    self._columns = (*COLUMNS[:at], *tested, *COLUMNS[at:], *others)
    lines = [','.join(self._columns) + '\n', *map(self._line, history)]
    atomic_io.write_text(self.path, ''.join(lines))
    self._csv = open(self.path, 'ab', buffering=0)  # noqa: SIM115
    for path in pathlib.Path(self.logdir).glob('events.out.tfevents.*'):
      path.unlink()
    os.makedirs(self.logdir, exist_ok=True)  # its errors name the path
    self._events = tf.summary.create_file_writer(self.logdir)
    for row in history:
      self._write_event(row)
    self._events.flush()

  def append(self, row: Row) -> None:
    """Appends a round's row and syncs it to disk."""
    if self._csv is None:
      raise RuntimeError('call start() before append()')
    line = self._line(row).encode()
    with atomic_io.naming(self.path):
      while line:  # a full disk may take a part of it
        line = line[self._csv.write(line) :]
      os.fsync(self._csv.fileno())
    self._write_event(row)
    self._events.flush()

  def close(self) -> None:
    """Closes the files, if they are open."""
    for file in filter(None, (self._csv, self._events)):
      file.close()
    self._csv = self._events = None

  def _line(self, row: Row) -> str:
    """Formats a row as a line of metrics.csv."""
    if row.keys() - set(self._columns) or row.get('round') is None:
      raise ValueError(f'not a row of metrics: {dict(row)}')
    cells = []
    for value in map(row.get, self._columns):
      number = int if isinstance(value, numbers.Integral) else float
      cells.append('' if value is None else repr(number(value)))
    return ','.join(cells) + '\n'

  def _write_event(self, row: Row) -> None:
    """Writes one event with all scalars, without the tensorboard package."""
    import tensorflow as tf

    summary = tf.compat.v1.Summary()
    for column in self._columns[1:]:
      tag, value = tag_of(column), row.get(column)
      if value is not None:
        entry = summary.value.add(tag=tag)
        entry.metadata.plugin_data.plugin_name = 'scalars'
        entry.metadata.data_class = _SCALAR
        entry.tensor.CopyFrom(tf.make_tensor_proto(float(value), tf.float32))
    with self._events.as_default():
      tf.summary.experimental.write_raw_pb(
        summary.SerializeToString(), step=row['round']
      )


def tag_of(column: str) -> str:
  """Returns the tag of a column in TensorBoard."""
  if column in TAGS:
    return TAGS[column]
  kind, _, name = column.partition('_')
  return f'client_eval/{name}' if kind == 'client' else f'{kind}/{name}'


def read_csv(path: Folder) -> list[dict[str, Any]]:
  """Reads the rows of a metrics.csv: ints, floats, and None for empty cells.

  Ignores an incomplete last line, which a killed run may leave. Raises an
  `InputError` that names the line if the file has another shape.
  """
  try:
    text = pathlib.Path(path).read_text(encoding='utf-8')
  except UnicodeDecodeError as error:
    raise errors.InputError(
      os.fspath(path), 'bytes', 'must be UTF-8 text'
    ) from error
  header, *lines = text[: text.rfind('\n') + 1].splitlines() or ['']
  columns = header.split(',')
  if header and columns[0] != 'round':
    raise errors.InputError(
      os.fspath(path), 'line 1', 'must name the columns, round first'
    )
  rows: list[dict[str, Any]] = []
  for number, line in enumerate(lines, start=2):
    try:
      values = map(_parse_cell, line.split(','))
      rows.append(dict(zip(columns, values, strict=True)))
      if rows[-1]['round'] != number - 1:
        raise ValueError
    except ValueError as error:
      raise errors.InputError(
        os.fspath(path),
        f'line {number}',
        f'must be {len(columns)} numbers, round {number - 1} first',
      ) from error
  return rows


def write_clients(folder: Folder, table: Sequence[Mapping[str, Any]]) -> None:
  """Writes clients.csv, with a row for each client."""
  import pandas as pd

  text = pd.DataFrame(table).to_csv(index=False, lineterminator='\n')
  atomic_io.write_text(os.path.join(folder, CLIENTS), text)


def write_client_sizes(
  folder: Folder, names: Sequence[str], sizes: Sequence[int]
) -> None:
  """Writes client_sizes.csv: the names of clients, in order, and examples."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(('client', 'examples'))
  writer.writerows(zip(names, sizes, strict=True))
  atomic_io.write_text(os.path.join(folder, CLIENT_SIZES), text.getvalue())


def read_clients(folder: Folder) -> 'pd.DataFrame | None':
  """Reads clients.csv, else client_sizes.csv; None without either."""
  import pandas as pd

  for name in (CLIENTS, CLIENT_SIZES):
    path = os.path.join(folder, name)
    try:
      with open(path, encoding='utf-8', newline='') as file:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
      values = [column for column in table if column != 'client']
      return table.assign(**table[values].apply(pd.to_numeric))
    except FileNotFoundError:
      continue
    except ValueError as error:  # a damaged file
      cause = f'cannot be read ({errors.reason(error)})'
      raise errors.InputError(path, 'table', cause) from error
  return None


def rss_mb() -> float:
  """Returns the resident memory of this process in megabytes (1e6 bytes)."""
  return psutil.Process().memory_info().rss / 1e6


def _parse_cell(cell: str) -> float | int | None:
  if not cell:
    return None
  return int(cell) if cell.lstrip('-').isdigit() else float(cell)
