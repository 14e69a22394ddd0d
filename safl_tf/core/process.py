"""The paper's loop: `initialize` and `next`."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import keras
import numpy as np
from absl import logging

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  client_config,
  client_trainer,
  cohort,
  flat_model,
  seeds,
)
from safl_tf.core import client_store as client_store_lib
from safl_tf.core import state as state_lib
from safl_tf.core import task as task_lib
from safl_tf.data import client_data
from safl_tf.util import choices, errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors import base
  from safl_tf.core.executors.ray import config as ray_config

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

  A state is a value: `next` of the same state gives the same result.

  Args:
    model: a function that returns a new Keras model, or a Keras model.
    clients: the clients' data.
    algorithm: the rules, from a `build_*` function.
    config: how a client trains; the paper's settings by default.
    init: 'per_client' gives each client its own initial model, as in the paper;
      'shared' gives all the same one: the weights of `model` if it is a model,
      one random draw if it is a function. Both keep what a given model does not
      train, such as frozen layers; those of a function are built with a fixed
      seed, the same for all clients, seeds and processes. 'auto' is 'shared'
      for a model, which so starts from its weights, and 'per_client' for a
      function.
    executor: how the clients of a round run: 'serial', 'threads', 'vectorized',
      'ray' or 'auto', which is 'vectorized' on GPUs and 'threads' on a CPU. All
      give the same results. A `RayConfig` says where Ray's workers run, and a
      `deployment.server.Server` has rounds run by real clients.
    jit_compile: 'auto', 'true' or 'false': whether XLA compiles local training.
    device: 'auto', 'cpu', 'gpu' (all GPUs) or one such as 'gpu:1'.
    stack: how many clients 'vectorized' stacks; by memory if None.
    client_store: where what clients keep and upload is stored, and what an
      aggregator remembers of each client: 'ram', or 'mmap' for temporary files,
      for more models than fit into memory.
    store_dir: the directory of these files; the system's by default.
    attack: what malicious clients do, see `Attack`; none by default.
    from_logits: whether the model's outputs are logits. By default the loss of
      a compiled model says it, or else the activation of the last layer.
    loss: what clients minimise: any loss of Keras, 'categorical' or 'paper'
      (equation (27)); by default that of a compiled model, or else
      cross-entropy if the labels are classes.
    metrics: metrics of Keras for evaluations; by default those of a compiled
      model.
    score: the h in [0, 1] of each example that gates compare; the accuracy by
      default.
    class_weight: class number -> weight of its examples in training.

  Attributes:
    init: 'per_client' or 'shared'.
    task: the loss and the metrics, as they follow from the model and the data.
    malicious: the ids of the clients that an attack chose.

  Raises:
    InputError: an argument is invalid, or has no effect with the others.

  Example:
    ```python
    process = safl_tf.FederatedProcess(
      model_fn, clients, safl_tf.build_safl())
    state = process.initialize(seed=0)
    for _ in range(3):
      state, metrics = process.next(state)
      print(metrics.t, metrics.train_loss, metrics.ids[metrics.sent])
    model = process.get_model(state)  # a keras.Model with the global weights
    ```
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig | None = None,
    init: str = 'auto',
    executor: 'str | ray_config.RayConfig | base.Remote' = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    client_store: str = 'ram',
    store_dir: str | os.PathLike[str] | None = None,
    attack: client_trainer.Attack | None = None,
    from_logits: bool | None = None,
    loss: Any = None,
    metrics: Iterable[Any] | None = None,
    score: Any = None,
    class_weight: Mapping[int, float] | None = None,
  ):
    from safl_tf.core import checked

    _check_types(clients, algorithm, config, store_dir)
    self.algorithm = algorithm
    self._rules = checked.rules(algorithm)
    config = config or client_config.LocalConfig()
    self.config = checked.config(algorithm, config)
    self.attack = attack
    self.init = _init(init, isinstance(model, keras.Model), algorithm)
    self._client_store = validation.choice(
      'client_store', client_store, choices.CLIENT_STORES
    )
    self._store_dir = store_dir
    if stack is not None:
      validation.limited('stack', stack)
    self._trainer = client_trainer.ClientTrainer(
      model,
      clients,
      self._rules,
      self.config,
      executor,
      jit_compile,
      device,
      stack,
      attack,
      task_options(loss, metrics, score, class_weight, from_logits),
    )
    self.task = self._trainer.task
    self.clients = self._trainer.clients
    self.malicious = self._trainer.malicious
    self.model = self._trainer.model
    self.device = self._trainer.device
    self.jit_compile = self._trainer.jit_compile
    self._upload_stores: dict[str, client_store_lib.ClientStore] = {}
    try:
      self._bind_rules()
    except BaseException:
      self.close()
      raise

  def initialize(self, seed: int = 0) -> FederatedState:
    """Returns the state before the first round.

    There is no z̄ yet, unless the algorithm starts from a shared model.

    Args:
      seed: of all random draws of the run: initial models, selections, batches.
    """
    validation.limited('seed', seed)
    initial = initial_models(self.model, self.init, seed)
    return FederatedState(
      seed=seed,
      t=0,
      z_bar=initial(0) if self.algorithm.shared_start else None,
      clients={
        'z': self._new_store(initial),
        **{
          name: self._new_store(functools.partial(_constant, array))
          for name, array in self._kept.items()
        },
      },
      memory={
        name: self._moved(value)
        for name, value in self._rules.aggregate.init(self.model.layout).items()
      },
    )

  def next(self, state: FederatedState) -> tuple[FederatedState, RoundMetrics]:
    """Runs one communication round, Algorithms 1 and 2.

    Args:
      state: of `initialize` or `next` of this process.

    Returns:
      The state after the round, and the round's metrics.

    Raises:
      RunError: the global model, or the update of every client of the first
        round, is not finite.
    """
    self._check(state)
    self._log_start(state.t)
    if self._rounds is not None:
      return self._finite(*self._rounds.next(state))
    t, rules = state.t + 1, self._rules
    ids = rules.select(state.seed, t, self.clients.num_clients)
    received = self._broadcast(state)
    # On each client of S_t: mix, E epochs, gate.
    output = self._trainer.train(
      state.seed,
      t,
      ids,
      lambda k: (state.kept(k), received),
      lambda name: self._store(state, name),
    )
    z_bar, memory = state.z_bar, state.memory
    if output.sent.any():  # else z̄ stays as it is
      updates = output.updates(self.clients, rules.aggregate.needs)
      z_bar, memory = rules.aggregate.apply(memory, updates, z_bar)
    clients = state.clients | {
      name: state.clients[name].updated(arrays)
      for name, arrays in output.kept.items()
    }
    new_state = FederatedState(state.seed, t, z_bar, clients, memory)
    return self._finite(new_state, self._metrics(received, output))

  def close(self) -> None:
    """Ends the workers of a cluster; the next round starts them again."""
    self._trainer.close()

  def get_model_weights(self, state: FederatedState) -> list[np.ndarray]:
    """Returns the global model's weights as `keras.Model.get_weights` does."""
    return self.get_model(state).get_weights()

  def get_model(self, state: FederatedState) -> keras.Model:
    """Returns the global model as a new, plain Keras model.

    Raises:
      InputError: there is no global model yet.
    """
    self._check(state)
    if state.t == 0:
      raise errors.InputError(
        'state', 'of round 0', 'there is no global model before the first round'
      )
    if state.z_bar is None and state.t < self.rounds_per_pass:
      raise errors.InputError(
        'rounds',
        state.t,
        'this algorithm has its first global model after '
        f'{self.rounds_per_pass} rounds',
      )
    if state.z_bar is None:
      raise errors.RunError(
        f'after round {state.t}: no client has sent a finite update, so there '
        f'is no global model; {self.remedy()}'
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
  def keeps_models(self) -> bool:
    """Whether clients keep models of their own."""
    return self._rounds is None and self._trainer.keeps_models

  @property
  def arithmetic(self) -> dict[str, Any]:
    """The settings that affect bits, see `ClientTrainer.arithmetic`."""
    return self._trainer.arithmetic

  @property
  def num_traces(self) -> int:
    """The number of traces of a client's round or of its pieces."""
    return self._trainer.num_traces

  def _bind_rules(self) -> None:
    """Prepares the rules for the model."""
    from safl_tf.core import checked

    driver, layout = self.algorithm.driver, self.model.layout
    self._rounds: Rounds | None = None
    if driver is not None:
      self._rounds = driver.bind(self._trainer, self._rules)
    self._kept = self._rules.client_work.init(layout)
    memory = self._rules.aggregate.init(layout)
    self._memory_shapes = {
      name: getattr(value, 'shape', None) for name, value in memory.items()
    }
    if driver is None:
      checked.check_broadcast(self._rules, layout)

  def _log_start(self, t: int) -> None:
    """Logs before round 1 where clients start from."""
    if t:
      return
    start = 'each client draws its own initial model'
    if self.init == 'shared':
      given = self.model.given is not None
      source = 'the weights of the given model' if given else 'one drawn model'
      start = f'clients start from {source}'
    logging.info('%s', start)

  def _check(self, state: FederatedState) -> None:
    """Refuses a state of another process."""
    state_lib.check(
      state,
      self.model_of,
      self.clients.num_clients,
      ('z', *self._kept),
      self._memory_shapes,
    )
    if self.algorithm.shared_start and state.z_bar is None:
      hint = 'this algorithm starts from a global model'
      raise errors.InputError('state', 'without z_bar', hint)

  def _finite(
    self, state: FederatedState, metrics: RoundMetrics
  ) -> tuple[FederatedState, RoundMetrics]:
    """Stops a run that has diverged; else returns the round's results."""
    given_up = self._rounds is not None and state.t > 1  # until the next pass
    if state.z_bar is None and not given_up:
      malicious = () if self.algorithm.pooled else self.malicious
      honest = ~np.isin(metrics.ids, malicious)
      lost = honest & np.isin(metrics.ids, metrics.dropped)
      if lost.any() and (lost == honest).all():
        raise errors.RunError(
          f'round {state.t}: no update of the {len(metrics.ids)} clients is '
          f'finite, and there is no global model yet; {self.remedy()}'
        )
    if state.z_bar is not None and not np.isfinite(state.z_bar).all():
      before = f'; that of round {state.t - 1} was finite' * (state.t > 1)
      raise errors.RunError(
        f'round {state.t}: the global model is not finite, since aggregation '
        f'overflowed{before}; '
        f'{self.remedy("server_learning_rate or learning_rate")}'
      )
    return state, metrics

  def remedy(self, rate: str = 'learning_rate') -> str:
    """Returns what to do about a run that has diverged."""
    folder = f' than {self._store_dir}' if self._store_dir else ''
    return (
      f'use a smaller {rate} in a new run: another folder{folder} (output_dir, '
      'or --experiment)'
    )

  def _broadcast(self, state: FederatedState) -> algorithm_lib.Arrays:
    """Returns the named arrays that every client of a round receives."""
    arrays = dict(self._rules.aggregate.broadcast(state.memory))
    return arrays if state.z_bar is None else {'z': state.z_bar, **arrays}

  def _store(
    self, state: FederatedState, name: str
  ) -> client_store_lib.ClientStore:
    """Returns where to store what clients keep, or only upload."""
    if name in state.clients:
      return state.clients[name]
    if name not in self._upload_stores:
      self._upload_stores[name] = self._new_store(lambda k: np.zeros(0))
    return self._upload_stores[name]

  def _new_store(
    self, initial: Callable[[int], np.ndarray]
  ) -> client_store_lib.ClientStore:
    return client_store_lib.create(self._client_store, initial, self._store_dir)

  def _moved(self, value: Any) -> Any:
    """Moves a `ClientStore` of an aggregator to this process's kind."""
    if not isinstance(value, client_store_lib.ClientStore):
      return value
    arrays = {k: value[k] for k in value.versions}
    return value.on(self._client_store, self._store_dir).updated(arrays)

  def _metrics(
    self, received: algorithm_lib.Arrays, output: cohort.CohortOutput
  ) -> RoundMetrics:
    aggregate = self._rules.aggregate
    item = np.dtype(self.model.dtype).itemsize
    up = aggregate.uploads(self.model.layout, output.t) * item
    up += len(aggregate.needs) * np.dtype(np.float32).itemsize
    down = sum(array.nbytes for array in received.values())
    sent = output.sent
    if not self.algorithm.communicates:
      sent, down = np.zeros_like(sent), 0
    return self._trainer.measure(output, sent, up, down)


def initial_models(
  model: flat_model.FlatModel, init: str, seed: int
) -> Callable[[int], np.ndarray]:
  """Returns the initial models of clients: client -> z_k [P].

  Args:
    model: of the run.
    init: 'per_client' or 'shared', see `FederatedProcess`.
    seed: of the run.
  """
  if init != 'shared':
    return lambda k: model.init(seeds.pair(seed, seeds.Role.INIT, k + 1))
  z = model.given
  if z is None:
    z = model.init(seeds.pair(seed, seeds.Role.INIT, 0))
  return lambda k: z


def task_options(
  loss: Any, metrics: Any, score: Any, class_weight: Any, from_logits: Any
) -> task_lib.Options:
  """Returns the options of the task; metrics must be a list."""
  kinds, takes = (list, tuple), 'a list of metrics of Keras or None'
  validation.instance('metrics', metrics, kinds, takes, optional=True)
  return task_lib.Options(loss, metrics, None, score, class_weight, from_logits)


def _constant(array: np.ndarray, k: int) -> np.ndarray:
  """Returns the initial array of any client."""
  del k
  return array


def _check_types(
  clients: client_data.ClientData,
  algorithm: algorithm_lib.Algorithm,
  config: client_config.LocalConfig | None,
  store_dir: str | os.PathLike[str] | None,
) -> None:
  """Says what the arguments of a process take."""
  check = validation.instance
  takes = 'a ClientData, such as ClientData.from_arrays(x, y, partition)'
  check('clients', clients, client_data.ClientData, takes)
  takes = 'an Algorithm, such as safl_tf.build_safl()'
  check('algorithm', algorithm, algorithm_lib.Algorithm, takes)
  takes = 'a LocalConfig or None'
  check('config', config, client_config.LocalConfig, takes, optional=True)
  takes = 'the path of a folder or None'
  check('store_dir', store_dir, (str, os.PathLike), takes, optional=True)


def _init(init: str, given: bool, algorithm: algorithm_lib.Algorithm) -> str:
  """Resolves 'auto': a given model starts from its weights."""
  validation.choice('init', init, choices.INITS)
  if algorithm.shared_start and init == 'per_client':
    hint = 'this algorithm starts from a shared model; use auto'
    raise errors.InputError('init', init, hint)
  if init == 'auto':
    return 'shared' if given or algorithm.shared_start else 'per_client'
  return init
