"""The file in which a client keeps its arrays."""

import hashlib

import numpy as np
import pytest

from safl_tf.deployment import client_state, messages

OWNER = {'run': 'r', 'client': 3, 'seed': 0}
SAVED = client_state.Saved(
  2,
  {'z': np.arange(4, dtype=np.float32), 'c': np.zeros(0)},
  {'z': np.ones(4, np.float32), 'c': np.zeros(0)},
)


@pytest.fixture
def state(tmp_path):
  return client_state.ClientState(tmp_path / 'new' / 'run', OWNER)


def signed(body):
  return body + hashlib.sha256(body).digest()


def test_round_trip(state):
  assert state.load() is None
  assert not state.path.parent.exists()
  for t in (1, 2):
    state.save(SAVED._replace(t=t))
    found = state.load()
    assert found.t == t
    for name in ('before', 'after'):
      mine, read = getattr(SAVED, name), getattr(found, name)
      assert list(read) == list(mine)
      assert all(read[n].tobytes() == mine[n].tobytes() for n in mine)
      assert all(read[n].dtype == mine[n].dtype for n in mine)
  assert [path.name for path in state.path.parent.iterdir()] == [
    'client_state.bin'
  ]


def test_a_write_that_fails_leaves_the_file(state, monkeypatch):
  state.save(SAVED)

  def fail(number):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr('os.fsync', fail)
  with pytest.raises(OSError, match='No space'):
    state.save(SAVED._replace(t=3))
  monkeypatch.undo()
  assert state.load().t == 2
  assert len(list(state.path.parent.iterdir())) == 1


def test_any_damage_is_seen(state):
  state.save(SAVED)
  content = state.path.read_bytes()
  damaged = [content[:n] for n in range(0, len(content), 7)]
  for i in range(0, len(content), 5):
    damaged.append(content[:i] + bytes([content[i] ^ 16]) + content[i + 1 :])
  damaged.append(content + b'\0')
  for data in damaged:
    state.path.write_bytes(data)
    with pytest.raises(client_state.DamagedError) as error:
      state.load()
    assert str(error.value).startswith(f'{state.path} does not match its SHA')


@pytest.mark.parametrize(
  'body, message',
  [
    (b'', ' does not start as a message'),
    (messages.encode(OWNER), " 't'"),
    (messages.encode({**OWNER, 't': 'two'}), ' invalid literal'),
    (messages.encode({**OWNER, 't': None}), ' int'),
    (messages.encode({**OWNER, 'run': 's', 't': 2}), " is of .*'s'.*, not of "),
    (messages.encode({**OWNER, 'client': 2, 't': 2}), ' is of '),
    (messages.encode({**OWNER, 'more': 2, 't': 2}), ' is of '),
  ],
)
def test_what_is_not_of_this_client(state, body, message):
  state.path.parent.mkdir(parents=True)
  state.path.write_bytes(signed(body))
  with pytest.raises(client_state.DamagedError, match=message) as error:
    state.load()
  assert str(error.value).startswith(str(state.path))


def test_damaged_files_are_kept(state):
  state.path.parent.mkdir(parents=True)
  for i in range(3):
    content = f'damaged {i}'.encode()
    state.path.write_bytes(content)
    aside = state.set_aside()
    assert aside.name == f'client_state.bin.damaged-{i}'
    assert aside.read_bytes() == content
    assert state.load() is None
