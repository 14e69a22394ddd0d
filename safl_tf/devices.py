"""Where TensorFlow computes."""

import tensorflow as tf

from safl_tf import errors


def find(name: str = 'auto') -> str:
  """A TensorFlow device by the user's name for it.

  Args:
    name: 'auto' (the first GPU if there is one), 'cpu', 'gpu', or one of them
      with a number, such as 'gpu:1'.

  Returns:
    The logical device's full name.
  """
  found = [
    device
    for kind in ('CPU', 'GPU')
    for device in tf.config.list_logical_devices(kind)
  ]
  short = {':'.join(d.name.split(':')[-2:]).lower(): d.name for d in found}
  if name == 'auto':
    return short.get('gpu:0', short['cpu:0'])
  key = name.lower() if ':' in name else f'{name.lower()}:0'
  if key not in short:
    raise errors.InputError(
      'device', name, f'not on this machine; it has {", ".join(sorted(short))}'
    )
  return short[key]


def allow_memory_growth() -> None:
  """Lets TensorFlow take GPU memory as it needs it, not all at once."""
  for gpu in tf.config.list_physical_devices('GPU'):
    tf.config.experimental.set_memory_growth(gpu, True)
