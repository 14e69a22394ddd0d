"""The file in which a server notes its clients, and their descriptions."""

import json
import math

import pytest

from safl_tf.data import client_file
from safl_tf.deployment import record
from safl_tf.util import errors
from tests import tiny

CLIENTS = tiny.clients((5, 3))
FACTS = client_file.Facts.of('tiny', 'classification', CLIENTS, 3, {'a': [1]})
VALUES = {
  'client': 1,
  'name': 'Zürich\n',
  'uid': '12345678-1234-1234-1234-1234567890ab',
  'size': 3,
  'data_sha256': 'ab' * 32,
  'facts': FACTS.to_json(),
  'protocol': 1,
  'versions': {'keras': '3'},
  'hardware': {'cpu': 'fast'},
}


def test_description():
  found = record.Description.from_json({**VALUES, 'status': 'described'})
  assert found.facts == FACTS
  own = {name: getattr(found, name) for name in VALUES if name != 'facts'}
  assert own == {name: VALUES[name] for name in own}


@pytest.mark.parametrize(
  'name, value',
  [
    *((name, None) for name in VALUES),
    *((name, [1]) for name in VALUES),
    ('client', 1.5),
    ('client', math.inf),
    ('client', True),
    ('client', '1'),
    ('uid', 'x'),
    ('size', 0),
    ('size', -1),
    ('size', 2**31),
    ('size', math.nan),
    ('versions', 'keras'),
    ('facts', {**VALUES['facts'], 'task': {}}),
    ('facts', {**VALUES['facts'], 'more': 1}),
    ('protocol', '1'),
  ],
)
def test_descriptions_that_are_damaged(name, value):
  with pytest.raises((ValueError, KeyError, TypeError)):
    record.Description.from_json({**VALUES, name: value})
  with pytest.raises((ValueError, KeyError, TypeError)):
    record.Description.from_json({k: VALUES[k] for k in VALUES if k != name})


@pytest.fixture
def written(tmp_path):
  found = [
    record.Description.from_json({**VALUES, 'client': k, 'size': 5 - k})
    for k in range(2)
  ]
  created = record.create(FACTS, found)
  record.write(tmp_path, created)
  return created


def test_round_trip(tmp_path, written):
  assert record.read(tmp_path, 'experiment') == written
  assert [client.size for client in written.clients] == [5, 4]
  other = record.create(FACTS, [])
  assert other.run != written.run


def test_no_run(tmp_path):
  assert record.read(tmp_path, 'experiment') is None


def damaged(change):
  """Changes the JSON of a record."""

  def of(text):
    values = json.loads(text)
    change(values)
    return json.dumps(values).encode()

  return of


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: b'',
    lambda text: text[:-20].encode(),
    lambda text: b'\xff' + text.encode(),
    lambda text: b'null',
    lambda text: b'[1]',
    lambda text: b'[' * 100000,
    damaged(lambda v: v.pop('run')),
    damaged(lambda v: v.update(run=3)),
    damaged(lambda v: v.update(run='../..')),
    damaged(lambda v: v.update(facts=None)),
    damaged(lambda v: v['facts'].pop('task')),
    damaged(lambda v: v.update(clients=3)),
    damaged(lambda v: v.update(clients={'a': 1})),
    damaged(lambda v: v['clients'].append(None)),
    damaged(lambda v: v['clients'][1].pop('name')),
    damaged(lambda v: v['clients'][1].update(size='4')),
    damaged(lambda v: v['clients'][1].update(size=0)),
    damaged(lambda v: v['clients'][1].update(size=None)),
    damaged(lambda v: v['clients'][1].update(data_sha256=3)),
  ],
)
def test_damaged_files(tmp_path, written, damage):
  path = tmp_path / record.NAME
  path.write_bytes(damage(path.read_text()))
  with pytest.raises(errors.InputError) as error:
    record.read(tmp_path, 'experiment')
  message = str(error.value)
  start = f'experiment={tmp_path}: its deployment.json is damaged ('
  assert message.startswith(start) and message.endswith('); restore it')
  assert '\n' not in message
