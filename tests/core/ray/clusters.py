"""Ray clusters of several nodes on this machine, in a folder of their own."""

import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import psutil

_START_SECONDS = 60.0  # of a node
_STOP_SECONDS = 30.0


class Cluster:
  """A head, and nodes that tests add and kill.

  Args:
    token: that of another cluster; a new one by default.
    cpus: of the head.

  Attributes:
    address: HOST:PORT of the head.
    token: what processes of the cluster share.
    environment: for drivers; it has the token.
  """

  def __init__(self, token=None, cpus=0):
    # Ray's sockets have long names below this folder.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='rt', dir='/tmp'))
    self.token = token or secrets.token_hex()
    path = self._folder / 'token'
    path.write_text(self.token)
    self.environment = {
      **os.environ,
      'RAY_AUTH_MODE': 'token',
      'RAY_AUTH_TOKEN_PATH': str(path),
      'RAY_USAGE_STATS_ENABLED': '0',
      'TF_CPP_MIN_LOG_LEVEL': '3',
    }
    self._processes = []
    port = _free_port()
    self.address = f'127.0.0.1:{port}'
    self._head = self._start(
      '--head',
      f'--port={port}',
      f'--temp-dir={self._folder}',
      '--include-dashboard=false',
      f'--num-cpus={cpus}',
    )

  def add_node(self, cpus=1, **environment):
    """Starts a node; returns its process, the parent of Ray's."""
    address = f'--address={self.address}'
    return self._start(address, f'--num-cpus={cpus}', **environment)

  def _start(self, *options, **environment):
    """Starts Ray, and waits for it: nodes that start together may collide."""
    command = [sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block']
    common = ['--node-ip-address=127.0.0.1', '--num-gpus=0']
    path = self._folder / f'log{len(self._processes)}'
    with path.open('wb') as log:
      process = subprocess.Popen(
        [*command, *common, *options],
        env=self.environment | environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )
    self._processes.append(process)
    end = time.monotonic() + _START_SECONDS
    while 'Ray runtime started' not in path.read_text():
      if process.poll() is not None or time.monotonic() > end:
        raise TimeoutError(f'Ray has not started: {path.read_text()[-2000:]}')
      time.sleep(0.1)
    return process

  def kill_head(self):
    """Kills the server that all others need, as a machine's failure does."""
    _kill_children(self._head, 'gcs_server')

  def close(self):
    """Kills everything, and deletes the cluster's folder."""
    for process in self._processes:
      kill_node(process)
    shutil.rmtree(self._folder, ignore_errors=True)


def kill_node(process):
  """Kills a node with all its processes, as a power cut does."""
  left = _session(process)
  for child in left:
    with contextlib.suppress(psutil.Error):
      child.kill()
  process.wait(_STOP_SECONDS)
  _, left = psutil.wait_procs(left, _STOP_SECONDS)
  assert not left, left


def _session(process):
  """Returns the processes of a node, also those that Ray has renamed."""
  members = []
  for member in psutil.process_iter():
    with contextlib.suppress(OSError):
      if os.getsid(member.pid) == process.pid:
        members.append(member)
  return members


def _kill_children(process, name):
  for child in psutil.Process(process.pid).children(recursive=True):
    if name in child.name():
      child.kill()


def _free_port():
  with socket.socket() as server:
    server.bind(('127.0.0.1', 0))
    return server.getsockname()[1]
