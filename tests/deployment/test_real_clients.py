"""`real_clients`: servers and clients in Python, here in one process."""

import contextlib
import dataclasses
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import safl_tf
from safl_tf.deployment import real_clients
from safl_tf.deployment.flower import client_app, grid_transport, link, resident
from safl_tf.training import metrics_log
from safl_tf.util import errors
from tests import tiny, tiny_rounds
from tests.deployment import loopback

N = tiny_rounds.CLIENTS.num_clients
OWN = dataclasses.replace(  # an algorithm of a user
  safl_tf.build_safl(epsilon=0.4), gate=safl_tf.gate.accuracy_gap(nu=0.5)
)
OPTIONS = {'config': tiny_rounds.CONFIG, 'jit_compile': 'false'}
SERVER = {'rounds': 3, 'progress': False, 'max_wait': 60.0}


@pytest.fixture
def grid(monkeypatch):
  """A grid in place of processes."""
  grid = loopback.LoopbackGrid()

  @contextlib.contextmanager
  def connected(address, security, home, round_timeout):
    yield grid_transport.GridTransport(grid)

  def run(client, server, home, max_wait, once):
    grid.apps[100 + client._k] = client_app.create(client.handle)

  monkeypatch.setattr(link, 'connected', connected)
  monkeypatch.setattr(resident, 'run', run)
  return grid


def start_clients(folder, algorithm=OWN, numbers=range(N), **options):
  clients = tiny_rounds.CLIENTS
  for k in numbers:
    rows = clients.indices(k)
    data = safl_tf.ClientData.from_clients(
      {clients.client_ids[k]: (clients.x[rows], clients.y[rows])},
      num_classes=clients.num_classes,
    )
    real_clients.run_client(
      k,
      data,
      tiny.dense,
      algorithm,
      server='fl.example.org:9092',
      state_dir=folder / f'state_{k}',
      **{**OPTIONS, **options},
    )


def test_bits_of_train(grid, tmp_path):
  start_clients(tmp_path)
  test_data = tiny_rounds.CLIENTS.x[:20], tiny_rounds.CLIENTS.y[:20]
  options = {**OPTIONS, **SERVER, 'seed': 4, 'test_data': test_data}
  deployed = real_clients.train(
    tiny.dense, N, OWN, output_dir=tmp_path / 'run', **options
  )
  del options['max_wait']
  simulated = safl_tf.train(tiny.dense, tiny_rounds.CLIENTS, OWN, **options)
  assert deployed.state.z_bar.tobytes() == simulated.state.z_bar.tobytes()
  one, other = deployed.frame, simulated.frame
  columns = one.columns.difference(metrics_log.MEASURED)
  pd.testing.assert_frame_equal(
    one[columns], other[columns], check_exact=True, check_dtype=False
  )
  assert (one['wire_bytes_up'] > 0).all()


def test_the_same_call_resumes(grid, tmp_path):
  def train(rounds, folder):
    start_clients(tmp_path)  # they ended with the run before
    return real_clients.train(
      tiny.dense,
      N,
      OWN,
      output_dir=tmp_path / folder,
      **{**OPTIONS, **SERVER, 'rounds': rounds},
    )

  whole = train(3, 'whole')
  train(1, 'parts')
  parts = train(3, 'parts')
  assert len(parts.history) == 3
  assert parts.state.z_bar.tobytes() == whole.state.z_bar.tobytes()


@pytest.mark.parametrize(
  'changes, reason',
  [
    (
      {'algorithm': safl_tf.build_fed_avg()},
      'algorithm=fedavg: the server has own',
    ),
    pytest.param(
      {'algorithm': dataclasses.replace(OWN, mix=safl_tf.build_safl().mix)},
      'rules=Algorithm(own: ',
      marks=pytest.mark.slow,
    ),
    (
      {'config': dataclasses.replace(tiny_rounds.CONFIG, learning_rate=0.5)},
      'learning_rate=0.5: the server has 0.02',
    ),
    pytest.param(
      {'loss': 'paper'},
      'task loss=paper: the server has ',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_other_settings_are_refused(grid, tmp_path, caplog, changes, reason):
  start_clients(tmp_path, numbers=range(N - 1))
  start_clients(tmp_path, numbers=[N - 1], **changes)
  options = {**OPTIONS, **SERVER, 'max_wait': 1.0}
  # The others may be named, too: preparing takes time, and is no result.
  with pytest.raises(errors.RunError, match=rf'no result from .*\b{N - 1} for'):
    real_clients.train(tiny.dense, N, OWN, **options)
  assert reason in caplog.text


@pytest.mark.parametrize(
  'algorithm', [safl_tf.build_fed_ma(), safl_tf.build_centralized()]
)
def test_other_loops_are_refused(grid, tmp_path, algorithm):
  start_clients(tmp_path)
  with pytest.raises(errors.InputError, match='cannot run on real clients'):
    real_clients.train(tiny.dense, N, algorithm, **OPTIONS, **SERVER)


_WITHOUT_FLOWER = """
import sys
for name in ('flwr', 'httpx', 'cryptography'):
  sys.modules[name] = None  # as if it were not installed
import numpy as np
import safl_tf
from safl_tf.deployment import real_clients

data = safl_tf.ClientData.from_clients(
  {'a': (np.zeros((2, 4)), [0, 1])}, num_classes=2)
for call in (
  lambda: real_clients.train(None, 2),
  lambda: real_clients.run_client(0, data, None, server='a:1', state_dir='new'),
):
  try:
    call()
  except ValueError as error:
    print(type(error).__name__, error)
"""


def test_without_flower(tmp_path):
  """The remedy is in the message."""
  outcome = subprocess.run(
    [sys.executable, '-c', _WITHOUT_FLOWER],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': os.getcwd()},
    capture_output=True,
    text=True,
    timeout=300,
  )
  remedy = "needs the package flwr: pip install 'safl_tf[flower]'"
  assert outcome.stdout.splitlines() == [
    f'InputError address=127.0.0.1:9092: {remedy}',
    f'InputError server=a:1: {remedy}',
  ], outcome.stderr
  assert not list(tmp_path.iterdir())


def test_arguments(grid, tmp_path):
  train = lambda **options: real_clients.train(tiny.dense, 2, **options)
  for options, message in [
    ({'attack': 'x'}, 'attack=x: is for simulated clients'),
    ({'address': 'a'}, 'address=a: must be HOST:PORT'),
    ({'algorithm': safl_tf.build_fed_ma()}, 'algorithm=fedma: cannot run on'),
    ({'missing': 'x'}, 'missing=x'),
    ({'round_timeout': 0}, 'round_timeout=0'),
    ({'tls_key': 'k'}, 'tls_certificate=: is required with tls_key'),
    ({'client_keys': 'k'}, 'client_keys=k: needs tls_certificate'),
  ]:
    with pytest.raises(errors.InputError) as caught:
      train(**options)
    assert str(caught.value).startswith(message), caught.value
  one = safl_tf.ClientData.from_clients(
    {'a': (np.zeros((2, 4)), [0, 1])}, num_classes=2
  )
  run = lambda data=one, **options: real_clients.run_client(
    0, data, tiny.dense, state_dir=tmp_path / 'state', **options
  )
  for options, message in [
    ({'server': 'a'}, 'server=a: must be HOST:PORT'),
    ({'server': 'a:1', 'key': 'k'}, 'key=k: needs root_certificates'),
    ({'server': 'a:1', 'data': tiny_rounds.CLIENTS}, f'data={N} clients: must'),
    ({'server': 'a:1', 'max_wait': 0}, 'max_wait=0'),
  ]:
    with pytest.raises(errors.InputError) as caught:
      run(**options)
    assert str(caught.value).startswith(message), caught.value
  assert not list(tmp_path.iterdir())
