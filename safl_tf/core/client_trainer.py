"""Trains the clients of a round: inputs, executor, outputs and metrics."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  batching,
  client_config,
  client_update,
  cohort,
  executors,
  flat_model,
  seeds,
)
from safl_tf.core import state as state_lib
from safl_tf.data import client_data
from safl_tf.util import errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors.ray import config as ray_config

# The largest plan of a client's batches, in examples; 1 GiB.
_MAX_PLANNED = 2**28


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


class ClientTrainer:
  """Trains clients' models of one architecture, many at a time.

  Attributes:
    model: the Keras model as functions of a vector.
    clients: the clients' data, after an attack on them.
    device: the TensorFlow device; the first of several.
    jit_compile: whether XLA compiles training.
    malicious: the clients that the attack chose.
    zero_arrays: what a client keeps and receives, with zeros in place of
      values.

  Args:
    model: a function that returns a new Keras model, a Keras model, or one of
      another process.
    clients: the clients' data.
    algorithm: the rules that clients use.
    config: how a client trains.
    executor: a name of `choices.EXECUTORS`, or the workers of 'ray'.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu' or one such as 'gpu:1'.
    stack: how many clients 'vectorized' stacks; by memory if None.
    attack: what malicious clients do, if there are any.
    from_logits: whether the model's outputs are logits, see `FlatModel`.
    threads: how many clients 'threads' trains at a time; by cores if None.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn | flat_model.Portable,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
    executor: 'str | ray_config.RayConfig' = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    attack: Attack | None = None,
    from_logits: bool | None = None,
    threads: int | None = None,
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
    self.clients = clients
    self._algorithm = algorithm
    self._config = config
    self._jit_choice = jit_compile
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
    if algorithm.measures:
      measured = held_out or largest
      self._max_measured = -(-measured // config.batch_size)
    self._options = executors.ExecutorOptions(
      jit_compile=False,  # until the model is known
      per_example=False,
      max_steps=self._max_steps,
      max_measured=self._max_measured,
      cohort=len(algorithm.select(0, 1, clients.num_clients)),
      stack=stack,
      threads=threads,
    )
    # Workers start while the model is built.
    self._ray = executors.connect(executor, device)
    try:
      self._choose_executor(executor, device)
      if self._ray is not None:
        self._ray.publish(
          clients, algorithm, config, self._executor_name, jit_compile, stack
        )
      self._build(model)
      if self._ray is not None:
        self._ray.workers.wait()
    except BaseException:
      self.close()
      raise

  def with_model(
    self, model: keras.Model | flat_model.ModelFn | flat_model.Portable
  ) -> 'ClientTrainer':
    """Returns a trainer for models of another shape; it shares the data."""
    other = copy.copy(self)
    other._from_logits = self.model.from_logits
    other._build(model)
    return other

  def train(
    self,
    seed: int,
    t: int,
    ids: np.ndarray,
    arrays: cohort.ClientArrays,
    stores: cohort.Stores | None = None,
  ) -> cohort.CohortOutput:
    """Runs mix, training and gate on each client.

    Arrays are stored as clients finish, in the order of ids, so that only a few
    of them are in memory at a time if the stores are memory-mapped.

    Args:
      seed: of the run.
      t: the round.
      ids: the clients.
      arrays: client -> what it keeps and what it receives, by name.
      stores: name -> where to store what clients keep and, named upload/...,
        what they upload besides it; in memory by default.
    """
    collected = cohort.Collector(t, stores or cohort.in_memory)
    corrupt = None
    if self._attack is not None and self._attack.corrupts_uploads:
      corrupt = self._attack.corrupt
    trained = self.outputs(seed, t, ids, arrays)
    for k, output in zip(ids.tolist(), trained, strict=True):
      upload = {n: output.kept[n] for n in self._shared} | output.upload
      if corrupt is not None and k in self._suspects:
        kept, received = arrays(k)
        start = received.get('z', kept['z'])
        upload['z'] = z = corrupt(t, k, upload['z'], start)
        finite = output.finite & np.isfinite(z).all()
        output = output._replace(finite=finite)
      collected.add(k, output._replace(upload=upload))
    return collected.output(ids)

  def outputs(
    self, seed: int, t: int, ids: np.ndarray, arrays: cohort.ClientArrays
  ) -> Iterator[cohort.ClientOutput]:
    """Yields the clients' outputs, in the order of ids; see `train`."""
    inputs = cohort.CohortInput(seed, t, arrays, self._client_input)
    return self._executor(inputs, ids.tolist())

  def compile(self) -> None:
    """Compiles a client's round, by running one without steps."""

    def make(*args: Any) -> cohort.ClientInput:
      return cohort.without_steps(self._client_input(*args))

    zeros = lambda k: self.zero_arrays
    list(self._executor(cohort.CohortInput(0, 1, zeros, make), [0]))

  def close(self) -> None:
    """Ends the workers of a cluster; the next round starts them again."""
    if self._ray is not None:
      self._ray.workers.close()

  def measure(
    self,
    output: cohort.CohortOutput,
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
      bytes_up=int(sent.sum()) * (bytes_up + output.bytes_up),
      bytes_down=len(ids) * bytes_down,
      metrics=output.metrics,
      workers=None if self._ray is None else self._ray.workers.take_metrics(),
    )

  @property
  def arithmetic(self) -> dict[str, Any]:
    """The execution settings that affect the bits of results.

    Results are equal bit for bit if all of them are; `stack` is None for
    executors that train one client at a time.
    """
    return {
      'device': 'gpu' if self._options.on_gpu else 'cpu',
      'jit_compile': self.jit_compile,
      'stack': getattr(self._executor, 'stack', None),
    }

  @property
  def num_traces(self) -> int:
    """The number of traces of a client's round or of its pieces."""
    return self._executor.num_traces

  def _choose_executor(
    self, executor: 'str | ray_config.RayConfig', device: str
  ) -> None:
    """Finds the executor and its TensorFlow devices; copies the data there."""
    from safl_tf.util import hardware

    stack, rows = self._options.stack, None
    if self._ray is None:
      self._devices = hardware.find(device)
      on_gpu = 'GPU' in self._devices[0]
      self._executor_name = executors.resolve(str(executor), on_gpu)
    else:
      on_gpu = self._ray.workers.on_gpu
      self._devices = hardware.find('auto' if on_gpu else 'cpu')[:1]
      stacked = on_gpu or stack is not None
      self._executor_name = 'vectorized' if stacked else 'threads'
      rows = 1  # workers have the data
    if stack is not None and self._executor_name != 'vectorized':
      hint = f'has no effect on the executor {self._executor_name}'
      raise errors.InputError('stack', stack, f'{hint}; it is for vectorized')
    self.device = self._devices[0]
    self._options = self._options._replace(on_gpu=on_gpu)
    self._data = [_put(self.clients, place, rows) for place in self._devices]

  def _client_input(
    self,
    seed: int,
    t: int,
    k: int,
    kept: algorithm_lib.Arrays,
    received: algorithm_lib.Arrays,
  ) -> cohort.ClientInput:
    config = self._config
    for array in (kept['z'], received.get('z', kept['z'])):
      if array.shape != (self.model.size,) or array.dtype != self.model.dtype:
        raise errors.InputError(
          'state',
          f'a model of {array.dtype} {list(array.shape)} for client {k}',
          f'must be {np.dtype(self.model.dtype)} [{self.model.size}]; the state'
          ' is of another process',
        )
    roles = (seeds.Role.MIX, seeds.Role.GATE, seeds.Role.MODEL)
    trained, measured = batching.split(
      self.clients.indices(k),
      config,
      seeds.generator(seed, seeds.Role.HOLDOUT, k),
    )
    return cohort.ClientInput(
      received={'z': kept['z'], **received},
      has_global='z' in received,
      kept=dict(kept),
      seeds=np.stack([seeds.pair(seed, role, t, k) for role in roles]),
      clock=config.clock(t, len(trained)),
      plan=batching.plan_batches(
        trained,
        config,
        self._max_steps,
        seeds.generator(seed, seeds.Role.BATCHES, t, k),
      ),
      measured=batching.plan_measuring(measured, config, self._max_measured),
      iteration=np.int64(config.iteration(t, len(trained))),
    )

  def _build(
    self, model: keras.Model | flat_model.ModelFn | flat_model.Portable
  ) -> None:
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
    self._shared = updates[0].shared
    self.zero_arrays = updates[0].zero_arrays()
    self._executor: executors.Executor
    if self._ray is not None:
      self._executor = self._ray.executor(self.model, updates[0])
      return
    self._executor = executors.create(
      name,
      updates,
      options._replace(
        jit_compile=lowered.jit_compile, per_example=lowered.per_example
      ),
    )


def _put(
  clients: client_data.ClientData, place: str, rows: int | None = None
) -> tuple[Any, tf.Tensor]:
  """Copies inputs and labels, all or so many, to a TensorFlow device."""
  with tf.device(place):
    copied = lambda leaf: tf.convert_to_tensor(leaf[:rows])
    x = tf.nest.map_structure(copied, clients.x)
    return x, tf.convert_to_tensor(clients.y[:rows], tf.int32)


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
