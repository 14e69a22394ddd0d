"""What the server asks its clients, and when it asks again."""

import types

import pytest

from safl_tf.data import client_file
from safl_tf.deployment import admission, members, messages, transport
from tests import tiny

CLIENTS = tiny.clients((5, 3))
FACTS = client_file.Facts.of('tiny', 'classification', CLIENTS, 3, {})
DESCRIPTION = {
  'status': 'described',
  'client': 0,
  'name': 'a',
  'uid': '12345678-1234-1234-1234-1234567890ab',
  'size': 5,
  'data_sha256': 'ab' * 32,
  'facts': FACTS.to_json(),
  'protocol': messages.PROTOCOL,
  'versions': admission.versions.find(),
  'hardware': {},
}
PING_AFTER, GRACE, RETRY = 15, members._PING_GRACE, members._RETRY


class Transport:
  """Keeps requests until the test answers them.

  Attributes:
    online: the addresses.
    pending: token -> (address, kind) of requests without a reply.
  """

  bytes_up = bytes_down = 0

  def __init__(self):
    self.online = [100]
    self.pending = {}
    self._replies = {}
    self._number = 0

  def addresses(self):
    return self.online

  def client_of(self, address):
    return None

  def send(self, address, data):
    self._number += 1
    token = f't{self._number}'
    self.pending[token] = address, messages.decode(data).header['kind']
    return token

  def receive(self, tokens):
    return [self._replies.pop(t) for t in tokens if t in self._replies]

  def kinds(self):
    return [kind for _, kind in self.pending.values()]

  def answer(self, kind, **header):
    """Answers the oldest request of a kind; returns its token."""
    token = next(t for t, (_, k) in self.pending.items() if k == kind)
    del self.pending[token]
    data = messages.encode(header) if header else None
    self._replies[token] = transport.Reply(token, data, 'an error')
    return token


class World:
  """One client's place among the members, and the clock."""

  def __init__(self, monkeypatch):
    self.now = 0.0
    clock = types.SimpleNamespace(
      monotonic=lambda: self.now, sleep=lambda seconds: None
    )
    monkeypatch.setattr(members, 'time', clock)
    self.transport = Transport()
    self.members = members.Members(self.transport, 1, 0, PING_AFTER)
    self.members._preparation = messages.encode({'kind': 'prepare'})
    self.accepted = []

  def step(self, seconds=0.0):
    self.now += seconds
    self.members.step(
      [0],
      lambda k: messages.encode({'kind': 'train'}),
      lambda k, message: self.accepted.append(message.header),
    )
    return self.transport.kinds()

  def join(self):
    assert self.step() == ['describe']
    self.transport.answer('describe', **DESCRIPTION)
    self.step()
    assert self.step() == ['prepare']
    self.transport.answer('prepare', status='prepared', arithmetic={})
    self.step()
    assert self.step() == ['train']


@pytest.fixture
def world(monkeypatch):
  return World(monkeypatch)


def test_a_round(world):
  world.join()
  world.transport.answer('train', status='trained')
  assert world.step(PING_AFTER) == []
  assert world.accepted == [{'status': 'trained'}]


def test_a_long_round(world):
  """One ping is on its way, however long the client takes."""
  world.join()
  assert world.step(PING_AFTER) == ['train']
  assert world.step(0.1) == ['train', 'describe']
  for _ in range(10):
    assert world.step(1000) == ['train', 'describe']
  world.transport.answer('train', status='trained')
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  assert len(world.accepted) == 1


def test_a_lost_request(world):
  world.join()
  world.step(PING_AFTER + 1)
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  assert world.step(GRACE) == ['train']
  world.step(0.1)
  assert world.step() == ['train', 'train']
  # The reply to the first one is not read any more.
  world.transport.answer('train', status='trained')
  world.step()
  assert not world.accepted
  world.transport.answer('train', status='trained')
  world.step()
  assert len(world.accepted) == 1


def test_a_reply_that_comes_after_that_to_a_ping(world):
  world.join()
  world.step(PING_AFTER + 1)
  world.transport.answer('describe', **DESCRIPTION)
  world.step(GRACE)
  world.transport.answer('train', status='trained')
  world.step(GRACE)
  assert len(world.accepted) == 1
  assert world.transport.kinds() == []


def test_a_ping_fails(world):
  """As with a client that has ended: the next one is sent after a while."""
  world.join()
  world.step(PING_AFTER + 1)
  for _ in range(3):
    world.transport.answer('describe')
    assert world.step() == ['train']
    assert world.step(PING_AFTER) == ['train']
    assert world.step(1) == ['train', 'describe']


def test_a_lost_ping(world):
  world.join()
  world.step(PING_AFTER + 1)
  world.members.forget_pings()
  assert world.step(1) == ['train', 'describe']
  assert world.step(PING_AFTER) == ['train', 'describe', 'describe']


def test_a_lost_description(world):
  assert world.step() == ['describe']
  assert world.step(PING_AFTER) == ['describe']
  assert world.step(1) == ['describe'] * 2
  world.transport.answer('describe', **DESCRIPTION)  # the first is not read
  world.step()
  assert world.members.absent == [0]
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  assert world.members.absent == []


def test_a_description_fails(world):
  for _ in range(3):
    assert world.step(members._LOOK) == ['describe']
    world.transport.answer('describe')
    assert world.step() == []


def test_a_failure_is_tried_again_after_a_while(world):
  world.join()
  for header in ({}, {'status': 'failed', 'reason': 'a full disk'}):
    world.transport.answer('train', **header)
    assert world.step() == []
    assert world.step(RETRY - 0.1) == []
    assert world.step(0.2) == ['train']


def test_a_trainer_that_has_started_again(world):
  world.join()
  world.transport.answer('train', status='unprepared')
  world.step()
  assert world.step() == ['prepare']


@pytest.mark.parametrize('status', ['trained', 'unprepared', 'ahead', 'x'])
def test_replies_to_another_request(world, status):
  world.step()
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  world.step()
  world.transport.answer('prepare', status=status)
  assert world.step() == []
  assert world.step(RETRY) == ['prepare']
  assert not world.accepted


def test_forgotten_training(world):
  world.join()
  world.members.forget_training()
  world.transport.answer('train', status='trained')
  assert world.step() == ['train']
  assert not world.accepted


def test_preparing_is_not_forgotten(world):
  world.step()
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  world.step()
  world.members.forget_training()
  assert world.step() == ['prepare']


def test_a_client_that_is_gone(world):
  world.join()
  world.transport.online = []
  assert world.step(members._LOOK) == ['train']
  world.transport.answer('train', status='trained')
  world.step()
  assert not world.accepted
  world.transport.online = [200]
  assert world.step(members._LOOK) == ['describe']
  world.transport.answer('describe', **DESCRIPTION)
  world.step()
  assert world.step() == ['prepare']


def test_nothing_is_asked_of_clients_without_work(world):
  world.join()
  world.transport.answer('train', status='trained')
  world.step()
  world.transport.pending.clear()
  world.now += 1000
  world.members.step()
  assert world.transport.kinds() == []


def test_the_lines_of_clients_are_escaped(world, caplog):
  caplog.set_level('INFO', logger='absl')
  world.step()
  text = 'a\x1b[2J\nERROR all is lost' + 'x' * 5000
  world.transport.answer(
    'describe', **{**DESCRIPTION, 'versions': {'keras': text}}
  )
  world.step()
  world.transport.online = [200]
  world.step(members._LOOK)
  world.transport.answer(
    'describe', **{**DESCRIPTION, 'hardware': {'cpu': text}, 'name': text}
  )
  world.step()
  world.step()
  world.transport.answer('prepare', status='failed', reason=text)
  world.step()
  ours = [r.getMessage() for r in caplog.records if r.name == 'absl']
  assert len(ours) == 4
  assert all(line.isprintable() and len(line) < 1100 for line in ours)


def test_replies_of_others(world):
  """With tokens that nobody waits for."""
  world.join()
  reply = transport.Reply('another', messages.encode({'status': 'x'}))
  world.members._read(reply, None)
  assert world.step() == ['train']


def test_a_refused_client(world):
  world.join()
  world.members.reject(0, 'it is too old')
  assert world.members.absent == [0]
  assert world.transport.kinds() == ['train', 'refuse']
  assert world.step(members._LOOK) == ['train', 'refuse']
