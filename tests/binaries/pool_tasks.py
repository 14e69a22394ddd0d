"""Tasks for processes of a pool."""

import os
import signal
import time

from safl_tf.util import errors


def do(task):
  """Does what a task says."""
  kind, value = task
  if kind == 'process':
    return os.getpid()
  if kind == 'cores':
    return sorted(os.sched_getaffinity(0)), os.environ['TF_NUM_INTRAOP_THREADS']
  if kind == 'sleep':
    time.sleep(value)
  if kind == 'kill':
    os.kill(os.getpid(), signal.SIGKILL)
  if kind == 'exit':
    os._exit(value)
  if kind == 'input':
    raise errors.InputError('name', value, 'is wrong')
  if kind == 'run':
    raise errors.RunError(value)
  if kind == 'bug':
    raise KeyError(value)
  return value


def describe(error):
  """Describes errors that are expected."""
  return str(error) if isinstance(error, errors.RunError) else None
