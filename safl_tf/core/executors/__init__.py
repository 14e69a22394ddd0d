"""Executors run a round's clients: the same results at different speeds."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from safl_tf.core import client_update
from safl_tf.core.executors import base
from safl_tf.util import choices, validation

ExecutorOptions = base.ExecutorOptions


class Executor(Protocol):
  """Runs clients' rounds."""

  def __call__(
    self,
    make_input: Callable[[int], client_update.ClientInput],
    ids: Sequence[int],
  ) -> Iterator[client_update.ClientOutput]:
    """Yields the clients' outputs, as NumPy arrays, in the order of ids."""

  @property
  def num_traces(self) -> int:
    """How often anything was traced."""


# Name -> class in the module of that name, imported when it is used.
EXECUTORS = {
  'serial': 'Serial',
  'threads': 'Threads',
  'vectorized': 'Vectorized',
}


def resolve(name: str, on_gpu: bool = False) -> str:
  """Returns an executor's name; 'auto' is vectorized on GPUs, else threads."""
  validation.choice('executor', name, choices.EXECUTORS)
  if name == 'auto':
    return 'vectorized' if on_gpu else 'threads'
  return name


def create(
  name: str,
  updates: Sequence[client_update.ClientUpdate],
  options: ExecutorOptions,
) -> Executor:
  """Creates an executor.

  Args:
    name: a key of `EXECUTORS`.
    updates: a client's round, on each TensorFlow device.
    options: of the executor.
  """
  module = importlib.import_module(f'safl_tf.core.executors.{name}')
  return getattr(module, EXECUTORS[name])(updates, options)
