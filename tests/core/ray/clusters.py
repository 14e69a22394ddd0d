"""Ray clusters of several nodes on this machine, in a folder of their own."""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil

_START_SECONDS = 60.0  # of a node


class Cluster:
  """A head without CPUs, and nodes that tests add and kill.

  Attributes:
    address: HOST:PORT of the head.
    environment: for drivers; it has the token.
  """

  def __init__(self):
    # Ray's sockets have long names below this folder.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='rt', dir='/tmp'))
    token = self._folder / 'token'
    token.write_text(secrets.token_hex())
    self.environment = {
      **os.environ,
      'RAY_AUTH_MODE': 'token',
      'RAY_AUTH_TOKEN_PATH': str(token),
      'RAY_USAGE_STATS_ENABLED': '0',
      'TF_CPP_MIN_LOG_LEVEL': '3',
    }
    self._count = 0
    port = _free_port()
    self.address = f'127.0.0.1:{port}'
    self._head = self._start(
      '--head',
      f'--port={port}',
      f'--temp-dir={self._folder}',
      '--include-dashboard=false',
      '--num-cpus=0',
    )

  def add_node(self, cpus=1, **environment):
    """Starts a node; returns its process, the parent of Ray's."""
    address = f'--address={self.address}'
    return self._start(address, f'--num-cpus={cpus}', **environment)

  def _start(self, *options, **environment):
    """Starts Ray, and waits for it: nodes that start together may collide."""
    command = [sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block']
    common = ['--node-ip-address=127.0.0.1', '--num-gpus=0']
    self._count += 1
    path = self._folder / f'log{self._count}'
    with path.open('wb') as log:
      process = subprocess.Popen(
        [*command, *common, *options],
        env=self.environment | environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )
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
    """Kills everything that runs in the cluster's folder."""
    for process in psutil.process_iter(['cmdline', 'environ']):
      with contextlib.suppress(psutil.Error):
        words = process.info['cmdline'] or []
        known = (process.info['environ'] or {}).get('RAY_AUTH_TOKEN_PATH', '')
        if str(self._folder) in ' '.join([*words, known]):
          process.kill()
    shutil.rmtree(self._folder, ignore_errors=True)


def kill_node(process):
  """Kills a node with all its processes, as a power cut does."""
  for child in psutil.Process(process.pid).children(recursive=True):
    with contextlib.suppress(psutil.Error):
      child.send_signal(signal.SIGKILL)
  process.kill()
  process.wait(30)


def _kill_children(process, name):
  for child in psutil.Process(process.pid).children(recursive=True):
    if name in child.name():
      child.send_signal(signal.SIGKILL)


def _free_port():
  with socket.socket() as server:
    server.bind(('127.0.0.1', 0))
    return server.getsockname()[1]
