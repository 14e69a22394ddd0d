"""A client's answers to requests of all kinds."""

import dataclasses
import hashlib
import uuid

import numpy as np
import pytest

from safl_tf.data import client_file
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import messages
from tests import tiny
from tests.deployment import loopback

CLIENTS = tiny.clients((12, 9, 5))
RUN = '12345678-1234-1234-1234-1234567890ab'


@pytest.fixture(scope='module')
def job(tmp_path_factory):
  """The job of a server."""
  federation = loopback.CompiledOnce(
    tmp_path_factory.mktemp('job'), CLIENTS, joined=(0, 1, 2)
  )
  federation.process()
  return dataclasses.replace(federation.server._job, run=RUN)


@pytest.fixture
def federation(tmp_path):
  return loopback.CompiledOnce(tmp_path, CLIENTS, joined=())


@pytest.fixture
def client(federation):
  return federation.client(1)


def ask(client, kind, arrays=None, **header):
  reply = client.handle(messages.encode({'kind': kind, **header}, arrays))
  return messages.decode(reply)


def prepare(client, job, arrays=None):
  return ask(client, 'prepare', arrays, job=dataclasses.asdict(job)).header


def snapshot(folder):
  return {p.name: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_describe(client, federation):
  header, arrays = ask(client, 'describe')
  assert not arrays
  assert header['client'] == 1 and header['name'] == '1'
  assert header['size'] == 9
  assert header['facts'] == federation.facts.to_json()
  file = client_file.of_client(CLIENTS, federation.facts, 1)
  assert header['data_sha256'] == client_file.digest(file)
  assert set(header) == {
    'status',
    'protocol',
    'client',
    'name',
    'uid',
    'size',
    'data_sha256',
    'facts',
    'versions',
    'hardware',
  }


def test_the_id_of_a_folder_stays(federation):
  uids = {ask(federation.client(1), 'describe').header['uid'] for _ in '12'}
  assert len(uids) == 1
  path = federation.folder / 'client_1' / 'id'
  for content in (b'', b'x', b'\xff\xfe'):
    path.write_bytes(content)
    uids.add(ask(federation.client(1), 'describe').header['uid'])
  assert len(uids) == 4
  assert all(str(uuid.UUID(uid)) == uid for uid in uids)


def test_rounds(client, federation, job):
  assert prepare(client, job)['status'] == 'prepared'
  replies = []
  for t in (1, 2, 2):
    header, arrays = ask(client, 'train', job=job.key, t=t)
    assert header == {
      'status': 'trained',
      'client': 1,
      'job': job.key,
      't': t,
      'last_t': min(len(replies), 2),
      'lost': None,
    }
    replies.append({name: a.tobytes() for name, a in arrays.items()})
  assert replies[1] == replies[2] != replies[0]
  header, arrays = ask(client, 'train', job=job.key, t=1)
  assert header == {'status': 'ahead', 't': 2} and not arrays


def test_another_run_has_a_file_of_its_own(client, federation, job):
  other = dataclasses.replace(job, run=str(uuid.uuid4()))
  for run in (job, other, job):
    assert prepare(client, run)['status'] == 'prepared'
  ask(client, 'train', job=job.key, t=5)
  assert ask(client, 'train', job=other.key, t=1).header == {
    'status': 'unprepared'
  }
  prepare(client, other)
  assert ask(client, 'train', job=other.key, t=1).header['last_t'] == 0
  prepare(client, job)
  assert ask(client, 'train', job=job.key, t=6).header['last_t'] == 5
  folders = {p.name for p in (federation.folder / 'client_1').glob('run_*')}
  assert folders == {f'run_{job.run}', f'run_{other.run}'}


def test_equal_jobs_are_prepared_once(federation, job):
  built = []

  def build(*args):
    built.append(args)
    return federation.trainer(*args)

  client = federation.client(1, build=build)
  for _ in range(3):
    prepare(client, job)
  assert len(built) == 1
  prepare(client, dataclasses.replace(job, seed=1))
  assert len(built) == 2


@pytest.mark.parametrize(
  'request_, reason',
  [
    (b'', 'a damaged request: does not start as a message'),
    (b'SAFLMSG1\xff\xff\xff\xff', 'a damaged request: cannot be parsed'),
    (messages.encode({}), 'the request None is of another version'),
    (messages.encode({'kind': 'x'}), "the request 'x' is of another version"),
    (messages.encode({'kind': ['train']}), 'is of another version'),
    (messages.encode({'kind': 'prepare'}), "KeyError: 'job'"),
    (messages.encode({'kind': 'prepare', 'job': {}}), 'TypeError: '),
    (messages.encode({'kind': 'prepare', 'job': None}), 'TypeError: '),
    (messages.encode({'kind': 'train'}), "KeyError: 't'"),
    (messages.encode({'kind': 'train', 't': 'x', 'job': 1}), 'ValueError: '),
  ],
)
def test_bad_requests(client, request_, reason):
  header, arrays = messages.decode(client.handle(request_))
  assert header['status'] == 'failed' and not arrays
  assert reason in header['reason'] and '\n' not in header['reason']


def test_bad_rounds(client, federation, job):
  """Nothing is kept of them."""
  prepare(client, job)
  before = snapshot(federation.folder)
  for arrays in (
    {'z': np.zeros(62, np.float32)},
    {'z': np.zeros(63, np.float64)},
    {'z': np.zeros([63, 1], np.float32)},
  ):
    header, _ = ask(client, 'train', arrays, job=job.key, t=1)
    assert (
      header['status'] == 'failed' and 'a model of float' in header['reason']
    )
  assert ask(client, 'train', job='x', t=1).header == {'status': 'unprepared'}
  assert snapshot(federation.folder) == before


@pytest.mark.parametrize('run', ['../../out', '', 'x', '/tmp/out', 3])
def test_runs_that_are_no_ids(client, federation, job, run):
  header = prepare(client, dataclasses.replace(job, run=run))
  assert header['status'] == 'failed'
  assert [p.name for p in federation.folder.iterdir()] == ['client_1']
  assert [p.name for p in (federation.folder / 'client_1').iterdir()] == ['id']


def test_a_model_that_was_sent(federation, job):
  given = []

  def build(job, clients, file, model):
    given.append(model.read_bytes())
    return federation.trainer(job, clients, file, model)

  client, content = federation.client(1, build=build), b'a model'
  digest = hashlib.sha256(content).hexdigest()
  job = dataclasses.replace(job, model_sha256=digest)
  header = prepare(client, job, {'model': np.frombuffer(content, np.uint8)})
  assert header['status'] == 'prepared'
  assert given == [content]
  other = federation.client(2, build=build)
  header = prepare(other, job, {'model': np.frombuffer(b'x', np.uint8)})
  assert header['status'] == 'refused'
  assert 'model=sent: does not match its SHA-256' in header['reason']
  assert prepare(other, job)['status'] == 'failed'
  assert given == [content]


def test_another_architecture(federation, job):
  client = federation.client(1)
  job = dataclasses.replace(job, model_digest='64 parameters, 00')
  header = prepare(client, job)
  assert header['status'] == 'refused'
  assert 'is not the model of the server, 64 param' in header['reason']
  assert ask(client, 'train', job=job.key, t=1).header == {
    'status': 'unprepared'
  }


def test_a_full_disk(client, federation, job, monkeypatch):
  prepare(client, job)
  first = ask(client, 'train', job=job.key, t=1)
  before = snapshot(federation.folder)

  def fail(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr('os.fsync', fail)
  header, arrays = ask(client, 'train', job=job.key, t=2)
  assert header['status'] == 'failed' and 'No space left' in header['reason']
  assert not arrays
  monkeypatch.undo()
  assert snapshot(federation.folder) == before
  again = ask(client, 'train', job=job.key, t=2)
  assert again.header['last_t'] == first.header['t']


@pytest.mark.parametrize(
  'kind, error',
  [
    ('refuse', client_lib.RefusedError),
    ('finish', client_lib.FinishedError),
  ],
)
def test_the_end(client, kind, error):
  with pytest.raises(error, match='why'):
    ask(client, kind, reason='why', run='why')


def test_what_a_client_knows_of_the_others(federation):
  file = client_file.of_client(CLIENTS, federation.facts, 1)
  view = client_lib.own_view(file, 1, 5, 12)
  assert view.num_clients == 5
  assert view.sizes[1] == 9 and view.sizes.max() == 12
  assert (view.x == file.examples.x).all()
  assert view.indices(1).tolist() == list(range(9))
  for n, k in ((1, 0), (2, 0), (2, 1)):
    assert client_lib.own_view(file, k, n, 9).sizes[k] == 9


def test_the_key_of_a_job_has_all_fields(job):
  changes = {
    'run': 'x',
    'seed': 1,
    'num_clients': 4,
    'largest': 13,
    'init': 'shared',
    'settings': {'a': 1},
    'model_sha256': 'x',
    'model_digest': 'x',
  }
  assert set(changes) == {f.name for f in dataclasses.fields(job)}
  keys = {dataclasses.replace(job, **{k: v}).key for k, v in changes.items()}
  assert len(keys | {job.key}) == len(changes) + 1
