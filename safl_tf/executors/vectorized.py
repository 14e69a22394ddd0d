"""Several devices stacked into one computation, which fills a GPU.

A stack of D devices takes its steps together: `tf.vectorized_map` turns a step
into one with a leading device axis, so that D small matrix products become one
batched product. A device with fewer steps waits for the others. The last stack
of a round is filled up with devices that do nothing, so that all have one
shape and nothing is traced again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from safl_tf import local, local_update
from safl_tf.executors import common

# A stack may take this share of the device's memory, and no more devices than
# these: on a CPU larger stacks only fall out of the caches.
_MEMORY_SHARE = 0.25
_MOST_ON_GPU = 64
_MOST_ON_CPU = 4


class Vectorized:
  """Stacks; one at a time on each TensorFlow device.

  Args:
    updates: a device's round, on each TensorFlow device.
    options: of the executor.
  """

  def __init__(
    self, updates: Sequence[local_update.LocalUpdate], options: common.Setting
  ):
    signature = updates[0].signature(options.max_steps, options.max_measured)
    most = options.stack or fitting(
      step_bytes(updates[0], signature),
      memory_bytes(options.on_gpu),
      _MOST_ON_GPU if options.on_gpu else _MOST_ON_CPU,
    )
    self.stack = balanced(options.cohort, len(updates), most)
    exact = not (options.per_example or options.jit_compile)
    control = _Stacked(exact)
    stacked = tf.nest.map_structure(
      lambda spec: tf.TensorSpec([self.stack, *spec.shape], spec.dtype),
      signature,
    )
    self._rounds = [
      common.CompiledRound(update, control, stacked, options.jit_compile)
      for update in updates
    ]
    self._pool = common.Pool(self._rounds)

  def __call__(
    self, make_task: Callable[[int], local.Task], ids: Sequence[int]
  ) -> Iterator[local.Update]:
    """The updates, in the order of ids."""

    def make(group: Sequence[int]) -> local.Task:
      tasks = [make_task(k) for k in group]
      idle = _idle(tasks[0])
      tasks += [idle] * (self.stack - len(tasks))
      return tf.nest.map_structure(lambda *fields: np.stack(fields), *tasks)

    groups = [ids[i : i + self.stack] for i in range(0, len(ids), self.stack)]
    results = self._pool.map(make, groups)
    for group, stacked in zip(groups, results, strict=True):
      for d in range(len(group)):
        # A copy: a row would keep the whole stack in memory.
        yield local.Update(*(field[d].copy() for field in stacked))

  @property
  def num_traces(self) -> int:
    """How often the stacked round was traced, on all TensorFlow devices."""
    return sum(r.num_traces for r in self._rounds)


def _idle(task: local.Task) -> local.Task:
  """A task with nothing to do."""
  none = np.int32(0)
  return task._replace(
    plan=task.plan._replace(num_steps=none),
    measured=task.measured._replace(num_steps=none),
  )


class _Stacked(local_update.Control):
  """Maps pieces over the device axis.

  Args:
    exact: whether steps with a short batch are taken device by device, for
      models that look across a batch and so must not see it filled up.
  """

  def __init__(self, exact: bool):
    super().__init__(cut=False)
    self._exact = exact

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    return tf.vectorized_map(lambda one: piece(*one), args, warn=False)

  def loop(
    self,
    num_steps: tf.Tensor,
    piece: Callable[..., Any],
    carry: Any,
    plan: local.BatchPlan,
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

      active = i < num_steps
      if self._exact:
        short = active & (plan.counts[:, i] < batch_size)
        new = tf.cond(tf.reduce_any(short), one_by_one, together)
      else:
        new = together()
      return i + 1, tf.nest.map_structure(
        lambda n, o: tf.where(_like(active, n), n, o), new, carry
      )

    _, carry = tf.while_loop(
      lambda i, _: i < tf.reduce_max(num_steps),
      body,
      (0, carry),
      parallel_iterations=1,
    )
    return carry


def _spec_of_one(stacked: tf.Tensor) -> tf.TensorSpec:
  return tf.TensorSpec(stacked.shape[1:], stacked.dtype)


def _like(active: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """[D] -> [D, 1, ..., 1], of the value's rank."""
  return tf.reshape(active, [-1] + [1] * (len(value.shape) - 1))


def fitting(step: int, memory: int, most: int) -> int:
  """How many devices fit in memory together, between 1 and most.

  Args:
    step: bytes of one device's step.
    memory: bytes that there are in all; not what is free now, so that the
      same run is cut into the same stacks whenever it is resumed.
    most: an upper limit.
  """
  return max(1, min(most, int(_MEMORY_SHARE * memory / step)))


def balanced(cohort: int, places: int, most: int) -> int:
  """The size of stacks that gives all places the same, with few idle rows.

  Args:
    cohort: devices in a round.
    places: TensorFlow devices that they are shared out to.
    most: the largest size.
  """
  turns = math.ceil(cohort / (places * most))
  return math.ceil(cohort / (places * turns))


def step_bytes(update: local_update.LocalUpdate, signature: local.Task) -> int:
  """An upper bound of what one device's step needs: every tensor in it."""

  def step(task: local.Task) -> local.Update:
    return update(task, _OneStep(cut=False))

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


class _OneStep(local_update.Control):
  """Every loop is its first step."""

  def loop(
    self,
    num_steps: tf.Tensor,
    piece: Callable[..., Any],
    carry: Any,
    plan: local.BatchPlan,
    *args: Any,
  ) -> Any:
    del num_steps
    return piece(self._cut, tf.constant(0), carry, plan, *args)


def memory_bytes(on_gpu: bool) -> int:
  """The memory of the device that is computed on; the smallest of several."""
  if not on_gpu:
    return psutil.virtual_memory().total
  from tensorflow.python.client import device_lib

  found = device_lib.list_local_devices()
  return min(d.memory_limit for d in found if d.device_type == 'GPU')
