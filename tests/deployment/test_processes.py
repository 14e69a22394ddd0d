"""Real clients as programs, through Flower's own processes.

They take minutes: `make test-deploy` runs them.
"""

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys

import pandas as pd
import pytest

from benchmarks import tcp_proxy
from safl_tf.deployment.flower import environment
from tests.deployment import processes

pytestmark = pytest.mark.slow
FLAGS = ['--algorithm=extended_safl', '--local_epochs=1']


@pytest.fixture
def deployment(tmp_path):
  deployment = processes.Deployment(tmp_path)
  yield deployment
  deployment.close()


def after_round(deployment, t):
  deployment.wait_for('server', rf'round {t} of')


def test_kills_do_not_change_a_bit(deployment):
  """Each process is killed in mid-round; the run is that of the simulation."""
  deployment.simulate([*FLAGS, '--rounds=8'])
  deployment.start()
  after_round(deployment, 1)
  deployment.part(0, 'supernode').kill()
  after_round(deployment, 2)
  deployment.part(1, 'client_worker').kill()
  # A reply is lost: the client has stored its model.
  deployment.wait_for('client_0', 'round 4: ')
  deployment.part(0, 'supernode').kill()
  after_round(deployment, 4)
  deployment.kill_client(0)
  deployment.start_client(0)
  after_round(deployment, 5)
  deployment.superlink().kill()
  deployment.wait_for('client_1', 'round 7: ')
  deployment.kill_server()
  deployment.start_server()
  deployment.finish()
  deployment.check_equal()
  assert deployment.text('server').count('round 8 of') == 1
  for text in ('SuperNode ended', 'trainer ended'):
    assert text in deployment.text('client_0') + deployment.text('client_1')
  assert deployment.hosts() == {'127.0.0.1'}


def test_a_cut_network_does_not_change_a_bit(deployment):
  deployment.simulate([*FLAGS, '--rounds=4'])
  proxy = tcp_proxy.Proxy(int(deployment.address.split(':')[1]))
  deployment.start_server()
  deployment.start_client(0)
  deployment.start_client(1, address=proxy.address)
  after_round(deployment, 1)
  proxy.is_cut = True
  deployment.wait_for('server', 'waiting for client 1')
  proxy.is_cut = False
  deployment.finish()
  deployment.check_equal()
  metrics = pd.read_csv(deployment.folder / 'deployed' / 'metrics.csv')
  assert (metrics['missing'] == 0).all()


def test_a_client_is_dropped_and_comes_back(deployment):
  """Its late reply is ignored; it goes on from the z_k that it kept."""
  deployment.simulate(['--rounds=6'])
  deployment.flags += ['--missing=drop', '--round_timeout=20']
  deployment.start()
  after_round(deployment, 2)
  trainer = deployment.part(1, 'client_worker')
  trainer.send_signal(signal.SIGSTOP)
  at = deployment.wait_for('server', 'round 3: goes on without client 1')
  trainer.send_signal(signal.SIGCONT)
  deployment.finish()
  metrics = pd.read_csv(deployment.folder / 'deployed' / 'metrics.csv')
  missing = metrics['missing'].tolist()
  assert missing[:3] == [0, 0, 1] and missing[-1] == 0
  assert (metrics['uploaded'] == 2 - metrics['missing']).all()
  assert 'lost' not in deployment.text('server')
  assert 'damaged' not in deployment.text('server')
  rounds = re.findall(r'round (\d+): loss', deployment.text('client_1'))
  assert [*map(int, rounds)] == sorted({*map(int, rounds)})
  assert '6' in rounds and at


_PYTHON = """
import dataclasses, sys
import numpy as np
import safl_tf
from safl_tf.data import registry
from safl_tf.deployment import real_clients
from tests import tiny

role, address, folder = sys.argv[1:]
algorithm = dataclasses.replace(
  safl_tf.build_safl(epsilon=0.4), gate=safl_tf.gate.accuracy_gap(nu=0.5))
config = safl_tf.LocalConfig(local_epochs=1, batch_size=8)
clients = tiny.clients((20, 13))
options = {'config': config, 'jit_compile': 'false'}
if role == 'server':
  one = real_clients.train(
    tiny.dense, 2, algorithm, address=address, rounds=3, max_wait=100,
    **options)
  other = safl_tf.train(tiny.dense, clients, algorithm, rounds=3, **options)
  assert one.state.z_bar.tobytes() == other.state.z_bar.tobytes()
  print('equal bits')
else:
  k = int(role)
  rows = clients.indices(k)
  data = safl_tf.ClientData.from_clients(
    {str(k): (clients.x[rows], clients.y[rows])},
    num_classes=clients.num_classes)
  real_clients.run_client(
    k, data, tiny.dense, algorithm, server=address, state_dir=f'{folder}/{k}',
    once=True, max_wait=100, **options)
  print('done')
"""


def test_python(tmp_path):
  """Models and rules of users, on both sides."""
  script = tmp_path / 'script.py'
  script.write_text(_PYTHON)
  address = f'127.0.0.1:{environment.free_port()}'
  started = [
    subprocess.Popen(
      [sys.executable, str(script), role, address, str(tmp_path)],
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, 'PYTHONPATH': os.getcwd()},
    )
    for role in ('server', '0', '1')
  ]
  try:
    said = [process.communicate(timeout=200)[0] for process in started]
  finally:
    for process in started:
      process.kill()
  assert [text.splitlines()[-1] for text in said] == [
    'equal bits',
    'done',
    'done',
  ]


def test_keys(deployment):
  """Only those with the key of a client take part, and only as that client."""
  folder = deployment.folder
  address = f'--address={deployment.address}'
  for name in ('keys', 'others'):
    deployment.run(
      'safl-server',
      f'--make_certificates={folder / name}',
      '--num_clients=2',
      address,
    )
  deployment.simulate([*FLAGS, '--rounds=3'])
  keys, others = folder / 'keys', folder / 'others'
  deployment.flags += [
    f'--tls_certificate={keys / "server.pem"}',
    f'--tls_key={keys / "server.key"}',
    f'--client_keys={keys / "public_keys"}',
  ]
  deployment.start_server()

  def client(k, key, authority=keys, **options):
    return deployment.start_client(
      k,
      f'--root_certificates={authority / "ca.pem"}',
      f'--key={key}',
      **options,
    )

  def intruder(name, *flags, **options):
    state = f'--state_dir={folder / name}'
    return deployment.start_client(0, state, *flags, log=name, **options)

  deployment.wait_for('server', 'listening at .* \\(TLS\\)')
  client(0, keys / 'client_0.key')
  root = f'--root_certificates={keys / "ca.pem"}'
  fake = intruder(
    'fake_server',
    f'--root_certificates={others / "ca.pem"}',
    f'--key={keys / "client_0.key"}',
  )
  assert fake.wait(60) == 1
  assert 'cannot be verified' in deployment.text('fake_server')
  other = intruder('other_key', root, f'--key={keys / "client_1.key"}')
  assert other.wait(60) == 1
  assert 'its key is that of client 1' in deployment.text('other_key')
  intruder('unknown', root, f'--key={others / "client_1.key"}')
  deployment.wait_for('unknown', 'does not accept the key')
  intruder('without', root)
  deployment.wait_for('without', 'does not accept the key')
  intruder('plain')
  deployment.wait_for('plain', 'not plain HTTP; if it uses TLS, give --root_c')
  for name in ('unknown', 'without', 'plain'):
    deployment.end_client(name)
  for name in ('fake_server', 'other_key'):
    deployment.clients.pop(name)
  check_only_nodes_are_served(deployment.address, keys / 'ca.pem')
  client(1, keys / 'client_1.key')
  after_round(deployment, 1)
  deployment.part(0, 'supernode').kill()  # its key is not accepted at once
  deployment.finish()
  deployment.check_equal()


def check_only_nodes_are_served(address, authority):
  """The control of runs cannot be reached."""
  host, port = address.split(':')
  context = ssl.create_default_context(cafile=authority)
  for path in (
    '/',
    '/health',
    '/docs',
    '/openapi.json',
    '/v1/control/start-run',
    '/v1/runtime/acquire-task',
    '/v1/fleet/../control/start-run',
    '/v1/fleet/%2e%2e/control/start-run',
    '//v1/control/start-run',
  ):
    connection = http.client.HTTPSConnection(host, int(port), context=context)
    connection.request('POST', path, body=json.dumps({}))
    response = connection.getresponse()
    assert response.status in (403, 404), path
    if 'fleet' not in path:
      assert (response.status, response.read()) == (403, b'forbidden\n'), path
    connection.close()
