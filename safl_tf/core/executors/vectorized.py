"""Runs stacks of clients as one computation, which fills a GPU.

A stack of D clients takes its steps together: `tf.vectorized_map` adds a client
axis to a step, so that D small matrix products become one batched product. A
client with fewer steps waits for the others. The last stack of a round is
padded with idle clients, so that all stacks have one shape and one trace.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from safl_tf.core import batching, client_update, cohort
from safl_tf.core.executors import base

# Limits of a stack: its share of the device's memory, and its clients; on a CPU
# larger stacks only fall out of the caches.
_MEMORY_SHARE = 0.25
_MAX_ON_GPU = 64
_MAX_ON_CPU = 4

_WINDOW = 2  # stacks of a TensorFlow device, see `base.Pool`


class Vectorized:
  """Runs one stack at a time on each TensorFlow device."""

  def __init__(self, updates: base.Updates, options: base.ExecutorOptions):
    signature = updates[0].signature(options.max_steps, options.max_measured)
    max_stack = options.stack or fitting(
      step_bytes(updates[0], signature),
      memory_bytes(options.on_gpu),
      _MAX_ON_GPU if options.on_gpu else _MAX_ON_CPU,
    )
    self.stack = balanced(options.cohort, len(updates), max_stack)
    self._reads_text = updates[0].reads_text
    exact = not (options.per_example or options.jit_compile)
    runner = _Stacked(exact)
    stacked = tf.nest.map_structure(
      lambda spec: tf.TensorSpec([self.stack, *spec.shape], spec.dtype),
      signature,
    )
    self._rounds = [
      base.CompiledRound(update, runner, stacked, options.jit_compile)
      for update in updates
    ]
    self._pool = base.Pool(self._rounds, _WINDOW)

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> base.Outputs:
    """See `executors.Executor`."""

    def make(group: Sequence[int]) -> cohort.ClientInput:
      stack = [inputs(k) for k in group]
      idle = cohort.without_steps(stack[0])
      stack += [idle] * (self.stack - len(stack))
      return tf.nest.map_structure(lambda *fields: np.stack(fields), *stack)

    groups = [ids[i : i + self.stack] for i in range(0, len(ids), self.stack)]
    results = self._pool.map(make, groups)
    for group, stacked in zip(groups, results, strict=True):
      for d in range(len(group)):
        # A copy: a row would keep the whole stack in memory.
        yield tf.nest.map_structure(lambda field: field[d].copy(), stacked)  # noqa: B023

  def trace(self) -> None:
    """Traces the round, which fails for operations that cannot be stacked."""
    if self._reads_text:
      raise ValueError('it reads text')  # whose parts differ in number
    for compiled in self._rounds:
      compiled.trace()

  @property
  def num_traces(self) -> int:
    """The number of traces on all TensorFlow devices."""
    return sum(r.num_traces for r in self._rounds)


class _Stacked(base.StepRunner):
  """Maps pieces over the client axis.

  Args:
    exact: whether to run steps with a short batch client by client, for models
      that look across a batch and so must not see padding.
  """

  def __init__(self, exact: bool):
    super().__init__(trim_padding=False)
    self._exact = exact

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    return tf.vectorized_map(lambda one: piece(*one), args, warn=False)

  def loop(
    self,
    piece: Callable[..., Any],
    carry: Any,
    plan: batching.BatchPlan,
    *args: Any,
  ) -> Any:
    batch_size = plan.examples.shape[-1]

    def body(i: tf.Tensor, carry: Any) -> tuple[tf.Tensor, Any]:
      stacked = (carry, plan, *args)

      def together() -> Any:
        return self.call(lambda *a: piece(False, i, *a), *stacked)

      def one_by_one() -> Any:
        return tf.map_fn(
          lambda a: piece(True, i, *a),
          stacked,
          fn_output_signature=tf.nest.map_structure(_spec_of_one, carry),
        )

      active = i < plan.num_steps
      if self._exact:
        short = active & (plan.counts[:, i] < batch_size)
        new = tf.cond(tf.reduce_any(short), one_by_one, together)
      else:
        new = together()
      return i + 1, tf.nest.map_structure(
        lambda n, o: tf.where(_expand_rank(active, n), n, o), new, carry
      )

    _, carry = tf.while_loop(
      lambda i, _: i < tf.reduce_max(plan.num_steps),
      body,
      (0, carry),
      parallel_iterations=1,
    )
    return carry


def _spec_of_one(stacked: tf.Tensor) -> tf.TensorSpec:
  return tf.TensorSpec(stacked.shape[1:], stacked.dtype)


def _expand_rank(active: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """Reshapes [D] to [D, 1, ..., 1], to the value's rank."""
  return tf.reshape(active, [-1] + [1] * (len(value.shape) - 1))


def fitting(step: int, memory: int, limit: int) -> int:
  """Returns how many clients fit into memory together, at least 1.

  Args:
    step: the bytes of one client's step.
    memory: the total bytes, not the free ones, so that a resumed run is cut
      into the same stacks.
    limit: the maximum.
  """
  return max(1, min(limit, int(_MEMORY_SHARE * memory / step)))


def balanced(cohort: int, num_devices: int, limit: int) -> int:
  """Returns the stack size that balances devices with few idle clients.

  Args:
    cohort: the number of clients in a round.
    num_devices: the number of TensorFlow devices.
    limit: the maximum.
  """
  turns = math.ceil(cohort / (num_devices * limit))
  return math.ceil(cohort / (num_devices * turns))


def step_bytes(
  update: client_update.ClientUpdate, signature: cohort.ClientInput
) -> int:
  """Returns the bytes of all tensors in one client's step, an upper bound."""

  def step(inputs: cohort.ClientInput) -> cohort.ClientOutput:
    return update(inputs, _OneStep(trim_padding=False))

  graph = (
    tf.function(step, input_signature=[signature], autograph=False)
    .get_concrete_function()
    .graph
  )
  tensors = [t for op in graph.get_operations() for t in op.outputs]
  return sum(
    t.dtype.size * (t.shape.num_elements() or 0)
    for t in tensors
    if t.dtype.size
  )


class _OneStep(base.StepRunner):
  """Runs only the first step of every loop."""

  def loop(
    self,
    piece: Callable[..., Any],
    carry: Any,
    plan: batching.BatchPlan,
    *args: Any,
  ) -> Any:
    return piece(self._trim_padding, tf.constant(0), carry, plan, *args)


def memory_bytes(on_gpu: bool) -> int:
  """Returns the memory of the device, or of the smallest of several."""
  if not on_gpu:
    return psutil.virtual_memory().total
  from tensorflow.python.client import device_lib

  devices = device_lib.list_local_devices()
  return min(d.memory_limit for d in devices if d.device_type == 'GPU')
