"""Where TensorFlow computes."""

import contextlib

import tensorflow as tf

from safl_tf.util import errors


def find(name: str = 'auto') -> tuple[str, ...]:
  """TensorFlow devices by the user's name for them.

  Args:
    name: 'cpu', 'gpu' (all that there are of that kind, to be used side by
      side), one of them with a number, such as 'gpu:1', or 'auto': all GPUs if
      there are any.

  Returns:
    The logical devices' full names.
  """
  allow_memory_growth()
  found = {
    kind.lower(): [d.name for d in tf.config.list_logical_devices(kind)]
    for kind in ('CPU', 'GPU')
  }
  choices = {kind: tuple(full) for kind, full in found.items() if full}
  for full in [*found['cpu'], *found['gpu']]:
    choices[':'.join(full.split(':')[-2:]).lower()] = (full,)
  if name == 'auto':
    return choices.get('gpu', choices['cpu'])
  if name.lower() not in choices:
    raise errors.InputError(
      'device',
      name,
      f'not on this machine; it has {", ".join(sorted(choices))}',
    )
  return choices[name.lower()]


def allow_memory_growth() -> None:
  """Lets TensorFlow take GPU memory as it needs it, not all at once.

  That is decided when TensorFlow first uses its devices; later it is too late,
  and nothing changes.
  """
  with contextlib.suppress(RuntimeError):
    for gpu in tf.config.list_physical_devices('GPU'):
      tf.config.experimental.set_memory_growth(gpu, True)
