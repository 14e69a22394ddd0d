"""The paper's loop: `initialize` and `next`."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  client_config,
  client_store,
  client_trainer,
  flat_model,
  seeds,
)
from safl_tf.core import state as state_lib
from safl_tf.data import client_data
from safl_tf.util import choices, errors, validation

FederatedState = state_lib.FederatedState
RoundMetrics = state_lib.RoundMetrics


class Rounds(Protocol):
  """The rounds of an algorithm with a driver, see `algorithm.Driver`.

  Attributes:
    rounds_per_pass: the number of rounds per new global model.
  """

  rounds_per_pass: int

  def next(self, state: FederatedState) -> tuple[FederatedState, RoundMetrics]:
    """Runs one communication round."""

  def trainer_of(self, state: FederatedState) -> client_trainer.ClientTrainer:
    """Returns the trainer for models of the shape of a state's z̄."""


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
    clients: the clients' data.
    algorithm: the rules, from a `build_*` function.
    config: how a client trains.
    init: 'per_client' gives each client its own initial model, as in the paper;
      'shared' gives all the same one: the weights of `model` if it is a model,
      one random draw if it is a function. Both keep what a given model does
      not train, such as frozen layers.
    executor: 'serial', 'threads', 'vectorized' or 'auto', see `executors`.
    jit_compile: 'auto', 'true' or 'false': whether XLA compiles local training.
    device: 'auto', 'cpu', 'gpu' (all GPUs) or one such as 'gpu:1'.
    stack: how many clients 'vectorized' stacks; by memory if None.
    client_store: where clients' models are kept between rounds: 'ram', or
      'mmap' for a temporary file, for populations larger than the memory.
    store_dir: the directory of that file; the system's by default.
    attack: what malicious clients do, if there are any; see `attacks`.

  Attributes:
    malicious: the ids of the clients that an attack chose.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig | None = None,
    init: str = 'per_client',
    executor: str = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    client_store: str = 'ram',
    store_dir: str | os.PathLike[str] | None = None,
    attack: client_trainer.Attack | None = None,
  ):
    self.algorithm = algorithm
    self.config = _config(algorithm, config or client_config.LocalConfig())
    self.attack = attack
    init = validation.choice('init', init, choices.INITS)
    self._shared = init == 'shared' or algorithm.one_step
    self._client_store = validation.choice(
      'client_store', client_store, choices.CLIENT_STORES
    )
    self._store_dir = store_dir
    if stack is not None:
      validation.limited('stack', stack)
    self._trainer = client_trainer.ClientTrainer(
      model,
      clients,
      algorithm,
      self.config,
      executor,
      jit_compile,
      device,
      stack,
      attack,
    )
    self.clients = self._trainer.clients
    self.malicious = self._trainer.malicious
    self.model = self._trainer.model
    self.device = self._trainer.device
    self.jit_compile = self._trainer.jit_compile
    self._rounds: Rounds | None = None
    if algorithm.driver is not None:
      self._rounds = algorithm.driver.bind(self._trainer, algorithm)

  def initialize(self, seed: int = 0) -> FederatedState:
    """Returns the state before the first round.

    There is no z̄ yet, unless clients take one step from a shared model.
    """
    validation.limited('seed', seed)
    initial = self._initial_model(seed)
    return FederatedState(
      seed=seed,
      t=0,
      z_bar=initial(0) if self.algorithm.one_step else None,
      client_models=client_store.create(
        self._client_store,
        initial,
        self.model.size,
        self.model.dtype,
        self._store_dir,
      ),
      memory=self.algorithm.aggregate.init(self.model.layout),
    )

  def next(self, state: FederatedState) -> tuple[FederatedState, RoundMetrics]:
    """Runs one communication round, Algorithms 1 and 2."""
    if self._rounds is not None:
      return self._rounds.next(state)
    t = state.t + 1
    ids = self.algorithm.select(state.seed, t, self.clients.num_clients)
    # On each client of S_t: mix, E epochs, gate.
    output = self._trainer.train(
      state.seed, t, ids, lambda k: (state.client_models[k], state.z_bar)
    )
    own = {} if self.algorithm.one_step else output.kept()
    z_bar, memory, sent = state.z_bar, state.memory, output.sent
    if sent.any():  # else z̄ stays as it is
      updates = algorithm_lib.Updates(
        t=t,
        ids=ids[sent],
        z=[output.uploads[i].z for i in np.flatnonzero(sent)],
        m=self.clients.sizes[ids[sent]],
      )
      z_bar, memory = self.algorithm.aggregate.apply(memory, updates, z_bar)
    new_state = FederatedState(
      state.seed, t, z_bar, state.client_models.updated(own), memory
    )
    return new_state, self._metrics(state, output)

  def get_model_weights(self, state: FederatedState) -> list[np.ndarray]:
    """Returns the global model's weights as `keras.Model.get_weights` does."""
    return self.get_model(state).get_weights()

  def get_model(self, state: FederatedState) -> keras.Model:
    """Returns the global model as a new, plain Keras model."""
    if state.t == 0:
      raise ValueError('there is no global model before the first round')
    if state.z_bar is None and state.t < self.rounds_per_pass:
      raise errors.InputError(
        'rounds',
        state.t,
        'this algorithm has its first global model after '
        f'{self.rounds_per_pass} rounds',
      )
    if state.z_bar is None:
      raise errors.InputError(
        'learning_rate',
        self.config.learning_rate,
        'no client has sent a finite update, so there is no global model; '
        'try a smaller one',
      )
    return self.model_of(state).to_model(state.z_bar)

  def model_of(self, state: FederatedState) -> flat_model.FlatModel:
    """Returns the model of the shape of a state's z̄."""
    return self.trainer_of(state).model

  def trainer_of(self, state: FederatedState) -> client_trainer.ClientTrainer:
    """Returns the trainer for models of the shape of a state's z̄."""
    return self._rounds.trainer_of(state) if self._rounds else self._trainer

  @property
  def rounds_per_pass(self) -> int:
    """The number of rounds per new global model."""
    return self._rounds.rounds_per_pass if self._rounds else 1

  @property
  def arithmetic(self) -> dict[str, Any]:
    """What the bits of results depend on, see `ClientTrainer.arithmetic`."""
    return self._trainer.arithmetic

  @property
  def num_traces(self) -> int:
    """The number of traces of a client's round or of its pieces."""
    return self._trainer.num_traces

  def _initial_model(self, seed: int) -> Callable[[int], np.ndarray]:
    if not self._shared:
      return lambda k: self.model.init(seeds.pair(seed, seeds.Role.INIT, k + 1))
    z = self.model.given
    if z is None:
      z = self.model.init(seeds.pair(seed, seeds.Role.INIT, 0))
    return lambda k: z

  def _metrics(
    self, state: FederatedState, output: client_trainer.CohortOutput
  ) -> RoundMetrics:
    item = np.dtype(self.model.dtype).itemsize
    up = self.algorithm.aggregate.uploads(self.model.layout, output.t)
    down = 0 if state.z_bar is None else self.model.size
    sent = output.sent
    if not self.algorithm.communicates:
      sent, down = np.zeros_like(sent), 0
    return self._trainer.measure(output, sent, up * item, down * item)


def _config(
  algorithm: algorithm_lib.Algorithm, config: client_config.LocalConfig
) -> client_config.LocalConfig:
  """Returns the configuration that an algorithm's clients train with.

  Settings that the algorithm does not use must have their defaults.
  """
  if algorithm.one_step and config.optimizer != 'sgd':
    raise errors.InputError(
      'optimizer',
      config.optimizer,
      'one step over all data is plain sgd; the server may have an optimizer '
      'of its own',
    )
  unused = {}
  rules = (algorithm.mix, algorithm.gate.decide)
  if not any(getattr(rule, 'uses_clock', True) for rule in rules):
    unused['anneal_clock'] = 'nothing is annealed'
  if not algorithm.gate.needs_accuracy:
    unused['holdout'] = 'no client measures its accuracy'
  if algorithm.alone:
    unused['proximal_mu'] = 'clients never receive the global model'
  if algorithm.one_step:
    for name in ('proximal_mu', 'optimizer_clock'):
      unused[name] = 'clients take one step from the global model'
    if config.local_epochs != 1:
      unused['local_epochs'] = 'clients take one step; must be 1 or omitted'
  defaults = client_config.LocalConfig()
  for name, reason in unused.items():
    value = getattr(config, name)
    if value != getattr(defaults, name):
      hint = f'has no effect with this algorithm: {reason}'
      raise errors.InputError(name, value, hint)
  if algorithm.one_step:
    return dataclasses.replace(config, local_epochs=1)
  return config
