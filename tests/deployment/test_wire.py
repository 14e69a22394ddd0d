"""The bytes that are counted are those of Flower's messages."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from flwr.common.serde import message_to_proto

from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.deployment import messages
from safl_tf.deployment.flower import payload
from tests import tiny, tiny_rounds
from tests.deployment import loopback

CLIENTS = tiny.clients((12, 9, 5))
WITHHELD = 2000  # bytes that a reply without a model has at most


def model():
  """Of 12 kB."""
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      keras.layers.Dense(256, activation='tanh'),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


def sometimes(seed, t, metrics):
  """A gate that lets half of the updates through."""
  del t, metrics
  sent = tf.random.stateless_uniform([], seed) < 0.5
  return algorithm_lib.Decision(sent, tf.constant(0.5), tf.constant(0.0))


def size(message):
  """Of a message, without the id that the Grid gives it."""
  message.metadata.__dict__['_message_id'] = ''
  return len(message_to_proto(message).SerializeToString())


@pytest.fixture(scope='module')
def federation(tmp_path_factory):
  """After some rounds in which some clients withhold their models."""
  algorithm = dataclasses.replace(
    registry.build('extended_safl'), gate=algorithm_lib.Gate(sometimes)
  )
  federation = loopback.Federation(
    tmp_path_factory.mktemp('wire'),
    CLIENTS,
    model,
    algorithm=algorithm,
    config=dataclasses.replace(tiny_rounds.CONFIG, local_epochs=1),
  )
  process = federation.process()
  state, federation.rounds = process.initialize(0), []
  federation.ends = []
  for _ in range(4):
    state, metrics = process.next(state)
    federation.rounds.append(metrics)
    ends = {name: len(sent) for name, sent in federation.grid.sent.items()}
    federation.ends.append(ends)
  federation.model_bytes = state.z_bar.nbytes
  return federation


def test_all_bytes_are_counted(federation):
  start = {'up': 0, 'down': 0}
  for metrics, end in zip(federation.rounds, federation.ends, strict=True):
    sent = {
      name: sum(map(size, messages[start[name] : end[name]]))
      for name, messages in federation.grid.sent.items()
    }
    assert metrics.wire == (sent['up'], sent['down'])
    start = end
  transport = federation.transport
  wires = [metrics.wire for metrics in federation.rounds]
  assert transport.bytes_up == sum(wire.bytes_up for wire in wires)
  assert transport.bytes_down == sum(wire.bytes_down for wire in wires)


def test_withheld_models_do_not_travel(federation):
  sizes = {True: [], False: []}
  for message in federation.grid.sent['up']:
    header, arrays = messages.decode(payload.unwrap(message))
    if header['status'] == 'trained':
      sizes['upload/z' in arrays].append(size(message))
  sent = np.concatenate([metrics.sent for metrics in federation.rounds])
  assert len(sizes[True]) == sent.sum() > 0
  assert len(sizes[False]) == (~sent).sum() > 0
  assert max(sizes[False]) < WITHHELD
  assert min(sizes[True]) > federation.model_bytes
  assert max(sizes[True]) < federation.model_bytes + WITHHELD


def test_a_round_costs_what_the_algorithm_says(federation):
  """Besides the few bytes around each model."""
  for metrics in federation.rounds[1:]:
    for wire, said in (
      (metrics.wire.bytes_up, metrics.bytes_up),
      (metrics.wire.bytes_down, metrics.bytes_down),
    ):
      assert 0 < wire - said < 3 * WITHHELD


def test_errors_of_flower_count_nothing(federation):
  transport = federation.transport
  before = transport.bytes_up
  token = transport.send(99999, messages.encode({'kind': 'describe'}))
  [reply] = transport.receive([token])
  assert reply.data is None and 'the node is gone' in reply.error
  assert transport.bytes_up == before
  assert transport.receive([]) == []


def test_replies_without_content(federation):
  """As the one to the end of a run."""
  federation.grid.change = lambda node, data: b''
  node = federation.nodes[0]
  transport = federation.transport
  token = transport.send(node, messages.encode({'kind': 'describe'}))
  assert transport.receive([token]) == [(token, b'', '')]
