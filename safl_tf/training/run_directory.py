"""Run directories: flags, metrics, checkpoints and the model of a run.

Imports TensorFlow only where it is needed, so that programs can check a
directory without it.
"""

import functools
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from safl_tf.training import checkpoint, metrics_log
from safl_tf.util import atomic_io, errors, output_folder

if TYPE_CHECKING:
  import keras

  from safl_tf.core import process

Row = dict[str, Any]

_MEMORY = 'memory/'  # prefix of the names of the aggregator's arrays
_LARGE_BYTES, _LONG_SECONDS = 100e6, 5.0

# Flags that may change when a run is resumed, as they do not affect results.
_MUTABLE_FLAGS = (
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
)


class RunDirectory:
  """Reads and writes a run directory.

  Args:
    path: the directory; created by `opened`.
    flags: the run's definition, as JSON values. A directory made with other
      flags is refused.
    keep_checkpoints: number of checkpoints to keep.
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
    self._size_logged = False

  def check(self) -> None:
    """Refuses a directory that is not writable or was made with other flags."""
    candidates = (self.path, *self.path.parents)
    existing = next(p for p in candidates if os.path.exists(p))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
      raise errors.InputError(
        'output_dir',
        self.path,
        f'{existing} is not a folder that can be written to',
      )
    done = max(self._checkpoints.rounds(), default=0)
    hparams = metrics_log.read_hparams(self.path)
    if hparams is None:
      if done:
        raise errors.InputError(
          'experiment', self.path, 'has checkpoints but no hparams.json'
        )
      return
    changed = '; '.join(
      f'{name} was {old}, is {new}'
      for name, (old, new) in self.changed(hparams['flags']).items()
    )
    if changed:
      raise errors.InputError(
        'experiment',
        self.path,
        f'this folder was made with other flags ({changed}); choose another '
        '--experiment or the same flags',
      )
    rounds = self._flags.get('rounds', done)
    if rounds < done:
      raise errors.InputError(
        'rounds',
        rounds,
        f'must be at least {done}, as {self.path} has completed {done}; or '
        'choose another --experiment',
      )

  def changed(self, flags: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the flags that change results: name -> (given, this run's)."""
    return metrics_log.differing(flags, self._flags, ignore=_MUTABLE_FLAGS)

  @contextmanager
  def opened(self) -> Iterator[None]:
    """Creates the directory and locks it for this process; reentrant."""
    if self._is_open:
      yield
      return
    self.check()  # before anything is created
    with output_folder.opened(self.path, 'run', 'experiment'):
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

  def describe(
    self, process: 'process.FederatedProcess', metadata: Mapping[str, Any]
  ) -> None:
    """Writes model.json, and attack.json if there is an attack.

    There is no model.json for a model of a user class without `get_config`: its
    run can be resumed, but not exported by a program without that class.
    """
    from safl_tf.core import flat_model

    if process.attack is not None:
      clients = process.malicious.tolist()
      attack = {**process.attack.to_json(), 'clients': clients}
      atomic_io.write_json(self.path / 'attack.json', attack)
    model = process.model
    try:
      config = flat_model.architecture(model.template)
    except NotImplementedError:
      logging.info('%s has no get_config: no model.json', model.template.name)
      return
    description = {
      'model': config,
      'from_logits': model.from_logits,
      'inputs': model.input_spec,
      **metadata,
    }
    atomic_io.write_json(self.path / 'model.json', description)

  def restore(
    self, initial: 'process.FederatedState'
  ) -> tuple['process.FederatedState', list[Row]]:
    """Restores the newest intact state, or `initial`, and its history."""
    restored = self._checkpoints.restore_latest(initial.client_models)
    if restored is None:
      self._log.start([])
      return initial, []
    assert restored.client_models is not None
    arrays, history = restored.arrays, restored.meta['history']
    self._log.start(history)
    state = initial._replace(
      seed=restored.meta['seed'],
      t=restored.meta['t'],
      z_bar=arrays.get('z_bar'),
      client_models=restored.client_models,
      memory={
        name.removeprefix(_MEMORY): array
        for name, array in arrays.items()
        if name.startswith(_MEMORY)
      },
    )
    return state, history

  def append(self, row: Row) -> None:
    """Appends a round's row to metrics.csv and the TensorBoard log."""
    self._log.append(row)

  def save(self, state: 'process.FederatedState', history: list[Row]) -> None:
    """Writes a checkpoint; logs once if it is large or slow."""
    start = time.perf_counter()
    arrays = {_MEMORY + name: array for name, array in state.memory.items()}
    if state.z_bar is not None:
      arrays = {'z_bar': state.z_bar, **arrays}
    meta = {'seed': state.seed, 't': state.t, 'history': history}
    size = self._checkpoints.save(state.t, arrays, meta, state.client_models)
    seconds = time.perf_counter() - start
    large = size > _LARGE_BYTES or seconds > _LONG_SECONDS
    if large and not self._size_logged:
      self._size_logged = True
      logging.info(
        'checkpoint of round %d: %.0f MB in %.1f s; a larger '
        'checkpoint_every writes fewer',
        state.t,
        size / 1e6,
        seconds,
      )


class LoadedRun(NamedTuple):
  """A run's newest global model, as a plain Keras model.

  For `input_spec` see `flat_model.FlatModel`; `metadata` is that of an export:
  `round`, `class_names`, ...
  """

  model: 'keras.Model'
  input_spec: Any
  from_logits: bool
  round_number: int
  metadata: dict[str, Any]


def load(path: str | pathlib.Path, argument: str = 'run') -> LoadedRun:
  """Loads the newest global model; errors name `argument`."""
  import keras

  from safl_tf.algorithms.fed_ma import layer_chain, progress
  from safl_tf.core import flat_model

  check_is_run(path, argument)
  path = pathlib.Path(path)
  config = json.loads((path / 'model.json').read_text())
  try:
    checkpoints = checkpoint.Checkpoints(path / 'checkpoints')
    restored = checkpoints.restore_latest(repair=False)
  except errors.InputError as error:
    raise errors.InputError(argument, path, error.hint) from error
  if restored is None or 'z_bar' not in restored.arrays:
    raise errors.InputError(argument, path, 'has no global model yet')
  number = restored.round_number
  input_spec, from_logits = config.pop('inputs'), config.pop('from_logits')
  example = flat_model.zeros_like_spec(input_spec)
  model = keras.saving.deserialize_keras_object(config.pop('model'))
  flat = flat_model.FlatModel(model, example)
  widths = restored.arrays.get(_MEMORY + progress.WIDTHS)
  if widths is not None:  # FedMA may have widened layers
    rebuild = functools.partial(layer_chain.rebuild, flat.template, widths)
    flat = flat_model.FlatModel(rebuild, example)
  model = flat.to_model(restored.arrays['z_bar'])
  metadata = {'round': number, **config}
  return LoadedRun(model, input_spec, from_logits, number, metadata)


def is_run(path: str | pathlib.Path) -> bool:
  """Returns whether a directory is a run directory."""
  return (pathlib.Path(path) / 'model.json').is_file()


def check_is_run(path: str | pathlib.Path, argument: str = 'run') -> None:
  """Refuses a directory that is not a run directory of this version."""
  if not is_run(path):
    raise errors.InputError(
      argument, path, 'is not a run directory (it has no model.json)'
    )
  metrics_log.read_hparams(path, argument)
