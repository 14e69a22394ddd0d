"""Several devices side by side, on as many threads as there are cores."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from safl_tf import local


def threads(workers: int | None = None) -> Any:
  """TensorFlow releases the interpreter lock, so threads run in parallel.

  Args:
    workers: number of threads; the cores this process may use by default.
  """
  pool = futures.ThreadPoolExecutor(
    workers or _cores(), thread_name_prefix='device'
  )

  def run(
    local_update: Callable[[local.Task], local.Update],
    task: Callable[[int], local.Task],
    ids: Iterable[int],
  ) -> Iterator[local.Update]:
    yield from pool.map(lambda k: local_update(task(k)), ids)

  return run


def _cores() -> int:
  """How many this process may use, where the system tells."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
