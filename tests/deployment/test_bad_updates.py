"""Updates, replies and files that are damaged or not finite."""

import dataclasses
import functools
import math

import numpy as np
import pytest

from safl_tf.deployment import messages
from safl_tf.rules import gate
from tests import tiny_rounds
from tests.deployment import loopback, runs

pytestmark = pytest.mark.usefixtures('hurried')


# -- Updates that are not finite.


def test_a_client_diverges(tmp_path):
  def prepare(federation):
    config = dataclasses.replace(federation.config, learning_rate=1e38)
    build = functools.partial(federation.trainer, config=config)
    federation.restart(1, build=build)

  run = runs.Run(tmp_path, prepare=prepare)
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
  run = runs.Run(tmp_path)
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
  expected = runs.simulated(((2, 1),))[2].z_bar
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
  algorithm = dataclasses.replace(runs.SAFL, gate=always)
  run = runs.Run(tmp_path, algorithm=algorithm)
  node, bad = run.federation.nodes[1], list(BAD_REPLIES)

  def change(other, data):
    return bad.pop(0)(data) if bad and other == node else data

  run.grid.change = change
  run.next(2)
  assert not bad
  assert run.trained(1) == 3 + len(BAD_REPLIES)
  assert caplog.text.count('client 1: ') > len(BAD_REPLIES) / 2
  assert all('\n' not in m and len(m) < 1100 for m in runs.warned(caplog))
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
  run = runs.Run(tmp_path)
  path = run.federation.state_path(1)
  if damage == 'another run':
    other = runs.Run(tmp_path / 'other')
    content = other.federation.state_path(1).read_bytes()
  else:
    content = damage(path.read_bytes())
  path.write_bytes(content)
  run.next()
  warnings = [m for m in runs.warned(caplog) if 'as a new one' in m]
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
  assert runs.warned(caplog) == []
