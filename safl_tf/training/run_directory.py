"""Run directories: flags, metrics, checkpoints and the model of a run.

Imports TensorFlow only where it is needed, so that programs can check a
directory without it.
"""

import functools
import os
import pathlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from safl_tf.core import client_store
from safl_tf.training import checkpoint, metrics_log, model_file
from safl_tf.training import hparams as hparams_lib
from safl_tf.util import atomic_io, errors, output_folder, versions

if TYPE_CHECKING:
  import keras

  from safl_tf.core import process

Row = dict[str, Any]

# Prefixes of the names of a state's arrays and stores.
_CLIENTS, _MEMORY = 'clients/', 'memory/'
_LARGE_BYTES, _LONG_SECONDS = 100e6, 5.0

# Flags that may change when a run is resumed: results do not depend on them, or
# the identity of the run has what results depend on, such as digests of data.
MUTABLE_FLAGS = (
  'address',
  'checkpoint_every',
  'client_keys',
  'client_store',
  'client_table',
  'data',
  'data_dir',
  'device',
  'executor',
  'experiment',
  'export',
  'figures',
  'jit_compile',
  'keep_checkpoints',
  'max_wait',
  'missing',
  'output_dir',
  'ray_address',
  'ray_chunk',
  'ray_cpus_per_worker',
  'ray_gpus_per_worker',
  'ray_timeout',
  'ray_workers',
  'round_timeout',
  'rounds',
  'speech_dir',
  'stack',
  'stop_at_accuracy',
  'tls_certificate',
  'tls_key',
)
_DIGEST = re.compile(r'\b([0-9a-f]{8})[0-9a-f]{24,}\b')  # messages have 8
_LONG = 100  # characters of a value up to which messages show it


class RunDirectory:
  """Reads and writes a run directory.

  Args:
    path: the directory; created by `opened`.
    flags: those of the program, as JSON values; None in Python.
    keep_checkpoints: number of checkpoints to keep.
    argument: the argument or flag that gave the directory, for errors.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    flags: Mapping[str, Any] | None = None,
    keep_checkpoints: int = 2,
    argument: str = 'output_dir',
  ):
    self.path = pathlib.Path(path)
    self._flags = flags
    self.argument = argument
    self._other = argument if flags is None else f'--{argument}'
    self._checkpoints = checkpoint.Checkpoints(
      self.path / 'checkpoints', keep_checkpoints
    )
    self._log = metrics_log.MetricsLog(self.path)
    self._hparams: dict[str, Any] = {}  # from `begin` on
    self._is_open = False
    self._size_logged = False

  def check(self) -> None:
    """Refuses a directory of others, or of a run with other flags."""
    is_own = os.path.exists(self.path / 'hparams.json')
    above = self.path.parent
    is_usable = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    argument = self.argument if is_usable else 'output_dir'
    output_folder.check(self.path, 'run', argument, is_own)
    hparams = hparams_lib.read(self.path, self.argument)
    if hparams is None:
      if self._done:
        raise self._error('has checkpoints but no hparams.json')
      return
    if self._flags is not None and hparams['flags'] is not None:
      self._refuse(self.changed(hparams['flags']), 'flags')
      self._check_rounds(self._flags.get('rounds', self._done))

  def changed(self, flags: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the flags that change results: name -> (given, this run's)."""
    own = self._flags or {}
    return hparams_lib.differing(flags, own, ignore=MUTABLE_FLAGS)

  def check_part(self, identity: Mapping[str, Any]) -> None:
    """Refuses a run that differs in these parts of its identity."""
    hparams = hparams_lib.read(self.path, self.argument)
    if hparams is not None:
      known = {name: hparams['identity'].get(name) for name in identity}
      self._refuse(hparams_lib.differing(known, identity), 'settings')

  @contextmanager
  def opened(self) -> Iterator[None]:
    """Creates the directory and locks it for this process; reentrant."""
    if self._is_open:
      yield
      return
    self.check()  # before anything is created
    is_own = os.path.exists(self.path / 'hparams.json')
    with output_folder.opened(self.path, 'run', self.argument, is_own):
      self.check()
      self._is_open = True
      try:
        yield
      finally:
        self._is_open = False
        self._log.close()

  def begin(
    self,
    identity: Mapping[str, Any],
    rounds: int,
    settings: Mapping[str, Any] | None = None,
  ) -> None:
    """Writes hparams.json; refuses a directory of a run that differs.

    Args:
      identity: see `identity.of_run`.
      rounds: to train in all.
      settings: see `identity.settings`.
    """
    settings = settings or {}
    hparams = hparams_lib.read(self.path, self.argument)
    if hparams is None:
      self._hparams = hparams_lib.create(identity, self._flags, settings)
      hparams_lib.write(self.path, self._hparams)
      return
    changed = hparams_lib.differing(hparams['identity'], identity)
    self._refuse(changed, 'settings')
    self._check_rounds(rounds)
    self._check_saved(hparams['saved_round'])
    began, here = hparams['versions'].get('cpu'), versions.cpu()
    if began != here:
      logging.warning(
        'this run began on another processor (%s, here %s): sums may be '
        'rounded differently from here on',
        began,
        here,
      )
    self._hparams = hparams
    if self._flags is not None:
      self._update_hparams(flags=dict(self._flags))
    else:
      self._update_hparams(settings=dict(settings))

  def describe(
    self, process: 'process.FederatedProcess', metadata: Mapping[str, Any]
  ) -> None:
    """Writes the files of the model, the clients and the attack, if any."""
    clients = process.clients
    metrics_log.write_client_sizes(
      self.path, clients.client_ids, clients.sizes.tolist()
    )
    if process.attack is not None:
      malicious = process.malicious.tolist()
      attack = {**process.attack.to_json(), 'clients': malicious}
      atomic_io.write_json(self.path / 'attack.json', attack)
    with _warning_of_damage():
      model_file.read(self.path, self.argument)
    model_file.write(self.path, process.model, process.task, metadata)

  def restore(
    self, initial: 'process.FederatedState', columns: Sequence[str] = ()
  ) -> tuple['process.FederatedState', list[Row]]:
    """Restores the newest intact state, or `initial`, and its history.

    Args:
      initial: the state before the first round.
      columns: of metrics.csv, see `MetricsLog.start`.
    """
    try:
      restored = self._checkpoints.restore_latest(_stores(initial))
    except errors.InputError as error:
      raise self._error(error.hint) from error
    if restored is None:
      self._log.start([], columns)
      return initial, []
    self._update_hparams(saved_round=restored.round_number)
    with _warning_of_damage():
      metrics_log.read_csv(self.path / 'metrics.csv')
    arrays, history = restored.arrays, restored.meta['history']
    everything = {**arrays, **restored.stores}
    self._log.start(history, columns)
    state = initial._replace(
      seed=restored.meta['seed'],
      t=restored.meta['t'],
      z_bar=arrays.get('z_bar'),
      clients=_below(_CLIENTS, everything),
      memory=_below(_MEMORY, everything),
    )
    return state, history

  def append(self, row: Row) -> None:
    """Appends a round's row to metrics.csv and the TensorBoard log."""
    self._log.append(row)

  def save(self, state: 'process.FederatedState', history: list[Row]) -> None:
    """Writes a checkpoint of a round that has none yet.

    Logs once if it is large or slow.
    """
    if state.t == self._done:
      return
    start = time.perf_counter()
    stores = _stores(state)
    arrays = {} if state.z_bar is None else {'z_bar': state.z_bar}
    for name, value in state.memory.items():
      if _MEMORY + name not in stores:
        arrays[_MEMORY + name] = value
    meta = {'seed': state.seed, 't': state.t, 'history': history}
    size = self._checkpoints.save(state.t, arrays, meta, stores)
    self._update_hparams(saved_round=state.t)
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

  @property
  def _done(self) -> int:
    """The newest round with a checkpoint; 0 without one."""
    return max(self._checkpoints.rounds(), default=0)

  def _check_rounds(self, rounds: int) -> None:
    """Refuses fewer rounds than the run has completed."""
    if rounds < self._done:
      raise errors.InputError(
        'rounds',
        rounds,
        f'must be at least {self._done}, as {self.path} has completed '
        f'{self._done}; or choose another {self._other}',
      )

  def _check_saved(self, saved_round: int) -> None:
    """Refuses to repeat rounds whose checkpoints have been lost."""
    if self._done < saved_round:
      raise self._error(
        f'has lost the checkpoint of round {saved_round}; the newest is of '
        f'round {self._done}; put it back or choose another {self._other}'
      )

  def _update_hparams(self, **changes: Any) -> None:
    """Rewrites hparams.json if something has changed."""
    hparams = {**self._hparams, **changes}
    if hparams_lib.differing(hparams, self._hparams):
      hparams_lib.write(self.path, hparams)
    self._hparams = hparams

  def _refuse(self, changed: Mapping[str, tuple[Any, Any]], kind: str) -> None:
    """Refuses a run that differs from the one in the directory."""
    if not changed:
      return
    texts = []
    for name, values in changed.items():
      old, new = (_DIGEST.sub(r'\1', str(value)) for value in values)
      fits = max(len(old), len(new)) <= _LONG
      texts.append(f'{name} was {old}, is {new}' if fits else name)
    raise self._error(
      f'this folder was made with other {kind} ({"; ".join(texts)}); choose '
      f'another {self._other} or the same {kind}'
    )

  def _error(self, hint: str) -> errors.InputError:
    return errors.InputError(self.argument, self.path, hint)


def _stores(
  state: 'process.FederatedState',
) -> dict[str, client_store.ClientStore]:
  """Returns the stores of a state by the names they have in checkpoints."""
  clients = {_CLIENTS + name: store for name, store in state.clients.items()}
  memory = {
    _MEMORY + name: value
    for name, value in state.memory.items()
    if isinstance(value, client_store.ClientStore)
  }
  return {**clients, **memory}


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values whose names have a prefix, without it."""
  return {
    name.removeprefix(prefix): value
    for name, value in values.items()
    if name.startswith(prefix)
  }


@contextmanager
def _warning_of_damage() -> Iterator[None]:
  """Logs that a file of ours is damaged, before it is written again."""
  try:
    yield
  except FileNotFoundError:
    pass
  except errors.InputError as error:
    logging.warning('%s; it is written again', error)


class LoadedRun(NamedTuple):
  """A model of a run, as a plain Keras model.

  For `input_spec` see `flat_model.FlatModel`; for `task` see `task_resolution`;
  `metadata` is that of an export:
  `round`, `class_names`, ...
  """

  model: 'keras.Model'
  input_spec: Any
  task: dict[str, Any]
  round_number: int
  metadata: dict[str, Any]


def load(
  path: str | pathlib.Path,
  argument: str = 'run',
  round_number: int | None = None,
  client: int | None = None,
) -> LoadedRun:
  """Loads a model of a run.

  Args:
    path: the run directory.
    argument: the argument that gave it, for errors.
    round_number: a round with a checkpoint; the newest if None.
    client: the position of a client, for its own model; None for the global
      one.
  """
  import keras

  from safl_tf.algorithms.fed_ma import layer_chain, progress
  from safl_tf.core import flat_model
  from safl_tf.data import arrays

  check_is_run(path, argument)
  path = pathlib.Path(path)
  config, fixed = model_file.read(path, argument)
  checkpoints = checkpoint.Checkpoints(path / 'checkpoints')
  try:
    restored = checkpoints.restore_latest(repair=False, only=round_number)
    z = restored and restored.arrays.get('z_bar')
    if restored is not None and client is not None:
      number = restored.round_number
      z = checkpoints.read_client(number, f'{_CLIENTS}z', client)
  except errors.InputError as error:
    raise errors.InputError(argument, path, error.hint) from error
  if restored is None or z is None:
    hint = 'has no global model yet'
    if client is not None:
      hint = (
        'has no model of that client: it was never selected, or none is kept'
      )
    raise errors.InputError(argument, path, hint)
  number = restored.round_number
  input_spec, task = config.pop('inputs'), config.pop('task')
  try:
    example = arrays.zeros_like_spec(input_spec)
    model = keras.saving.deserialize_keras_object(config.pop('model'))
    for i, value in fixed.items():
      model.non_trainable_variables[i].assign(value)
    flat = flat_model.FlatModel(model, example)
  except Exception as error:  # a damaged file, or a class that is not here
    hint = f'Keras cannot rebuild model.json ({errors.reason(error)})'
    raise errors.InputError(argument, path, hint) from error
  widths = restored.arrays.get(_MEMORY + progress.WIDTHS)
  if widths is not None:  # FedMA may have widened layers
    rebuild = functools.partial(layer_chain.rebuild, flat.template, widths)
    flat = flat_model.FlatModel(rebuild, example)
  if len(z) != flat.size or fixed.keys() != flat.fixed.keys():
    hint = 'model.json does not describe the model of its checkpoints'
    raise errors.InputError(argument, path, hint)
  model = flat.to_model(z)
  metadata = {'round': number, **config}
  return LoadedRun(model, input_spec, task, number, metadata)


def is_run(path: str | pathlib.Path) -> bool:
  """Returns whether a directory is a run directory."""
  return (pathlib.Path(path) / 'model.json').is_file()


def check_is_run(path: str | pathlib.Path, argument: str = 'run') -> None:
  """Refuses a directory that is not a run directory of this version."""
  if not is_run(path):
    raise errors.InputError(
      argument, path, 'is not a run directory (it has no model.json)'
    )
  hparams_lib.read(path, argument)
