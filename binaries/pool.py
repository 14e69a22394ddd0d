"""Processes that do one task after the other.

A process stays for several tasks, so that what it has loaded is loaded once.
It ends when its parent does, however that ends. A process that dies loses only
its task.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from typing import Any, NamedTuple, Self

from safl_tf.util import errors, hardware

_SECONDS = 30.0  # that a process may take to end


class Done(NamedTuple):
  """A task that is done.

  Attributes:
    task: what was given.
    result: what the function returned.
    error: why it failed; None if it did not.
  """

  task: Any
  result: Any = None
  error: Exception | None = None


class Pool:
  """Processes that share the cores.

  Args:
    function: of a task; a function of a module.
    processes: the maximum at a time; each starts when it is needed.
    describe: describes an expected error in one line; else returns None.
  """

  def __init__(
    self,
    function: Callable[[Any], Any],
    processes: int,
    describe: Callable[[Exception], str | None],
  ):
    cores = sorted(os.sched_getaffinity(0))
    self._shares = [cores[i::processes] or cores for i in range(processes)]
    self._work = (function, describe)
    self._workers: dict[int, _Worker] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: Any, *args: Any) -> None:
    for worker in self._workers.values():
      worker.close(at_once=kind is not None)

  def call(self, task: Any) -> Done:
    """Does one task."""
    [done] = self.map([task])
    return done

  def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
    """Yields tasks as they are done, in any order."""
    waiting = list(tasks)[::-1]
    busy: dict[Any, int] = {}  # the end of a pipe -> the number of a process
    free = list(range(len(self._shares)))[::-1]
    while waiting or busy:
      while waiting and free:
        i = free.pop()
        if i not in self._workers:
          self._workers[i] = _Worker(self._shares[i], *self._work)
        self._workers[i].give(waiting.pop())
        busy[self._workers[i].end] = i
      for end in connection.wait(list(busy)):
        i = busy.pop(end)
        done = self._workers[i].take()
        if not self._workers[i].is_alive:
          self._workers.pop(i).close(at_once=True)
        free.append(i)
        yield done


class _Worker:
  """A process and the task that it has."""

  def __init__(self, cores: list[int], function: Any, describe: Any):
    context = multiprocessing.get_context('spawn')
    self.is_alive = True
    self._task: Any = None
    self.end, other = context.Pipe()
    arguments = (other, cores, function, describe)
    self._process = context.Process(target=_serve, args=arguments, daemon=True)
    # Ctrl-C is for the parent; the process inherits that it is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
      self._process.start()
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, before)
    other.close()

  def give(self, task: Any) -> None:
    """Sends a task, in a list; `take` reports a lost process."""
    self._task = task
    with contextlib.suppress(OSError):
      self.end.send([task])

  def take(self) -> Done:
    """Returns the task, which is done or lost."""
    try:
      result, error = self.end.recv()
    except (EOFError, OSError):
      self.is_alive = False
      self._process.join(_SECONDS)
      line = _describe_end(self._process.exitcode)
      return Done(self._task, error=errors.RunError(line))
    return Done(self._task, result, error)

  def close(self, at_once: bool) -> None:
    """Ends the process."""
    if not at_once:
      with contextlib.suppress(OSError):
        self.end.send([])
      self._process.join(_SECONDS)
    self._process.kill()
    self._process.join(_SECONDS)
    self.end.close()


def _describe_end(code: int | None) -> str:
  """Describes how a process ended in the middle of a task."""
  if code == -signal.SIGKILL:
    return 'its process was killed, perhaps for lack of memory'
  if code is not None and code < 0:
    return f'its process was ended by {signal.Signals(-code).name}'
  return f'its process ended with exit code {code}'


def _serve(
  end: connection.Connection, cores: list[int], function: Any, describe: Any
) -> None:
  """Does tasks in a process that uses some of the cores."""
  # Results must not depend on the number of processes, but TensorFlow may cut
  # sums by the number of threads.
  total = str(hardware.num_cores())
  os.environ.setdefault('TF_NUM_INTRAOP_THREADS', total)
  os.sched_setaffinity(0, cores)
  tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()

  def receive() -> None:
    try:
      while True:
        tasks.put(end.recv())
    except (EOFError, OSError):  # the parent has ended
      os._exit(1)

  threading.Thread(target=receive, daemon=True).start()
  while message := tasks.get():
    answer: tuple[Any, Exception | None]
    try:
      answer = (function(*message), None)
    except errors.InputError as error:
      answer = (None, error)
    except Exception as error:
      line = describe(error)
      if line is None:  # a bug
        traceback.print_exc()
        line = f'{type(error).__name__}: {errors.reason(error)}'
      answer = (None, errors.RunError(' '.join(line.split())))
    end.send(answer)
