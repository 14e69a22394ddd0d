"""Runs one client after the other, step by step: the reference to debug.

Every piece of a round is a small function, called from Python, so a debugger
can stop between them; with `tf.config.run_functions_eagerly(True)` also inside.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from safl_tf.core import batching, cohort
from safl_tf.core.executors import base


class Serial:
  """Runs clients in a Python loop, on the first TensorFlow device."""

  def __init__(self, updates: base.Updates, options: base.ExecutorOptions):
    self._update = updates[0]
    self._runner = _StepByStep(options.jit_compile)

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> base.Outputs:
    """See `executors.Executor`."""
    for k in ids:
      with tf.device(self._update.device):
        tensors = tf.nest.map_structure(tf.convert_to_tensor, inputs(k))
        output = self._update(tensors, self._runner)
      yield base.to_numpy(output)

  @property
  def num_traces(self) -> int:
    """The number of traces of all pieces."""
    return self._runner.num_traces


class _StepByStep(base.StepRunner):
  """Calls pieces one by one from Python."""

  def __init__(self, jit_compile: bool):
    super().__init__(trim_padding=not jit_compile)
    self._jit_compile = jit_compile
    self._functions: dict[Any, Any] = {}

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    if piece not in self._functions:
      self._functions[piece] = tf.function(
        piece, jit_compile=self._jit_compile, autograph=False
      )
    return self._functions[piece](*args)

  def loop(
    self,
    piece: Callable[..., Any],
    carry: Any,
    plan: batching.BatchPlan,
    *args: Any,
  ) -> Any:
    for i in tf.range(plan.num_steps):
      carry = self.call(piece, self._trim_padding, i, carry, plan, *args)
    return carry

  @property
  def num_traces(self) -> int:
    functions = self._functions.values()
    return sum(f.experimental_get_tracing_count() for f in functions)
