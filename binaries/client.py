"""A client of safl-server: trains with the data of this machine.

The data never leave the machine; models do. What the client keeps between
rounds is in --state_dir: the same command goes on after any interruption.

  safl-client --client=0 --data=client_0.npz --server=fl.example.org:9092 \
    --state_dir=state --root_certificates=ca.pem --key=client_0.key

The program starts and watches two processes: Flower's SuperNode, which speaks
with the server, and a trainer, which keeps the compiled model.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import errors, output_folder

from . import program
from .flags import client_data, deployment

_MAX_DELAY = 30.0  # seconds before a process that dies is started again
_QUICK = 60.0  # seconds after which a process counts as healthy
_SUPERNODE, _TRAINER = 'SuperNode', 'trainer'


def main(flags: absl_flags.FlagValues) -> None:
  """Starts the processes, and starts them again when they die."""
  config = deployment.Client.get(flags)
  data = client_data.ClientExamples.get(flags)
  data.check_effects(flags)
  data.check()
  from safl_tf.deployment.flower import environment

  with output_folder.opened(config.folder, 'client', 'state_dir'):
    home = config.folder / 'flower'
    home.mkdir(exist_ok=True)
    environment.restrict(os.environ, home)
    environment.write_secret(home / 'secret')
    _supervise(config, environment.free_port())


def _supervise(config: deployment.Client, port: int) -> None:
  """Watches the processes until the trainer ends for good."""
  from safl_tf.deployment.flower import environment, node

  host, port_of_server = deployment.parse_address('server', config.server or '')
  server = node.Server(
    host,
    port_of_server,
    deployment.path_of(config.root_certificates),
    deployment.path_of(config.key),
  )
  if server.root_certificates is None:
    logging.warning(
      'without --root_certificates the server is not verified, and models '
      'travel in the clear; use it on a network of your own only'
    )
  node.check(server)
  home = config.folder / 'flower'
  trainer = [
    sys.executable,
    '-m',
    f'{__package__}.client_worker',
    str(port),
    *sys.argv[1:],
  ]
  starts: dict[str, Callable[[], subprocess.Popen[bytes]]] = {
    _SUPERNODE: lambda: node.start(server, home, port),
    _TRAINER: lambda: environment.start_program(trainer, home),
  }
  running: dict[str, subprocess.Popen[bytes]] = {}
  began: dict[str, float] = {}
  delays = dict.fromkeys(starts, 0.0)
  due = dict.fromkeys(starts, 0.0)
  try:
    while True:
      now = time.monotonic()
      for name, start in starts.items():
        if name not in running and now >= due[name]:
          running[name], began[name] = start(), now
      time.sleep(0.2)
      for name, process in list(running.items()):
        code = process.poll()
        if code is None:
          continue
        environment.stop(running.pop(name))
        if name == _TRAINER and code in (0, 1, 2):
          sys.exit(code)  # it has said why
        quick = time.monotonic() - began[name] < _QUICK
        delays[name] = min(_MAX_DELAY, 2 * delays[name] + 1) if quick else 0.0
        due[name] = time.monotonic() + delays[name]
        logging.warning(
          'the %s ended (%s); starting it again%s',
          name,
          _reason(code),
          f' in {delays[name]:.0f} s' if delays[name] else '',
        )
        if name == _SUPERNODE:
          node.check(server)
        elif _SUPERNODE in running:  # waits for the reply of the lost trainer
          environment.stop(running.pop(_SUPERNODE))
  finally:
    for process in running.values():
      environment.stop(process)


def _reason(code: int) -> str:
  """Says how a process ended."""
  return f'signal {-code}' if code < 0 else f'exit code {code}'


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-client."""
  deployment.Client.define(flags)
  client_data.ClientExamples.define(flags)


def check(config: deployment.Client, number: int | None) -> None:
  """Refuses data that are those of another client."""
  if number not in (None, config.client):
    hint = f'has the data of client {number}'
    raise errors.InputError('client', config.client, f'--data {hint}')


cli = functools.partial(program.run, 'safl-client', __doc__, define, main)

if __name__ == '__main__':
  cli()
