"""A compiled round, and threads that run compiled rounds."""

import collections
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  batching,
  client_config,
  client_update,
  cohort,
  flat_model,
)
from safl_tf.core import task as task_lib
from safl_tf.data import client_data
from safl_tf.util import errors

# A client's round, on each TensorFlow device.
Updates = Sequence[client_update.ClientUpdate]
# The outputs of clients' rounds, as NumPy arrays; None for a real client that
# did not answer in time.
Outputs = Iterator[cohort.ClientOutput | None]


@runtime_checkable
class Remote(Protocol):
  """Trains clients in other processes.

  Attributes:
    on_gpu: whether they train on GPUs.
  """

  @property
  def on_gpu(self) -> bool:
    """See the class."""

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
    """Prepares what the models of a run share.

    Arguments are those of `client_trainer.ClientTrainer`, and `steps` is that
    of its `personalizer`, if it is one.
    """

  def executor(
    self,
    model: flat_model.FlatModel,
    task: task_lib.Task,
    update: client_update.ClientUpdate,
  ) -> Any:
    """Returns the `executors.Executor` of a model."""

  def wait(self) -> None:
    """Waits until training can begin."""

  def take_metrics(self) -> dict[str, Any]:
    """Returns fields of `state.RoundMetrics`, measured since the last call."""

  def close(self) -> None:
    """Ends the processes; the next round starts them again."""


class ExecutorOptions(NamedTuple):
  """Options of an executor.

  Attributes:
    jit_compile: whether XLA compiles the model.
    per_example: whether the model processes each example independently, so that
      padding a batch changes nothing.
    max_steps: the number of local steps of the largest client, or more.
    max_measured: the number of batches it measures h on, or more.
    cohort: the number of clients in a round.
    on_gpu: whether it runs on GPUs.
    stack: the number of clients `vectorized` stacks; by memory if None.
    threads: the number of clients `threads` runs at a time; that of cores if
      None.
  """

  jit_compile: bool
  per_example: bool
  max_steps: int
  max_measured: int
  cohort: int
  on_gpu: bool = False
  stack: int | None = None
  threads: int | None = None


class StepRunner:
  """Runs the pieces of a round, here as a graph for one client.

  Args:
    trim_padding: whether to trim a short batch to its size, instead of padding
      it to B with examples of weight zero, as fixed shapes need.
  """

  def __init__(self, trim_padding: bool):
    self._trim_padding = trim_padding

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    """Runs piece(*args)."""
    return piece(*args)

  def loop(
    self,
    piece: Callable[..., Any],
    carry: Any,
    plan: batching.BatchPlan,
    *args: Any,
  ) -> Any:
    """Runs carry = piece(trim, i, carry, plan, *args) for each step i."""

    # As a function of its own: TensorFlow does not find the gradients of
    # max-pooling in a loop's body that oneDNN can compute.
    @tf.function(autograph=False, experimental_attributes={'_noinline': True})
    def step(i: tf.Tensor, carry: Any) -> Any:
      return piece(self._trim_padding, i, carry, plan, *args)

    def body(i: tf.Tensor, carry: Any) -> tuple[tf.Tensor, Any]:
      return i + 1, step(i, carry)

    _, carry = tf.while_loop(
      lambda i, _: i < plan.num_steps, body, (0, carry), parallel_iterations=1
    )
    return carry


class CompiledRound:
  """A `ClientUpdate` as one function, traced once on its TensorFlow device.

  Args:
    update: a client's round.
    runner: runs its pieces.
    signature: of the round's input.
    jit_compile: whether XLA compiles it.
  """

  def __init__(
    self,
    update: client_update.ClientUpdate,
    runner: StepRunner,
    signature: cohort.ClientInput,
    jit_compile: bool,
  ):
    from safl_tf.core import shared_function

    self._jit_compile = jit_compile
    self._device = update.device
    self._data = update.data
    # The last arrays that a client received, and the same as tensors.
    self._received: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    self._function = shared_function.SharedFunction(
      lambda inputs, data: update.with_data(data)(inputs, runner),
      [signature, tf.nest.map_structure(tf.TensorSpec.from_tensor, self._data)],
      jit_compile,
    )

  def __call__(self, inputs: cohort.ClientInput) -> cohort.ClientOutput:
    """Runs the round."""
    with tf.device(self._device):
      inputs = inputs._replace(received=self._put(inputs.received))
      try:
        return to_numpy(self._function(inputs, self._data))
      except tf.errors.InvalidArgumentError as error:
        if not self._jit_compile or 'XLA' not in str(error):
          raise
        hint = f'XLA cannot compile the model ({errors.reason(error)}); use '
        hint += 'jit_compile=false, or another executor'
        raise errors.InputError('jit_compile', 'true', hint) from error

  def _put(self, received: dict[str, Any]) -> dict[str, Any]:
    """Copies what all clients of a round receive once to the device."""
    arrays, tensors = self._received
    if arrays.keys() != received.keys() or any(
      arrays[name] is not array for name, array in received.items()
    ):
      tensors = {n: tf.convert_to_tensor(a) for n, a in received.items()}
      self._received = dict(received), tensors
    return tensors

  def trace(self) -> None:
    """Traces the function now, not in the first call."""
    with tf.device(self._device):
      self._function.trace()

  @property
  def num_traces(self) -> int:
    """The number of traces."""
    return self._function.num_traces


def to_numpy(output: cohort.ClientOutput) -> cohort.ClientOutput:
  """Copies an output from the TensorFlow device."""
  return tf.nest.map_structure(np.asarray, output)


class Pool:
  """A pool of threads, one for each worker function.

  A worker's first call, which traces the user's model and rules, runs in the
  calling thread. An exception there may leave a lock of TensorFlow locked, and
  other threads would wait for it forever.

  Args:
    workers: equivalent functions, on different TensorFlow devices or on the
      same one; each runs one call at a time.
    window: how many results of each worker may wait for an earlier one.
  """

  def __init__(self, workers: Sequence[Callable[[Any], Any]], window: int):
    self._limit = window * len(workers)
    self._new = list(dict.fromkeys(workers))
    self._free: queue.SimpleQueue[Callable[[Any], Any]] = queue.SimpleQueue()
    for worker in workers:
      self._free.put(worker)
    self._threads = futures.ThreadPoolExecutor(
      len(workers), thread_name_prefix='client'
    )

  def map(
    self, make: Callable[[Any], Any], items: Iterable[Any]
  ) -> Iterator[Any]:
    """Yields worker(make(item)) for every item, in order."""

    def run(item: Any) -> Any:
      prepared = make(item)
      worker = self._free.get()
      try:
        return worker(prepared)
      finally:
        self._free.put(worker)

    rest = collections.deque(items)
    while self._new and rest:
      result = self._new[-1](make(rest[0]))
      self._new.pop()
      rest.popleft()
      yield result
    pending: collections.deque[futures.Future[Any]] = collections.deque()
    try:
      while rest or pending:
        while rest and len(pending) < self._limit:
          pending.append(self._threads.submit(run, rest.popleft()))
        yield pending.popleft().result()
    finally:
      for future in pending:
        future.cancel()
