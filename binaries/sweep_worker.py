"""What a process of safl-sweep does: it checks and trains runs."""

import atexit
import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import hardware

from . import points, runs
from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_loaded: dict[str, 'dataset_lib.Dataset'] = {}  # the data of the last run
_held: list[contextlib.ExitStack] = []


class SweepRun(NamedTuple):
  """A run of a sweep.

  Attributes:
    setting: swept flags; None for those that have no effect.
    config: all its flags.
  """

  setting: dict[str, Any]
  config: RunConfig

  @property
  def label(self) -> str:
    """The name of the run."""
    from safl_tf.reporting import names

    return f'{names.setting(self.setting)}, seed {self.config.seed}'


class Check(NamedTuple):
  """Runs to check before anything is written.

  Attributes:
    missing: the runs to train.
    everything: all runs, whose data must be the same.
  """

  missing: Sequence[SweepRun]
  everything: Sequence[SweepRun]


def work(task: SweepRun | Check) -> str | None:
  """Does a task; returns the error of a run's export, if any."""
  _start()
  if isinstance(task, Check):
    _check(task)
    return None
  _hold_workers(task.config)
  return runs.run(task.config, _load(task.config), progress=False)


def _check(task: Check) -> None:
  """Loads the data and builds each setting once, to refuse bad input."""
  from . import factories

  first = {repr(run.setting): run.config for run in task.missing[::-1]}
  for config in reversed(first.values()):
    data = points.data_flags(config)
    same = [
      run.config
      for run in task.everything
      if points.data_flags(run.config) == data
    ]
    dataset = _load(config)
    runs.check_data(same, dataset)
    with contextlib.closing(factories.build_process(config, dataset)):
      pass


@functools.cache
def _start() -> None:
  """Starts the log of the process and TensorFlow."""
  absl_flags.FLAGS.mark_as_parsed()  # absl's logging requires it
  logging.use_absl_handler()
  logging.get_absl_handler().setFormatter(None)
  logging.set_verbosity(logging.WARNING)
  hardware.start_tensorflow()


def _load(config: RunConfig) -> 'dataset_lib.Dataset':
  """Loads the data of a run, unless the last one had the same."""
  key = repr(points.data_flags(config))
  if key not in _loaded:
    _loaded.clear()
    _loaded[key] = config.load()
  return _loaded[key]


def _hold_workers(config: RunConfig) -> None:
  """Keeps the workers of a Ray cluster until the process ends."""
  if config.executor == 'ray' and not _held:
    _held.append(contextlib.ExitStack())
    atexit.register(_held[0].close)
    _held[0].enter_context(runs.shared_workers(config))
