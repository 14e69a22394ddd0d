"""Simulates a run, repeats it with real clients, and compares the bits.

  python -m examples.real_clients --algorithm=extended_safl --rounds=5

Exports the data of four clients, trains with safl-train, and then with
safl-server and four safl-client, each a program of its own with its own data,
on this machine. Prints whether the global model of every round, the clients'
own models and all metrics are equal. Needs pip install 'safl_tf[flower]'.

Further flags, of the algorithm, the model and training, are for both runs.
"""

import contextlib
import hashlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import numpy as np
import pandas as pd

from safl_tf.deployment import client_state
from safl_tf.deployment.flower import environment
from safl_tf.training import metrics_log

NUM_CLIENTS = 4
_SECONDS = 900.0  # that any program may take
BIN = pathlib.Path(sys.executable).parent


def simulate(
  folder: pathlib.Path, flags: Sequence[str], num_clients: int = NUM_CLIENTS
) -> None:
  """Exports the clients' data to folder/data; trains in folder/simulated."""
  common = f'--num_clients={num_clients}'
  run(
    'safl-partition',
    common,
    *(flag for flag in flags if flag.startswith('--seed=')),
    f'--export_clients={folder / "data"}',
    f'--output_dir={folder / "partition"}',
  )
  run(
    'safl-train',
    common,
    *flags,
    '--checkpoint_every=1',
    *_run_flags(folder, 'simulated'),
  )


def server_flags(
  folder: pathlib.Path,
  address: str,
  flags: Sequence[str],
  num_clients: int = NUM_CLIENTS,
) -> list[str]:
  """Returns the flags of safl-server, which trains in folder/deployed."""
  return [
    f'--num_clients={num_clients}',
    f'--data={folder / "data" / "server.npz"}',
    f'--address={address}',
    *flags,
    *_run_flags(folder, 'deployed'),
  ]


def client_flags(folder: pathlib.Path, k: int, address: str) -> list[str]:
  """Returns the flags of safl-client, which keeps its model in state_K."""
  return [
    f'--client={k}',
    f'--data={folder / "data" / f"client_{k}.npz"}',
    f'--server={address}',
    f'--state_dir={folder / f"state_{k}"}',
    '--once',
  ]


def deploy(folder: pathlib.Path, flags: Sequence[str]) -> None:
  """Runs a server and its clients."""
  address = f'127.0.0.1:{environment.free_port()}'
  with contextlib.ExitStack() as stack:
    for k in range(NUM_CLIENTS):
      stack.enter_context(_client(folder, k, address))
    run('safl-server', *server_flags(folder, address, flags))


@contextlib.contextmanager
def _client(folder: pathlib.Path, k: int, address: str) -> Iterator[None]:
  """Runs a client in the background; it ends with the run."""
  with open(folder / f'client_{k}.log', 'w') as log:
    process = start('safl-client', *client_flags(folder, k, address), log=log)
    try:
      yield
      process.wait(60)
    finally:
      process.terminate()
      process.wait(60)


def compare(
  folder: pathlib.Path, num_clients: int = NUM_CLIENTS
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Compares the runs: tables of rounds and of clients, with digests."""
  ours, theirs = folder / 'simulated', folder / 'deployed'
  metrics = [pd.read_csv(run / 'metrics.csv') for run in (ours, theirs)]
  columns = [c for c in metrics[0] if c not in metrics_log.MEASURED]
  rounds = []
  for i, t in enumerate(metrics[0]['round']):
    name = f'checkpoints/round_{t:06}.npz'
    z = [np.load(run / name)['z_bar'] for run in (ours, theirs)]
    rows = [m[columns].iloc[i] for m in metrics]
    rounds.append(
      {
        'round': t,
        'z_bar, simulated': _digest(z[0]),
        'deployed': _digest(z[1]),
        'metrics equal': rows[0].equals(rows[1]),
        'uploads': metrics[1]['uploaded'][i],
        'bytes up': metrics[1]['wire_bytes_up'][i],
        'seconds': metrics[1]['seconds'][i],
      }
    )
  with np.load(ours / name) as last:
    ids, stored = last['clients/z/ids'], last['clients/z/arrays']
  clients = []
  for k in range(num_clients):
    [path] = folder.glob(f'state_{k}/run_*/client_state.bin')
    _, saved = client_state.read(path)
    [z_k] = stored[ids == k]
    clients.append(
      {
        'client': k,
        'z_k, simulated': _digest(z_k),
        'on its disk': _digest(saved.after['z']),
      }
    )
  return pd.DataFrame(rounds), pd.DataFrame(clients)


def is_equal(rounds: pd.DataFrame, clients: pd.DataFrame) -> bool:
  """Returns whether nothing in the tables differs."""
  return bool(
    rounds['z_bar, simulated'].equals(rounds['deployed'])
    and rounds['metrics equal'].all()
    and clients['z_k, simulated'].equals(clients['on its disk'])
  )


def start(
  program: str, *flags: str, log: TextIO | None = None
) -> subprocess.Popen[bytes]:
  """Starts a program of safl_tf."""
  command = [str(BIN / program), *flags]
  return subprocess.Popen(command, stdout=log, stderr=log)


def run(program: str, *flags: str) -> None:
  """Runs a program; ends with its exit code if it fails."""
  print(f'\n$ {program} {" ".join(flags)}', flush=True)
  process = start(program, *flags)
  try:
    code = process.wait(_SECONDS)
  finally:
    process.terminate()
  if code:
    sys.exit(code)


def _run_flags(folder: pathlib.Path, name: str) -> list[str]:
  return [
    '--keep_checkpoints=1000',
    f'--output_dir={folder}',
    f'--experiment={name}',
  ]


def _digest(array: Any) -> str:
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def main() -> None:
  """Prints the comparison; the exit code is 1 if anything differs."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    simulate(folder, sys.argv[1:])
    deploy(folder, sys.argv[1:])
    rounds, clients = compare(folder)
  print('\n' + rounds.to_string(index=False, float_format='%.1f'))
  print('\n' + clients.to_string(index=False))
  equal = is_equal(rounds, clients)
  print('\nall bits are equal' if equal else '\nTHE RUNS DIFFER')
  sys.exit(not equal)


if __name__ == '__main__':
  main()
