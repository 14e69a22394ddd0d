"""Trains the clients of a round: inputs, executor, outputs and metrics."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  batching,
  client_config,
  client_update,
  executors,
  flat_model,
  seeds,
)
from safl_tf.core import state as state_lib
from safl_tf.data import client_data
from safl_tf.util import errors, hardware, validation

# The largest plan of a client's batches, in examples; 1 GiB.
_MAX_PLANNED = 2**28

# client -> its own model z, and z̄ as the client receives it, if there is one
Models = Callable[[int], tuple[np.ndarray, np.ndarray | None]]


@runtime_checkable
class Attack(Protocol):
  """The behaviour of malicious clients; see `safl_tf.attacks.Attack`."""

  def to_json(self) -> dict[str, Any]:
    """Returns the attack's settings as JSON values."""

  @property
  def corrupts_uploads(self) -> bool:
    """Whether the attack is on uploads, not on data."""

  def check(self, algorithm: algorithm_lib.Algorithm) -> None:
    """Refuses an algorithm that the attack does not apply to."""

  def choose(self, n: int) -> np.ndarray:
    """Returns the malicious ones among n clients."""

  def poison(self, clients: client_data.ClientData) -> client_data.ClientData:
    """Returns the data with what malicious clients hold instead."""

  def corrupt(
    self, t: int, k: int, z: np.ndarray, start: np.ndarray
  ) -> np.ndarray:
    """Returns what malicious client k uploads in round t."""


class CohortOutput(NamedTuple):
  """The outputs of a round's clients.

  Attributes:
    t: the round.
    ids: the clients.
    own: what each client trained, and keeps.
    uploads: what it would upload: the same, unless it is malicious.
  """

  t: int
  ids: np.ndarray
  own: list[client_update.ClientOutput]
  uploads: list[client_update.ClientOutput]

  @property
  def finite(self) -> np.ndarray:
    """Whether each upload consists of finite numbers."""
    return self.column('finite').astype(bool)

  @property
  def sent(self) -> np.ndarray:
    """Whether each upload is sent and can be used."""
    return self.finite & self.column('sent').astype(bool)

  def kept(self) -> dict[int, np.ndarray]:
    """Returns the new own models of the clients with a finite upload."""
    rows = zip(self.ids.tolist(), self.own, self.finite, strict=True)
    return {k: output.z for k, output, finite in rows if finite}

  def column(self, name: str) -> np.ndarray:
    """Returns a field of all uploads."""
    return np.array([getattr(output, name) for output in self.uploads])


class ClientTrainer:
  """Trains clients' models of one architecture, many at a time.

  Attributes:
    model: the Keras model as functions of a vector.
    clients: the clients' data, after an attack on them.
    device: the TensorFlow device; the first of several.
    jit_compile: whether XLA compiles training.
    malicious: the clients that the attack chose.

  Args:
    model: a function that returns a new Keras model, or a Keras model.
    clients: the clients' data.
    algorithm: the rules that clients use.
    config: how a client trains.
    executor: a name of `choices.EXECUTORS`.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu' or one such as 'gpu:1'.
    stack: how many clients 'vectorized' stacks; by memory if None.
    attack: what malicious clients do, if there are any.
    from_logits: whether the model's outputs are logits, see `FlatModel`.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
    executor: str = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    attack: Attack | None = None,
    from_logits: bool | None = None,
  ):
    takes = 'a safl_tf.Attack or None'
    validation.instance('attack', attack, Attack, takes, optional=True)
    self._attack = attack
    self._from_logits = from_logits
    self.malicious = np.zeros(0, np.int64)
    if attack is not None:
      attack.check(algorithm)
      self.malicious = attack.choose(clients.num_clients)
      clients = attack.poison(clients)
    if algorithm.pooled:  # one client, which no attack chose
      clients, self._suspects = clients.pooled(), self.malicious[:0]
    else:
      self._suspects = self.malicious
    self._devices = hardware.find(device)
    self.device = self._devices[0]
    on_gpu = 'GPU' in self.device
    self._executor_name = executors.resolve(executor, on_gpu)
    if stack is not None and self._executor_name != 'vectorized':
      hint = f'has no effect on the executor {self._executor_name}'
      raise errors.InputError('stack', stack, f'{hint}; it is for vectorized')
    self.clients = clients
    self._algorithm = algorithm
    self._config = config
    largest = int(clients.sizes.max())
    held_out = config.num_held_out(largest)
    self._max_steps = int(config.steps(largest - held_out))
    if self._max_steps * config.batch_size > _MAX_PLANNED:
      raise errors.InputError(
        'local_epochs',
        config.local_epochs,
        f'a client of {largest} examples would have {self._max_steps} batches '
        f'of {config.batch_size} in a round; must be fewer',
      )
    self._max_measured = 0
    if algorithm.gate.needs_accuracy:
      measured = held_out or largest
      self._max_measured = -(-measured // config.batch_size)
    self._options = executors.ExecutorOptions(
      jit_compile=False,  # until the model is known
      per_example=False,
      max_steps=self._max_steps,
      max_measured=self._max_measured,
      cohort=len(algorithm.select(0, 1, clients.num_clients)),
      on_gpu=on_gpu,
      stack=stack,
    )
    self._jit_choice = jit_compile
    self._data = [_put(clients, place) for place in self._devices]
    self._build(model)

  def with_model(
    self, model: keras.Model | flat_model.ModelFn
  ) -> 'ClientTrainer':
    """Returns a trainer for models of another shape; it shares the data."""
    other = copy.copy(self)
    other._from_logits = self.model.from_logits
    other._build(model)
    return other

  def train(
    self, seed: int, t: int, ids: np.ndarray, models: Models, frozen: int = 0
  ) -> CohortOutput:
    """Runs mix, E epochs and gate on each client.

    Args:
      seed: of the run.
      t: the round.
      ids: the clients.
      models: client -> (z, z̄).
      frozen: how many of the trained tensors, from the input on, stay fixed.
    """

    def make_input(k: int) -> client_update.ClientInput:
      return self._client_input(seed, t, k, *models(k), frozen)

    own = list(self._executor(make_input, ids.tolist()))
    return CohortOutput(t, ids, own, self._corrupt(t, ids, own, models))

  def measure(
    self,
    output: CohortOutput,
    sent: np.ndarray,
    bytes_up: int,
    bytes_down: int,
  ) -> state_lib.RoundMetrics:
    """Returns a round's metrics.

    Args:
      output: of the round's clients.
      sent: whether each client's upload was used.
      bytes_up: the size of one upload.
      bytes_down: the size of what each client receives.
    """
    t, ids, finite = output.t, output.ids, output.finite
    dropped = ids[~finite]
    if len(dropped):
      names = ', '.join(self.clients.client_ids[k] for k in dropped[:5])
      more = f' and {len(dropped) - 5} more' if len(dropped) > 5 else ''
      logging.warning(
        'round %d: dropped non-finite updates of client %s%s', t, names, more
      )
    return state_lib.RoundMetrics(
      t=t,
      ids=ids,
      sent=sent,
      dropped=dropped,
      malicious=int(np.isin(ids, self._suspects).sum()),
      q=output.column('q'),
      delta=output.column('delta'),
      p=_mean(output.column('p')),
      kept_local=_mean(output.column('kept_local')),
      train_loss=_mean(output.column('train_loss')[finite]),
      bytes_up=int(sent.sum()) * bytes_up,
      bytes_down=len(ids) * bytes_down,
    )

  @property
  def arithmetic(self) -> dict[str, Any]:
    """The execution settings that affect the bits of results.

    Results are equal bit for bit if all of them are; `stack` is None for
    executors that train one client at a time.
    """
    return {
      'device': 'gpu' if 'GPU' in self.device else 'cpu',
      'jit_compile': self.jit_compile,
      'stack': getattr(self._executor, 'stack', None),
    }

  @property
  def num_traces(self) -> int:
    """The number of traces of a client's round or of its pieces."""
    return self._executor.num_traces

  def _client_input(
    self,
    seed: int,
    t: int,
    k: int,
    z: np.ndarray,
    z_bar: np.ndarray | None,
    frozen: int,
  ) -> client_update.ClientInput:
    config = self._config
    for vector in (z,) if z_bar is None else (z, z_bar):
      if vector.shape != (self.model.size,) or vector.dtype != self.model.dtype:
        raise errors.InputError(
          'state',
          f'a model of {vector.dtype} {list(vector.shape)} for client {k}',
          f'must be {np.dtype(self.model.dtype)} [{self.model.size}]; the state'
          ' is of another process',
        )
    roles = (seeds.Role.MIX, seeds.Role.GATE, seeds.Role.MODEL)
    trained, measured = batching.split(
      self.clients.indices(k),
      config,
      seeds.generator(seed, seeds.Role.HOLDOUT, k),
    )
    return client_update.ClientInput(
      z_bar=z if z_bar is None else z_bar,
      has_global=z_bar is not None,
      z=z,
      seeds=np.stack([seeds.pair(seed, role, t, k) for role in roles]),
      clock=config.clock(t, len(trained)),
      plan=batching.plan_batches(
        trained,
        config,
        self._max_steps,
        seeds.generator(seed, seeds.Role.BATCHES, t, k),
      ),
      measured=batching.plan_measuring(measured, config, self._max_measured),
      frozen=np.int32(frozen),
      iteration=np.int64(config.iteration(t, len(trained))),
    )

  def _corrupt(
    self,
    t: int,
    ids: np.ndarray,
    outputs: list[client_update.ClientOutput],
    models: Models,
  ) -> list[client_update.ClientOutput]:
    """Returns what clients upload, malicious ones included."""
    if self._attack is None or not self._attack.corrupts_uploads:
      return outputs
    uploads = list(outputs)
    for i in np.flatnonzero(np.isin(ids, self._suspects)):
      k = int(ids[i])
      own, z_bar = models(k)
      start = own if z_bar is None else z_bar
      z = self._attack.corrupt(t, k, outputs[i].z, start)
      uploads[i] = outputs[i]._replace(z=z, finite=np.isfinite(z).all())
    return uploads

  def _build(self, model: keras.Model | flat_model.ModelFn) -> None:
    """Compiles training for a model."""
    from safl_tf.models.fast import choose

    name, options = self._executor_name, self._options
    with tf.device(self.device):
      self.model = _flat_model(model, self.clients, self._from_logits)
      lowered = choose.fast_model(
        self.model.template,
        self._jit_choice,
        options.on_gpu,
        name == 'vectorized',
      )
    self.model.lower(lowered.model)
    self.jit_compile = lowered.jit_compile
    updates = [
      client_update.ClientUpdate(
        self.model, self._algorithm, self._config, x, y, place
      )
      for place, (x, y) in zip(self._devices, self._data, strict=True)
    ]
    self._executor = executors.create(
      name,
      updates,
      options._replace(
        jit_compile=lowered.jit_compile, per_example=lowered.per_example
      ),
    )


def _put(clients: client_data.ClientData, place: str) -> tuple[Any, tf.Tensor]:
  """Copies all inputs and labels to a TensorFlow device."""
  with tf.device(place):
    x = tf.nest.map_structure(tf.convert_to_tensor, clients.x)
    return x, tf.convert_to_tensor(clients.y, tf.int32)


def _flat_model(
  model: keras.Model | flat_model.ModelFn,
  clients: client_data.ClientData,
  from_logits: bool | None,
) -> flat_model.FlatModel:
  """Flattens a model, and checks that it takes the data and fits the labels."""
  example = tf.nest.map_structure(lambda a: a[:2], clients.x)
  try:
    flat = flat_model.FlatModel(model, example, from_logits)
    outputs = flat.template(example)
  except errors.InputError:
    raise
  except Exception as error:
    shapes = tf.nest.map_structure(lambda a: tuple(a.shape[1:]), example)
    raise errors.InputError(
      'model',
      getattr(model, 'name', getattr(model, '__name__', 'given')),
      f'does not take inputs of shape {shapes} ({errors.reason(error)})',
    ) from error
  shape = getattr(outputs, 'shape', None)
  if shape is None or len(shape) != 2 or shape[1] < clients.num_classes:
    raise errors.InputError(
      'model',
      flat.template.name,
      f'its outputs have shape {shape}, but {clients.num_classes} classes need'
      f' (batch, {clients.num_classes})',
    )
  return flat


def _mean(values: np.ndarray) -> float:
  return float(values.mean(dtype=np.float64)) if len(values) else np.nan
