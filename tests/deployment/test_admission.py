"""Who takes part: clients that are accepted, replaced and refused by name."""

import dataclasses
import functools
import math

import pytest

from safl_tf.data import client_file
from safl_tf.deployment import admission, messages
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import server as server_lib
from safl_tf.util import errors
from tests import tiny, tiny_rounds
from tests.deployment import loopback

pytestmark = pytest.mark.usefixtures('hurried')

CLIENTS = tiny.clients((12, 9, 5))
BRIEF = server_lib.Options(poll=0, max_wait=0.03)


@pytest.fixture
def federation(tmp_path):
  """Clients 0 and 2 of three."""
  return loopback.CompiledOnce(tmp_path, CLIENTS, options=BRIEF, joined=(0, 2))


def enrol(federation, **options):
  """Enrols clients; those that are missing in the end."""
  server = federation.start()
  try:
    federation.record = server.enrol(**options)
  except errors.RunError:
    return server._members.absent
  return []


def check_refused(federation, node, reason):
  """Whether a node was sent away, for a reason."""
  error = federation.grid.ended[node]
  assert isinstance(error, client_lib.RefusedError)
  assert reason in str(error)


def said(federation, node, **header):
  """Changes what a client says of itself."""

  def change(other, data):
    found, arrays = messages.decode(data)
    return messages.encode({**found, **header}, arrays)

  federation.grid.change = lambda other, data: (
    change(other, data) if other == node else data
  )


def test_all_join(federation):
  assert enrol(federation) == [1]
  federation.join(1)
  assert enrol(federation) == []
  names = [client.name for client in federation.record.clients]
  assert names == CLIENTS.client_ids
  sizes = [client.size for client in federation.record.clients]
  assert sizes == CLIENTS.sizes.tolist()


@pytest.mark.parametrize(
  'header, reason',
  [
    (
      {'protocol': 2},
      'client 1: speaks protocol 2, the server 1',
    ),
    ({'versions': {}}, 'client 1: has safl_tf None, the server '),
    ({'client': 3}, 'client 3: this run has clients 0 to 2 (--num_clients)'),
    ({'client': -1}, 'client -1: this run has clients 0 to 2 (--num_clients)'),
    ({'client': 10**30}, 'this run has clients 0 to 2 (--num_clients)'),
    ({'client': None}, 'a client: its description is damaged (client=NoneTy'),
    ({'size': math.inf}, 'a client: its description is damaged ('),
    ({'uid': [1]}, 'a client: its description is damaged ('),
    ({'facts': [1]}, 'a client: its description is damaged ('),
    ({'hardware': 'a\nb'}, 'a client: its description is damaged ('),
  ],
)
def test_descriptions(federation, header, reason):
  node = federation.join(1)
  said(federation, node, **header)
  assert enrol(federation) == [1]
  check_refused(federation, node, reason)


@pytest.mark.parametrize('name', admission.PACKAGES)
def test_versions(federation, monkeypatch, name):
  node = federation.join(1)
  found = admission.versions.find()
  said(federation, node, versions={**found, name: '0.1'})
  assert enrol(federation) == [1]
  reason = f'client 1: has {name} 0.1, the server {found[name]}; install the sa'
  check_refused(federation, node, reason)


@pytest.mark.parametrize(
  'data',
  [b'', b'SAFLMSG1', messages.encode({'status': 'done'}), messages.encode({})],
)
def test_no_description(federation, caplog, data):
  node, bad = federation.join(1), [data] * 2

  def change(other, good):
    return bad.pop() if bad and other == node else good

  federation.grid.change = change
  assert enrol(federation) == []
  assert not bad
  assert 'a client: could not describe itself: ' in caplog.text


def other_file(k, classes=3, change=lambda x: x):
  """The data of client k with other inputs or classes."""
  x, y = tiny.blobs(26, seed=1)
  clients = tiny.clients((12, 9, 5), change(x), y)
  facts = client_file.Facts.of('tiny', 'classification', clients, classes, {})
  return client_file.of_client(clients, facts, k)


@pytest.mark.parametrize(
  'file, reason',
  [
    (other_file(1, 4), 'its data have num_classes 4, those of the others 3'),
    (
      other_file(1, change=lambda x: x[:, :6]),
      "its data have inputs {'dtype': 'float32', 'shape': [6]}, those of the "
      "others {'dtype': 'float32', 'shape': [8]}",
    ),
    (
      other_file(1, change=lambda x: x.astype('float64')),
      "its data have inputs {'dtype': 'float64', 'shape': [8]}, those of the ",
    ),
  ],
)
@pytest.mark.parametrize('is_known', [False, True])
def test_data_of_another_kind(federation, file, reason, is_known):
  """The others agree, or the server's own data say what is right."""
  node = federation.join(1, file=file)
  options = {'facts': federation.facts} if is_known else {}
  assert enrol(federation, **options) == [1]
  check_refused(federation, node, f'client 1: {reason}')
  federation.join(1)
  assert enrol(federation, **options) == []


def test_data_of_another_kind_than_the_server(federation):
  federation.join(1)
  facts = dataclasses.replace(federation.facts, num_classes=4)
  assert enrol(federation, facts=facts) == [0, 1, 2]
  for node in federation.nodes.values():
    check_refused(federation, node, 'num_classes 3, those of the others 4')


def test_other_data_than_when_the_run_began(federation):
  federation.join(1)
  process = federation.process()
  file = other_file(1)
  node = federation.restart(1, file=file)
  check_goes_on_without(federation, process)
  digests = [client_file.digest(f)[:8] for f in (own_file(federation), file)]
  check_refused(
    federation,
    node,
    f'client 1: has other data (9 examples, {digests[1]}) than when the run '
    f'began (9, {digests[0]})',
  )


def check_goes_on_without(federation, process):
  """Client 1 is waited for, and nothing is amiss when the right one comes."""
  with pytest.raises(errors.RunError, match='round 1: no result from client'):
    process.next(process.initialize(0))
  federation.join(1)
  check_round(federation, process)


def check_round(federation, process):
  """Compares a round with that of the simulation."""
  federation.server._options = loopback.QUICK
  state, _ = process.next(process.initialize(0))
  states, _ = tiny_rounds.run(federation.simulation(), 1)
  federation.check_same(states[-1], state)


def own_file(federation):
  return client_file.of_client(CLIENTS, federation.facts, 1)


def test_a_number_twice(federation):
  federation.join(1)
  process = federation.process()
  node = federation.join(1, folder='another')
  check_round(federation, process)
  reason = 'client 1: another one with this number is connected'
  check_refused(federation, node, reason)


def test_a_client_that_is_connected_again(federation):
  """Its old node is still listed, as after the loss of a connection."""
  federation.join(1)
  process = federation.process()
  old = federation.nodes[1]
  new = federation.join(1)
  assert {old, new} < set(federation.grid.apps)
  check_round(federation, process)
  check_refused(federation, old, 'client 1: it has connected again')
  assert 'train' in federation.grid.requests[new]


def test_two_clients_of_one_name(federation):
  file = own_file(federation)._replace(client_id=CLIENTS.client_ids[2])
  federation.join(1, file=file)
  with pytest.raises(
    errors.RunError, match='clients 1, 2 have the same name, 2'
  ):
    federation.start().enrol()


def test_another_number_of_clients(federation):
  federation.join(1)
  assert enrol(federation) == []
  server = server_lib.Server(federation.transport, 4)
  with pytest.raises(errors.InputError, match='num_clients=4: must be 3, as'):
    server.enrol(federation.record)


@pytest.mark.parametrize(
  'owner, reason',
  [(0, 'client 1: its key is that of client 0'), (-1, 'that of client -1')],
)
def test_a_key_of_another_client(federation, monkeypatch, owner, reason):
  node = federation.join(1)
  owners = {v: k for k, v in federation.nodes.items()} | {node: owner}
  monkeypatch.setattr(federation.transport, '_clients', owners)
  assert enrol(federation) == [1]
  check_refused(federation, node, reason)
  monkeypatch.setitem(owners, federation.join(1), 1)
  assert enrol(federation) == []


def test_another_model(federation):
  build = functools.partial(federation.trainer, architecture=tiny.functional)
  node = federation.join(1, build=build)
  process = federation.process()
  check_goes_on_without(federation, process)
  check_refused(federation, node, 'client 1: model=171 parameters, ')
  reason = ': is not the model of the server, 63 parameters, '
  check_refused(federation, node, reason)


def test_a_setting_that_is_not_possible_here(federation):
  def build(*args):
    raise errors.InputError('device', 'gpu', 'is not on this machine')

  node = federation.join(1, build=build)
  process = federation.process()
  check_goes_on_without(federation, process)
  reason = 'client 1: device=gpu: is not on this machine'
  check_refused(federation, node, reason)
