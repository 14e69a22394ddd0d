"""Starts workers on a cluster, watches them and replaces lost ones.

Ray's own restarts and retries are off, as they may wait forever. Here no wait
is longer than `RayConfig.timeout` without a sign of life.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from absl import logging
from ray import cloudpickle
from ray.util import scheduling_strategies

from safl_tf.core.executors.ray import cluster as cluster_lib
from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import worker as worker_lib
from safl_tf.util import errors, hardware, versions

_COMPARED = {
  'python': 'Python',
  'tensorflow': 'TensorFlow',
  'keras': 'Keras',
  'numpy': 'NumPy',
  'safl_tf': 'safl_tf',
  'source': 'the source code of safl_tf',
}
_ENVIRONMENT = ('TF_', 'XLA_', 'KERAS_')  # prefixes of variables
_MAX_FAILED_STARTS = 3  # of each worker, if none of them works
_POLL_SECONDS = 1.0
_PING_SECONDS = 5.0
_NODE_SECONDS = 1.0  # for a node to answer
_IMPORT_SECONDS = 300.0  # seconds for TensorFlow
_MAX_WAIT_SECONDS = 30.0  # between attempts to start workers


@dataclasses.dataclass(eq=False)
class Member:
  """A worker as the driver sees it.

  Attributes:
    actor: Ray's handle.
    slot: where it runs.
    created: the time.
    stage: 'describe', 'start' and 'prepare' until it is 'ready'.
    stage_ref: the result of the stage.
    info: the answer of `describe`; empty before.
    ping: the ping that is not answered yet.
    pinged: the time of the last ping.
    chunks: the results of its chunks -> the chunks' numbers.
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


class Crew:
  """The workers of a cluster.

  Attributes:
    members: the workers, also those that are starting.
    on_gpu: whether they train on GPUs.
    num_lost: how many were lost so far.
    reason: why the last one was lost.

  Args:
    cluster: where they run.
    config: of the workers.
    device: 'auto', 'cpu' or 'gpu'.
    prepare: member -> the result of `Worker.prepare`; None if there is nothing
      to prepare yet.
    prepared: takes the member and that result.
  """

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    config: config_lib.RayConfig,
    device: str,
    prepare: Callable[[Member], Any],
    prepared: Callable[[Member, str, Any], None],
  ):
    self._cluster = cluster
    self._config = config
    self._prepare = prepare
    self._prepared = prepared
    self.members: list[Member] = []
    self.num_lost = 0
    self._op_threads = hardware.num_op_threads()
    self.reason = 'the cluster has no room for one'
    self._refused: set[str] = set()  # nodes
    self._trouble: collections.Counter[str] = collections.Counter()  # of nodes
    self._failed_starts = 0
    self._attempts = 0
    self._next_attempt = self._next_check = 0.0
    self._alive_at = time.monotonic()
    nodes = cluster.nodes()
    self._nodes = {node.id for node in nodes}
    gpus = config_lib.gpus_per_worker(config, nodes, device)
    slots = config_lib.plan(config, nodes, gpus)
    config_lib.check_room(config, slots)
    self._gpus, self.on_gpu = gpus, gpus > 0
    self._warn_of_large(slots)
    for slot in slots:
      self._create(slot)

  @property
  def count(self) -> int:
    """How many there should be."""
    return self._config.workers or max(len(self.members), 1)

  @property
  def alive(self) -> list[Member]:
    """The workers that have answered."""
    return [member for member in self.members if member.info]

  @property
  def ready(self) -> list[Member]:
    """The workers that can train."""
    return [member for member in self.members if member.stage == 'ready']

  def step(self) -> tuple[list[tuple[Member, int, Any]], list[int]]:
    """Waits for news, at most a second; starts and gives up workers.

    Returns:
      The results of chunks, each with its worker and number, and the numbers
      of chunks that were lost.
    """
    lost = self._check()
    owners = {ref: m for m in self.members for ref in m.refs}
    if not owners:
      time.sleep(_POLL_SECONDS)
      return [], lost
    refs = list(owners)
    done, rest = ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
    if done and rest:
      done += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
    results: list[tuple[Member, int, Any]] = []
    for ref in done:
      member = owners[ref]
      if member not in self.members:
        continue  # lost meanwhile
      try:
        value = ray.get(ref, timeout=self._config.timeout)
      except ray.exceptions.RayTaskError:
        raise  # a bug: workers return the errors of clients
      except ray.exceptions.RayError as error:
        is_well = isinstance(error, ray.exceptions.ObjectLostError)
        if is_well and ref in member.chunks:
          lost.append(member.chunks.pop(ref))
        else:
          lost += self.lose(member, errors.reason(error))
      else:
        if ref in member.chunks:
          results.append((member, member.chunks.pop(ref), value))
        elif ref is member.ping:
          member.ping = None
        else:
          self._advance(member, value)
    return results, lost + self._lose_silent()

  def begin(self) -> None:
    """Begins to wait for workers, if there are none."""
    self._alive_at = time.monotonic()
    self._attempts = 0

  def prepare(self, member: Member) -> None:
    """Lets a worker compile what is trained now."""
    member.stage_ref = self._prepare(member)
    member.stage = 'ready' if member.stage_ref is None else 'prepare'

  def lose(self, member: Member, reason: str) -> list[int]:
    """Gives up a worker; returns the chunks that it had."""
    self.reason = f'{member.place} is lost: {reason}'
    logging.warning('%s', self.reason)
    self._trouble[member.slot.node.id] += 1
    self.num_lost += bool(member.info)
    self.remove(member)
    if member.info and member.stage != 'ready':
      self._failed_starts += 1
      limit = _MAX_FAILED_STARTS * self.count
      if self._failed_starts >= limit and not self.ready:
        raise errors.RunError(f'Ray workers do not start: {self.reason}')
    return list(member.chunks.values())

  def remove(self, member: Member) -> None:
    """Ends a worker; another one is to take its place."""
    self.members.remove(member)
    if member.stage == 'ready':
      self._next_attempt = 0.0
    _kill([member])

  def close(self) -> None:
    """Ends all workers; without a head, they end by themselves."""
    if not self._cluster.is_gone:
      _kill(self.members)
    self.members = []

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
    described, now = actor.describe.remote(), time.monotonic()
    self.members.append(Member(actor, slot, now, 'describe', described))

  def _advance(self, member: Member, value: Any) -> None:
    """Takes the result of a worker's stage; begins the next one."""
    if member.stage == 'describe':
      member.info = value
      if self._check_versions(member):
        variables = {
          name: value
          for name, value in os.environ.items()
          if name.startswith(_ENVIRONMENT)
        }
        member.stage = 'start'
        member.stage_ref = member.actor.start.remote(
          variables, self._op_threads
        )
      return
    if member.stage == 'prepare':
      member.stage, member.stage_ref = 'ready', None
    else:
      value = None
      self.prepare(member)
    if member.stage == 'ready':
      self._failed_starts = self._attempts = 0
    if value is not None:
      self._prepared(member, *value)

  def _check_versions(self, member: Member) -> bool:
    """Refuses a worker that could compute other bits.

    With workers that can train, the run goes on without it.
    """
    here, there = versions.fingerprint(), member.info['versions']
    differing = ', '.join(
      f'{label} {there.get(name)} (here {here[name]})'
      for name, label in _COMPARED.items()
      if there.get(name) != here[name]
    )
    if there['cpu'] != here['cpu']:
      logging.warning(
        '%s has another processor (%s, here %s): sums may be rounded '
        'differently there',
        member.place,
        there['cpu'],
        here['cpu'],
      )
    if not differing:
      return True
    if self.ready:
      self._refused.add(member.slot.node.id)
      self.lose(member, f'it has {differing}')
      return False
    raise errors.InputError(
      'ray_address',
      self._config.address,
      f'{member.place} has {differing}; install the same versions on all nodes',
    )

  def _check(self) -> list[int]:
    """Looks after the cluster once a second; returns chunks that were lost."""
    now, timeout = time.monotonic(), self._config.timeout
    if self.alive:
      self._alive_at = now
    if now < self._next_check:
      return []
    self._next_check = now + _POLL_SECONDS
    self._cluster.check_head()
    for member in self.alive:
      if member.ping is None and now > member.pinged + _PING_SECONDS:
        member.ping, member.pinged = member.actor.ping.remote(), now
    lost = self._fill()
    if now > self._alive_at + timeout:
      raise errors.RunError(
        f'no Ray worker for {timeout:g} s (ray_timeout): {self.reason}; when '
        'there is room for workers, the same command resumes'
      )
    return lost

  def _fill(self) -> list[int]:
    """Starts workers where there is room: on new nodes, or for lost ones.

    Returns:
      The chunks of workers whose nodes are gone.
    """
    nodes = self._cluster.nodes()
    ids, now = {node.id for node in nodes}, time.monotonic()
    lost: list[int] = []
    for member in list(self.members):
      node = member.slot.node
      # Ray takes some time to notice that a node is dead.
      if node.id not in ids or not (member.info or _answers(node)):
        lost += self.lose(member, 'its node is gone')
    if ids != self._nodes:
      self._nodes, self._attempts, self._next_attempt = ids, 0, now
    if now < self._next_attempt:
      return lost
    nodes = [node for node in nodes if self._is_usable(node)]
    nodes.sort(key=lambda node: self._trouble[node.id])
    used = [member.slot for member in self.members]
    slots = config_lib.plan(self._config, nodes, self._gpus, used)
    if slots:
      wait = min(2.0**self._attempts, _MAX_WAIT_SECONDS)
      self._next_attempt = now + wait
      self._attempts += 1
    for slot in slots:
      self._create(slot)
    return lost

  def _is_usable(self, node: config_lib.Node) -> bool:
    """Returns whether to start workers on a node."""
    if node.id in self._refused:
      return False
    return not self._trouble[node.id] or _answers(node)

  def _warn_of_large(self, slots: Sequence[config_lib.Slot]) -> None:
    """Warns if clients on a worker share too few threads."""
    threads = self._op_threads
    most = max(slot.cpus for slot in slots)
    if most > threads > 1 and not self.on_gpu:
      logging.warning(
        'workers have up to %d CPUs, but only %d threads for the parts of '
        "operations: as many as the driver's cores, to round equally; run the "
        'driver on a machine like theirs, or use ray_cpus_per_worker=%d',
        most,
        threads,
        threads,
      )

  def _lose_silent(self) -> list[int]:
    """Gives up workers that do not start or answer; returns their chunks."""
    now, limit = time.monotonic(), self._config.timeout
    lost: list[int] = []
    for member in list(self.members):
      if member.stage == 'describe' and now > member.created + limit:
        reason = f'it has not started within {limit:g} s; is there no free CPU?'
        lost += self.lose(member, reason)
      elif (
        member.stage == 'start'
        and now > member.created + limit + _IMPORT_SECONDS
      ):
        lost += self.lose(member, 'it has not imported TensorFlow')
      elif member.ping is not None and now > member.pinged + limit:
        lost += self.lose(member, f'it has not answered for {limit:g} s')
    return lost


def _answers(node: config_lib.Node) -> bool:
  return cluster_lib.answers(node.address, _NODE_SECONDS)


@functools.cache
def _actor_class(cpus: int) -> Any:
  """Returns the class of workers that train so many clients at a time."""
  for module in (worker_lib, versions):
    cloudpickle.register_pickle_by_value(module)
  remote: Any = ray.remote  # its type lacks an option
  return remote(
    max_restarts=0,
    max_task_retries=0,
    concurrency_groups={'control': 1, 'clients': cpus + 2},
  )(worker_lib.Worker)


def _kill(members: Iterable[Member]) -> None:
  for member in members:
    with contextlib.suppress(Exception):  # it may be dead
      ray.kill(member.actor)
