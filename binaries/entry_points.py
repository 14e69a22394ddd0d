"""Entry points of the programs, which end quietly when they are interrupted.

Ctrl-C (SIGINT) and SIGTERM end a program at once with one line and exit code
130 or 143, also while it imports its modules: the handlers are set before. Like
a kill, this leaves a run that the same command resumes.
"""

import contextlib
import fcntl
import functools
import importlib
import os
import signal
from typing import Any


def _run(program: str) -> None:
  """Sets the handlers, imports a program and runs it."""
  stop = functools.partial(_stop, program, _copy_of_stderr())
  for number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
      signal.signal(number, stop)
  importlib.import_module(f'.{program}', __package__).cli()


def _copy_of_stderr() -> int | None:
  """Returns a number for stderr that stays while stderr is redirected."""
  try:
    return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
  except OSError:
    return None  # is closed


def _stop(program: str, stderr: int | None, number: int, frame: Any) -> None:
  """Ends the process; no thread, import or clean-up can delay or prevent it."""
  remedy = '; the same command resumes' if program in _RESUMABLE else ''
  if stderr is not None:
    line = '\n' if os.isatty(stderr) else ''  # after ^C or a progress bar
    with contextlib.suppress(OSError):
      os.write(stderr, f'{line}safl-{program}: stopped{remedy}\n'.encode())
  os._exit(128 + number)


_RESUMABLE = ('train', 'compare', 'sweep', 'reproduce', 'server', 'client')

train = functools.partial(_run, 'train')
compare = functools.partial(_run, 'compare')
sweep = functools.partial(_run, 'sweep')
reproduce = functools.partial(_run, 'reproduce')
partition = functools.partial(_run, 'partition')
export = functools.partial(_run, 'export')
evaluate = functools.partial(_run, 'evaluate')
theory = functools.partial(_run, 'theory')
server = functools.partial(_run, 'server')
client = functools.partial(_run, 'client')
