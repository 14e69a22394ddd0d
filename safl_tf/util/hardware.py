"""Finds the hardware: CPU cores and TensorFlow devices."""

import contextlib
import os
import sys
from collections.abc import Iterator

from safl_tf.util import errors, validation


def num_cores() -> int:
  """Returns the number of CPU cores available to this process."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def num_op_threads() -> int:
  """Returns how many threads TensorFlow divides an operation among."""
  import tensorflow as tf

  given = tf.config.threading.get_intra_op_parallelism_threads()
  variable = os.environ.get('TF_NUM_INTRAOP_THREADS', '')
  return given or (int(variable) if variable.isdigit() else 0) or num_cores()


def uses_onednn() -> bool:
  """Returns whether TensorFlow computes with oneDNN on this CPU.

  By default it does on CPUs with instructions for neural networks.
  """
  from tensorflow.python.util import _pywrap_util_port

  return _pywrap_util_port.IsMklEnabled()


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


def start_tensorflow(op_threads: int = 0, num_ops: int = 0) -> None:
  """Imports TensorFlow without its messages.

  scikit-learn and pandas are hidden meanwhile, since Keras would spend seconds
  on importing them. Afterwards they can be imported as usual.

  Args:
    op_threads: how many threads an operation is divided among.
    num_ops: how many operations run at a time; both are the number of cores
      if 0.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with quiet(), _hidden('sklearn', 'pandas'):
    import tensorflow as tf

    tf.get_logger().setLevel('ERROR')
    if op_threads:
      tf.config.threading.set_intra_op_parallelism_threads(op_threads)
    if num_ops:
      tf.config.threading.set_inter_op_parallelism_threads(num_ops)
    find()  # TensorFlow writes messages when it looks for GPUs


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Discards the stderr output of native libraries."""
  sys.stderr.flush()
  stderr = os.dup(2)
  null = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(null)


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
  """Makes imports of packages fail, unless they are imported already."""
  hidden = [name for name in packages if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]
