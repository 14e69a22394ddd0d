"""Executors run a round's clients: the same results at different speeds."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from absl import logging

from safl_tf.core import cohort
from safl_tf.core.executors import base
from safl_tf.util import choices, errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors.ray import config as config_lib

ExecutorOptions = base.ExecutorOptions


class Executor(Protocol):
  """Runs clients' rounds."""

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
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


def connect(
  executor: 'str | config_lib.RayConfig | base.Remote', device: str
) -> base.Remote | None:
  """Starts the workers of a run; None for executors in this process.

  Args:
    executor: 'ray' or its configuration, what trains elsewhere, or the name of
      an executor in this process.
    device: 'auto', 'cpu' or 'gpu'.
  """
  if isinstance(executor, base.Remote):
    return executor
  if isinstance(executor, str) and executor != 'ray':
    return None
  from safl_tf.core.executors.ray import config as config_lib

  takes = f'one of {", ".join(choices.EXECUTORS)} or a RayConfig'
  kinds = (str, config_lib.RayConfig)
  validation.instance('executor', executor, kinds, takes)
  validation.installed('executor', 'ray', extra='ray')
  from safl_tf.core.executors.ray import executor as ray_executor

  if isinstance(executor, str):
    executor = config_lib.RayConfig()
  return ray_executor.RayRun(executor, device)


def create(
  name: str, updates: base.Updates, options: ExecutorOptions, model: str
) -> Executor:
  """Creates the executor of a name in `EXECUTORS`.

  A model that TensorFlow cannot stack runs on threads; `model` is its name.
  """
  module = importlib.import_module(f'safl_tf.core.executors.{name}')
  executor = getattr(module, EXECUTORS[name])
  if name != 'vectorized':
    return executor(updates, options)
  try:
    stacked = executor(updates, options)
    stacked.trace()
    return stacked
  except errors.InputError:  # a mistake in a rule
    raise
  except Exception as error:  # of any operation in the model or the loss
    logging.warning(
      'executor=vectorized: %s cannot be stacked (%s); its clients run on '
      'threads',
      model,
      errors.reason(error),
    )
    return create('threads', updates, options, model)
