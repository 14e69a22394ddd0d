"""Trains the clients of a round: inputs, executor, outputs and metrics."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
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
from safl_tf.core import task as task_lib
from safl_tf.data import client_data
from safl_tf.util import errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors import base
  from safl_tf.core.executors.ray import config as ray_config

_ROUNDING = 1e-5  # of a mean of float32 scores
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
    task: the loss, the gate's score and the metrics.
    clients: the clients' data, after an attack on them.
    device: the TensorFlow device; the first of several.
    jit_compile: whether XLA compiles training.
    malicious: the clients that the attack chose.
    keeps_models: whether clients keep the models that they train.
    shared: the names of the arrays that clients both keep and upload.
    zero_arrays: what a client keeps and receives, with zeros in place of
      values.

  Args:
    model: a function that returns a new Keras model, a Keras model, or one of
      another process.
    clients: the clients' data.
    algorithm: the rules that clients use.
    config: how a client trains.
    executor: a name of `choices.EXECUTORS`, the workers of 'ray', or another
      `executors.base.Remote`.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu' or one such as 'gpu:1'.
    stack: how many clients 'vectorized' stacks; by memory if None.
    attack: what malicious clients do, if there are any.
    options: the user's loss, metrics, score and weights.
    threads: how many clients 'threads' trains at a time; by cores if None.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn | flat_model.Portable,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
    executor: 'str | ray_config.RayConfig | base.Remote' = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
    attack: Attack | None = None,
    options: task_lib.Options = task_lib.Options(),  # noqa: B008
    threads: int | None = None,
  ):
    takes = 'a safl_tf.Attack or None'
    validation.instance('attack', attack, Attack, takes, optional=True)
    self._attack = attack
    self._task_options = options
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
    self._steps: int | None = None  # of `personalizer`
    steps = int(config.steps(largest - held_out))
    if steps * config.batch_size > _MAX_PLANNED:
      raise errors.InputError(
        'local_epochs',
        config.local_epochs,
        f'a client of {largest} examples would have {steps} batches '
        f'of {config.batch_size} in a round; must be fewer',
      )
    self._max_steps = _round_up(steps)
    self._max_measured = 0
    if algorithm.measures:
      measured = held_out or largest
      self._max_measured = _round_up(-(-measured // config.batch_size))
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
    self._remote = executors.connect(executor, device)
    try:
      self._choose_executor(executor, device)
      if self._remote is not None:
        self._publish()
      self._build(model)
      if self._remote is not None:
        self._remote.wait()
    except BaseException:
      self.close()
      raise

  def with_model(
    self, model: keras.Model | flat_model.ModelFn | flat_model.Portable
  ) -> 'ClientTrainer':
    """Returns a trainer for models of another shape; it shares the data."""
    other = copy.copy(self)
    other._task_options = self.task.options
    other._build(model)
    return other

  def personalizer(
    self, steps: int, algorithm: algorithm_lib.Algorithm
  ) -> 'ClientTrainer':
    """Returns a trainer that fine-tunes models; it shares the data.

    Args:
      steps: the number of steps of each client.
      algorithm: plain training, without gate and client work.
    """
    other = copy.copy(self)
    other._algorithm = algorithm
    other._attack, other._suspects = None, self._suspects[:0]
    other._config = dataclasses.replace(self._config, holdout=None)
    other.task = self.task._replace(
      options=self.task.options._replace(score=None)
    )
    other._steps = other._max_steps = steps
    other._max_measured = 0
    other._options = self._options._replace(max_steps=steps, max_measured=0)
    if self._remote is not None:
      other._remote = copy.copy(self._remote)
      other._publish()
    other._compile(self._executor_name)
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
      if output is None:
        collected.miss(k)
        continue
      self._check_score(output)
      shared = self.shared & output.kept.keys()  # real clients keep theirs
      upload = {n: output.kept[n] for n in shared} | output.upload
      if corrupt is not None and k in self._suspects:
        kept, received = arrays(k)
        start = received.get('z', kept['z'])
        upload['z'] = z = corrupt(t, k, upload['z'], start)
        finite = output.finite & np.isfinite(z).all()
        output = output._replace(finite=finite)
      collected.add(k, output._replace(upload=upload))
    return collected.output()

  def outputs(
    self, seed: int, t: int, ids: np.ndarray, arrays: cohort.ClientArrays
  ) -> Iterator[cohort.ClientOutput | None]:
    """Yields the clients' outputs, in the order of ids; see `train`.

    That of a real client that did not answer in time is None.
    """
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
    if self._remote is not None:
      self._remote.close()

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
      missing=output.missing,
      **({} if self._remote is None else self._remote.take_metrics()),
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
      'micro_batch': self._micro_batch,
      'stack': getattr(self._executor, 'stack', None),
    }

  @property
  def client_work(self) -> algorithm_lib.ClientWork:
    """What clients do besides plain training."""
    return self._algorithm.client_work

  @property
  def num_traces(self) -> int:
    """The number of traces of a client's round or of its pieces."""
    return self._executor.num_traces

  def _publish(self) -> None:
    """Sends workers what the models of the run share."""
    assert self._remote is not None
    self._remote.publish(
      self.clients,
      self._algorithm,
      self._config,
      self._executor_name,
      self._jit_choice,
      self._options.stack,
      self._steps,
    )

  def _choose_executor(
    self, executor: 'str | ray_config.RayConfig | base.Remote', device: str
  ) -> None:
    """Finds the executor and its TensorFlow devices; copies the data there."""
    from safl_tf.util import hardware

    stack, rows = self._options.stack, None
    if self._remote is None:
      self._devices = hardware.find(device)
      on_gpu = 'GPU' in self._devices[0]
      self._executor_name = executors.resolve(str(executor), on_gpu)
    else:
      on_gpu = self._remote.on_gpu
      self._devices = hardware.find('auto' if on_gpu else 'cpu')[:1]
      stacked = on_gpu or stack is not None
      self._executor_name = 'vectorized' if stacked else 'threads'
      rows = 1  # workers have the data
    if stack is not None and self._executor_name != 'vectorized':
      hint = f'has no effect on the executor {self._executor_name}'
      raise errors.InputError('stack', stack, f'{hint}; it is for vectorized')
    self.device = self._devices[0]
    self._options = self._options._replace(on_gpu=on_gpu)
    weights = _weights(self.clients, self._task_options.class_weight)
    data = (self.clients.x, self.clients.y, weights)
    first = tf.nest.map_structure(
      lambda a: None if a is None else a[:rows], data
    )
    self._data = [batching.put(first, place) for place in self._devices]

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
        self._steps,
      ),
      measured=batching.plan_measuring(measured, config, self._max_measured),
      iteration=np.int64(config.iteration(t, len(trained))),
    )

  def _check_task(self) -> None:
    """Refuses rules and weights that do not fit the task."""
    task, weights = self.task, self.clients.sample_weight
    scored = self._algorithm.needs & {'accuracy', 'global_accuracy'}
    if scored and task.score is None:
      raise errors.InputError(
        'score',
        None,
        f'the algorithm compares accuracies, and the loss {task.name} has '
        'none; pass a score of examples in [0, 1]: a function (y, outputs) -> '
        'scores, or the name of a metric of Keras',
      )
    if task.options.score is not None and not scored:
      hint = 'has no effect: no rule of the algorithm compares scores'
      raise errors.InputError('score', task.options.score, hint)
    shape = () if weights is None else weights.shape[1:]
    if shape != task.shape[: len(shape)]:
      hint = f'must be one per example, or of shape {list(task.shape)} in each'
      raise errors.InputError('sample_weight', list(shape), hint)

  def _check_score(self, output: cohort.ClientOutput) -> None:
    """Refuses the scores of a user's function outside [0, 1]."""
    if self.task.options.score is None:
      return
    for name in ('accuracy', 'global_accuracy'):
      value = float(output.metrics.get(name, 0))
      outside = not -_ROUNDING <= value <= 1 + _ROUNDING
      if outside and not np.isnan(value):
        hint = f'is {value:g} for a client; must be in [0, 1]'
        raise errors.InputError('score', self.task.options.score, hint)

  def _build(
    self, model: keras.Model | flat_model.ModelFn | flat_model.Portable
  ) -> None:
    """Compiles training for a model."""
    from safl_tf.models.fast import choose

    name, options = self._executor_name, self._options
    with tf.device(self.device):
      self.model, self.task = _flat_model(
        model, self.clients, self._task_options
      )
      self._check_task()
      lowered = choose.fast_model(
        self.model.template,
        self._jit_choice,
        options.on_gpu,
        name == 'vectorized',
      )
    self.model.lower(lowered.model)
    self.jit_compile = lowered.jit_compile
    if self._jit_choice == 'auto' and self.jit_compile:
      self.jit_compile = self.task.compiles()
    fixed = self.jit_compile and not self.task.positions
    self._micro_batch = lowered.micro_batch if fixed else None
    self._options = options._replace(
      jit_compile=self.jit_compile, per_example=lowered.per_example
    )
    self._compile(name)

  def _compile(self, name: str) -> None:
    """Creates the executor of a name, for the model."""
    updates = [
      client_update.ClientUpdate(
        self.model,
        self.task,
        self._algorithm,
        self._config,
        data,
        place,
        self._micro_batch,
      )
      for place, data in zip(self._devices, self._data, strict=True)
    ]
    self.shared = updates[0].shared
    self.keeps_models = updates[0].keeps_model
    self.zero_arrays = updates[0].zero_arrays()
    self._executor: executors.Executor
    if self._remote is not None:
      self._executor = self._remote.executor(self.model, self.task, updates[0])
      return
    self._executor = executors.create(
      name, updates, self._options, self.model.template.name
    )


def _weights(
  clients: client_data.ClientData, class_weight: Mapping[int, float] | None
) -> np.ndarray | None:
  """Returns the weights of the examples' losses; None if all are 1."""
  weights = clients.sample_weight
  if class_weight is None:
    return weights
  from safl_tf.core import task_resolution

  of_class = task_resolution.class_weights(class_weight, clients.num_classes)
  values = of_class[clients.y]
  return values if weights is None else weights * values


def _flat_model(
  model: keras.Model | flat_model.ModelFn,
  clients: client_data.ClientData,
  options: task_lib.Options,
) -> tuple[flat_model.FlatModel, task_lib.Task]:
  """Flattens a model, and checks that it takes the data and fits the labels."""
  from safl_tf.core import task_resolution

  # Keras takes text as tensors only.
  text = lambda a: tf.constant(a) if a.dtype.kind == 'S' else a
  example = tf.nest.map_structure(lambda a: text(a[:2]), clients.x)
  try:
    flat = flat_model.FlatModel(model, example)
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
  if not tf.is_tensor(outputs) or outputs.shape.rank == 0:
    hint = f'must have one output, not {type(outputs).__name__}'
    raise errors.InputError('model', flat.template.name, hint)
  task = task_resolution.resolve(
    options,
    flat.compiled,
    flat.template,
    outputs,
    clients.y,
    clients.num_classes,
  )
  return flat, task


def _round_up(steps: int) -> int:
  """Rounds a number of steps up, to one that other partitions have, too.

  XLA compiles again for every shape of a plan, but not for other numbers of
  steps within it.
  """
  unit = 2 ** max(0, steps.bit_length() - 3)
  return -(-steps // unit) * unit


def _mean(values: np.ndarray) -> float:
  return float(values.mean(dtype=np.float64)) if len(values) else np.nan
