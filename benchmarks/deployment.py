"""Real clients on this machine: rounds, bytes on the wire, starts, memory.

  python -m benchmarks.deployment

Four clients with LeNet-5 train on the bundled MNIST sample, with SAFL and with
Extended SAFL. All connections to the server go through a proxy that counts what
passes: bytes of messages are those in metrics.csv, bytes of connections are
everything above TCP, with Flower's requests for work and HTTP's headers.
"""

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import psutil
from absl import app
from absl import flags as absl_flags

from benchmarks import reports, tcp_proxy
from examples import real_clients
from safl_tf.deployment.flower import environment

_ROUNDS = absl_flags.DEFINE_integer('rounds', 10, 'Rounds of each run.')
_WRITE = absl_flags.DEFINE_string('write', None, 'File to write tables to.')
_ALGORITHMS = {'SAFL': 'safl', 'Extended SAFL': 'extended_safl'}
_SECONDS = 600.0


class _Logs:
  """Waits for what programs say; remembers when they did."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def open(self, name: str) -> Any:
    """Opens the log of a program."""
    return open(self._folder / f'{name}.log', 'w')

  def wait(self, name: str, text: str) -> float:
    """Returns the time at which a program has said a text."""
    end = time.monotonic() + _SECONDS
    path = self._folder / f'{name}.log'
    while time.monotonic() < end:
      if text in path.read_text():
        return time.monotonic()
      time.sleep(0.02)
    raise TimeoutError(f'no {text!r} in {path.read_text()}')


def measure(folder: pathlib.Path, algorithm: str) -> dict[str, Any]:
  """Runs an algorithm with real clients; returns what was measured."""
  flags = [f'--algorithm={algorithm}', f'--rounds={_ROUNDS.value}']
  real_clients.simulate(folder, flags)
  logs, found = _Logs(folder), {}
  port = environment.free_port()
  proxy = tcp_proxy.Proxy(port)
  with contextlib.ExitStack() as stack:
    start = time.monotonic()
    server = stack.enter_context(
      _running(
        'safl-server',
        real_clients.server_flags(folder, f'127.0.0.1:{port}', flags),
        logs,
        'server',
      )
    )
    found['server listens'] = logs.wait('server', 'listening') - start
    clients = []
    # The first three alone: the last one's start is that of a client that
    # comes to a machine with nothing else to do.
    for k in range(real_clients.NUM_CLIENTS):
      start = time.monotonic()
      client_flags = real_clients.client_flags(folder, k, proxy.address)
      clients.append(
        stack.enter_context(
          _running('safl-client', client_flags, logs, f'client_{k}')
        )
      )
      joined = logs.wait('server', f'client {k} joined')
      found['client joins'] = joined - start
    trained = logs.wait('server', 'round 1 of')
    found['first round of all'] = trained - joined
    logs.wait('server', f'round {_ROUNDS.value - 1} of')
    for process in psutil.Process(clients[0].pid).children(recursive=True):
      command = ' '.join(process.cmdline())
      name = 'trainer' if 'client_worker' in command else 'SuperNode'
      found[f'memory of {name}'] = process.memory_info().rss / 1e6
    found['memory of safl-client'] = (
      psutil.Process(clients[0].pid).memory_info().rss / 1e6
    )
    for process in (server, *clients):
      if process.wait(_SECONDS):
        raise RuntimeError(f'a program failed; see {folder}')
  if not real_clients.is_equal(*real_clients.compare(folder)):
    raise RuntimeError('the bits are not those of the simulation')
  proxy.close()
  metrics = pd.read_csv(folder / 'deployed' / 'metrics.csv')
  simulated = pd.read_csv(folder / 'simulated' / 'metrics.csv')
  return {
    **found,
    'seconds': statistics.median(metrics['seconds'][1:]),
    'simulated': statistics.median(simulated['seconds'][1:]),
    'uploads': metrics['uploaded'].sum(),
    'messages up': metrics['wire_bytes_up'].sum(),
    'messages down': metrics['wire_bytes_down'].sum(),
    'sockets up': proxy.bytes_up,
    'sockets down': proxy.bytes_down,
  }


@contextlib.contextmanager
def _running(
  program: str, flags: list[str], logs: _Logs, name: str
) -> Iterator[Any]:
  with logs.open(name) as log:
    process = real_clients.start(program, *flags, log=log)
    try:
      yield process
    finally:
      process.terminate()
      process.wait(60)


def _wire(found: dict[str, dict[str, Any]]) -> str:
  """Returns the table of rounds and bytes."""
  rows = [
    '| | uploads | messages up | messages down | connections up | connections '
    'down | s / round | simulated |',
    '|---|---|---|---|---|---|---|---|',
  ]
  total = _ROUNDS.value * real_clients.NUM_CLIENTS
  for name, values in found.items():
    sizes = ' | '.join(
      f'{values[f"{kind} {way}"] / 1e6:.2f} MB'
      for kind in ('messages', 'sockets')
      for way in ('up', 'down')
    )
    rows.append(
      f'| {name} | {values["uploads"]} of {total} | {sizes} | '
      f'{values["seconds"]:.1f} | {values["simulated"]:.2f} |'
    )
  return '\n'.join(rows)


def _starts(values: dict[str, Any]) -> str:
  """Returns the table of starts and memory."""
  rows = ['| | |', '|---|---|']
  for name in (
    'server listens',
    'client joins',
    'first round of all',
  ):
    rows.append(f'| {name} after | {values[name]:.1f} s |')
  for name in ('trainer', 'SuperNode', 'safl-client'):
    key = f'memory of {name}'
    rows.append(f'| {key} | {values[key]:.0f} MB |')
  return '\n'.join(rows)


def main(argv: list[str]) -> None:
  """Prints the tables."""
  del argv
  found = {}
  for name, algorithm in _ALGORITHMS.items():
    with tempfile.TemporaryDirectory() as folder:
      found[name] = measure(pathlib.Path(folder), algorithm)
  text = '\n\n'.join(
    [
      reports.provenance('benchmarks.deployment'),
      _wire(found),
      _starts(found['SAFL']),
    ]
  )
  path = pathlib.Path(_WRITE.value) if _WRITE.value else None
  reports.write(path, 'deployment', text)


if __name__ == '__main__':
  app.run(main)
