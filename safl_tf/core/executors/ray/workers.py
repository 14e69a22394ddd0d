"""Workers that runs share: feeds them chunks of clients."""

import collections
import contextlib
import dataclasses
import heapq
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from safl_tf.core import state as state_lib
from safl_tf.core.executors.ray import cluster as cluster_lib
from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import crew as crew_lib
from safl_tf.core.executors.ray import messages, object_store
from safl_tf.util import errors

_GRACE_SECONDS = 10.0  # for further workers to start, after the first
_MAX_LOSSES = 3  # of workers, by the same chunk
_WINDOW = 4  # chunks of a worker that may wait for an earlier one


class Task(NamedTuple):
  """The training of one model: what its run shares, and the model."""

  run: object_store.Published
  model: object_store.Published


class _Session(NamedTuple):
  """A connection, its workers, and what was stored for them."""

  cluster: cluster_lib.Cluster
  crew: crew_lib.Crew
  store: object_store.ObjectStore


class Workers:
  """Workers on a cluster, which start when they are needed.

  Args:
    config: of the workers.
    device: 'auto', 'cpu' or 'gpu'.
  """

  def __init__(self, config: config_lib.RayConfig, device: str):
    self._config = config
    self._device = device
    self._session: _Session | None = None
    self._holders = 0
    self._task: Task | None = None
    self._stacks: dict[str, int | None] = {}  # of models
    self._bytes_sent = self._bytes_received = 0

  @property
  def on_gpu(self) -> bool:
    """Whether they train on GPUs."""
    return self.open().crew.on_gpu

  @property
  def count(self) -> int:
    """How many there should be."""
    return self.open().crew.count

  @property
  def processes(self) -> list[int]:
    """The process numbers of those that have answered."""
    return [member.info['pid'] for member in self.open().crew.alive]

  def open(self) -> _Session:
    """Starts workers, unless they run; does not wait for them."""
    if self._session is None:
      cluster = cluster_lib.Cluster(self._config)
      try:
        crew = crew_lib.Crew(
          cluster, self._config, self._device, self._prepare, self._prepared
        )
      except BaseException:
        cluster.close()
        raise
      self._session = _Session(cluster, crew, object_store.ObjectStore())
    return self._session

  def close(self) -> None:
    """Ends workers and the connection, unless someone holds them."""
    if self._session is None or self._holders:
      return
    session, self._session = self._session, None
    session.crew.close()
    session.cluster.close()

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
    cluster, crew, _ = self.open()
    if crew.alive:
      return  # a run of before has waited
    end = math.inf  # without any worker, the crew raises an error in time
    while len(crew.alive) < crew.count and time.monotonic() < end:
      crew.step()
      if crew.alive:
        end = min(end, time.monotonic() + _GRACE_SECONDS)
    places = collections.Counter(
      (m.slot.node.host, m.slot.cpus, m.slot.gpus) for m in crew.alive
    )
    text = ', '.join(_describe(n, *place) for place, n in places.items())
    waiting = crew.count - len(crew.alive)
    more = f'; {waiting} not started yet' if waiting else ''
    logging.info('Ray workers at %s: %s%s', cluster.address, text, more)

  def stack(self, task: Task) -> int | None:
    """Returns how many clients workers stack; compiles a model to know it."""
    _, crew, _ = self.open()
    self._task = task
    while task.model.key not in self._stacks:
      for member in crew.ready:
        crew.prepare(member)
      crew.step()
    return self._stacks[task.model.key]

  def map(
    self,
    task: Task,
    message: Callable[[int], messages.Chunk],
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
    _, crew, _ = self.open()
    crew.begin()
    self._task = task
    todo = list(range(len(chunks)))  # a heap
    losses: collections.Counter[int] = collections.Counter()
    outputs: dict[int, Any] = {}
    try:
      for i in range(len(chunks)):
        while i not in outputs:
          self._feed(task, message, len(chunks[0]), todo, i)
          results, lost = crew.step()
          for member, number, value in results:
            outputs[number] = self._checked(member, chunks[number], value)
          for number in lost:
            heapq.heappush(todo, number)
            losses[number] += 1
            self._check_losses(losses[number], chunks[number])
        yield outputs.pop(i)
    finally:
      for member in [m for m in crew.members if m.chunks]:
        crew.remove(member)  # after an error: their results are not wanted

  def take_metrics(self) -> state_lib.WorkerMetrics:
    """Returns the state of workers, and the bytes since the last call."""
    _, crew, store = self.open()
    metrics = state_lib.WorkerMetrics(
      alive=len(crew.alive),
      lost=crew.num_lost,
      bytes_sent=self._bytes_sent + store.bytes_sent,
      bytes_received=self._bytes_received,
    )
    self._bytes_sent = self._bytes_received = store.bytes_sent = 0
    return metrics

  def _feed(
    self,
    task: Task,
    message: Callable[[int], messages.Chunk],
    size: int,
    todo: list[int],
    first: int,
  ) -> None:
    """Sends the next chunks to the workers that have the fewest.

    Args:
      task: the training.
      message: number of a chunk -> what is sent.
      size: the clients of a chunk.
      todo: the chunks to send, a heap.
      first: the chunk that is needed next; others may be ahead a little.
    """
    _, crew, store = self.open()
    window = crew.count * (_WINDOW + 1)
    while todo and todo[0] < first + window:
      free = [
        member
        for member in crew.ready
        if len(member.chunks) <= math.ceil(member.slot.cpus / size)
      ]
      if not free:
        return
      member = min(free, key=lambda m: len(m.chunks))
      node = member.slot.node.id
      number = heapq.heappop(todo)
      chunk = message(number)
      arrays = (*chunk.kept.values(), *chunk.received.values())
      self._bytes_sent += sum(array.nbytes for array in arrays)
      shared = {
        name: [store.array_reference(array, node)]
        for name, array in chunk.shared.items()
      }
      run, model = (store.reference(part, node) for part in task)
      ref = member.actor.train.remote(run, model, chunk._replace(shared=shared))
      member.chunks[ref] = number

  def _checked(
    self, member: crew_lib.Member, clients: Sequence[int], value: Any
  ) -> Any:
    """Returns a chunk's outputs, or raises the error of one of its clients."""
    if isinstance(value, messages.Failure):
      names = ', '.join(map(str, clients))
      raise value.exception(f'{member.place}, clients {names}')
    leaves = tf.nest.flatten(value)
    self._bytes_received += sum(leaf.nbytes for leaf in leaves)
    return value

  def _check_losses(self, count: int, clients: Sequence[int]) -> None:
    """Stops a run that costs one worker after the other."""
    if count >= _MAX_LOSSES:
      names = ', '.join(map(str, clients))
      raise errors.RunError(
        f'{count} workers were lost while they trained clients {names}; '
        f'{self.open().crew.reason}; if they lack memory, use a smaller model '
        'or fewer ray_cpus_per_worker; then the same command resumes'
      )

  def _prepare(self, member: crew_lib.Member) -> Any:
    """Lets a worker compile the current model; None if there is none yet."""
    if self._task is None:
      return None
    _, _, store = self.open()
    node = member.slot.node.id
    parts = [store.reference(part, node) for part in self._task]
    return member.actor.prepare.remote(*parts)

  def _prepared(self, member: crew_lib.Member, key: str, value: Any) -> None:
    """Raises the error of a model; refuses stacks of different sizes."""
    if self._task is None or key != self._task.model.key:
      return  # of a run that has ended
    if isinstance(value, messages.Failure):
      raise value.exception(member.place)
    stack = self._stacks.setdefault(key, value)
    if value != stack:
      raise errors.RunError(
        f'{member.place} has memory to stack {value} clients, others stack '
        f'{stack}, which rounds sums differently; give a stack for all'
      )


_SHARED: weakref.WeakValueDictionary[Any, Workers] = (
  weakref.WeakValueDictionary()
)


def find(config: config_lib.RayConfig, device: str) -> Workers:
  """Returns the workers of a configuration; runs share them."""
  config = dataclasses.replace(config, chunk=None)
  workers = _SHARED.get((config, device))
  if workers is None:
    workers = _SHARED[config, device] = Workers(config, device)
  workers.open()
  return workers


def _describe(count: int, host: str, cpus: int, gpus: float) -> str:
  """Describes workers with equal shares of a node."""
  share = f'{cpus} CPU{"s" * (cpus > 1)}'
  if gpus:
    share += f' and {gpus:g} GPU{"s" * (gpus > 1)}'
  each = ' each' * (count > 1)
  return f'{count} on {host} with {share}{each}'
