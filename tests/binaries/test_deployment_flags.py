"""Mistakes in the flags of safl-server and safl-client: one line, code 2."""

import contextlib
import shutil

import pytest

from binaries import client
from binaries.flags import deployment
from safl_tf.data import client_file
from safl_tf.deployment import certificates
from safl_tf.util import errors, output_folder, validation
from tests import tiny
from tests.binaries import programs

N = '--num_clients=2'
WHO = '--client=0 --server=fl.example.org:9092'
CLIENT = f'{WHO} --state_dir=state --data=client.npz'
TLS = '--tls_certificate=made/server.pem --tls_key=made/server.key'
TAKES = 'must be HOST:PORT, such as 127.0.0.1:9092'
# The files that are named here are those of `fill`.
SERVER = [
  ('', '--num_clients=: is required; see --help'),
  ('--num_clients=0', '--num_clients=0: must be a whole number in [1, '),
  ('--num_clients=many', '--num_clients=many: must be a whole number'),
  (
    f'{N} --algorithm=fedma',
    '--algorithm=fedma: cannot run on real clients: it matches layers with ... '
    'use safl-train',
  ),
  (
    f'{N} --algorithm=centralized',
    '--algorithm=centralized: cannot run on real clients: it trains on the '
    'data of all clients in one place; use safl-train',
  ),
  (
    f'{N} --algorithm=local_only',
    '--algorithm=local_only: cannot run on real clients: its clients exchange '
    'nothing with a server; use safl-train',
  ),
  (f'{N} --algorithm=sfal', '--algorithm=sfal: did you mean safl'),
  *(
    (f'{N} --address={address}', f'--address={address}: {TAKES}')
    for address in (
      '9092',
      'localhost',
      'localhost:',
      ':9092',
      'localhost:0',
      'localhost:65536',
      'localhost:http',
      'http://localhost:9092',
      '::1:9092',
      '[::1]',
      '[localhost]:9092',
    )
  ),
  (f'{N} --address=', f'--address=: {TAKES}'),
  (f'{N} --missing=ask', '--missing=ask: must be one of wait, drop'),
  (f'{N} --round_timeout=0', '--round_timeout=0.0: must be a number in [1, '),
  (f'{N} --max_wait=-1', '--max_wait=-1.0: must be a number in [1, '),
  (
    f'{N} --tls_key=made/server.key',
    '--tls_key=made/server.key: has no effect with --tls_certificate=None',
  ),
  (
    f'{N} --tls_certificate=made/server.pem',
    '--tls_key=: is required with --tls_certificate',
  ),
  (
    f'{N} --client_keys=made/public_keys',
    '--client_keys=made/public_keys: has no effect with --tls_certificate=None',
  ),
  (
    f'{N} --tls_certificate=no.pem --tls_key=made/server.key',
    '--tls_certificate=no.pem: there is no such file',
  ),
  (
    f'{N} --tls_certificate=made --tls_key=made/server.key',
    '--tls_certificate=made: there is no such file',
  ),
  (
    f'{N} --tls_certificate=made/ca.pem --tls_key=made/server.key',
    '--tls_key=made/server.key: must be the private key of '
    '--tls_certificate=made/ca.pem, both as PEM (',
  ),
  (
    f'{N} --tls_certificate=notes.txt --tls_key=notes.txt',
    '--tls_key= ... notes.txt: must be the private key of',
  ),
  (f'{N} {TLS} --client_keys=no', '--client_keys=no: must be an existing fol'),
  (
    f'{N} {TLS} --client_keys=notes.txt',
    '--client_keys=notes.txt: must be an existing folder',
  ),
  (
    f'--num_clients=3 {TLS} --client_keys=made/public_keys',
    '--client_keys=made/public_keys: has no client_2.pub; one per client is',
  ),
  (
    f'{N} {TLS} --client_keys=made',
    '--client_keys=made: has no client_0.pub; one per client is needed',
  ),
  (
    f'{N} {TLS} --client_keys=wrong_keys',
    '--client_keys= ... wrong_keys: client_1.pub must be the public part of an '
    'ECDSA key of OpenSSH',
  ),
  (f'{N} --data=no.npz', '--data=no.npz: cannot be read (No such file'),
  (f'{N} --data=own.csv', '--data=own.csv: did you mean csv:own.csv?'),
  (f'{N} --data=made', '--data=made: did you mean folder:made?'),
  (f'{N} --data=csv:no.csv --num_classes=2', '--data=csv:no.csv: '),
  (f'{N} --data=csv:own.csv', '--class_names=: is required for own data'),
  (
    f'{N} --label_column=a',
    '--label_column=a: has no effect with --data=None; it is for --data=',
  ),
  (f'{N} --eval_every=2', '--eval_every=2: has no effect without --data'),
  (
    f'{N} --stop_at_accuracy=0.9',
    '--stop_at_accuracy=0.9: has no effect without --data',
  ),
  (f'{N} --metrics=mse', '--metrics=mse: has no effect without --data'),
  (f'{N} --model=no.keras', '--model=no.keras: there is no such file'),
  (
    f'{N} --clients_per_round=3',
    '--clients_per_round=3: must be at most the number of clients, 2',
  ),
  (f'{N} --nu=0.3', '--nu=0.3: has no effect with --algorithm=safl'),
  (f'{N} --device=gpu', '--device=gpu: no such flag'),
  (f'{N} --executor=ray', '--executor=ray: no such flag'),
  (f'{N} --dataset=mnist', '--dataset=mnist: no such flag'),
  (f'{N} --attack=noise', '--attack=noise: no such flag'),
  (f'{N} --output_dir=notes.txt', '--output_dir=notes.txt/safl_deployed: not'),
  (f'{N} --output_dir=. --experiment=made', '--experiment=made: has files '),
  ('--make_certificates=new', '--num_clients=: is required; see --help'),
  (
    f'{N} --make_certificates=new --address=0.0.0.0:9092',
    '--address=0.0.0.0: must have the name or address by which clients reach',
  ),
  (
    f'{N} --make_certificates=new --address=[::]:9092',
    '--address=::: must have the name or address by which clients reach',
  ),
  (
    f'{N} --make_certificates=new --address=exämple.org:9092',
    '--address=exämple.org: must have the name ... in ASCII',
  ),
  (
    f'{N} --make_certificates=made',
    '--make_certificates=made: must be a new or empty folder: keys are never',
  ),
  (
    f'{N} --make_certificates=notes.txt',
    '--make_certificates=notes.txt: must be a new or empty folder',
  ),
]
CLIENTS = [
  ('', '--client=: is required; see --help'),
  ('--client=0', '--server=: is required; see --help'),
  (WHO, '--state_dir=: is required; see --help'),
  (f'{WHO} --state_dir=', '--state_dir=: is required; see --help'),
  (f'{WHO} --state_dir=state', '--data=: is required; see --help'),
  (f'{CLIENT} --client=-1', '--client=-1: must be a whole number in [0, '),
  (f'{CLIENT} --client=one', '--client=one: must be a whole number'),
  (f'{CLIENT} --server=9092', f'--server=9092: {TAKES}'),
  (f'{CLIENT} --server=https://a:1', f'--server=https://a:1: {TAKES}'),
  (
    f'{CLIENT} --key=made/client_0.key',
    '--key=made/client_0.key: has no effect with --root_certificates=None',
  ),
  (
    f'{CLIENT} --root_certificates=no.pem',
    '--root_certificates=no.pem: there is no such file',
  ),
  (
    f'{CLIENT} --root_certificates=notes.txt',
    '--root_certificates= ... notes.txt: must be a file of certificates',
  ),
  (
    f'{CLIENT} --root_certificates=made/ca.pem --key=no.key',
    '--key=no.key: there is no such file',
  ),
  (
    f'{CLIENT} --root_certificates=made/ca.pem --key=made/server.key',
    '--key= ... server.key: must be an ECDSA key of OpenSSH: ssh-keygen -t ecd',
  ),
  (
    f'{CLIENT} --root_certificates=made/ca.pem '
    '--key=made/public_keys/client_0.pub',
    '--key= ... client_0.pub: must be an ECDSA key of OpenSSH',
  ),
  (f'{CLIENT} --state_dir=notes.txt', '--state_dir= ... notes.txt: '),
  (
    f'{CLIENT} --state_dir=made',
    '--state_dir= ... made: has files that safl_tf did not write, such as ca.k',
  ),
  (
    f'{CLIENT} --state_dir=a_run',
    '--state_dir= ... a_run: is the folder of a run; choose another folder',
  ),
  (
    f'{CLIENT} --state_dir=a_run/below',
    '--state_dir= ... below: is inside ... a_run, the folder of a run',
  ),
  (f'{CLIENT} --data=no.npz', '--data=no.npz: cannot be read (No such file'),
  (f'{CLIENT} --data=made', '--data=made: did you mean folder:made?'),
  (f'{CLIENT} --data=own.csv', '--data=own.csv: did you mean csv:own.csv?'),
  (f'{CLIENT} --data=csv:own.csv', '--class_names=: is required for own data'),
  (f'{CLIENT} --data=npz:no.npz --num_classes=2', '--data=npz:no.npz: '),
  (
    f'{CLIENT} --label_column=a',
    '--label_column=a: has no effect with --data=client.npz; it is for --data=',
  ),
  (
    f'{CLIENT} --data=csv:own.csv --class_names=a,b --num_classes=2',
    '--num_classes=2: has no effect with --class_names=a,b',
  ),
  (f'{CLIENT} --max_wait=0', '--max_wait=0.0: must be a number in [1, '),
  (f'{CLIENT} --rounds=3', '--rounds=3: no such flag'),
]
CASES = [
  *(('server', *case) for case in SERVER),
  *(('client', *case) for case in CLIENTS),
]


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """Keys and certificates for two clients."""
  path = tmp_path_factory.mktemp('keys') / 'made'
  certificates.make(path, 'fl.example.org', 2)
  return path


def fill(folder, made):
  """Writes the files that the flags name."""
  (folder / 'client.npz').write_text('of a client')
  shutil.copytree(made, folder / 'made')
  (folder / 'notes.txt').write_text('no data')
  (folder / 'own.csv').write_text('a,label\n1,0\n2,1\n')
  (folder / 'a_run').mkdir()
  (folder / 'a_run' / '.safl_tf').write_text('run\n')
  (folder / 'wrong_keys').mkdir()
  for k, name in enumerate(('client_0.pub', '../ca.pem')):
    source = made / 'public_keys' / name
    shutil.copy(source, folder / 'wrong_keys' / f'client_{k}.pub')
  return programs.snapshot(folder)


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory, made):
  """What each of `CASES` gave, and whether it left its folder as it was."""
  folders = [tmp_path_factory.mktemp('flags') for _ in CASES]
  before = [fill(folder, made) for folder in folders]
  results = programs.call_light(
    [
      (program, line.split(), folder)
      for (program, line, _), folder in zip(CASES, folders, strict=True)
    ]
  )
  after = [programs.snapshot(folder) for folder in folders]
  return [
    (outcome, was == now)
    for outcome, was, now in zip(results, before, after, strict=True)
  ]


@pytest.mark.parametrize(
  'number', range(len(CASES)), ids=[' '.join(case[:2]) for case in CASES]
)
def test_refused(outcomes, number):
  program, _, message = CASES[number]
  outcome, unchanged = outcomes[number]
  programs.check_refused(outcome, program, message)
  assert unchanged


def test_data_of_another_kind(call, monkeypatch, tmp_path, made):
  """Which are read when TensorFlow has started."""
  monkeypatch.chdir(tmp_path)
  before = fill(tmp_path, made)
  outcome = call('server', N, '--data=notes.txt')
  message = '--data=notes.txt: is not a file of safl-partition --export_clients'
  programs.check_refused(outcome, 'server', message)
  assert programs.snapshot(tmp_path) == before


@pytest.mark.parametrize('mistake', ['other data', 'a folder in use'])
def test_mistakes_that_the_trainer_finds(tmp_path, mistake):
  """The program itself reads no data: one line, and nothing is written."""
  clients = tiny.clients((3, 2))
  facts = client_file.Facts.of(
    'tiny', 'classification', clients, clients.num_classes, {}
  )
  number, lock = 0, contextlib.nullcontext()
  message = '--client=0: --data has the data of client 1'
  client_file.write(
    tmp_path / 'client_1.npz',
    client_file.of_client(clients, facts, 1),
  )
  if mistake == 'a folder in use':
    number = 1
    lock = output_folder.opened(tmp_path / 'state', 'client', 'state_dir')
    message = '--state_dir= ... state: another process is writing to this fold'
  with lock:
    before = programs.snapshot(tmp_path)
    process = programs.start(
      *('-m', 'binaries.client', f'--client={number}'),
      *('--server=fl.example.org:9092', f'--state_dir={tmp_path / "state"}'),
      f'--data={tmp_path / "client_1.npz"}',
    )
    out, err = process.communicate(timeout=120)
    assert programs.snapshot(tmp_path) == before
  outcome = programs.Outcome(process.returncode, out, err)
  programs.check_refused(outcome, 'client', message)


@pytest.mark.parametrize(
  'program, line, flag, package',
  [
    ('server', N, '--address=127.0.0.1:9092', 'flwr'),
    ('client', CLIENT, '--server=fl.example.org:9092', 'flwr'),
    (
      'server',
      f'{N} --make_certificates=new',
      '--make_certificates=new',
      'cryptography',
    ),
  ],
)
def test_without_flower(
  call, monkeypatch, tmp_path, program, line, flag, package
):
  """The remedy is in the message."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  outcome = call(program, *line.split())
  remedy = "pip install 'safl_tf[flower]'"
  message = f'{flag}: needs the package {package}: {remedy}'
  programs.check_refused(outcome, program, message)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'text, host, port',
  [
    ('127.0.0.1:1', '127.0.0.1', 1),
    ('fl.example.org:65535', 'fl.example.org', 65535),
    ('[::1]:9092', '::1', 9092),
  ],
)
def test_addresses(text, host, port):
  assert validation.parse_address('server', text) == (host, port)


def test_the_data_of_another_client():
  values = programs.parse(client.define, *CLIENT.split())
  config = deployment.Client.get(values)
  client.check(config, None)
  client.check(config, 0)
  with pytest.raises(errors.InputError) as error:
    client.check(config, 1)
  assert str(error.value) == 'client=0: --data has the data of client 1'


def test_what_clients_need_is_known_to_the_simulation():
  values = programs.parse(
    deployment.ServerConfig.define, N, '--algorithm=extended_safl', '--nu=0.3'
  )
  config = deployment.ServerConfig.get(values)
  assert (config.rounds, config.checkpoint_every) == (100, 1)
  assert config.path.name == 'extended_safl_deployed'
  settings = config.settings()
  assert settings['nu'] == 0.3 and settings['algorithm'] == 'extended_safl'
  assert not {'data', 'address', 'tls_key', 'output_dir'} & settings.keys()
  simulated = deployment.for_simulation(settings, 2, 'digits')
  assert (simulated.nu, simulated.num_clients) == (0.3, 2)
  # A client takes no path from a server.
  for more in ({'more': 1}, {'custom_objects': 'own.py'}, {'output_dir': '/'}):
    with pytest.raises(errors.InputError, match='is unknown here'):
      deployment.for_simulation({**settings, **more}, 2, 'digits')
