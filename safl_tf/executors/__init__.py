"""How a round's devices are run: the same results at different speeds."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from safl_tf import checks, local, names
from safl_tf.executors import common, serial, threads, vectorized

Setting = common.Setting


class Executor(Protocol):
  """Runs devices' rounds."""

  def __call__(
    self, make_task: Callable[[int], local.Task], ids: Sequence[int]
  ) -> Iterator[local.Update]:
    """The updates, as NumPy arrays, in the order of ids."""

  @property
  def num_traces(self) -> int:
    """How often anything was traced."""


# (local updates, one for each TensorFlow device; setting) -> executor
EXECUTORS: dict[str, Callable[..., Executor]] = {
  'serial': serial.Serial,
  'threads': threads.Threads,
  'vectorized': vectorized.Vectorized,
}


def resolve(name: str, on_gpu: bool = False) -> str:
  """An executor's name; 'auto' is threads on a CPU, vectorized on a GPU."""
  checks.choice('executor', name, names.EXECUTORS)
  if name == 'auto':
    return 'vectorized' if on_gpu else 'threads'
  return name
