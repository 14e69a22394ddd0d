"""Finds the hardware: CPU cores and TensorFlow devices."""

import contextlib
import os

from safl_tf.util import errors, validation


def num_cores() -> int:
  """Returns the number of CPU cores available to this process."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def find(name: str = 'auto') -> tuple[str, ...]:
  """Returns the full names of the logical TensorFlow devices to use.

  Args:
    name: 'cpu' or 'gpu' for all devices of that kind, 'gpu:1' for one of them,
      or 'auto': all GPUs, or the CPU if there is none.
  """
  import tensorflow as tf

  takes = "text, such as 'auto', 'cpu' or 'gpu:1'"
  validation.instance('device', name, str, takes)
  allow_memory_growth()
  devices = {
    kind: tuple(d.name for d in tf.config.list_logical_devices(kind.upper()))
    for kind in ('cpu', 'gpu')
  }
  choices = {kind: names for kind, names in devices.items() if names}
  for full_name in [*devices['cpu'], *devices['gpu']]:
    choices[':'.join(full_name.split(':')[-2:]).lower()] = (full_name,)
  if name == 'auto':
    return choices.get('gpu', choices['cpu'])
  if name.lower() not in choices:
    available = ', '.join(sorted(choices))
    raise errors.InputError(
      'device', name, f'not on this machine; it has {available}'
    )
  return choices[name.lower()]


def allow_memory_growth() -> None:
  """Makes TensorFlow allocate GPU memory on demand instead of all at once.

  Has no effect once TensorFlow has initialised its devices.
  """
  import tensorflow as tf

  with contextlib.suppress(RuntimeError):
    for gpu in tf.config.list_physical_devices('GPU'):
      tf.config.experimental.set_memory_growth(gpu, True)
