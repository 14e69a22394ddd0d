"""What executors share: a compiled round, and threads that run such."""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import client_update


class ExecutorOptions(NamedTuple):
  """What an executor is told.

  Attributes:
    jit_compile: whether XLA compiles the model.
    per_example: whether the model treats each example by itself, so that
      filling up a batch changes nothing.
    max_steps: local steps of the largest client.
    max_measured: batches that it measures h on.
    cohort: clients in a round.
    on_gpu: whether it runs on GPUs.
    stack: clients that `vectorized` stacks; None to choose by memory.
  """

  jit_compile: bool
  per_example: bool
  max_steps: int
  max_measured: int
  cohort: int
  on_gpu: bool = False
  stack: int | None = None


class CompiledRound:
  """A `ClientUpdate` as one function, traced once on its TensorFlow device.

  Args:
    update: a client's round.
    control: how its pieces are run.
    signature: of a task.
    jit_compile: whether XLA compiles it.
  """

  def __init__(
    self,
    update: client_update.ClientUpdate,
    control: client_update.StepRunner,
    signature: client_update.ClientInput,
    jit_compile: bool,
  ):
    self._device = update.device
    self._function = tf.function(
      lambda task: update(task, control),
      input_signature=[signature],
      jit_compile=jit_compile,
      autograph=False,
    )

  def __call__(
    self, task: client_update.ClientInput
  ) -> client_update.ClientOutput:
    """Runs the round."""
    with tf.device(self._device):
      return to_numpy(self._function(task))

  @property
  def num_traces(self) -> int:
    """How often the round was traced."""
    return self._function.experimental_get_tracing_count()


def to_numpy(update: client_update.ClientOutput) -> client_update.ClientOutput:
  """The same, off the TensorFlow device."""
  return client_update.ClientOutput(*map(np.asarray, update))


class Pool:
  """Threads, each with a place to run at.

  Args:
    places: functions that do the same, on different TensorFlow devices or on
      the same one; as many run at a time as there are places.
  """

  def __init__(self, places: Sequence[Callable[[Any], Any]]):
    self._free: queue.SimpleQueue[Callable[[Any], Any]] = queue.SimpleQueue()
    for place in places:
      self._free.put(place)
    self._threads = futures.ThreadPoolExecutor(
      len(places), thread_name_prefix='device'
    )

  def map(
    self, make: Callable[[Any], Any], items: Iterable[Any]
  ) -> Iterator[Any]:
    """place(make(item)) for every item, in order."""

    def run(item: Any) -> Any:
      made = make(item)
      place = self._free.get()
      try:
        return place(made)
      finally:
        self._free.put(place)

    return self._threads.map(run, items)
