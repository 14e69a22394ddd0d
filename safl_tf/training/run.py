"""Runs taken apart afterwards: histories, settings, models and clients.

TensorFlow is imported only to build a model.
"""

import functools
import glob
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from safl_tf.training import checkpoint, metrics_log, run_directory
from safl_tf.training import hparams as hparams_lib
from safl_tf.training import result as result_lib
from safl_tf.util import atomic_io, console, errors, readable, validation

if TYPE_CHECKING:
  import keras
  import pandas as pd

Path = str | os.PathLike[str]

_MANY = 20  # runs from which on loading them shows a bar
# Flags that say where a run is.
_PLACES = ('experiment', 'output_dir')


class Run:
  """The folder of a run, read when needed; `load_run` makes one.

  Attributes:
    path: the folder.
    flags: the flags of `safl-train`, or the settings of a run in Python.

  Example:
    ```python
    safl_tf.train(model_fn, clients, rounds=3, output_dir='runs/safl')
    run = safl_tf.load_run('runs/safl')
    run.history['train_loss']  # by round
    run.clients[['client', 'examples']]
    run.model()  # the global model of the newest checkpoint
    run.client_model('2')  # the model that client '2' has kept
    ```
  """

  def __init__(self, path: Path):
    takes = 'the path of a folder'
    validation.instance('path', path, (str, os.PathLike), takes)
    self.path = pathlib.Path(path)
    hparams = hparams_lib.read(path, 'path')
    if hparams is None:
      hint = 'is not the folder of a run (it has no hparams.json)'
      raise errors.InputError('path', path, hint)
    self._num_classes: int | None = hparams['identity'].get('num_classes')
    self.flags: dict[str, Any] = (
      hparams['flags'] or hparams.get('settings') or hparams['identity']
    )

  @functools.cached_property
  def history(self) -> 'pd.DataFrame':
    """The rows of metrics.csv by round; NaN where a cell is empty."""
    return result_lib.to_frame(self._rows)

  @functools.cached_property
  def clients(self) -> 'pd.DataFrame':
    """A row per client: `client`, its name, `examples`, and what is known.

    That is clients.csv, if it was asked for.
    """
    table = metrics_log.read_clients(self.path)
    if table is None or 'client' not in table:
      hint = 'has no client_sizes.csv'
      raise errors.InputError('path', self.path, hint)
    return table

  def model(self, round: int | None = None) -> 'keras.Model':
    """Returns the global model of a round with a checkpoint.

    Args:
      round: one of the last rounds, see `keep_checkpoints`; the newest if None.
    """
    self._check_round(round)
    return run_directory.load(self.path, 'path', round).model

  def client_model(
    self,
    client: str | int,
    round: int | None = None,
  ) -> 'keras.Model':
    """Returns the model that a client has kept since its last round.

    Args:
      client: its name, see `clients`.
      round: as in `model`.
    """
    self._check_round(round)
    names = self.clients['client'].tolist()
    if str(client) not in names:
      few = ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')
      hint = f'is not a client of {self.path}, which are {few}'
      raise errors.InputError('client', client, hint)
    k = names.index(str(client))
    return run_directory.load(self.path, 'path', round, client=k).model

  def plot(self) -> Any:
    """Returns a matplotlib figure of accuracy, loss and other metrics."""
    from safl_tf.reporting import plots

    name = self.flags.get('algorithm') or 'own'
    of = plots.subject(name, self.flags, self._num_classes)
    return result_lib.plot(self._rows, of)

  def __repr__(self) -> str:
    return f'Run({result_lib.format_values({"": self.path, **self._values})})'

  def _repr_html_(self) -> str:
    return readable.html_table(f'Run {self.path}', self._values)

  @functools.cached_property
  def _rows(self) -> list[dict[str, Any]]:
    try:
      return metrics_log.read_csv(self.path / 'metrics.csv')
    except FileNotFoundError as error:
      hint = 'has no metrics.csv'
      raise errors.InputError('path', self.path, hint) from error

  @property
  def _values(self) -> dict[str, Any]:
    flags = {name: self.flags.get(name) for name in ('algorithm', 'seed')}
    try:
      return {**flags, **result_lib.summary(self._rows)}
    except errors.InputError as error:
      return {**flags, 'metrics': error.hint}

  def _check_round(self, number: int | None) -> None:
    """Refuses a round without a checkpoint."""
    rounds = checkpoint.Checkpoints(self.path / 'checkpoints').rounds()
    if number is not None and number not in rounds:
      known = ', '.join(map(str, rounds)) or 'none'
      hint = f'has no checkpoint in {self.path}; there are {known}'
      raise errors.InputError('round', number, hint)


def load_run(path: Path) -> Run:
  """Returns the run in a folder, to be taken apart.

  Args:
    path: the folder that `safl-train` or `train(..., output_dir=...)` wrote.

  Raises:
    InputError: the folder is not that of a run.

  Example:
    ```python
    safl_tf.train(model_fn, clients, rounds=3, output_dir='runs/safl')
    run = safl_tf.load_run('runs/safl')
    run.flags['temperature'], run.history['train_loss'].iloc[-1]
    ```
  """
  return Run(path)


def load_runs(paths: Path | Iterable[Path]) -> 'pd.DataFrame':
  """Returns the histories of several runs in one long table.

  The columns are `run` (the folder below the runs' common one), `algorithm`,
  `seed`, the flags that differ between the runs, `round` and the metrics. A
  flag with the name of a metric becomes `flag_NAME`.

  Args:
    paths: a pattern such as 'runs/*', which passes over what is not the folder
      of a run; the folder of a run; or a list of both.

  Raises:
    InputError: no folder of a run matches.

  Example:
    ```python
    for seed in 0, 1:
      safl_tf.train(
        model_fn, clients, rounds=2, seed=seed, output_dir=f'seeds/{seed}')
    table = safl_tf.load_runs('seeds/*')
    table.groupby('round')['train_loss'].mean()
    ```
  """
  import pandas as pd

  given = [paths] if isinstance(paths, str | os.PathLike) else paths
  takes = 'a pattern, the path of a folder, or a list of them'
  validation.instance('paths', given, Iterable, takes)
  folders = [*dict.fromkeys(f for path in given for f in _expand(path))]
  if not folders:
    raise errors.InputError('paths', paths, 'must name a run')
  show = None if len(folders) >= _MANY else False
  with console.progress_bar(
    show, iterable=folders, desc='runs', unit='run'
  ) as bar:
    runs = [Run(folder) for folder in bar]
    histories = [run.history.reset_index() for run in runs]
  columns = {name for history in histories for name in history}
  varied = _varied([run.flags for run in runs])
  parents = [os.path.dirname(os.path.abspath(run.path)) for run in runs]
  top = os.path.commonpath(parents)
  tables = []
  for run, history in zip(runs, histories, strict=True):
    first = {
      'run': os.path.relpath(run.path, top),
      'algorithm': run.flags.get('algorithm'),
      'seed': run.flags.get('seed'),
    }
    for name in varied:
      column = f'flag_{name}' if name in columns else name
      first[column] = _cell(run.flags.get(name))
    for i, (name, value) in enumerate(first.items()):
      history.insert(i, name, [value] * len(history))
    tables.append(history)
  return pd.concat(tables, ignore_index=True)


def _expand(path: Path) -> list[str]:
  """Returns the folders of runs that a pattern matches; at least one."""
  takes = 'a pattern or the path of a folder'
  validation.instance('paths', path, (str, os.PathLike), takes)
  text = os.path.expanduser(os.fspath(path))
  if os.path.exists(text) or not glob.has_magic(text):
    return [text]
  matches = sorted(glob.glob(text, recursive=True))
  folders = [m for m in matches if os.path.exists(f'{m}/hparams.json')]
  if not folders:
    raise errors.InputError('paths', path, 'matches no folder of a run')
  return [os.path.normpath(folder) for folder in folders]


def _varied(flags: list[dict[str, Any]]) -> list[str]:
  """Returns the names of flags that are not the same in all runs."""
  names = dict.fromkeys(name for own in flags for name in own)
  return [
    name
    for name in names
    if name not in ('algorithm', 'seed', *_PLACES)
    and len({atomic_io.to_json(own.get(name)) for own in flags}) > 1
  ]


def _cell(value: Any) -> Any:
  """Returns a value for a cell of a table; lists and the like as JSON."""
  nested = isinstance(value, dict | list)
  return atomic_io.to_json(value, None).strip() if nested else value
