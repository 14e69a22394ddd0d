"""The workers of a cluster: starts them, feeds them, replaces lost ones.

Ray's own restarts and retries are off, as they may wait forever; here no wait
is longer than `RayConfig.timeout` without a sign of life.
"""

import collections
import contextlib
import dataclasses
import functools
import heapq
import math
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import tensorflow as tf
from absl import logging
from ray import cloudpickle
from ray.util import scheduling_strategies

from safl_tf.core import state as state_lib
from safl_tf.core.executors.ray import cluster as cluster_lib
from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import messages
from safl_tf.core.executors.ray import worker as worker_lib
from safl_tf.util import errors, hardware, versions

_COMPARED = ('python', 'tensorflow', 'keras', 'numpy', 'safl_tf', 'source')
_ENVIRONMENT = ('TF_', 'XLA_', 'KERAS_')  # prefixes of variables
_MAX_ATTEMPTS = 3  # to train a chunk, or to start workers in a row
_POLL_SECONDS = 1.0
_PING_SECONDS = 5.0
_GRACE_SECONDS = 10.0  # for further workers to start, after the first
_MAX_WAIT_SECONDS = 30.0  # between attempts to start workers
_LABELS = {'source': 'source code of safl_tf'}
_WINDOW = 4  # chunks of a worker that may wait for an earlier one


class Published:
  """A value in Ray's object store, with arrays beside it.

  Attributes:
    key: its name.

  Args:
    value: any value.
    arrays: large ones; equal ones of several values are stored once.
  """

  def __init__(self, value: Any, arrays: Sequence[np.ndarray] = ()):
    self.key = uuid.uuid4().hex
    self.value = value
    self.arrays = arrays


class Task(NamedTuple):
  """The training of one model: what its run shares, and the model."""

  run: Published
  model: Published


@dataclasses.dataclass(eq=False)
class _Worker:
  """A worker as the driver sees it.

  Attributes:
    actor: Ray's handle.
    slot: where it runs.
    created: the time.
    stage: 'describe', 'start' and 'prepare' until it is 'ready'.
    stage_ref: the result of the stage, to wait for.
    info: the answer of `describe`.
    ping: the ping that is not answered yet.
    pinged: the time of the last ping.
    chunks: result of each of its chunks -> the chunk's number.
  """

  actor: Any
  slot: config_lib.Slot
  created: float
  stage: str
  stage_ref: Any
  info: dict[str, Any] = dataclasses.field(default_factory=dict)
  ping: Any = None
  pinged: float = 0.0
  chunks: dict[Any, int] = dataclasses.field(default_factory=dict)

  @property
  def place(self) -> str:
    """Where it runs, for messages."""
    process = f', process {self.info["pid"]}' if self.info else ''
    return f'the worker on {self.slot.node.host}{process}'

  @property
  def refs(self) -> list[Any]:
    """All results that it owes."""
    return [*filter(None, (self.stage_ref, self.ping)), *self.chunks]


class Workers:
  """Workers that runs share.

  Attributes:
    config: of the workers.
    on_gpu: whether they train on GPUs.
    count: how many there should be.

  Args:
    config: of the workers.
    device: 'auto', 'cpu' or 'gpu'.
  """

  def __init__(self, config: config_lib.RayConfig, device: str):
    self.config = config
    self._device = device
    self._cluster: cluster_lib.Cluster | None = None
    self._holders = 0
    self._task: Task | None = None
    self._stacks: dict[str, int | None] = {}
    self._reset()
    self.open()

  def _reset(self) -> None:
    """Forgets a cluster."""
    self._workers: list[_Worker] = []
    self._missing: list[config_lib.Slot] = []
    self._trouble: collections.Counter[str] = collections.Counter()
    self._refs: dict[str, Any] = {}
    self._puts: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
    self._delivered: set[tuple[str, str]] = set()
    self._failed_starts = 0
    self._next_start = 0.0
    self._next_check = 0.0
    self._alive_at = time.monotonic()
    self._reason = ''
    self._lost = self._bytes_sent = self._bytes_received = 0

  def open(self) -> None:
    """Starts workers, unless they run; does not wait for them."""
    if self._cluster is not None:
      return
    self._reset()
    self._cluster = cluster_lib.Cluster(self.config)
    try:
      nodes = self._cluster.nodes()
      gpus = config_lib.gpus_per_worker(self.config, nodes, self._device)
      places = config_lib.plan(self.config, nodes, gpus)
      slots = config_lib.choose(self.config, places)
    except errors.InputError:
      self.close()
      raise
    self.on_gpu, self.count = gpus > 0, len(slots)
    for slot in slots:
      self._create(slot)

  def close(self) -> None:
    """Ends workers and the connection, unless someone holds them."""
    if self._cluster is None or self._holders:
      return
    for worker in self._workers:
      _kill(worker)
    cluster, self._cluster = self._cluster, None
    self._reset()
    cluster.close()

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Keeps workers until the end, for several runs."""
    self._holders += 1
    try:
      yield
    finally:
      self._holders -= 1
      self.close()

  def wait(self) -> None:
    """Waits for workers to say where they are, and logs it."""
    self.open()
    end = time.monotonic() + self.config.timeout
    while any(w.stage == 'describe' for w in self._workers) or not self._alive:
      first = not self._alive
      self._step()
      if first and self._alive:
        end = min(end, time.monotonic() + _GRACE_SECONDS)
      if time.monotonic() > end and self._alive:
        break
    hosts = collections.Counter(w.slot for w in self._alive)
    text = ', '.join(
      f'{n} on {s.node.host} with {_amount(s)}' for s, n in hosts.items()
    )
    waiting = self.count - len(self._alive)
    more = f'; {waiting} not started yet' if waiting else ''
    logging.info('Ray workers at %s: %s%s', self.address, text, more)

  def prepare(self, task: Task) -> Any:
    """Compiles a model on a worker; returns what `Worker.prepare` returns."""
    self.open()
    self._task = task
    while task.model.key not in self._stacks:
      for worker in self._workers:
        if worker.stage == 'ready':
          self._advance(worker, 'prepare')
      self._step()
    return self._stacks[task.model.key]

  def map(
    self,
    task: Task,
    message: Callable[[int], Any],
    chunks: Sequence[Sequence[int]],
  ) -> Iterator[Any]:
    """Yields the outputs of chunks of clients, in order.

    Chunks of a lost worker are sent to another one; results do not depend on
    who computes them.

    Args:
      task: the training.
      message: number of a chunk -> what is sent.
      chunks: the clients of each chunk.
    """
    self.open()
    self._task = task
    todo = list(range(len(chunks)))
    attempts: collections.Counter[int] = collections.Counter()
    done: dict[int, Any] = {}
    try:
      for i in range(len(chunks)):
        while i not in done:
          self._feed(task, message, chunks, todo, i)
          finished, lost = self._step()
          done |= finished
          for number in lost:
            heapq.heappush(todo, number)
          attempts.update(lost)
          self._check_attempts(attempts, chunks)
        output = done.pop(i)
        if isinstance(output, Failed):
          clients = ', '.join(map(str, chunks[i]))
          place = f'{output.place} with clients {clients}'
          raise output.failure.exception(place)
        yield output
    finally:
      for worker in [w for w in self._workers if w.chunks]:
        self._remove(worker)  # after an error: its results are not wanted

  def take_metrics(self) -> state_lib.WorkerMetrics:
    """Returns the state of workers, and the bytes since the last call."""
    metrics = state_lib.WorkerMetrics(
      alive=len(self._alive),
      lost=self._lost,
      bytes_sent=self._bytes_sent,
      bytes_received=self._bytes_received,
    )
    self._bytes_sent = self._bytes_received = 0
    return metrics

  @property
  def address(self) -> str:
    """HOST:PORT of the cluster's head."""
    assert self._cluster is not None
    return self._cluster.address

  @property
  def _alive(self) -> list[_Worker]:
    """The workers that have answered."""
    return [worker for worker in self._workers if worker.info]

  def _create(self, slot: config_lib.Slot) -> None:
    """Creates a worker; Ray starts it when there is room."""
    node = scheduling_strategies.NodeAffinitySchedulingStrategy(
      slot.node.id, soft=False
    )
    actor = (
      _actor_class(slot.cpus)
      .options(num_cpus=slot.cpus, num_gpus=slot.gpus, scheduling_strategy=node)
      .remote(slot.cpus, versions.fingerprint)
    )
    now = time.monotonic()
    self._workers.append(
      _Worker(actor, slot, now, 'describe', actor.describe.remote())
    )

  def _feed(
    self,
    task: Task,
    message: Callable[[int], Any],
    chunks: Sequence[Sequence[int]],
    todo: list[int],
    first: int,
  ) -> None:
    """Sends the next chunks to the workers that have the fewest."""
    size = len(chunks[0])
    window = self.count * (_WINDOW + 1)
    while todo and todo[0] < first + window:
      free = [
        worker
        for worker in self._workers
        if worker.stage == 'ready'
        and len(worker.chunks) <= math.ceil(worker.slot.cpus / size)
      ]
      if not free:
        return
      worker = min(free, key=lambda w: len(w.chunks))
      number = heapq.heappop(todo)
      chunk = message(number)
      run, model = (self._reference(p, worker) for p in task)
      arrays = (*chunk.kept.values(), *chunk.received.values())
      self._bytes_sent += sum(array.nbytes for array in arrays)
      shared = {n: [self._deliver(a, worker)] for n, a in chunk.shared.items()}
      chunk = chunk._replace(shared=shared)
      worker.chunks[worker.actor.train.remote(run, model, chunk)] = number

  def _reference(self, published: Published, worker: _Worker) -> Any:
    """Returns what a worker needs to fetch a value."""
    key = published.key
    if key not in self._refs:
      self._refs[key] = ray.put(cloudpickle.dumps(published.value))
    arrays = [self._deliver(array, worker) for array in published.arrays]
    return {'key': key, 'refs': [self._refs[key], *arrays]}

  def _deliver(self, array: np.ndarray, worker: _Worker) -> Any:
    """Returns a reference to an array, which goes to a node once."""
    key, known = id(array), self._puts.get(id(array))
    if known is None or known[0]() is not array:
      forget = functools.partial(self._puts.pop, key, None)
      known = (weakref.ref(array, lambda _: forget()), ray.put(array))
      self._puts[key] = known
    ref = known[1]
    delivery = (worker.slot.node.id, ref.hex())
    if delivery not in self._delivered:
      self._delivered.add(delivery)
      self._bytes_sent += array.nbytes
    return ref

  def _step(self) -> tuple[dict[int, Any], list[int]]:
    """Waits for news, at most a second; starts and gives up workers.

    Returns:
      The outputs of finished chunks by number, and the chunks that were lost.
    """
    self._check()
    owners = {ref: w for w in self._workers for ref in w.refs}
    if not owners:
      time.sleep(_POLL_SECONDS)
      return {}, []
    refs = list(owners)
    ready, rest = ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
    if ready and rest:
      ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
    finished: dict[int, Any] = {}
    lost: list[int] = []
    for ref in ready:
      worker = owners[ref]
      if worker not in self._workers:
        continue  # lost meanwhile
      try:
        value = ray.get(ref, timeout=self.config.timeout)
      except ray.exceptions.RayTaskError:
        raise  # a bug: workers return the errors of clients
      except ray.exceptions.ObjectLostError as error:
        if ref in worker.chunks:  # the worker itself may be well
          logging.warning('a result was lost (%s)', errors.reason(error))
          lost.append(worker.chunks.pop(ref))
        else:
          lost += self._lose(worker, errors.reason(error))
      except ray.exceptions.RayError as error:
        lost += self._lose(worker, errors.reason(error))
      else:
        finished |= self._take(worker, ref, value)
    return finished, lost + self._lose_silent()

  def _take(self, worker: _Worker, ref: Any, value: Any) -> dict[int, Any]:
    """Takes a result; returns the output of a chunk by its number, if any."""
    if ref is worker.ping:
      worker.ping = None
      return {}
    if ref in worker.chunks:
      if isinstance(value, messages.Failure):
        value = Failed(value, worker.place)
      else:
        leaves = tf.nest.flatten(value)
        self._bytes_received += sum(leaf.nbytes for leaf in leaves)
      return {worker.chunks.pop(ref): value}
    if worker.stage == 'describe':
      worker.info = value
      self._check_versions(worker)
      self._advance(worker, 'start')
    elif worker.stage == 'start' and self._task is not None:
      self._advance(worker, 'prepare')
    else:
      if worker.stage == 'prepare':
        self._check_prepared(worker, value)
      worker.stage, worker.stage_ref = 'ready', None
      self._failed_starts = 0
    return {}

  def _advance(self, worker: _Worker, stage: str) -> None:
    """Calls the next stage of a worker."""
    worker.stage = stage
    if stage == 'start':
      variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_ENVIRONMENT)
      }
      cores = hardware.num_cores()
      worker.stage_ref = worker.actor.start.remote(variables, cores)
    else:
      assert self._task is not None
      task = [self._reference(part, worker) for part in self._task]
      worker.stage_ref = worker.actor.prepare.remote(*task)

  def _check_prepared(self, worker: _Worker, value: Any) -> None:
    """Raises the error of a model; refuses stacks of different sizes."""
    if isinstance(value, messages.Failure):
      raise value.exception(worker.place)
    assert self._task is not None
    stack = self._stacks.setdefault(self._task.model.key, value)
    if value != stack:
      raise errors.RunError(
        f'{worker.place} has memory to stack {value} clients, others stack '
        f'{stack}, which rounds sums differently; give a stack for all'
      )

  def _check_versions(self, worker: _Worker) -> None:
    """Refuses a worker that could compute other bits."""
    here, there = versions.fingerprint(), worker.info['versions']
    differing = [
      f'{_LABELS.get(name, name)} {there.get(name)} (here {here[name]})'
      for name in _COMPARED
      if there.get(name) != here[name]
    ]
    if differing:
      hint = (
        f'{worker.place} has {", ".join(differing)}; install the same versions '
        'on all nodes'
      )
      raise errors.InputError('ray_address', self.config.address, hint)
    if there['cpu'] != here['cpu']:
      logging.log_first_n(
        logging.WARNING,
        '%s has another processor (%s, here %s): sums may be rounded '
        'differently there',
        1,
        worker.place,
        there['cpu'],
        here['cpu'],
      )

  def _check(self) -> None:
    """Looks after the cluster and its workers, once a second."""
    now = time.monotonic()
    if self._alive:
      self._alive_at = now
    if now < self._next_check:
      return
    self._next_check = now + _POLL_SECONDS
    assert self._cluster is not None
    self._cluster.check_head()
    for worker in self._alive:
      if worker.ping is None and now > worker.pinged + _PING_SECONDS:
        worker.ping, worker.pinged = worker.actor.ping.remote(), now
    if self._missing and now > self._next_start:
      self._replace()
    if now > self._alive_at + self.config.timeout:
      raise errors.RunError(
        f'no Ray worker for {self.config.timeout:g} s (ray_timeout); '
        f'{self._reason or "the cluster has no room for one"}; when there is '
        'room, the same command resumes'
      )

  def _replace(self) -> None:
    """Starts workers in place of lost ones, where there is room."""
    assert self._cluster is not None
    wait = min(2.0**self._failed_starts, _MAX_WAIT_SECONDS)
    self._next_start = time.monotonic() + wait
    nodes = sorted(self._cluster.nodes(), key=lambda n: self._trouble[n.id])
    for lost in list(self._missing):
      used = [worker.slot for worker in self._workers]
      slot = config_lib.replacement(self.config, nodes, used, lost)
      if slot is not None:
        self._missing.remove(lost)
        self._create(slot)

  def _lose_silent(self) -> list[int]:
    """Gives up workers that do not start or answer; returns their chunks."""
    now, limit = time.monotonic(), self.config.timeout
    lost: list[int] = []
    for worker in list(self._workers):
      if worker.stage == 'describe' and now > worker.created + limit:
        lost += self._lose(worker, f'it has not started within {limit:g} s')
      elif worker.ping is not None and now > worker.pinged + limit:
        lost += self._lose(worker, f'it has not answered for {limit:g} s')
    return lost

  def _lose(self, worker: _Worker, reason: str) -> list[int]:
    """Gives up a worker; returns the chunks that it had."""
    self._reason = f'{worker.place} is lost: {reason}'
    logging.warning('%s', self._reason)
    self._trouble[worker.slot.node.id] += 1
    self._lost += bool(worker.info)
    if worker.stage != 'ready':
      self._failed_starts += 1
      if self._failed_starts >= _MAX_ATTEMPTS * self.count and not any(
        w.stage == 'ready' for w in self._workers
      ):
        raise errors.RunError(f'Ray workers do not start: {self._reason}')
    self._remove(worker)
    return list(worker.chunks.values())

  def _remove(self, worker: _Worker) -> None:
    """Ends a worker; another one is to take its place."""
    self._workers.remove(worker)
    self._missing.append(worker.slot)
    _kill(worker)

  def _check_attempts(
    self,
    attempts: collections.Counter[int],
    chunks: Sequence[Sequence[int]],
  ) -> None:
    """Stops a run that costs one worker after the other."""
    for number, count in attempts.items():
      if count >= _MAX_ATTEMPTS:
        clients = ', '.join(map(str, chunks[number]))
        raise errors.RunError(
          f'{count} workers were lost while they trained clients {clients}; '
          f'{self._reason}; use a smaller model or fewer ray_cpus_per_worker '
          'if they lack memory, then the same command resumes'
        )


class Failed(NamedTuple):
  """An error of a chunk's clients, and the worker that it was raised on."""

  failure: messages.Failure
  place: str


_SHARED: weakref.WeakValueDictionary[Any, Workers] = (
  weakref.WeakValueDictionary()
)


def find(config: config_lib.RayConfig, device: str) -> Workers:
  """Returns running workers of a configuration, or starts them."""
  key = (dataclasses.replace(config, chunk=None), device)
  workers = _SHARED.get(key)
  if workers is None:
    workers = _SHARED[key] = Workers(config, device)
  workers.open()
  return workers


@functools.cache
def _actor_class(cpus: int) -> Any:
  """Returns the class of workers that train so many clients at a time."""
  for module in (worker_lib, versions):
    cloudpickle.register_pickle_by_value(module)
  # Ray's restarts and retries wait without a limit where there is no room.
  remote: Any = ray.remote  # its type lacks an option
  return remote(
    max_restarts=0,
    max_task_retries=0,
    concurrency_groups={'control': 1, 'clients': cpus + 2},
  )(worker_lib.Worker)


def _kill(worker: _Worker) -> None:
  with contextlib.suppress(Exception):
    ray.kill(worker.actor)


def _amount(slot: config_lib.Slot) -> str:
  """Describes a worker's share of its node."""
  cpus = f'{slot.cpus} CPU{"s" * (slot.cpus > 1)}'
  return f'{cpus} and {slot.gpus:g} GPU' if slot.gpus else cpus
