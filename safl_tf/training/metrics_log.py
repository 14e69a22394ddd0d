"""Records of a run: metrics.csv, TensorBoard events and hparams.json."""

import contextlib
import importlib.metadata
import json
import numbers
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import psutil

from safl_tf import version
from safl_tf.util import atomic_io, errors

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
}
COLUMNS = ('round', *TAGS)
# Columns that differ between two runs of the same command.
MEASURED = ('seconds', 'rss_mb')
# Format of run directories; written to hparams.json and to checkpoints.
FORMAT = 4

_PACKAGES = ('tensorflow', 'keras', 'numpy', 'tensorflow-datasets')
_MISSING = object()
_SCALAR = 1  # SummaryMetadata's DATA_CLASS_SCALAR

Folder = str | os.PathLike[str]
Row = Mapping[str, float | int | None]


class MetricsLog:
  """Writes a row per round to `metrics.csv` and to TensorBoard's `logdir/`.

  A row has a value for each of `COLUMNS`. A missing value or None becomes an
  empty cell. Floats in metrics.csv round-trip exactly; TensorBoard's are
  float32, the only type that all its readers display.
  """

  def __init__(self, folder: Folder):
    self.path = os.path.join(folder, 'metrics.csv')
    self.logdir = os.path.join(folder, 'logdir')
    self._csv: BinaryIO | None = None
    self._events: Any = None

  def start(self, history: Sequence[Row]) -> None:
    """Rewrites the files with these rows, deleting any others.

    Call it before `append`, with the rows up to the checkpoint from which the
    run resumes; none in a new run.
    """
    import tensorflow as tf

    self.close()
    lines = [','.join(COLUMNS) + '\n', *map(_line, history)]
    atomic_io.write_text(self.path, ''.join(lines))
    self._csv = open(self.path, 'ab', buffering=0)  # noqa: SIM115
    for path in pathlib.Path(self.logdir).glob('events.out.tfevents.*'):
      path.unlink()
    self._events = tf.summary.create_file_writer(self.logdir)
    for row in history:
      self._write_event(row)
    self._events.flush()

  def append(self, row: Row) -> None:
    """Appends a round's row and syncs it to disk."""
    if self._csv is None:
      raise RuntimeError('call start() before append()')
    line = _line(row).encode()
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

  def _write_event(self, row: Row) -> None:
    """Writes one event with all scalars, without the tensorboard package."""
    import tensorflow as tf

    summary = tf.compat.v1.Summary()
    for column, tag in TAGS.items():
      value = row.get(column)
      if value is not None:
        entry = summary.value.add(tag=tag)
        entry.metadata.plugin_data.plugin_name = 'scalars'
        entry.metadata.data_class = _SCALAR
        entry.tensor.CopyFrom(tf.make_tensor_proto(float(value), tf.float32))
    with self._events.as_default():
      tf.summary.experimental.write_raw_pb(
        summary.SerializeToString(), step=row['round']
      )


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
  atomic_io.write_text(os.path.join(folder, 'clients.csv'), text)


def rss_mb() -> float:
  """Returns the resident memory of this process in megabytes (1e6 bytes)."""
  return psutil.Process().memory_info().rss / 1e6


def versions() -> dict[str, str]:
  """Returns the versions of Python, the platform and the main packages."""
  result = {
    'python': platform.python_version(),
    'platform': platform.platform(),
    'cpu': cpu(),
    'cpu_count': str(os.cpu_count()),
    'safl_tf': version.__version__,
  }
  for package in _PACKAGES:
    try:
      result[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      result[package] = 'not installed'
  return result


def cpu() -> str:
  """Returns the model of the processor, if the system names it."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      key, _, value = line.partition(':')
      if key.strip() == 'model name':
        return value.strip()
  return platform.processor() or platform.machine()


def git_commit(folder: Folder) -> str | None:
  """Returns the Git commit of the source in a directory.

  It ends in '-dirty' if tracked files were changed; it is None without Git, or
  if the directory is not tracked.
  """

  def git(*arguments: str) -> str:
    command = ['git', '-C', os.fspath(folder), *arguments]
    return subprocess.check_output(
      command, stderr=subprocess.DEVNULL, text=True, timeout=10
    ).strip()

  with contextlib.suppress(OSError, subprocess.SubprocessError):
    if git('ls-files', '.'):
      options = ('--always', '--abbrev=40', '--dirty', '--exclude=*')
      return git('describe', *options)
  return None


def write_hparams(
  folder: Folder,
  identity: Mapping[str, Any],
  flags: Mapping[str, Any] | None,
  checkpoint_every: int,
) -> None:
  """Writes hparams.json: what defines a run, versions and Git commit.

  Args:
    folder: of the run.
    identity: see `identity.of_run`.
    flags: of the program; None if Python code made the run.
    checkpoint_every: rounds between checkpoints.
  """
  hparams = {
    'format': FORMAT,
    'identity': dict(identity),
    'flags': None if flags is None else dict(flags),
    'checkpoint_every': checkpoint_every,
    'versions': versions(),
    'git_commit': git_commit(os.path.dirname(os.path.abspath(__file__))),
  }
  atomic_io.write_json(os.path.join(folder, 'hparams.json'), hparams)


def read_hparams(
  folder: Folder, argument: str = 'experiment'
) -> dict[str, Any] | None:
  """Reads hparams.json; returns None if the file does not exist.

  Raises an `InputError` that names `argument` if the file is not what
  `write_hparams` wrote, or if another version of safl_tf wrote it.
  """
  hparams = read_json(folder, 'hparams.json', {}, argument)
  if hparams is None:
    return None
  check_format(hparams.get('format', 0), folder, argument)
  fields = {
    'identity': dict,
    'flags': dict | None,
    'checkpoint_every': int,
    'versions': dict,
  }
  return read_json(folder, 'hparams.json', fields, argument)


def read_json(
  folder: Folder, name: str, fields: Mapping[str, Any], argument: str
) -> dict[str, Any] | None:
  """Reads a JSON object of ours; returns None if the file does not exist.

  Args:
    folder: of the file.
    name: of the file.
    fields: name -> type of those that the object must have.
    argument: the argument that gave the folder, for errors.
  """
  try:
    text = pathlib.Path(folder, name).read_text(encoding='utf-8')
    content = json.loads(text)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, RecursionError) as error:
    hint = f'{name} cannot be parsed ({errors.reason(error)})'
    raise errors.InputError(argument, folder, hint) from error
  if not isinstance(content, dict):
    hint = f'{name} must be a JSON object'
    raise errors.InputError(argument, folder, hint)
  for field, kind in fields.items():
    if not isinstance(content.get(field, _MISSING), kind):
      hint = f'{name} has no valid field {field}'
      raise errors.InputError(argument, folder, hint)
  return content


def check_format(
  number: Any, folder: Folder, argument: str = 'experiment'
) -> None:
  """Raises an `InputError` if a run directory has another format."""
  if number != FORMAT:
    is_newer = isinstance(number, int) and number > FORMAT
    version = 'a newer' if is_newer else 'an older'
    remedy = 'choose another --experiment or use that version'
    if argument != 'experiment':
      remedy = 'use that version or train again'
    raise errors.InputError(
      argument, folder, f'was made by {version} version of safl_tf; {remedy}'
    )


def differing(
  old_flags: Mapping[str, Any],
  new_flags: Mapping[str, Any],
  ignore: Iterable[str] = (),
) -> dict[str, tuple[Any, Any]]:
  """Returns the changed flags as name -> (old, new), sorted by name.

  Compares the values as JSON; a missing flag counts as None.
  """
  old = json.loads(atomic_io.to_json(dict(old_flags)))
  new = json.loads(atomic_io.to_json(dict(new_flags)))
  names = sorted((old.keys() | new.keys()) - set(ignore))
  pairs = {name: (old.get(name), new.get(name)) for name in names}
  return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _line(row: Row) -> str:
  """Formats a row as a line of metrics.csv."""
  if row.keys() - set(COLUMNS) or row.get('round') is None:
    raise ValueError(f'not a row of metrics: {dict(row)}')
  cells = []
  for value in map(row.get, COLUMNS):
    number = int if isinstance(value, numbers.Integral) else float
    cells.append('' if value is None else repr(number(value)))
  return ','.join(cells) + '\n'


def _parse_cell(cell: str) -> float | int | None:
  if not cell:
    return None
  return int(cell) if cell.lstrip('-').isdigit() else float(cell)
