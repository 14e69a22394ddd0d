"""A Ray worker: keeps compiled training, and trains chunks of clients.

Ray gets this class by value, and nothing of safl_tf is imported until the
driver has compared versions, so that a node with other ones can say so.
"""

import collections
import importlib
import os
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import ray

_JOB = 'safl_tf.core.executors.ray.job'
_MAX_MODELS = 8  # that stay compiled
_FETCH_SECONDS = 300.0  # for data, or for z̄, to come to this node


class Worker:
  """Runs clients; created as a Ray actor.

  Args:
    threads: clients that are trained at a time.
    describe: returns the versions on this node by name.
  """

  def __init__(self, threads: int, describe: Callable[[], dict[str, str]]):
    self._threads = threads
    self._describe = describe
    self._lock = threading.Lock()
    # (run, model) -> compiled training, the latest last
    self._jobs: collections.OrderedDict[tuple[str, str], Any] = (
      collections.OrderedDict()
    )
    self._round: int | None = None
    self._arrays: dict[Any, Any] = {}

  @ray.method(concurrency_group='control')
  def describe(self) -> dict[str, Any]:
    """Returns where this worker runs, and with which versions."""
    return {
      'pid': os.getpid(),
      'host': socket.gethostname(),
      'gpus': len(ray.get_gpu_ids()),
      'versions': self._describe(),
    }

  @ray.method(concurrency_group='control')
  def ping(self) -> None:
    """Answers, to show that the process is alive."""

  @ray.method(concurrency_group='clients')
  def start(self, environment: Mapping[str, str], op_threads: int) -> Any:
    """Imports TensorFlow.

    Args:
      environment: the driver's variables that TensorFlow reads.
      op_threads: the driver's `hardware.num_op_threads`: sums that are divided
        among threads are divided equally on all nodes.
    """
    with self._lock:
      os.environ.update(environment)
      from safl_tf.util import hardware

      hardware.start_tensorflow(op_threads, max(op_threads, self._threads))
      importlib.import_module(_JOB)

  @ray.method(concurrency_group='clients')
  def prepare(self, run: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    """Compiles the training of a model.

    Returns:
      The model's key, and how many clients it stacks or the error.
    """
    return model['key'], self._guarded(lambda: self._job(run, model).stack)

  @ray.method(concurrency_group='clients')
  def train(
    self,
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    chunk: Any,
  ) -> Any:
    """Trains clients; returns their outputs, or the error as a value.

    Args:
      run: references to what the models of a run share.
      model: a reference to the model.
      chunk: see `messages.Chunk`.
    """

    def work() -> Any:
      shared = {n: self._fetch(chunk.t, *r) for n, r in chunk.shared.items()}
      return self._job(run, model).train(chunk._replace(shared=shared))

    return self._guarded(work)

  def _guarded(self, work: Callable[[], Any]) -> Any:
    from safl_tf.core.executors.ray import messages

    try:
      return work()
    except Exception as error:
      return messages.Failure.of(error, traceback.format_exc())

  def _job(self, run: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    """Returns the compiled training of a model; forgets runs that ended."""
    job = importlib.import_module(_JOB)
    key = (run['key'], model['key'])
    with self._lock:
      for other in [k for k in self._jobs if k[0] not in run['known']]:
        del self._jobs[other]
      if key not in self._jobs:
        message, _ = _fetch_all(model)
        of_run = [j for k, j in self._jobs.items() if k[0] == run['key']]
        if of_run:
          made = of_run[0].with_model(message)
        else:
          shared, leaves = _fetch_all(run)
          made = job.create(shared, leaves, message, self._threads)
        self._jobs[key] = made
        if len(self._jobs) > _MAX_MODELS:
          self._jobs.popitem(last=False)
      self._jobs.move_to_end(key)
      return self._jobs[key]

  def _fetch(self, t: int, ref: Any) -> Any:
    """Returns an array that the clients of round t share."""
    with self._lock:
      if t != self._round:
        self._arrays.clear()
        self._round = t
      if ref not in self._arrays:
        self._arrays[ref] = ray.get(ref, timeout=_FETCH_SECONDS)
      return self._arrays[ref]


def _fetch_all(published: Mapping[str, Any]) -> tuple[Any, list[Any]]:
  """Returns a published value, and the arrays beside it."""
  pickled, *arrays = ray.get(published['refs'], timeout=_FETCH_SECONDS)
  return ray.cloudpickle.loads(pickled), arrays
