"""The environment of Flower's processes; imports nothing of Flower."""

import contextlib
import logging
import logging.handlers
import os
import pathlib
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import MutableMapping, Sequence
from typing import Any

from safl_tf.util import errors

HOST = '127.0.0.1'
_LOG_BYTES = 2**22
_TAIL = 4096  # characters of a log to look at
_LOGGED_ERROR = re.compile(r' ERROR (.*(?:\n(?!\d{4}-).+)*)')
_LAST_LINE = re.compile(r'(\S.*)\s*\Z')


def restrict(environment: MutableMapping[str, str], home: pathlib.Path) -> None:
  """Keeps Flower from other hosts, the user's home and our log.

  Args:
    environment: of this process, before Flower is imported, or of another one.
    home: a folder for its files.
  """
  environment['FLWR_TELEMETRY_ENABLED'] = '0'
  environment['FLWR_DISABLE_UPDATE_CHECK'] = '1'
  environment['FLWR_HOME'] = str(home)
  for name in ('NO_PROXY', 'no_proxy'):
    environment[name] = '*'  # connects to the server itself, or not at all
  for name in ('alembic', 'httpx'):
    logging.getLogger(name).setLevel(logging.WARNING)
  logging.getLogger('flwr').disabled = True  # what matters is raised


def start(
  module: str, arguments: Sequence[str], home: pathlib.Path
) -> subprocess.Popen[bytes]:
  """Starts a module of this package as a process that ends with this one.

  Args:
    module: its name; it calls `begin`.
    arguments: of the process.
    home: a folder for Flower's files and the process's log.
  """
  home.mkdir(parents=True, exist_ok=True)
  with open(home / f'{module}.err', 'wb') as output:
    command = [sys.executable, '-m', f'{__package__}.{module}', *arguments]
    return start_program(command, home, output)


def start_program(
  command: Sequence[str], home: pathlib.Path, output: Any = None
) -> subprocess.Popen[bytes]:
  """Starts a process that calls `end_with_parent`.

  Args:
    command: its arguments.
    home: a folder for Flower's files.
    output: the file for its output; by default that of this process.
  """
  environment = dict(os.environ)
  restrict(environment, home)
  # It finds modules where this process does.
  environment['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
  return subprocess.Popen(
    command,
    stdin=subprocess.PIPE,  # see `end_with_parent`
    stdout=output,
    stderr=output,
    env=environment,
    start_new_session=True,  # Ctrl-C is for the parent alone
  )


def begin(module: str) -> None:
  """Begins a process that `start` has started, after Flower's import.

  What Flower logs is in `last_error` and in MODULE.log, which is bounded:
  when it is full, it becomes MODULE.log.1.
  """
  end_with_parent()
  path = pathlib.Path(os.environ['FLWR_HOME'], f'{module}.log')
  handler = logging.handlers.RotatingFileHandler(path, 'a', _LOG_BYTES, 1)
  pattern = '%(asctime)s %(levelname)s %(message)s'
  logging.basicConfig(
    format=pattern, level=logging.INFO, handlers=[handler], force=True
  )
  flower = logging.getLogger('flwr')
  flower.handlers.clear()
  flower.disabled, flower.propagate = False, True


def last_error(home: pathlib.Path, module: str) -> str:
  """Returns the last error that a process logged, as one line."""
  for path, pattern in (
    (home / f'{module}.log', _LOGGED_ERROR),
    (home / f'{module}.err', _LAST_LINE),
  ):
    with contextlib.suppress(OSError):
      text = path.read_text(errors='replace')[-_TAIL:]
      found = pattern.findall(text)
      if found:
        return errors.one_line(found[-1].strip())[:300]
  return 'it logged nothing'


def end_with_parent() -> None:
  """Ends this process when its parent does, however that ends."""

  def watch() -> None:
    while os.read(0, 4096):  # the other end is the parent's
      pass
    os._exit(0)

  threading.Thread(target=watch, daemon=True).start()


def stop(process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
  """Ends a process: asks it first."""
  if process.poll() is None:
    process.terminate()
    try:
      process.wait(seconds)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
  if process.stdin is not None:
    process.stdin.close()


def free_port() -> int:
  """Returns a port of this machine that nobody listens on."""
  with socket.socket() as probe:
    probe.bind((HOST, 0))
    return probe.getsockname()[1]


def write_secret(path: pathlib.Path) -> bytes:
  """Writes a new secret that only this user can read; returns it."""
  secret = secrets.token_hex(32).encode()
  path.unlink(missing_ok=True)
  number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
  with open(number, 'wb') as file:
    file.write(secret)
  return secret
