"""Runs of three clients, and the simulation of the same."""

import dataclasses
import functools
import logging

import numpy as np

from tests import tiny, tiny_rounds
from tests.deployment import loopback

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
