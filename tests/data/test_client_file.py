"""Files of clients' data: every kind of data, bit by bit, and damage."""

import dataclasses
import io
import json
import zipfile

import numpy as np
import pytest

from safl_tf.data import client_data, client_file, examples
from safl_tf.util import bounded_io, errors

ROWS = 12
PARTS = [[3, 0, 3, 11], [2], [5, 4, 9, 8, 7, 6]]  # a row twice
Y = (np.arange(ROWS) % 3).astype(np.int32)
NUMBERS = np.linspace(-1, 1, ROWS * 4).reshape(ROWS, 4)
TEXTS = np.array([f'text {i} é' * (i % 3 + 1) for i in range(ROWS)])
IMAGES = np.arange(ROWS * 8, dtype=np.uint8).reshape(ROWS, 2, 4, 1)
# Kind of data -> x, y, sample_weight.
KINDS = {
  'images': (IMAGES, Y, None),
  'fortran': (np.asfortranarray(NUMBERS.astype(np.float32)), Y, None),
  'float64': (NUMBERS, Y, np.arange(ROWS)),
  'booleans': (NUMBERS > 0, Y, None),
  'text': (TEXTS, Y, None),
  'tuple': ((NUMBERS, IMAGES), Y, None),
  'dict': ({'words': TEXTS, 'a/b': NUMBERS.astype(np.float16)}, Y, None),
  'regression': (NUMBERS, NUMBERS[:, 0], None),
  'several numbers': (NUMBERS, NUMBERS[:, :2], None),
  'multi_label': (NUMBERS, (NUMBERS > 0).astype(int), None),
  'tokens': (
    np.abs(NUMBERS * 9).astype(np.int32),
    IMAGES[:, 0, :, 0],
    IMAGES[:, 0, :, 0],
  ),
}


def clients_of(kind):
  x, y, w = KINDS[kind]
  names = ['a', 'b', 'c'] if y is Y else None
  return client_data.ClientData.from_arrays(
    x, y, PARTS, ['x', 'y', 'z'], sample_weight=w, class_names=names
  )


def facts_of(clients, **metadata):
  number = clients.num_classes
  task = 'regression' if number is None else 'classification'
  return client_file.Facts.of('some', task, clients, number, metadata)


def leaves(x):
  if isinstance(x, dict):
    return x
  return dict(enumerate(x)) if isinstance(x, tuple) else {'': x}


def check_rows(own, x, y, w, rows):
  """Compares examples with rows of arrays, by type and bytes."""
  assert type(own.x) is type(x)
  assert list(leaves(own.x)) == list(leaves(x))
  pairs = [(leaves(own.x)[name], leaf) for name, leaf in leaves(x).items()]
  pairs += [(own.y, y), (own.sample_weight, w)]
  for found, expected in pairs:
    if expected is None:
      assert found is None
    else:
      assert found.dtype == expected.dtype
      assert found.shape == expected[rows].shape
      assert found.tobytes() == expected[rows].tobytes()


@pytest.mark.parametrize('kind', KINDS)
def test_round_trip(tmp_path, kind):
  clients = clients_of(kind)
  facts = facts_of(clients, standardised={'mean': (0.1, 1 / 3)})
  client_file.export(tmp_path, clients, facts, None)
  for k, rows in enumerate(PARTS):
    path = tmp_path / f'client_{k}.npz'
    file = client_file.read(path)
    assert file.facts == facts and not facts.differences(file.facts)
    assert (file.client, file.client_id, file.num_clients) == (k, 'xyz'[k], 3)
    arrays = (clients.x, clients.y, clients.sample_weight)
    check_rows(file.examples, *arrays, rows)
    assert file.examples.class_names == clients.class_names
    memory = client_file.of_client(clients, facts, k)
    assert client_file.digest(file) == client_file.digest(memory)
    with np.load(path, allow_pickle=False) as archive:
      assert all(len(archive[n]) == len(rows) for n in archive if n != 'about')
  digests = {
    client_file.digest(client_file.of_client(clients, facts, k))
    for k in range(3)
  }
  assert len(digests) == 3
  server = client_file.read(tmp_path / 'server.npz')
  assert server == (facts, None, None, None, 3)


def test_the_structure_is_in_the_facts():
  spec = lambda kind: facts_of(clients_of(kind)).inputs
  assert spec('images') == {'shape': [2, 4, 1], 'dtype': 'uint8'}
  assert spec('tuple') == [
    {'shape': [4], 'dtype': 'float64'},
    {'shape': [2, 4, 1], 'dtype': 'uint8'},
  ]
  assert spec('dict') == {
    'words': {'shape': [], 'dtype': 'string'},
    'a/b': {'shape': [4], 'dtype': 'float16'},
  }
  tokens = facts_of(clients_of('tokens'))
  assert tokens.targets == {'shape': [4], 'dtype': 'int32'}
  assert tokens.weights == [4]
  assert facts_of(clients_of('float64')).weights == []


def test_names_in_a_file(tmp_path):
  for kind, names in (
    ('tuple', {'x/0', 'x/1', 'y', 'about'}),
    ('dict', {'x/words', 'x/a/b', 'y', 'about'}),
    ('float64', {'x', 'y', 'sample_weight', 'about'}),
  ):
    clients = clients_of(kind)
    file = client_file.of_client(clients, facts_of(clients), 0)
    client_file.write(tmp_path / 'a.npz', file)
    with np.load(tmp_path / 'a.npz', allow_pickle=False) as archive:
      assert set(archive) == names
      about = json.loads(archive['about'].tobytes())
    assert about['client_id'] == 'x'


def test_nothing_of_other_clients(tmp_path):
  """Each client's rows have bytes that no other's have."""
  x = np.array([b'%dsecret%d' % (i, i) for i in range(6)])
  clients = client_data.ClientData.from_arrays(
    x, Y[:6], [[0, 1], [2, 3], [4, 5]], ['Ann', 'Bob', 'Cem']
  )
  client_file.export(tmp_path, clients, facts_of(clients), None)
  for k, name in enumerate(clients.client_ids):
    content = (tmp_path / f'client_{k}.npz').read_bytes()
    for i in range(6):
      assert (b'%dsecret' % i in content) == (i // 2 == k)
    for other in clients.client_ids:
      assert (other.encode() in content) == (other == name)


def test_test_examples_are_the_servers(tmp_path):
  clients = clients_of('images')
  test = examples.Examples(IMAGES[:5], Y[:5], None, clients.class_names)
  client_file.export(tmp_path, clients, facts_of(clients), test)
  server = client_file.read(tmp_path / 'server.npz')
  check_rows(server.examples, IMAGES, Y, None, range(5))
  other = test._replace(x=IMAGES[:5].astype(np.float32))
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  with pytest.raises(errors.InputError, match=r"^x=rows of .*float32.*'uint8'"):
    client_file.export(tmp_path, clients, facts_of(clients), other)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_export_again(tmp_path):
  """Stale files go; equal exports have equal bytes; others' files stay."""
  many = client_data.ClientData.from_arrays(
    IMAGES, Y, [[i] for i in range(11)], num_classes=3
  )
  facts = facts_of(many)
  (tmp_path / 'notes_1.npz').write_text('mine')
  client_file.export(tmp_path, many, facts, None)
  names = {path.name for path in tmp_path.iterdir()} - {'notes_1.npz'}
  assert names == {'server.npz', *(f'client_{k}.npz' for k in range(11))}
  first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  client_file.export(tmp_path, many, facts, None)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first
  few = many.replace(parts=[[0], [1]], client_ids=None)
  client_file.export(tmp_path, few, facts, None)
  assert {path.name for path in tmp_path.iterdir()} == {
    'notes_1.npz',
    'server.npz',
    'client_0.npz',
    'client_1.npz',
  }


def test_a_failed_export_leaves_no_server_file(tmp_path, monkeypatch):
  clients = clients_of('images')
  facts = facts_of(clients)
  client_file.export(tmp_path, clients, facts, None)
  monkeypatch.setattr(np.lib.format, 'write_array', None)
  with pytest.raises(TypeError):
    client_file.export(tmp_path, clients, facts, None)
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == [f'client_{k}.npz' for k in range(3)]


def test_weights_may_all_be_zero_for_a_client(tmp_path):
  """As in a simulation, in which only all clients' may not be."""
  w = np.zeros(ROWS)
  w[2] = 1
  clients = client_data.ClientData.from_arrays(
    IMAGES, Y, PARTS, sample_weight=w
  )
  client_file.export(tmp_path, clients, facts_of(clients), None)
  file = client_file.read(tmp_path / 'client_0.npz')
  assert not file.examples.sample_weight.any()


def test_differences():
  facts = facts_of(clients_of('images'), scale=1, both=2)
  other = facts_of(clients_of('tuple'), scale=3, both=2, more=4)
  assert not facts.differences(dataclasses.replace(facts))
  found = facts.differences(other)
  assert found == {
    'inputs': (facts.inputs, other.inputs),
    'metadata.scale': (1, 3),
    'metadata.more': (None, 4),
  }
  names = dataclasses.replace(facts, class_names=('b', 'a', 'c'))
  assert list(facts.differences(names)) == ['class_names']


@pytest.mark.parametrize(
  'field, value',
  [
    ('name', 3),
    ('task', 'vision'),
    ('num_classes', 'ten'),
    ('class_names', 'abc'),
    ('class_names', [1]),
    ('inputs', []),
    ('inputs', {'shape': [-1], 'dtype': 'uint8'}),
    ('inputs', [{'shape': [1]}]),
    ('targets', [{'shape': [], 'dtype': 'int32'}]),
    ('weights', 3),
    ('metadata', None),
  ],
)
def test_invalid_facts(field, value):
  values = facts_of(clients_of('images')).to_json()
  values = json.loads(json.dumps(values))
  assert client_file.Facts.from_json(values).to_json() == values
  with pytest.raises(errors.InputError, match=rf'^facts\.{field}=\w+: is not '):
    client_file.Facts.from_json({**values, field: value})
  for wrong in (None, [], {}, {**values, 'more': 1}):
    with pytest.raises(errors.InputError, match=r'^facts=\w+: must have the '):
      client_file.Facts.from_json(wrong)


@pytest.fixture
def written(tmp_path):
  clients = clients_of('images')
  path = tmp_path / 'client_0.npz'
  client_file.write(path, client_file.of_client(clients, facts_of(clients), 0))
  return path


def refused(path, match):
  with pytest.raises(errors.InputError, match=match) as caught:
    client_file.read(path, 'data')
  assert caught.value.argument == 'data'
  assert '\n' not in str(caught.value)


def test_damaged_files(written):
  """Every byte that is changed, and every truncation, is found."""
  content = written.read_bytes()
  known = client_file.read(written)
  for size in range(0, len(content), 101):
    written.write_bytes(content[:size])
    refused(written, 'is not a file of safl-partition')
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    ends = {m.filename: m.header_offset for m in archive.infolist()}
  for name, start in ends.items():
    damaged = bytearray(content)
    damaged[start + 170] ^= 1  # in the contents of the member
    written.write_bytes(damaged)
    refused(written, f'array {name.removesuffix(".npy")} (cannot|is)')
  for i in range(0, len(content), 23):
    damaged = bytearray(content)
    damaged[i] ^= 0x10
    written.write_bytes(damaged)
    try:
      file = client_file.read(written)
    except errors.InputError:
      continue
    # In a date or another field that does not matter.
    assert client_file.digest(file) == client_file.digest(known)
    assert file.facts == known.facts and file[2:] == known[2:]


def changed(path, **arrays):
  """Writes the file with other arrays; None leaves one out."""
  with np.load(path) as archive:
    values = {**archive, **arrays}
  np.savez(path, **{n: a for n, a in values.items() if a is not None})


def about(path, **changes):
  with np.load(path) as archive:
    values = {**json.loads(archive['about'].tobytes()), **changes}
  return np.frombuffer(json.dumps(values).encode(), np.uint8)


def test_files_of_another_kind(tmp_path, written):
  refused(tmp_path / 'no.npz', 'cannot be read .No such file')
  refused(tmp_path, 'cannot be read .is not a regular file')
  (tmp_path / 'a.csv').write_text('a,label\n1,2\n')
  refused(tmp_path / 'a.csv', 'is not a file of safl-partition')
  np.savez(tmp_path / 'a.npz', x=IMAGES, y=Y)
  refused(tmp_path / 'a.npz', 'is not a file of safl-partition')
  for text in (b'', b'[]', b'{}', b'{"format": 3}', b'\xff', b'[' * 9999):
    changed(written, about=np.frombuffer(text or b' ', np.uint8))
    refused(written, 'is not a file of .* of this version')


@pytest.mark.parametrize(
  'arrays, match',
  [
    ({'x': None}, 'has the arrays y; must be x, y'),
    ({'more': Y}, 'has the arrays more, x, y; must be x, y'),
    ({'x': IMAGES[:4].astype('f4')}, r'x=rows of .*float32.*: must be as for'),
    ({'x': IMAGES[:3]}, 'must have one row for each of the 4 labels'),
    ({'y': Y[:4].astype('>i4')}, r'y=rows of .*>i4'),
    ({'y': Y[:4] + 1}, r'y=3 in row .: must be below num_classes=3'),
    ({'y': Y[:0], 'x': IMAGES[:0]}, 'y=no labels: '),
    ({'x': np.array([None] * 4)}, 'array x holds Python objects'),
    ({'sample_weight': np.ones(4, 'f4')}, 'has the arrays sample_weight, x, y'),
  ],
)
def test_contents_that_do_not_fit(written, arrays, match):
  changed(written, **arrays)
  refused(written, match)


@pytest.mark.parametrize(
  'field, value',
  [('client', 'a'), ('client_id', 3), ('num_clients', 1.5), ('facts', 3)],
)
def test_invalid_about(written, field, value):
  changed(written, about=about(written, **{field: value}))
  refused(written, rf'({field} in about is not valid|facts=int: must have)')


def test_invalid_weights(tmp_path):
  clients = clients_of('float64')
  file = client_file.of_client(clients, facts_of(clients), 0)
  for w, match in (
    (np.full(4, np.nan, 'f4'), 'NaN or infinity in row 0'),
    (np.full(4, -1, 'f4'), '-1.0: must be at least 0'),
    (np.ones(3, 'f4'), r'float32 \[3\]: must be float32, for 4 examples'),
    (np.ones(4), r'float64 \[4\]: must be float32'),
  ):
    wrong = file.examples._replace(sample_weight=w)
    with pytest.raises(errors.InputError, match=f'^sample_weight=.*{match}'):
      client_file.write(tmp_path / 'a', file._replace(examples=wrong))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('key', [3, 'a\0b', '\ud800'])
def test_invalid_names_of_inputs(tmp_path, key):
  clients = client_data.ClientData.from_arrays({key: NUMBERS}, Y, PARTS)
  with pytest.raises(errors.InputError, match='must be the name of an input'):
    client_file.write(
      tmp_path / 'a', client_file.of_client(clients, facts_of(clients), 0)
    )


def test_too_little_memory(written, monkeypatch):
  monkeypatch.setattr(bounded_io, 'shortage', lambda n: f'needs {n > 0}')
  refused(written, 'needs True')
