"""Callbacks: what users do with a run while it trains."""

import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from safl_tf.util import errors

if TYPE_CHECKING:
  from safl_tf.core import process, state
  from safl_tf.training import result as result_lib

Row = dict[str, Any]


class RunInfo(NamedTuple):
  """What a run is, the argument of `Callback.on_train_begin`.

  Attributes:
    settings: of the algorithm, the clients and the run, by name.
    history: the rows of metrics.csv so far; empty unless the run resumes.
    rounds: the number of rounds of the whole run.
    path: the run's folder, if it has one.
    process: the process that is run.
  """

  settings: dict[str, Any]
  history: list[Row]
  rounds: int
  path: pathlib.Path | None
  process: 'process.FederatedProcess'


class Callback:
  """Follows a run: override the methods you need.

  To stop the run after a round, set `self.stop = True` in `on_round_end`: the
  run saves a checkpoint, writes all its files and returns its result. The same
  call resumes it. If a callback raises, the run saves a checkpoint of the round
  and the exception propagates.

  Attributes:
    stop: whether to stop the run; False whenever a run begins.

  Example:
    ```python
    class UntilLossIsSmall(safl_tf.Callback):
      def on_round_end(self, t, row, state):
        self.stop = row['train_loss'] < 0.5

    result = safl_tf.train(
      model_fn, clients, rounds=5, callbacks=[
        UntilLossIsSmall(), lambda row: print(row['round'], row['uploaded'])])
    ```
  """

  stop: bool = False

  def on_train_begin(self, run: RunInfo) -> None:
    """Is called before the first round, or the first of a resumed run."""

  def on_round_end(
    self, t: int, row: Row, state: 'state.FederatedState'
  ) -> None:
    """Is called after each round.

    Args:
      t: the round.
      row: the round's row of metrics.csv.
      state: the state after the round.
    """

  def on_train_end(self, result: 'result_lib.Result') -> None:
    """Is called after the last round, when all files are written."""


class _RowFunction(Callback):
  """Calls a function with each row."""

  def __init__(self, function: Callable[[Row], Any]):
    self._function = function

  def on_round_end(
    self, t: int, row: Row, state: 'state.FederatedState'
  ) -> None:
    self._function(row)


Given = Sequence[Callback | Callable[[Row], Any]]


class Callbacks:
  """Calls callbacks in their order.

  Args:
    callbacks: `Callback`s, and functions that take a row.
  """

  def __init__(self, callbacks: Given):
    hint = 'must be a list of Callbacks, or of functions that take a row'
    if not isinstance(callbacks, list | tuple):
      raise errors.InputError('callbacks', type(callbacks).__name__, hint)
    self._callbacks: list[Callback] = []
    for item in callbacks:
      if isinstance(item, type) or not (
        isinstance(item, Callback) or callable(item)
      ):
        text = getattr(item, '__name__', repr(item))
        raise errors.InputError('callbacks', text, hint)
      is_callback = isinstance(item, Callback)
      self._callbacks.append(item if is_callback else _RowFunction(item))

  def begin(
    self,
    settings: dict[str, Any],
    history: list[Row],
    rounds: int,
    path: pathlib.Path | None,
    process: 'process.FederatedProcess',
  ) -> None:
    """Calls `on_train_begin` of all."""
    run = RunInfo(settings, [*map(dict, history)], rounds, path, process)
    for callback in self._callbacks:
      callback.stop = False
      callback.on_train_begin(run)

  def end_round(self, row: Row, state: 'state.FederatedState') -> bool:
    """Calls `on_round_end` of all; returns whether one stops the run."""
    for callback in self._callbacks:
      callback.on_round_end(state.t, dict(row), state)
    return any(callback.stop for callback in self._callbacks)

  def end(self, result: 'result_lib.Result') -> None:
    """Calls `on_train_end` of all."""
    for callback in self._callbacks:
      callback.on_train_end(result)
