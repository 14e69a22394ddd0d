"""How a round's devices are run: the same results at different speeds."""

from collections.abc import Callable, Iterable, Iterator

from safl_tf import checks, local, names
from safl_tf.executors import serial, threads

# (local update, device -> task, devices) -> updates, in the devices' order
Executor = Callable[
  [
    Callable[[local.Task], local.Update],
    Callable[[int], local.Task],
    Iterable[int],
  ],
  Iterator[local.Update],
]

EXECUTORS: dict[str, Callable[[], Executor]] = {
  'serial': serial.serial,
  'threads': threads.threads,
}


def get(name: str, on_gpu: bool = False) -> Executor:
  """An executor by its name; 'auto' is threads on a CPU, serial on a GPU."""
  checks.choice('executor', name, names.EXECUTORS)
  if name == 'auto':
    name = 'serial' if on_gpu else 'threads'
  return EXECUTORS[name]()
