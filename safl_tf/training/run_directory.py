"""One folder per run: what was asked, what happened, and how to go on.

To look at a folder takes no TensorFlow; it is imported where it is needed.
"""

import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from safl_tf.training import checkpoint, metrics_log
from safl_tf.util import atomic_io, errors

if TYPE_CHECKING:
  import keras

  from safl_tf.core import flat_model, process

Row = dict[str, Any]

_MEMORY = 'memory/'  # what the names of the aggregator's arrays start with
_MANY_BYTES, _MANY_SECONDS = 100e6, 5.0

# Flags that say how long to go on and what to keep, not what is computed.
_FREE = frozenset(
  {
    'checkpoint_every',
    'data_dir',
    'client_store',
    'client_table',
    'experiment',
    'export',
    'keep_checkpoints',
    'output_dir',
    'rounds',
    'stop_at_accuracy',
  }
)


class RunDirectory:
  """Reads and writes a run's folder.

  Args:
    path: the folder; it is made if it doesn't exist.
    flags: what defines the run, as JSON values. A folder made with other
      values is refused.
    keep_checkpoints: how many checkpoints to keep.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    flags: Mapping[str, Any],
    keep_checkpoints: int = 2,
  ):
    self.path = pathlib.Path(path)
    self._flags = dict(flags)
    self._checkpoints = checkpoint.Checkpoints(
      self.path / 'checkpoints', keep_checkpoints
    )
    self._log = metrics_log.MetricsLog(self.path)
    self._is_open = False
    self._told_cost = False

  def check(self) -> None:
    """Refuses a folder that can't be written or was made with other flags."""
    places = (self.path, *self.path.parents)
    existing = next(p for p in places if os.path.exists(p))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
      raise errors.InputError(
        'output_dir', self.path, f'{existing} is not a folder one can write to'
      )
    done = max(self._checkpoints.rounds(), default=0)
    hparams = metrics_log.read_hparams(self.path)
    if hparams is None:
      if done:
        raise errors.InputError(
          'experiment', self.path, 'has checkpoints but no hparams.json'
        )
      return
    changed = self.changed(hparams['flags'])
    if changed:
      told = '; '.join(
        f'{name} was {was}, is {now}' for name, (was, now) in changed.items()
      )
      raise errors.InputError(
        'experiment',
        self.path,
        f'this folder was made with other flags ({told}); '
        'choose another --experiment or the same flags',
      )
    rounds = self._flags.get('rounds', done)
    if rounds < done:
      raise errors.InputError(
        'rounds',
        rounds,
        f'{self.path} has done {done} already; must be at least that, or '
        'choose another --experiment',
      )

  def changed(self, flags: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What another run computes with other flags: its value and this one's."""
    return metrics_log.differing(flags, self._flags, ignore=_FREE)

  @contextmanager
  def opened(self) -> Iterator[None]:
    """Makes the folder and keeps other processes out of it.

    Inside another `with` of the same object it does nothing.
    """
    if self._is_open:
      yield
      return
    self.check()  # before anything is made
    with atomic_io.run_lock(self.path):
      self.check()
      hparams = metrics_log.read_hparams(self.path)
      if not hparams or metrics_log.differing(hparams['flags'], self._flags):
        metrics_log.write_hparams(self.path, self._flags)
      self._is_open = True
      try:
        yield
      finally:
        self._is_open = False
        self._log.close()

  def restore(
    self, start: 'process.FederatedState'
  ) -> tuple['process.FederatedState', list[Row]]:
    """The newest state that can be read, or `start`; and its history."""
    found = self._checkpoints.restore_latest(start.client_models)
    history = [] if found is None else found.meta['history']
    self._log.start(history)
    return start if found is None else _restored(start, found), history

  def append(self, row: Row) -> None:
    """Writes a round's row to metrics.csv and the TensorBoard log."""
    self._log.append(row)

  def save(self, state: 'process.FederatedState', history: list[Row]) -> None:
    """Writes a checkpoint; tells once if that takes much."""
    start = time.perf_counter()
    meta = {'seed': state.seed, 't': state.t, 'history': history}
    size = self._checkpoints.save(
      state.t, _arrays(state), meta, state.client_models
    )
    seconds = time.perf_counter() - start
    if not self._told_cost and (size > _MANY_BYTES or seconds > _MANY_SECONDS):
      self._told_cost = True
      logging.info(
        'checkpoint of round %d: %.0f MB in %.1f s; a larger '
        'checkpoint_every makes fewer of them',
        state.t,
        size / 1e6,
        seconds,
      )


def _arrays(state: 'process.FederatedState') -> dict[str, np.ndarray]:
  """The arrays of a state, but for the clients' models."""
  arrays = {_MEMORY + name: value for name, value in state.memory.items()}
  return arrays if state.z_bar is None else {'z_bar': state.z_bar, **arrays}


def _restored(
  start: 'process.FederatedState', found: checkpoint.Restored
) -> 'process.FederatedState':
  """The state of a checkpoint; `start` is the same run's state 0."""
  arrays, client_models = found.arrays, found.client_models
  assert client_models is not None  # they were asked for
  return start._replace(
    seed=found.meta['seed'],
    t=found.meta['t'],
    z_bar=arrays.get('z_bar'),
    client_models=client_models,
    memory={
      name.removeprefix(_MEMORY): value
      for name, value in arrays.items()
      if name.startswith(_MEMORY)
    },
  )


def write_model(
  path: pathlib.Path,
  model: 'flat_model.FlatModel',
  data: Mapping[str, Any],
) -> None:
  """Writes model.json: architecture, inputs, and what its data say of it.

  A model of the user's own class that has no `get_config` can't be written; its
  run can be resumed, but not exported by a program that doesn't know the class.
  """
  from safl_tf.core import flat_model

  try:
    config = flat_model.architecture(model.template)
  except NotImplementedError:
    logging.info('%s has no get_config: no model.json', model.template.name)
    return
  atomic_io.write_json(
    path / 'model.json',
    {
      'model': config,
      'from_logits': model.from_logits,
      'inputs': model.input_spec,
      **data,
    },
  )


def write_attack(
  path: pathlib.Path, trainer: 'process.FederatedProcess'
) -> None:
  """Writes attack.json, if there is an attack: what it is, and by whom."""
  attack = trainer.attack
  if attack is not None:
    told = {**attack.to_json(), 'clients': trainer.malicious.tolist()}
    atomic_io.write_json(path / 'attack.json', told)


class LoadedRun(NamedTuple):
  """A run's newest global model, and how to use it.

  Attributes:
    model: a plain Keras model.
    input_spec: what it takes, see `flat_model.FlatModel.input_spec`.
    from_logits: whether its outputs are logits.
    data: what users must know, such as `class_names`; see
      `data.datasets.Dataset.about`.
    round_number: the round it is of.
  """

  model: 'keras.Model'
  input_spec: Any
  from_logits: bool
  data: dict[str, Any]
  round_number: int

  @property
  def about(self) -> dict[str, Any]:
    """What an export of it says."""
    return about(self.round_number, self.data)


def load(path: str | pathlib.Path, argument: str = 'run') -> LoadedRun:
  """Reads the global model back from a run's folder.

  Args:
    path: the folder.
    argument: what to call it in an error.
  """
  import keras

  from safl_tf.algorithms.fed_ma import layer_chain, progress
  from safl_tf.core import flat_model

  check_is_run(path, argument)
  path = pathlib.Path(path)
  described = json.loads((path / 'model.json').read_text())
  try:
    saved = checkpoint.Checkpoints(path / 'checkpoints')
    found = saved.restore_latest(repair=False)
  except errors.InputError as error:
    raise errors.InputError(argument, path, error.hint) from error
  if found is None or 'z_bar' not in found.arrays:
    raise errors.InputError(argument, path, 'has no global model yet')
  example = flat_model.zeros_like_spec(described['inputs'])
  model = keras.saving.deserialize_keras_object(described['model'])
  flat = flat_model.FlatModel(model, example)
  widths = found.arrays.get(_MEMORY + progress.WIDTHS)
  if widths is not None:  # FedMA's layers may have grown
    template = flat.template
    flat = flat_model.FlatModel(
      lambda: layer_chain.rebuild(template, widths), example
    )
  about_model = ('model', 'from_logits', 'inputs')
  return LoadedRun(
    model=flat.to_model(found.arrays['z_bar']),
    input_spec=described['inputs'],
    from_logits=described['from_logits'],
    data={k: v for k, v in described.items() if k not in about_model},
    round_number=found.round_number,
  )


def is_run(path: str | pathlib.Path) -> bool:
  """Whether a folder is a run's."""
  return (pathlib.Path(path) / 'model.json').is_file()


def check_is_run(path: str | pathlib.Path, argument: str = 'run') -> None:
  """Refuses a folder that isn't a run's; `argument` is what to call it."""
  if not is_run(path):
    raise errors.InputError(
      argument, path, 'is not the folder of a run (it has no model.json)'
    )


def about(round_number: int, data: Mapping[str, Any]) -> dict[str, Any]:
  """What is to be known of an exported model."""
  return {'round': round_number, **data}
