"""Worker processes that time one round per request.

Each compared method runs in its own process, so that memory is measured
separately. The processes take turns, one round each, so that changes in the
machine's speed affect all of them.
"""

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil


class Measurement(NamedTuple):
  """A measured value and the CPU seconds that measuring it took."""

  value: float
  cpu: float


class Worker:
  """The parent's handle of a worker process.

  Args:
    module: a module whose `main` calls `serve`.
    arguments: its command-line arguments.
  """

  def __init__(self, module: str, arguments: Sequence[str]):
    self._process = subprocess.Popen(
      [sys.executable, '-m', module, *arguments],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
    )

  def wait(self) -> None:
    """Waits until the process has started."""
    self._request('ready')

  def measure(self, timeout: float | None = None) -> Measurement:
    """Returns the next measurement.

    After `timeout` seconds the process is killed and TimeoutError is raised.
    """
    timer = threading.Timer(timeout or 1e6, self._process.kill)
    timer.daemon = True
    timer.start()
    try:
      return Measurement(**self._request('next'))
    except RuntimeError as error:
      if timer.is_alive():
        raise
      raise TimeoutError(f'no value after {timeout} s') from error
    finally:
      timer.cancel()

  def close(self) -> dict[str, Any]:
    """Ends the process and returns its metadata.

    Metadata include `peak_mb`, its peak memory, and `rss_mb`, its final memory.
    """
    metadata = self._request('end')
    self._process.wait()
    return metadata

  def _request(self, command: str) -> dict[str, Any]:
    if self._process.stdin is None or self._process.stdout is None:
      raise ValueError('the process has no pipes')
    self._process.stdin.write(command + '\n')
    self._process.stdin.flush()
    for line in self._process.stdout:
      if line.startswith('{'):
        return json.loads(line)
    raise RuntimeError(f'{self._process.args!r} ended without a reply')


def serve(values: Iterator[float], metadata: Mapping[str, Any]) -> None:
  """Answers the parent's requests until it ends the process.

  Args:
    values: the measurements.
    metadata: returned to the parent at the end.
  """
  for line in sys.stdin:
    if line.strip() == 'ready':
      print(json.dumps({}), flush=True)
    elif line.strip() == 'next':
      before = time.process_time()
      value = next(values)
      cpu = time.process_time() - before
      print(json.dumps({'value': value, 'cpu': cpu}), flush=True)
    else:
      memory = {
        'peak_mb': peak_mb(),
        'rss_mb': psutil.Process().memory_info().rss / 1e6,
      }
      print(json.dumps({**metadata, **memory}), flush=True)
      return


def peak_mb() -> float:
  """Returns the peak memory of this process so far."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  unit = 1 if sys.platform == 'darwin' else 1024  # bytes on macOS, else KiB
  return peak * unit / 1e6


def take_turns(
  workers: Mapping[str, Worker], cycles: int
) -> dict[str, list[float]]:
  """Returns 1 + `cycles` measurements of each worker, taken in turns."""
  values: dict[str, list[float]] = {name: [] for name in workers}
  for worker in workers.values():
    worker.wait()
  for cycle in range(1 + cycles):
    for name, worker in workers.items():
      value = worker.measure().value
      values[name].append(value)
      print(
        f'  cycle {cycle}: {name}: {value:.2f}', file=sys.stderr, flush=True
      )
  return values
