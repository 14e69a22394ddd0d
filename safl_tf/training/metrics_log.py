"""What a run writes down: metrics.csv, TensorBoard events and hparams.json."""

import contextlib
import csv
import importlib.metadata
import io
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
# What differs between two runs of the same command.
MEASURED = ('seconds', 'rss_mb')

_PACKAGES = ('tensorflow', 'keras', 'numpy', 'tensorflow-datasets')
_SCALAR = 1  # SummaryMetadata's DATA_CLASS_SCALAR

Row = Mapping[str, float | int | None]


class MetricsLog:
  """A row per round in `metrics.csv`, the same in TensorBoard's `logdir/`.

  A row has a value for each of `COLUMNS`; None, or no value at all, is for what
  does not exist in a round and gives an empty cell. Floats are written so that
  they read back bit for bit; TensorBoard's are float32, the only kind that all
  of its readers show.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Writes nothing yet: see `start`. The run's folder must exist."""
    self.path = os.path.join(folder, 'metrics.csv')
    self.logdir = os.path.join(folder, 'logdir')
    self._csv: BinaryIO | None = None
    self._events: Any = None

  def start(self, history: Sequence[Row]) -> None:
    """Writes everything anew.

    Args:
      history: the rows up to the checkpoint that a resumed run starts from;
        none in a new run. Rows and events after it are gone from then on.
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
    """Adds a round; it is on the disk when this returns."""
    if self._csv is None:
      raise RuntimeError('start() comes before append()')
    self._csv.write(_line(row).encode())
    os.fsync(self._csv.fileno())
    self._write_event(row)
    self._events.flush()

  def close(self) -> None:
    """Closes the files; may be called twice."""
    if self._csv is not None:
      self._csv.close()
      self._events.close()
      self._csv = self._events = None

  def _write_event(self, row: Row) -> None:
    """One event with all scalars; tf.summary.scalar needs tensorboard."""
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


def read_csv(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """The rows of a metrics.csv: ints, floats and None.

  A last line without its end, which a killed run may leave, is not read.
  """
  with open(path, newline='', encoding='utf-8') as file:
    text = file.read()
  lines = csv.reader(io.StringIO(text[: text.rfind('\n') + 1]))
  columns = next(lines, [])
  rows = []
  for number, cells in enumerate(lines, start=2):
    try:
      rows.append(dict(zip(columns, map(_value, cells), strict=True)))
    except ValueError as error:
      raise errors.InputError(
        os.fspath(path), f'line {number}', f'must be {len(columns)} numbers'
      ) from error
  return rows


def write_clients(
  folder: str | os.PathLike[str], table: Sequence[Mapping[str, Any]]
) -> None:
  """Writes clients.csv, a line for each client."""
  text = io.StringIO()
  writer = csv.DictWriter(text, list(table[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(table)
  atomic_io.write_text(os.path.join(folder, 'clients.csv'), text.getvalue())


def rss_mb() -> float:
  """The resident memory of this process in megabytes (1e6 bytes)."""
  return psutil.Process().memory_info().rss / 1e6


def versions() -> dict[str, str]:
  """What the run ran on; imports none of the packages."""
  found = {
    'python': platform.python_version(),
    'platform': platform.platform(),
    'cpu_count': str(os.cpu_count()),
    'safl_tf': version.__version__,
  }
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = 'not installed'
  return found


def git_commit(path: str | os.PathLike[str]) -> str | None:
  """The commit of the checkout that holds the source in the folder `path`.

  Returns:
    The commit's 40 digits, with '-dirty' after them if tracked files were
    changed. None where git is absent or doesn't track the folder.
  """
  describe = ('describe', '--always', '--abbrev=40', '--dirty', '--exclude=*')
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    if _git(path, 'ls-files', '.'):
      return _git(path, *describe)
  return None


def write_hparams(
  folder: str | os.PathLike[str], flags: Mapping[str, Any]
) -> None:
  """Writes hparams.json: every flag, the versions and the commit."""
  hparams = {
    'flags': dict(flags),
    'versions': versions(),
    'git_commit': git_commit(os.path.dirname(os.path.abspath(__file__))),
  }
  atomic_io.write_json(os.path.join(folder, 'hparams.json'), hparams)


def read_hparams(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
  """What `write_hparams` wrote, or None if it never did."""
  path = os.path.join(folder, 'hparams.json')
  if not os.path.exists(path):
    return None
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file)
  except ValueError as error:
    raise errors.InputError(
      'experiment', folder, f'hparams.json cannot be parsed: {error}'
    ) from error


def differing(
  old_flags: Mapping[str, Any],
  new_flags: Mapping[str, Any],
  ignore: Iterable[str] = (),
) -> dict[str, tuple[Any, Any]]:
  """The flags that changed: name -> (old, new), sorted by name.

  Values are compared as JSON would hold them; one that is missing on a side
  counts as None. Flags in `ignore` may change.
  """
  old = json.loads(atomic_io.to_json(dict(old_flags)))
  new = json.loads(atomic_io.to_json(dict(new_flags)))
  names = sorted((old.keys() | new.keys()) - set(ignore))
  pairs = {name: (old.get(name), new.get(name)) for name in names}
  return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _line(row: Row) -> str:
  """A row's line in the CSV file."""
  unknown = row.keys() - set(COLUMNS)
  if unknown or row.get('round') is None:
    raise ValueError(f'not a row of metrics: {dict(row)}')
  return ','.join(_cell(row.get(column)) for column in COLUMNS) + '\n'


def _cell(value: float | int | None) -> str:
  if value is None:
    return ''
  if isinstance(value, numbers.Integral):
    return str(int(value))
  return repr(float(value))


def _value(cell: str) -> float | int | None:
  if not cell:
    return None
  try:
    return int(cell)
  except ValueError:
    return float(cell)


def _git(path: str | os.PathLike[str], *arguments: str) -> str:
  command = ['git', '-C', os.fspath(path), *arguments]
  return subprocess.check_output(
    command, stderr=subprocess.DEVNULL, text=True, timeout=10
  ).strip()
