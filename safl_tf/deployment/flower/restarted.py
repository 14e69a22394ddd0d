"""A process that is started again when it dies."""

import subprocess
import time
from collections.abc import Callable, Sequence

from absl import logging

from safl_tf.deployment.flower import environment

_MAX_DELAY = 30.0  # seconds before the next start
_HEALTHY = 60.0  # seconds after which an end is not a failed start


class Restarted:
  """Starts a process, and starts it again, later and later if it fails.

  Args:
    name: for messages.
    start: starts it.
    final: exit codes with which it ends for good.
    reason: says why it has ended, from its exit code.
  """

  def __init__(
    self,
    name: str,
    start: Callable[[], subprocess.Popen[bytes]],
    final: Sequence[int] = (),
    reason: Callable[[int], str] = 'exit code {}'.format,
  ):
    self._name = name
    self._start = start
    self._final = final
    self._reason = reason
    self._process: subprocess.Popen[bytes] | None = None
    self._began = self._due = self._delay = 0.0

  def step(self, can_start: Callable[[], bool] = lambda: True) -> int | None:
    """Starts the process if that is due; returns its exit code if final.

    Args:
      can_start: asked before a start that is due.
    """
    if self._process is None:
      if time.monotonic() >= self._due and can_start():
        self._process, self._began = self._start(), time.monotonic()
      return None
    code = self._process.poll()
    if code is None:
      return None
    self.stop()
    if code in self._final:
      return code
    is_quick = time.monotonic() - self._began < _HEALTHY
    self._delay = min(_MAX_DELAY, 2 * self._delay + 1) if is_quick else 0.0
    self._due = time.monotonic() + self._delay
    why = f'signal {-code}' if code < 0 else self._reason(code)
    logging.warning('the %s ended (%s); starting it again', self._name, why)
    return None

  def stop(self) -> None:
    """Ends the process."""
    if self._process is not None:
      environment.stop(self._process)
      self._process = None
