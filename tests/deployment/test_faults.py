"""Lost messages, restarts and bad replies change no bit, or only what is said.

Each test does to client 1 of three what its name says, in round 2.
"""

import dataclasses
import functools
import logging
import math

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import messages, transport
from safl_tf.deployment.flower import grid_transport
from safl_tf.rules import gate
from safl_tf.util import errors
from tests import tiny, tiny_rounds
from tests.deployment import loopback

pytestmark = pytest.mark.usefixtures('hurried')

CLIENTS = tiny.clients((12, 9, 5))
SAFL = tiny_rounds.SAFL
WAIT = dataclasses.replace(loopback.QUICK, ping_after=0.02)
IMPATIENT = dataclasses.replace(WAIT, max_wait=0.03)
BRIEF = dataclasses.replace(WAIT, round_timeout=0.03)
DROP = dataclasses.replace(BRIEF, missing='drop')


def leave_out(algorithm, missing):
  """The algorithm without some clients: pairs (t, client)."""

  def select(seed, t, n):
    ids = algorithm.select(seed, t, n).tolist()
    return np.array([k for k in ids if (t, k) not in missing])

  return dataclasses.replace(algorithm, select=select)


@functools.cache
def simulated(missing=()):
  """The states of three rounds of the simulation, without some clients."""
  process = tiny_rounds.make(leave_out(SAFL, missing), clients=CLIENTS)
  return tiny_rounds.run(process, 3)[0]


class Run:
  """A run of a federation.

  Attributes:
    state: the newest.
    metrics: of all rounds.
  """

  def __init__(self, folder, rounds=1, prepare=None, **changes):
    self.federation = loopback.CompiledOnce(
      folder, CLIENTS, options=WAIT, **changes
    )
    if prepare is not None:
      prepare(self.federation)
    self.grid = self.federation.grid
    self.process = self.federation.process()
    self.states = [self.process.initialize(0)]
    self.metrics = []
    self.next(rounds)

  @property
  def state(self):
    return self.states[-1]

  def next(self, rounds=1, options=WAIT):
    """Runs rounds; those in which clients compile need time."""
    self.federation.server._options = options
    for _ in range(rounds):
      state, metrics = self.process.next(self.state)
      self.states.append(state)
      self.metrics.append(metrics)

  def start_server(self, rounds_behind=0):
    """Starts the server again, from an earlier state."""
    self.process = self.federation.process(self.federation.record)
    if rounds_behind:
      del self.states[-rounds_behind:]

  def check(self, missing=()):
    self.federation.check_same(simulated(missing)[self.state.t], self.state)

  def finish(self, options=WAIT):
    self.next(3 - self.state.t, options)
    self.check()

  def trained(self, k):
    """How often client k was asked to train."""
    return self.grid.requests[self.federation.nodes[k]].count('train')


def once(node, kind, then=lambda: None):
  """Whether a message is the first of a kind to or from a node."""
  seen = []

  def is_first(other, message):
    found = loopback.header(message)
    if other != node or kind not in (found.get('kind'), found.get('status')):
      return False
    seen.append(found)
    if len(seen) == 1:
      then()
    return len(seen) == 1

  return is_first


def warned(caplog):
  """What we have warned of, whatever level other tests have left."""
  return [
    record.getMessage()
    for record in caplog.records
    if record.name == 'absl' and record.levelno >= logging.WARNING
  ]


# -- Lost messages.


@pytest.mark.parametrize('kind', ['described', 'prepared', 'trained'])
def test_a_reply_is_lost(tmp_path, kind):
  def prepare(federation):
    federation.grid.drop = once(federation.nodes[1], kind)

  run = Run(tmp_path, prepare=prepare)
  run.finish()
  assert run.trained(1) == 3 + (kind == 'trained')


@pytest.mark.parametrize('kind', ['prepare', 'train'])
def test_a_request_is_lost(tmp_path, kind):
  def prepare(federation):
    federation.grid.lose = once(federation.nodes[1], kind)

  Run(tmp_path, prepare=prepare).finish()


def test_a_reply_and_the_ping_are_lost(tmp_path):
  run = Run(tmp_path)
  node, lost = run.federation.nodes[1], []

  def drop(other, reply):
    status = loopback.header(reply).get('status')
    if other != node or status in lost:
      return False
    lost.append(status)
    return True

  run.grid.drop = drop
  run.finish(BRIEF)
  assert lost == ['trained', 'described']


def test_a_client_takes_longer_than_a_round(tmp_path):
  """It is waited for, and trains once."""
  run = Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = 0.1
  run.finish(BRIEF)
  assert run.trained(1) == 3


def test_a_reply_comes_twice(tmp_path):
  """After a ping that came first, the server asked again."""
  run = Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = 0.02
  run.finish()


# -- Clients that end.


def test_a_client_starts_again_before_it_has_trained(tmp_path):
  run = Run(tmp_path)
  restart = functools.partial(run.federation.restart, 1)
  run.grid.lose = once(run.federation.nodes[1], 'train', restart)
  run.finish()


def test_a_client_starts_again_after_it_has_trained(tmp_path):
  run = Run(tmp_path)
  restart = functools.partial(run.federation.restart, 1)
  run.grid.drop = once(run.federation.nodes[1], 'trained', restart)
  run.finish()
  assert run.trained(1) == 2  # rounds 2, again, and 3


def test_a_client_starts_again_as_the_same_node(tmp_path):
  """Its key gives the node its id; the server does not see the end."""
  run = Run(tmp_path)
  node = run.federation.nodes[1]
  run.federation.join(1, node)
  run.finish()
  kinds = ['train', 'prepare', 'train', 'train']
  assert run.grid.requests[node][-4:] == kinds


def test_a_client_has_lost_what_it_kept(tmp_path, caplog):
  run = Run(tmp_path)
  run.federation.restart(1, folder='another')
  run.next()
  assert 'client 1: has lost what it kept in round 1; it st' in caplog.text
  z = run.federation.kept_by(1, 'another').before['z']
  assert z.tobytes() == run.state.client_models[1].tobytes()
  caplog.clear()
  run.next()
  assert warned(caplog) == []


# -- Servers that end.


@pytest.mark.parametrize('rounds_behind', [0, 1])
def test_the_server_starts_again(tmp_path, rounds_behind):
  run = Run(tmp_path, rounds=2)
  run.start_server(rounds_behind)
  run.finish()
  assert run.trained(1) == 3 + rounds_behind


def test_the_server_and_a_client_start_again(tmp_path):
  run = Run(tmp_path, rounds=2)
  run.federation.restart(1)
  run.start_server(rounds_behind=1)
  run.finish()


def test_the_server_ends_before_all_have_answered(tmp_path):
  """Client 1 has not done round 2 when the server starts again."""
  run = Run(tmp_path)
  run.federation.kill(1)
  with pytest.raises(errors.RunError, match='no result from client 1 for 0'):
    run.next(options=IMPATIENT)
  run.federation.join(1)
  run.start_server()
  run.finish()


def test_the_server_has_lost_two_rounds(tmp_path):
  run = Run(tmp_path, rounds=3)
  run.start_server(rounds_behind=2)
  message = r'client \d has done round 3 of this run already: .* put back its'
  with pytest.raises(errors.RunError, match=message):
    run.next()


def test_nobody_answers(tmp_path):
  run = Run(tmp_path)
  for k in range(3):
    run.federation.kill(k)
  message = 'no result from clients 0, 1, 2 for .* same command resumes'
  with pytest.raises(errors.RunError, match=message):
    run.next(options=IMPATIENT)


def test_nobody_joins(tmp_path):
  federation = loopback.Federation(
    tmp_path, CLIENTS, options=IMPATIENT, joined=(1,)
  )
  with pytest.raises(errors.RunError, match='was heard of clients 0, 2 for'):
    federation.process()


class Losing(grid_transport.GridTransport):
  """Loses its addresses and messages at calls that are drawn."""

  def __init__(self, grid, seed):
    super().__init__(grid)
    self.probability = 0.05
    self._random = np.random.default_rng(seed)
    self.lost = []

  def _call(self, name):
    if self._random.uniform() < self.probability:
      self.grid.forget(self._random.uniform() < 0.5)
      self.lost.append(name)
      raise transport.LostError('the SuperLink was lost')

  def addresses(self):
    self._call('addresses')
    return super().addresses()

  def send(self, address, data):
    self._call('send')
    return super().send(address, data)

  def receive(self, tokens):
    replies = super().receive(tokens)
    self._call('receive')
    return replies


def test_the_transport_starts_again(tmp_path):
  lost = set()
  for seed in range(6):

    def prepare(federation, seed=seed):
      federation.transport = Losing(federation.grid, seed)

    run = Run(tmp_path / str(seed), prepare=prepare)
    run.finish()
    lost.update(run.federation.transport.lost)
  assert lost == {'addresses', 'send', 'receive'}
  run.federation.transport.probability = 1
  run.federation.server.finish()


def test_nodes_are_the_same_when_the_transport_has_started_again(tmp_path):
  """As those with keys are: they are asked again who they are."""

  def prepare(federation):
    federation.transport = Losing(federation.grid, seed=0)
    federation.transport.probability = 0

  run = Run(tmp_path, prepare=prepare)
  losing = run.federation.transport
  forget = losing.grid.forget

  def once(moves):
    losing.probability = 0
    forget(moves=False)

  losing.grid.forget = once
  losing.probability = 1
  run.finish()
  assert losing.lost == ['addresses']


# -- Rounds without a client.


def test_a_round_without_a_client(tmp_path):
  run = Run(tmp_path)
  run.federation.kill(1)
  run.next(options=DROP)
  assert run.metrics[-1].missing.tolist() == [1]
  assert run.metrics[-1].ids.tolist() == [0, 2]
  run.check(missing=((2, 1),))
  run.federation.join(1)
  run.next()
  assert run.metrics[-1].missing.tolist() == []
  assert run.federation.kept_by(1).t == 3
  run.check(missing=((2, 1),))  # it has trained from its z_k of round 1


def test_a_late_reply_is_ignored(tmp_path):
  run = Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = math.inf
  run.next(options=DROP)
  assert run.metrics[-1].missing.tolist() == [1]
  one, other = simulated(((2, 1),))[2], run.state
  assert one.z_bar.tobytes() == other.z_bar.tobytes()
  late = run.federation.kept_by(1)
  assert late.t == 2
  assert late.after['z'].tobytes() == simulated()[2].client_models[1].tobytes()
  run.grid.release()
  run.next()
  assert run.metrics[-1].missing.tolist() == []
  assert [h['t'] for h in run.grid.unread if h['status'] == 'trained'] == [2]
  before = run.federation.kept_by(1).before
  assert before['z'].tobytes() == late.after['z'].tobytes()


@pytest.mark.parametrize('t', [1, 2])
def test_a_round_without_clients(tmp_path, t):
  run = Run(tmp_path, rounds=t - 1)
  for k in range(3):
    run.federation.kill(k)
  before = run.state
  run.next(options=DROP)
  metrics = run.metrics[-1]
  assert metrics.missing.tolist() == [0, 1, 2]
  assert metrics.ids.tolist() == metrics.dropped.tolist() == []
  assert run.state.z_bar is before.z_bar
  if t == 1:
    with pytest.raises(errors.RunError, match='there is no global model'):
      run.process.get_model(run.state)
  for k in range(3):
    run.federation.join(k)
  run.next()
  assert run.metrics[-1].missing.tolist() == []
  assert np.isfinite(run.state.z_bar).all()
  expected, _ = tiny_rounds.make(clients=CLIENTS).next(
    simulated()[t - 1]._replace(t=t)
  )
  run.federation.check_same(expected, run.state)


def test_everybody_withholds(tmp_path):
  def decide(seed, t, metrics):
    del seed, t, metrics
    return algorithm_lib.Decision(
      tf.constant(False), tf.constant(0.0), tf.constant(-1.0)
    )

  algorithm = dataclasses.replace(
    registry.build('extended_safl'), gate=algorithm_lib.Gate(decide)
  )
  run = Run(tmp_path, algorithm=algorithm)
  assert run.metrics[-1].sent.all()  # there was no global model
  first = len(run.grid.sent['up'])
  run.next()
  assert run.metrics[-1].sent.tolist() == [False] * 3
  assert run.metrics[-1].bytes_up == 0
  assert run.state.z_bar.tobytes() == run.states[-2].z_bar.tobytes()
  for reply in run.grid.sent['up'][first:]:
    data = reply.content.array_records['safl_tf']['safl_tf'].numpy().tobytes()
    names = messages.decode(data).arrays
    assert names and not any(name.startswith('upload/') for name in names)
  simulation = run.federation.simulation()
  run.federation.check_same(tiny_rounds.run(simulation, 2)[0][-1], run.state)


# -- Updates that are not finite.


def test_a_client_diverges(tmp_path):
  def prepare(federation):
    config = dataclasses.replace(federation.config, learning_rate=1e38)
    build = functools.partial(federation.trainer, config=config)
    federation.restart(1, build=build)

  run = Run(tmp_path, prepare=prepare)
  run.next(2)
  assert [m.dropped.tolist() for m in run.metrics] == [[1], [1], [1]]
  assert [m.missing.tolist() for m in run.metrics] == [[], [], []]
  initial = run.states[0].client_models[1]
  assert run.federation.kept_by(1).after['z'].tobytes() == initial.tobytes()
  run.check(missing=tuple((t, 1) for t in (1, 2, 3)))
  # Its arrays did not travel.
  for header, arrays in _trained(run, 1):
    assert header['status'] == 'trained'
    assert not any(name.startswith('upload/') for name in arrays)


def _trained(run, k):
  """The replies with a client's rounds."""
  for reply in run.grid.sent['up']:
    found = loopback.header(reply)
    if found.get('status') == 'trained' and found['client'] == k:
      record = reply.content.array_records['safl_tf']
      yield messages.decode(record['safl_tf'].numpy().tobytes())


def test_an_update_is_not_finite_but_says_so(tmp_path):
  run = Run(tmp_path)
  node = run.federation.nodes[1]

  def change(other, data):
    header, arrays = messages.decode(data)
    if other != node or header['status'] != 'trained':
      return data
    assert arrays['finite']
    z = arrays['upload/z'].copy()
    z[7] = np.nan
    return messages.encode(header, {**arrays, 'upload/z': z})

  run.grid.change = change
  run.next()
  assert run.metrics[-1].dropped.tolist() == [1]
  expected = simulated(((2, 1),))[2].z_bar
  assert run.state.z_bar.tobytes() == expected.tobytes()


# -- Replies that are none.


def edit(header=None, arrays=None, drop=()):
  """Changes a reply; values of None are left out."""

  def change(data):
    old, found = messages.decode(data)
    new = {**old, **(header or {})}
    found = {**found, **(arrays or {})}
    for name in drop:
      new.pop(name, None)
      found.pop(name, None)
    return messages.encode(new, found)

  return change


BAD_REPLIES = [
  lambda data: b'',
  lambda data: bytes(range(256)),
  lambda data: data[:-1],
  lambda data: data + b'\0',
  edit({'status': 'done'}),
  edit({'status': None}),
  edit({'status': ['trained']}),
  edit({'status': 'prepared', 'arithmetic': {}}),
  edit({'status': 'described'}),
  edit({'status': 'failed', 'reason': 'a\nb' * 1000}),
  edit({'status': 'failed', 'reason': {'a': 1}}),
  edit({'client': 0}),
  edit({'client': '1'}),
  edit({'t': 1}),
  edit({'t': math.inf}),
  edit({'job': 'x'}),
  edit(drop=['job']),
  edit(drop=['last_t']),
  edit({'last_t': math.inf}),
  edit({'last_t': [1]}),
  edit(drop=['finite']),
  edit(drop=['train_loss']),
  edit(arrays={'q': np.zeros(3)}),
  edit(arrays={'sent': np.array(1, 'int64')}),
  edit(drop=['metrics/accuracy']),
  edit(arrays={'metrics/more': np.float32(1)}),
  edit(arrays={'metrics/accuracy': np.zeros(2, np.float32)}),
  edit(drop=['upload/z']),
  edit(arrays={'upload/z': np.zeros(62, np.float32)}),
  edit(arrays={'upload/z': np.zeros((63, 1), np.float32)}),
  edit(arrays={'upload/z': np.zeros(63, np.float64)}),
  edit(arrays={'upload/c': np.zeros(63, np.float32)}),
]


def test_bad_replies(tmp_path, caplog):
  always = gate.always()._replace(needs=('accuracy',))
  algorithm = dataclasses.replace(SAFL, gate=always)
  run = Run(tmp_path, algorithm=algorithm)
  node, bad = run.federation.nodes[1], list(BAD_REPLIES)

  def change(other, data):
    return bad.pop(0)(data) if bad and other == node else data

  run.grid.change = change
  run.next(2)
  assert not bad
  assert run.trained(1) == 3 + len(BAD_REPLIES)
  assert caplog.text.count('client 1: ') > len(BAD_REPLIES) / 2
  assert all('\n' not in m and len(m) < 1100 for m in warned(caplog))
  states, _ = tiny_rounds.run(run.federation.simulation(), 3)
  run.federation.check_same(states[-1], run.state)


# -- Files of clients that are damaged.


@pytest.mark.parametrize(
  'damage',
  [
    lambda data: data[:-10],
    lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:],
    lambda data: b'',
    'another run',
  ],
)
def test_a_damaged_file(tmp_path, caplog, damage):
  run = Run(tmp_path)
  path = run.federation.state_path(1)
  if damage == 'another run':
    other = Run(tmp_path / 'other')
    content = other.federation.state_path(1).read_bytes()
  else:
    content = damage(path.read_bytes())
  path.write_bytes(content)
  run.next()
  warnings = [m for m in warned(caplog) if 'as a new one' in m]
  assert len(warnings) == 2  # of the client, and of the server
  assert warnings[0].startswith(f'{path} ')
  assert warnings[1].startswith(f'client 1: {path} ')
  aside = path.with_name('client_state.bin.damaged-0')
  assert all(f'kept as {aside.name}' in m for m in warnings)
  assert aside.read_bytes() == content
  initial = run.states[0].client_models[1]
  assert run.federation.kept_by(1).before['z'].tobytes() == initial.tobytes()
  caplog.clear()
  run.next()
  assert warned(caplog) == []


# -- The end.


def test_the_end_of_a_run(tmp_path):
  run = Run(tmp_path)
  run.federation.kill(1)
  run.federation.server.finish()
  ended = [type(error) for error in run.grid.ended.values()]
  assert ended == [client_lib.FinishedError] * 2


def test_the_end_is_not_waited_for(tmp_path):
  run = Run(tmp_path)
  run.grid.drop = lambda node, reply: True
  run.federation.server.finish(0.05)
  assert len(run.grid.ended) == 3
