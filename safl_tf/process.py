"""The paper's loop: `initialize`, `next`, and what passes between them."""

import dataclasses
import os
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from absl import logging

from safl_tf import (
  algorithms,
  attacks,
  checks,
  device_trainer,
  errors,
  flat_model,
  local,
  names,
  seeds,
  store,
)
from safl_tf.data import client_data
from safl_tf.rules import fuse as fuse_rules


class FederatedState(NamedTuple):
  """Everything a run is after t rounds.

  Attributes:
    seed: of all draws.
    t: rounds done.
    z_bar: the server's model [P], None before anything was received.
    devices: the devices' own models.
    memory: what the fusion remembers.
  """

  seed: int
  t: int
  z_bar: np.ndarray | None
  devices: store.DeviceStore
  memory: dict[str, np.ndarray]


class RoundMetrics(NamedTuple):
  """What happened in a round; lists have an entry for each selected device.

  Attributes:
    t: the round.
    ids: S_t.
    sent: whether each device's update was used.
    dropped: devices whose update was not finite.
    hostile: how many of the selected devices are hostile.
    q: upload probabilities.
    delta: accuracy gaps Δ.
    p: probability that an element is kept local, averaged over devices.
    kept_local: measured share of elements kept local.
    train_loss: mean over devices.
    bytes_up: uploaded by devices.
    bytes_down: sent to devices.
  """

  t: int
  ids: np.ndarray
  sent: np.ndarray
  dropped: np.ndarray
  hostile: int
  q: np.ndarray
  delta: np.ndarray
  p: float
  kept_local: float
  train_loss: float
  bytes_up: int
  bytes_down: int


class FederatedProcess:
  """Federated training of a Keras model, one round at a time.

    process = FederatedProcess(model_fn, clients, build_safl())
    state = process.initialize(seed=0)
    for _ in range(30):
      state, metrics = process.next(state)
    weights = process.get_model_weights(state)

  A state is a value: `next` of the same state gives the same result.

  Args:
    model: a function that returns a new Keras model, or a Keras model.
    clients: the devices' data.
    algorithm: the four rules; SAFL by default.
    config: how a device trains.
    init: 'per_device' gives each device an initial model of its own, as in the
      paper; 'shared' gives all the same: the weights of `model` if it is a
      model, one random draw if it is a function. What a given model does not
      train, such as frozen layers, is kept in both.
    executor: 'serial', 'threads', 'vectorized' or 'auto', see `executors`.
    jit_compile: 'auto', 'true' or 'false': whether XLA compiles local training.
    device: 'auto', 'cpu', 'gpu' (all there are) or one such as 'gpu:1'.
    stack: how many devices 'vectorized' stacks; by memory if None.
    device_store: where devices' models are between rounds, 'ram' or 'mmap': in
      a temporary file, for populations larger than the memory.
    store_dir: the folder of that file; the system's by default.
    attack: what hostile devices do, if there are any; see `attacks`.

  Attributes:
    hostile: the devices that an attack chose, by number.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn,
    clients: client_data.ClientData,
    algorithm: algorithms.Algorithm | None = None,
    config: local.LocalConfig | None = None,
    init: str = 'per_device',
    executor: str = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    device_store: str = 'ram',
    store_dir: str | os.PathLike[str] | None = None,
    attack: attacks.Attack | None = None,
  ):
    self.algorithm = algorithm or algorithms.build_safl()
    self.config = _config(self.algorithm, config or local.LocalConfig())
    self.attack = attack
    self.hostile = np.zeros(0, np.int64)
    if attack is not None:
      attack.check(self.algorithm)
      self.hostile = attack.devices(clients.num_devices)
      clients = attack.poison(clients)
    self.clients = clients.pooled() if self.algorithm.pooled else clients
    init = checks.choice('init', init, names.INITS)
    self._shared = init == 'shared' or self.algorithm.one_step
    self._device_store = checks.choice(
      'device_store', device_store, names.DEVICE_STORES
    )
    self._store_dir = store_dir
    if stack is not None:
      checks.integer('stack', stack, low=1)
    self._trainer = device_trainer.DeviceTrainer(
      model,
      self.clients,
      self.algorithm,
      self.config,
      executor,
      jit_compile,
      device,
      stack,
    )
    self.model = self._trainer.model
    self.device = self._trainer.device
    self.jit_compile = self._trainer.jit_compile

  def initialize(self, seed: int = 0) -> FederatedState:
    """The state before the first round: every device untrained.

    There is no z̄ yet, but for FedSGD, whose server has the one model there is.
    """
    checks.integer('seed', seed, low=0)
    initial = self._initial_model(seed)
    return FederatedState(
      seed=seed,
      t=0,
      z_bar=initial(0) if self.algorithm.one_step else None,
      devices=store.create(
        self._device_store,
        initial,
        self.model.size,
        self.model.dtype,
        self._store_dir,
      ),
      memory=self.algorithm.fuse.init(self.model.layout),
    )

  def next(self, state: FederatedState) -> tuple[FederatedState, RoundMetrics]:
    """One communication round, Algorithms 1 and 2."""
    t = state.t + 1
    ids = self.algorithm.select(state.seed, t, self.clients.num_devices)
    # On each device of S_t: mix, E epochs, gate.
    trained = self._trainer(lambda k: self._task(state, t, k), ids.tolist())
    updates = self._spoiled(state, t, ids, trained)
    finite = np.array([update.finite for update in updates])
    sent = finite & np.array([update.sent for update in updates])
    z = [update.z for update in updates]
    own = {int(k): trained[i].z for i, k in enumerate(ids) if finite[i]}
    if self.algorithm.one_step:
      own = {}  # devices keep nothing
    z_bar, memory = state.z_bar, state.memory
    if sent.any():  # else z̄ stays as it is
      received = fuse_rules.Updates(
        t=t,
        ids=ids[sent],
        z=[z[i] for i in np.flatnonzero(sent)],
        m=self.clients.sizes[ids[sent]],
      )
      z_bar, memory = self.algorithm.fuse.apply(memory, received, z_bar)
    new_state = FederatedState(
      state.seed, t, z_bar, state.devices.updated(own), memory
    )
    return new_state, self._metrics(state, t, ids, sent, finite, updates)

  def get_model_weights(self, state: FederatedState) -> list[np.ndarray]:
    """The server's model as `keras.Model.get_weights` lists it."""
    return self.get_model(state).get_weights()

  def get_model(self, state: FederatedState) -> keras.Model:
    """The server's model as a new, plain Keras model."""
    if state.t == 0:
      raise ValueError('there is no global model before the first upload')
    if state.z_bar is None:
      raise errors.InputError(
        'learning_rate',
        self.config.learning_rate,
        'no device has sent a finite update, so there is no global model; '
        'try a smaller one',
      )
    return self.model_of(state).to_model(state.z_bar)

  def model_of(self, state: FederatedState) -> flat_model.FlatModel:
    """The architecture of a state's z̄."""
    del state
    return self.model

  @property
  def num_traces(self) -> int:
    """How often a device's round, or a piece of it, was traced."""
    return self._trainer.num_traces

  def _initial_model(self, seed: int) -> Callable[[int], np.ndarray]:
    if not self._shared:
      return lambda k: self.model.init(seeds.pair(seed, seeds.Role.INIT, k + 1))
    z = self.model.given
    if z is None:
      z = self.model.init(seeds.pair(seed, seeds.Role.INIT, 0))
    return lambda k: z

  def _task(self, state: FederatedState, t: int, k: int) -> local.Task:
    roles = (seeds.Role.MIX, seeds.Role.GATE, seeds.Role.MODEL)
    z = state.devices[k]
    return local.Task(
      z_bar=z if state.z_bar is None else state.z_bar,
      has_global=state.z_bar is not None,
      z=z,
      seeds=np.stack([seeds.pair(state.seed, role, t, k) for role in roles]),
      clock=self.config.clock(t, int(self.clients.sizes[k])),
      plan=local.plan_batches(
        self.clients.indices(k),
        self.config,
        self._trainer.max_steps,
        seeds.generator(state.seed, seeds.Role.BATCHES, t, k),
      ),
    )

  def _spoiled(
    self,
    state: FederatedState,
    t: int,
    ids: np.ndarray,
    updates: list[local.Update],
  ) -> list[local.Update]:
    """What devices upload where some are hostile."""
    if self.attack is None or not self.attack.on_uploads:
      return updates
    found = list(updates)
    for i in np.flatnonzero(np.isin(ids, self.hostile)):
      k = int(ids[i])
      start = state.devices[k] if state.z_bar is None else state.z_bar
      z = self.attack.spoil(t, k, updates[i].z, start)
      found[i] = updates[i]._replace(z=z, finite=np.isfinite(z).all())
    return found

  def _metrics(
    self,
    state: FederatedState,
    t: int,
    ids: np.ndarray,
    sent: np.ndarray,
    finite: np.ndarray,
    updates: list[local.Update],
  ) -> RoundMetrics:
    def column(name: str) -> np.ndarray:
      return np.array([getattr(update, name) for update in updates])

    dropped = ids[~finite]
    if len(dropped):
      names = ', '.join(self.clients.client_ids[k] for k in dropped[:5])
      more = f' and {len(dropped) - 5} more' if len(dropped) > 5 else ''
      logging.warning(
        'round %d: update not finite, dropped: device %s%s', t, names, more
      )
    item = np.dtype(self.model.dtype).itemsize
    up = self.algorithm.fuse.uploads(self.model.layout, t)
    down = 0 if state.z_bar is None else self.model.size
    if not self.algorithm.communicates:
      sent, down = np.zeros_like(sent), 0
    losses = column('train_loss')[finite]
    return RoundMetrics(
      t=t,
      ids=ids,
      sent=sent,
      dropped=dropped,
      hostile=0
      if self.algorithm.pooled
      else int(np.isin(ids, self.hostile).sum()),
      q=column('q'),
      delta=column('delta'),
      p=float(column('p').mean(dtype=np.float64)),
      kept_local=float(column('kept_local').mean(dtype=np.float64)),
      train_loss=float(losses.mean(dtype=np.float64))
      if len(losses)
      else np.nan,
      bytes_up=int(sent.sum()) * up * item,
      bytes_down=len(ids) * down * item,
    )


def _config(
  algorithm: algorithms.Algorithm, config: local.LocalConfig
) -> local.LocalConfig:
  """How devices train under an algorithm that has a say in it."""
  if not algorithm.one_step:
    return config
  if config.optimizer != 'sgd':
    raise errors.InputError(
      'optimizer',
      config.optimizer,
      'FedSGD is plain sgd; the server may have an optimizer of its own',
    )
  return dataclasses.replace(config, local_epochs=1)
