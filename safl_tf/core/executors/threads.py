"""Runs clients in parallel, on one thread for each core.

A client's whole round is one compiled function. TensorFlow releases the
interpreter lock while it computes, so threads run in parallel.
"""

from collections.abc import Sequence

from safl_tf.core import cohort
from safl_tf.core.executors import base
from safl_tf.util import hardware

# Clients of a thread, see `base.Pool`: so many that one slow client rarely
# keeps the others waiting.
_WINDOW = 8


class Threads:
  """Runs clients on a thread for each core, or for each GPU."""

  def __init__(self, updates: base.Updates, options: base.ExecutorOptions):
    jit_compile = options.jit_compile
    runner = base.StepRunner(trim_padding=not jit_compile)
    self._rounds = [
      base.CompiledRound(update, runner, update.signature(), jit_compile)
      for update in updates
    ]
    workers = options.threads
    if workers is None:
      workers = 1 if options.on_gpu else hardware.num_cores()
    count = len(updates)
    self._pool = base.Pool(
      [self._rounds[i % count] for i in range(max(workers, count))], _WINDOW
    )

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> base.Outputs:
    """See `executors.Executor`."""
    return self._pool.map(inputs, ids)

  @property
  def num_traces(self) -> int:
    """The number of traces on all TensorFlow devices."""
    return sum(r.num_traces for r in self._rounds)
