"""The paper's loop: `initialize`, `next`, and what passes between them."""

import dataclasses
import os
from collections.abc import Callable

import keras
import numpy as np

from safl_tf import (
  algorithms,
  attacks,
  checks,
  cohort,
  device_trainer,
  errors,
  flat_model,
  local,
  names,
  seeds,
  states,
  store,
)
from safl_tf.data import client_data
from safl_tf.fedma import rounds
from safl_tf.rules import fuse as fuse_rules

FederatedState = states.FederatedState
RoundMetrics = states.RoundMetrics


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
    self._cohort = cohort.Cohort(
      self.clients,
      self.config,
      attack,
      self.hostile[:0] if self.algorithm.pooled else self.hostile,
    )
    self._matched: rounds.MatchedRounds | None = None
    if self.algorithm.match is not None:
      self._matched = rounds.MatchedRounds(
        self._trainer, self._cohort, self.clients, self.algorithm
      )

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
    if self._matched is not None:
      return self._matched.next(state)
    t = state.t + 1
    ids = self.algorithm.select(state.seed, t, self.clients.num_devices)
    # On each device of S_t: mix, E epochs, gate.
    trained = self._cohort.train(
      self._trainer,
      state.seed,
      t,
      ids,
      lambda k: cohort.Start(state.devices[k], state.z_bar),
    )
    own = {} if self.algorithm.one_step else trained.kept()
    z_bar, memory, sent = state.z_bar, state.memory, trained.sent
    if sent.any():  # else z̄ stays as it is
      received = fuse_rules.Updates(
        t=t,
        ids=ids[sent],
        z=[trained.updates[i].z for i in np.flatnonzero(sent)],
        m=self.clients.sizes[ids[sent]],
      )
      z_bar, memory = self.algorithm.fuse.apply(memory, received, z_bar)
    new_state = FederatedState(
      state.seed, t, z_bar, state.devices.updated(own), memory
    )
    return new_state, self._metrics(state, trained)

  def get_model_weights(self, state: FederatedState) -> list[np.ndarray]:
    """The server's model as `keras.Model.get_weights` lists it."""
    return self.get_model(state).get_weights()

  def get_model(self, state: FederatedState) -> keras.Model:
    """The server's model as a new, plain Keras model."""
    if state.t == 0:
      raise ValueError('there is no global model before the first upload')
    if state.z_bar is None and state.t < self.rounds_per_pass:
      raise errors.InputError(
        'rounds',
        state.t,
        'FedMA matches one layer in a round, so its first global model comes '
        f'after {self.rounds_per_pass}',
      )
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
    return self.trainer_of(state).model

  def trainer_of(self, state: FederatedState) -> device_trainer.DeviceTrainer:
    """How models of the architecture of a state's z̄ are computed."""
    if self._matched is None:
      return self._trainer
    return self._matched.trainer_of(state)

  @property
  def rounds_per_pass(self) -> int:
    """How many rounds give a global model; FedMA may need several."""
    return 1 if self._matched is None else self._matched.rounds_per_pass

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

  def _metrics(
    self, state: FederatedState, trained: cohort.Trained
  ) -> RoundMetrics:
    item = np.dtype(self.model.dtype).itemsize
    up = self.algorithm.fuse.uploads(self.model.layout, trained.t)
    down = 0 if state.z_bar is None else self.model.size
    sent = trained.sent
    if not self.algorithm.communicates:
      sent, down = np.zeros_like(sent), 0
    return self._cohort.measure(trained, sent, up * item, down * item)


def _config(
  algorithm: algorithms.Algorithm, config: local.LocalConfig
) -> local.LocalConfig:
  """How devices train under an algorithm that has a say in it."""
  if not algorithm.gate.needs_accuracy:  # nobody asks for h
    config = dataclasses.replace(config, holdout=None)
  if not algorithm.one_step:
    return config
  if config.optimizer != 'sgd':
    raise errors.InputError(
      'optimizer',
      config.optimizer,
      'FedSGD is plain sgd; the server may have an optimizer of its own',
    )
  return dataclasses.replace(config, local_epochs=1)
