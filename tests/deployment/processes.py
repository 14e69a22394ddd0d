"""A server and clients as programs, which tests kill."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

import psutil

from examples import real_clients
from safl_tf.deployment.flower import environment

SECONDS = 240.0  # that anything may take
LOOKUPS = 'lookups.txt'

# Notes each look-up of a name and each connection of a Python process.
_AUDIT = """
import os, sys

def _note(event, arguments):
  if event in ('socket.getaddrinfo', 'socket.gethostbyname'):
    host = arguments[0]
  elif event == 'socket.connect':
    address = arguments[1]
    host = address[0] if isinstance(address, tuple) else None
  else:
    return
  if host is not None:
    with open({path!r}, 'a') as file:
      file.write(f'{{event}} {{host}} {{sys.argv[0]}}\\n')

sys.addaudithook(_note)
"""


class Deployment:
  """A server and its clients in a folder; end it with `close`.

  Attributes:
    folder: has the logs server.log and client_K.log.
    address: of the server.
    server: its process, once started.
    clients: client -> its process.

  Args:
    folder: for all files.
    flags: of the server.
    num_clients: n.
  """

  def __init__(self, folder, flags=(), num_clients=2):
    self.folder = pathlib.Path(folder)
    self.address = f'127.0.0.1:{environment.free_port()}'
    self.flags = list(flags)
    self.num_clients = num_clients
    self.server = None
    self.clients = {}
    site = self.folder / 'site'
    site.mkdir()
    audit = _AUDIT.format(path=str(self.folder / LOOKUPS))
    (site / 'sitecustomize.py').write_text(audit)
    self._environment = {**os.environ, 'PYTHONPATH': str(site)}

  def simulate(self, flags):
    """Exports the data and runs the simulation; the server has its flags."""
    self.flags += flags
    real_clients.simulate(self.folder, flags, self.num_clients)

  def start_server(self):
    flags = real_clients.server_flags(
      self.folder, self.address, self.flags, self.num_clients
    )
    self.server = self._start('server', 'safl-server', flags)

  def start_client(self, k, *flags, address=None, log=None):
    """Starts client k; flags replace the usual ones.

    With a `log` it is an intruder, of this name in `clients`.
    """
    address = address or self.address
    usual = real_clients.client_flags(self.folder, k, address)
    name = log or f'client_{k}'
    process = self._start(name, 'safl-client', [*usual, *flags])
    self.clients[log or k] = process
    return process

  def run(self, program, *flags):
    """Runs a program to its end."""
    subprocess.run(
      [str(real_clients.BIN / program), *flags],
      check=True,
      timeout=SECONDS,
      env=self._environment,
    )

  def start(self):
    self.start_server()
    for k in range(self.num_clients):
      self.start_client(k)

  def _start(self, name, program, flags):
    with open(self.log(name), 'a') as log:
      return subprocess.Popen(
        [str(real_clients.BIN / program), *flags],
        stdout=log,
        stderr=log,
        env=self._environment,
        start_new_session=True,
      )

  def log(self, name):
    return self.folder / f'{name}.log'

  def text(self, name):
    """What a program has said so far."""
    with contextlib.suppress(FileNotFoundError):
      return self.log(name).read_text()
    return ''

  def wait_for(self, name, pattern, after=0):
    """Waits until a program has said something; returns where it ends.

    Args:
      name: of the log.
      pattern: a regular expression.
      after: the position to look from.
    """
    end = time.monotonic() + SECONDS
    while True:
      found = re.compile(pattern).search(self.text(name), after)
      if found:
        return found.end()
      if time.monotonic() > end:
        raise AssertionError(f'no {pattern!r} in {self.logs()}')
      time.sleep(0.01)

  def part(self, k, module):
    """Waits for a process of a client: 'supernode' or 'client_worker'."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
      for process in psutil.Process(self.clients[k].pid).children(
        recursive=True
      ):
        with contextlib.suppress(psutil.Error):
          if any(module in word for word in process.cmdline()):
            return process
      time.sleep(0.01)
    raise AssertionError(f'client {k} has no {module}: {self.logs()}')

  def superlink(self):
    [process] = [
      child
      for child in psutil.Process(self.server.pid).children()
      if any('superlink' in word for word in child.cmdline())
    ]
    return process

  def kill_server(self):
    self.server.send_signal(signal.SIGKILL)
    self.server.wait(SECONDS)

  def kill_client(self, k):
    self.clients[k].send_signal(signal.SIGKILL)
    self.clients[k].wait(SECONDS)

  def end_client(self, k):
    """Asks a client to end."""
    process = self.clients.pop(k)
    process.terminate()
    process.wait(SECONDS)

  def finish(self):
    """Waits until the server and its clients end; they must succeed."""
    for process in (self.server, *self.clients.values()):
      try:
        code = process.wait(SECONDS)
      except subprocess.TimeoutExpired:
        raise AssertionError(f'does not end: {self.logs()}') from None
      assert code == 0, self.logs()

  def check_equal(self):
    """The run must have the bits of the simulation."""
    tables = real_clients.compare(self.folder, self.num_clients)
    assert real_clients.is_equal(*tables), f'{tables} {self.logs()}'

  def hosts(self):
    """The hosts that processes looked up or connected to."""
    lines = (self.folder / LOOKUPS).read_text().splitlines()
    return {line.split()[1] for line in lines}

  def logs(self):
    paths = sorted(self.folder.glob('*.log'))
    return '\n'.join(f'--- {p.name}\n{p.read_text()}' for p in paths)

  def close(self):
    """Ends all programs."""
    for process in (self.server, *self.clients.values()):
      if process is not None and process.poll() is None:
        process.terminate()
        process.wait(30)
