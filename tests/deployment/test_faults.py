"""Lost messages, restarts and bad replies change no bit, or only what is said.

Each test does to client 1 of three what its name says, in round 2.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import messages, transport
from safl_tf.deployment.flower import grid_transport
from safl_tf.util import errors
from tests import tiny_rounds
from tests.deployment import loopback, runs

pytestmark = pytest.mark.usefixtures('hurried')


# -- Lost messages.


@pytest.mark.parametrize('kind', ['described', 'prepared', 'trained'])
def test_a_reply_is_lost(tmp_path, kind):
  def prepare(federation):
    federation.grid.drop = runs.once(federation.nodes[1], kind)

  run = runs.Run(tmp_path, prepare=prepare)
  run.finish()
  assert run.trained(1) == 3 + (kind == 'trained')


@pytest.mark.parametrize('kind', ['prepare', 'train'])
def test_a_request_is_lost(tmp_path, kind):
  def prepare(federation):
    federation.grid.lose = runs.once(federation.nodes[1], kind)

  runs.Run(tmp_path, prepare=prepare).finish()


def test_a_reply_and_the_ping_are_lost(tmp_path):
  run = runs.Run(tmp_path)
  node, lost = run.federation.nodes[1], []

  def drop(other, reply):
    status = loopback.header(reply).get('status')
    if other != node or status in lost:
      return False
    lost.append(status)
    return True

  run.grid.drop = drop
  run.finish(runs.BRIEF)
  assert lost == ['trained', 'described']


def test_a_client_takes_longer_than_a_round(tmp_path):
  """It is waited for, and trains once."""
  run = runs.Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = 0.1
  run.finish(runs.BRIEF)
  assert run.trained(1) == 3


def test_a_reply_comes_twice(tmp_path):
  """After a ping that came first, the server asked again."""
  run = runs.Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = 0.02
  run.finish()


# -- Clients that end.


def test_a_client_starts_again_before_it_has_trained(tmp_path):
  run = runs.Run(tmp_path)
  restart = functools.partial(run.federation.restart, 1)
  run.grid.lose = runs.once(run.federation.nodes[1], 'train', restart)
  run.finish()


def test_a_client_starts_again_after_it_has_trained(tmp_path):
  run = runs.Run(tmp_path)
  restart = functools.partial(run.federation.restart, 1)
  run.grid.drop = runs.once(run.federation.nodes[1], 'trained', restart)
  run.finish()
  assert run.trained(1) == 2  # rounds 2, again, and 3


def test_a_client_starts_again_as_the_same_node(tmp_path):
  """Its key gives the node its id; the server does not see the end."""
  run = runs.Run(tmp_path)
  node = run.federation.nodes[1]
  run.federation.join(1, node)
  run.finish()
  kinds = ['train', 'prepare', 'train', 'train']
  assert run.grid.requests[node][-4:] == kinds


def test_a_client_has_lost_what_it_kept(tmp_path, caplog):
  run = runs.Run(tmp_path)
  run.federation.restart(1, folder='another')
  run.next()
  assert 'client 1: has lost what it kept in round 1; it st' in caplog.text
  z = run.federation.kept_by(1, 'another').before['z']
  assert z.tobytes() == run.state.client_models[1].tobytes()
  caplog.clear()
  run.next()
  assert runs.warned(caplog) == []


# -- Servers that end.


@pytest.mark.parametrize('rounds_behind', [0, 1])
def test_the_server_starts_again(tmp_path, rounds_behind):
  run = runs.Run(tmp_path, rounds=2)
  run.start_server(rounds_behind)
  run.finish()
  assert run.trained(1) == 3 + rounds_behind


def test_the_server_and_a_client_start_again(tmp_path):
  run = runs.Run(tmp_path, rounds=2)
  run.federation.restart(1)
  run.start_server(rounds_behind=1)
  run.finish()


def test_the_server_ends_before_all_have_answered(tmp_path):
  """Client 1 has not done round 2 when the server starts again."""
  run = runs.Run(tmp_path)
  run.federation.kill(1)
  with pytest.raises(errors.RunError, match='no result from client 1 for 0'):
    run.next(options=runs.IMPATIENT)
  run.federation.join(1)
  run.start_server()
  run.finish()


def test_the_server_has_lost_two_rounds(tmp_path):
  run = runs.Run(tmp_path, rounds=3)
  run.start_server(rounds_behind=2)
  message = r'client \d has done round 3 of this run already: .* put back its'
  with pytest.raises(errors.RunError, match=message):
    run.next()


def test_nobody_answers(tmp_path):
  run = runs.Run(tmp_path)
  for k in range(3):
    run.federation.kill(k)
  message = 'no result from clients 0, 1, 2 for .* same command resumes'
  with pytest.raises(errors.RunError, match=message):
    run.next(options=runs.IMPATIENT)


def test_nobody_joins(tmp_path):
  federation = loopback.Federation(
    tmp_path, runs.CLIENTS, options=runs.IMPATIENT, joined=(1,)
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

    run = runs.Run(tmp_path / str(seed), prepare=prepare)
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

  run = runs.Run(tmp_path, prepare=prepare)
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
  run = runs.Run(tmp_path)
  run.federation.kill(1)
  run.next(options=runs.DROP)
  assert run.metrics[-1].missing.tolist() == [1]
  assert run.metrics[-1].ids.tolist() == [0, 2]
  run.check(missing=((2, 1),))
  run.federation.join(1)
  run.next()
  assert run.metrics[-1].missing.tolist() == []
  assert run.federation.kept_by(1).t == 3
  run.check(missing=((2, 1),))  # it has trained from its z_k of round 1


def test_a_late_reply_is_ignored(tmp_path):
  run = runs.Run(tmp_path)
  run.grid.seconds[run.federation.nodes[1]] = math.inf
  run.next(options=runs.DROP)
  assert run.metrics[-1].missing.tolist() == [1]
  one, other = runs.simulated(((2, 1),))[2], run.state
  assert one.z_bar.tobytes() == other.z_bar.tobytes()
  late = run.federation.kept_by(1)
  assert late.t == 2
  z = runs.simulated()[2].client_models[1]
  assert late.after['z'].tobytes() == z.tobytes()
  run.grid.release()
  run.next()
  assert run.metrics[-1].missing.tolist() == []
  assert [h['t'] for h in run.grid.unread if h['status'] == 'trained'] == [2]
  before = run.federation.kept_by(1).before
  assert before['z'].tobytes() == late.after['z'].tobytes()


@pytest.mark.parametrize('t', [1, 2])
def test_a_round_without_clients(tmp_path, t):
  run = runs.Run(tmp_path, rounds=t - 1)
  for k in range(3):
    run.federation.kill(k)
  before = run.state
  run.next(options=runs.DROP)
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
  expected, _ = tiny_rounds.make(clients=runs.CLIENTS).next(
    runs.simulated()[t - 1]._replace(t=t)
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
  run = runs.Run(tmp_path, algorithm=algorithm)
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


# -- The end.


def test_the_end_of_a_run(tmp_path):
  run = runs.Run(tmp_path)
  run.federation.kill(1)
  run.federation.server.finish()
  ended = [type(error) for error in run.grid.ended.values()]
  assert ended == [client_lib.FinishedError] * 2


def test_the_end_is_not_waited_for(tmp_path):
  run = runs.Run(tmp_path)
  run.grid.drop = lambda node, reply: True
  run.federation.server.finish(0.05)
  assert len(run.grid.ended) == 3
