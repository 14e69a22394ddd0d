"""Executors run a round's clients: the same results at different speeds."""

import importlib
from collections.abc import Sequence
from typing import Protocol

from safl_tf.core.executors import base
from safl_tf.util import choices, validation

ExecutorOptions = base.ExecutorOptions


class Executor(Protocol):
  """Runs clients' rounds."""

  def __call__(
    self, make_input: base.MakeInput, ids: Sequence[int]
  ) -> base.Outputs:
    """Yields the clients' outputs, as NumPy arrays, in the order of ids."""

  @property
  def num_traces(self) -> int:
    """The number of traces so far."""


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
  name: str, updates: base.Updates, options: ExecutorOptions
) -> Executor:
  """Creates the executor of a name in `EXECUTORS`."""
  module = importlib.import_module(f'safl_tf.core.executors.{name}')
  return getattr(module, EXECUTORS[name])(updates, options)
