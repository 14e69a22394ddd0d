"""Sends chunks of clients to workers, and yields their outputs in order."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, client_update, cohort, flat_model
from safl_tf.core import task as task_lib
from safl_tf.core.executors import base
from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import messages, object_store
from safl_tf.core.executors.ray import workers as workers_lib
from safl_tf.data import client_data

_CHUNKS_PER_WORKER = 4  # in a round
_MAX_CHUNK_BYTES = 256e6  # of models that a worker returns at a time


class Ray:
  """Runs the clients of a model on workers.

  Args:
    workers: of the cluster.
    task: the training of the model.
    stacked: whether workers stack clients.
    chunk: clients per message; by their number if None.
    nbytes: the size of the model.
    update: a client's round.
  """

  def __init__(
    self,
    workers: workers_lib.Workers,
    task: workers_lib.Task,
    stacked: bool,
    chunk: int | None,
    nbytes: int,
    update: client_update.ClientUpdate,
  ):
    self._workers = workers
    self._task = task
    self._stacked = stacked
    self._chunk = chunk
    self._bytes = nbytes
    self._update = update

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> base.Outputs:
    """See `executors.Executor`; workers make inputs out of arrays."""
    size = self._chunk_size(len(ids))
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)]

    def message(i: int) -> messages.Chunk:
      return self._message(inputs, chunks[i])

    results = self._workers.map(self._task, message, chunks)
    for chunk, output in zip(chunks, results, strict=True):
      for i in range(len(chunk)):
        # A copy: a view would keep the chunk in Ray's object store.
        yield tf.nest.map_structure(lambda field: field[i].copy(), output)  # noqa: B023

  @property
  def stack(self) -> int | None:
    """The number of clients that workers stack; None if they do not."""
    return self._workers.stack(self._task) if self._stacked else None

  @property
  def num_traces(self) -> int:
    """Workers trace; the driver does not."""
    return 0

  @functools.cached_property
  def _reads(self) -> frozenset[str]:
    return self._update.reads()

  def _chunk_size(self, num_clients: int) -> int:
    """Returns the number of clients per message."""
    if self._chunk is not None:
      return self._chunk
    share = num_clients / (_CHUNKS_PER_WORKER * self._workers.count)
    size = min(math.ceil(share), int(_MAX_CHUNK_BYTES / self._bytes))
    stack = self.stack or 1
    return max(1, math.ceil(size / stack)) * stack

  def _message(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> messages.Chunk:
    """Returns what workers need of a chunk's clients."""
    kept, received = zip(*map(inputs.arrays, ids), strict=True)
    names = self._reads if 'z' in received[0] else kept[0].keys()
    shared, own = {}, {}
    for name, first in received[0].items():
      if all(row[name] is first for row in received):
        shared[name] = first
      else:
        own[name] = np.stack([row[name] for row in received])
    return messages.Chunk(
      seed=inputs.seed,
      t=inputs.t,
      ids=list(ids),
      kept={name: np.stack([row[name] for row in kept]) for name in names},
      received=own,
      shared=shared,
    )


class RayRun:
  """The models of a run, on workers.

  Attributes:
    workers: of the cluster; runs share them.

  Args:
    config: of the workers.
    device: 'auto', 'cpu' or 'gpu'.
  """

  def __init__(self, config: config_lib.RayConfig, device: str):
    self.workers = workers_lib.find(config, device)
    self._chunk = config.chunk

  @property
  def on_gpu(self) -> bool:
    """Whether workers train on GPUs."""
    return self.workers.on_gpu

  def wait(self) -> None:
    """Waits for workers to say where they are."""
    self.workers.wait()

  def take_metrics(self) -> dict[str, Any]:
    """Returns the state of workers, and the bytes since the last call."""
    return {'workers': self.workers.take_metrics()}

  def close(self) -> None:
    """Ends workers and the connection, unless someone holds them."""
    self.workers.close()

  def publish(
    self,
    clients: client_data.ClientData,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
    executor: str,
    jit_compile: str,
    stack: int | None,
    steps: int | None,
  ) -> None:
    """Prepares what models of the run share, for workers; see `Remote`."""
    bare, leaves = messages.split_data(clients)
    rules = 'keep what its rules use inside them, as plain values'
    self._stacked = executor == 'vectorized'
    self._shared = object_store.Published(
      messages.Run(
        clients=bare,
        algorithm=messages.pack('algorithm', 'given', algorithm, rules),
        config=messages.pack(
          'config', 'given', config, 'use an optimizer of Keras'
        ),
        executor=executor,
        jit_compile=jit_compile,
        device='gpu' if self.workers.on_gpu else 'cpu',
        stack=stack,
        steps=steps,
        keras=messages.KerasSettings.current(),
      ),
      leaves,
    )

  def executor(
    self,
    model: flat_model.FlatModel,
    task: task_lib.Task,
    update: client_update.ClientUpdate,
  ) -> Ray:
    """Returns the executor of a model."""
    hint = (
      'pass a function that returns it, with what it needs inside, or install '
      'its modules on all nodes'
    )
    name = model.template.name
    portable = messages.pack('model', name, model.portable(), hint)
    # Metrics are for evaluations, which are the driver's.
    options = task.options._replace(metrics=(), weighted_metrics=())
    hint = 'keep what it uses inside it, as plain values'
    message = messages.Model(
      portable, messages.pack('loss', task.name, options, hint)
    )
    work = workers_lib.Task(self._shared, object_store.Published(message))
    size = model.size * np.dtype(model.dtype).itemsize
    return Ray(self.workers, work, self._stacked, self._chunk, size, update)
