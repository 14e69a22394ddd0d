import json

import numpy as np
import pytest

from safl_tf.data import client_data, partition
from safl_tf.util import errors

N, NUM_CLASSES = 300, 12  # the last two classes have no examples


def make_clients(function):
  y = np.random.default_rng(0).integers(0, 10, N, np.int32)
  return client_data.ClientData.from_arrays(
    np.zeros((N, 2)), y, function, num_classes=NUM_CLASSES
  )


def again(clients, path):
  """The same data, spread by a manifest."""
  return client_data.ClientData.from_arrays(
    clients.x, clients.y, partition.from_manifest(path), None, NUM_CLASSES
  )


@pytest.fixture
def clients():
  return make_clients(partition.dirichlet(8, seed=2))


@pytest.fixture
def path(clients, tmp_path):
  path = tmp_path / 'manifest.json'
  settings = {'partition': 'dirichlet', 'seed': 2}
  path.write_text(partition.to_manifest(clients, 'digits', settings))
  return path


@pytest.mark.parametrize(
  'function',
  [
    partition.iid(5),
    partition.biased(400),
    partition.by_client([f'"{i % 7}"\n\xe9' for i in range(N)]),
    [[4, 4, 2], [299]],
  ],
  ids=['iid', 'overlapping', 'names', 'lists'],
)
def test_round_trip(function, tmp_path):
  clients = make_clients(function)
  path = tmp_path / 'manifest.json'
  path.write_text(partition.to_manifest(clients, 'digits'))
  read = again(clients, path)
  assert read.client_ids == clients.client_ids
  assert read.num_classes == clients.num_classes
  assert read.rows.tobytes() == clients.rows.tobytes()
  assert read.sizes.tolist() == clients.sizes.tolist()
  for k in range(len(clients)):
    np.testing.assert_array_equal(read.indices(k), clients.indices(k))
    assert read.indices(k).dtype == np.int32


def test_contents(clients, path):
  content = json.loads(path.read_text())
  assert list(content) == [
    'format',
    'dataset',
    'partition',
    'num_classes',
    'num_examples',
    'labels_sha256',
    'clients',
  ]
  assert content['dataset'] == 'digits'
  assert content['partition'] == {'partition': 'dirichlet', 'seed': 2}
  assert (content['num_classes'], content['num_examples']) == (NUM_CLASSES, N)
  for k, client in enumerate(content['clients']):
    assert client['id'] == str(k)
    counts = np.bincount(clients.y[client['indices']]).tolist()
    expected = {str(c): count for c, count in enumerate(counts) if count}
    assert client['label_counts'] == expected


def test_one_client_per_line(clients, path):
  lines = path.read_text().splitlines()
  entries = [line for line in lines if line.startswith('{"id":')]
  assert len(entries) == len(clients)
  assert not any(' ' in line for line in entries)
  for line in entries:
    json.loads(line.rstrip(','))


def test_text_is_reproducible(clients, path):
  read = partition.from_manifest(path)
  assert (read.dataset, read.num_examples) == ('digits', N)
  text = partition.to_manifest(
    again(clients, path), read.dataset, read.settings
  )
  assert text == path.read_text()


MISSING = object()
CLIENT = "client 3 ('3'): "
INVALID = [
  ('format', 'x 1', 'is not a manifest: its format must be "'),
  ('format', MISSING, 'is not a manifest: its format must be "'),
  ('num_classes', MISSING, 'num_classes is missing'),
  ('num_classes', -1, 'num_classes=-1: must be a whole number in [1, '),
  ('dataset', 3, 'dataset must be text'),
  ('partition', [], 'partition must be an object'),
  ('num_examples', 300.0, 'num_examples must be a whole number'),
  ('num_examples', True, 'num_examples must be a whole number'),
  ('num_examples', 0, 'num_examples=0: must be a whole number in [1, '),
  ('num_examples', 10**12, 'num_examples=1000000000000: must be a whole nu'),
  ('extra', 1, "'extra' is not a key of a manifest"),
  ('clients', MISSING, 'clients is missing'),
  ('clients', {}, 'clients must be a list'),
  ('clients', [], 'clients must hold at least one'),
  ('clients 3', 7, 'client 3: must be an object with id, indic'),
  ('clients 3 id', MISSING, 'client 3: id is missing'),
  ('clients 3 id', 3, 'client 3 (3): id must be text'),
  ('clients 3 id', '1', "client 3 ('1'): id must be unique"),
  ('clients 3 indices', MISSING, CLIENT + 'indices is missing'),
  ('clients 3 indices', [], CLIENT + 'indices must not be empty'),
  *(
    ('clients 3 indices', rows, f'{CLIENT}index {row} must be in [0, 299]')
    for rows, row in (([1, 300], 300), ([-1, 2], -1), ([10**30], 10**30))
  ),
  *(
    ('clients 3 indices', [1, row], CLIENT + 'indices must be whole numbers')
    for row in (1.0, True, '2', None, [2])
  ),
  ('clients 3 label_counts', [1], CLIENT + 'label_counts must be an object'),
  *(
    (
      'clients 3 label_counts',
      {'1': count},
      CLIENT + 'label_counts must be whole numbers',
    )
    for count in (1.0, True, '1', None)
  ),
  ('clients 3 weight', 1, CLIENT + "'weight' is not a key of a manifest"),
]


@pytest.mark.parametrize('place, value, hint', INVALID)
def test_invalid_manifests(path, place, value, hint):
  whole = content = json.loads(path.read_text())
  *keys, last = [int(key) if key.isdigit() else key for key in place.split()]
  for key in keys:
    content = content[key]
  content[last] = value
  if value is MISSING:
    del content[last]
  path.write_text(json.dumps(whole))
  with pytest.raises(errors.InputError) as caught:
    partition.from_manifest(path)
  assert str(caught.value).startswith(f'path={path}: {hint}')


@pytest.mark.parametrize(
  'data, message',
  [
    *(
      (data, r'is not JSON \(.+\)$')
      for data in (b'', b'{"format": ', b'\xff\xfe\xfd', b'[' * 100_000)
    ),
    *((data, 'is not a manifest: ') for data in (b'[]', b'3', b'null')),
  ],
)
def test_not_a_manifest(path, data, message):
  path.write_bytes(data)
  with pytest.raises(errors.InputError, match=f'^path=.*: {message}'):
    partition.from_manifest(path)


def test_no_file(tmp_path):
  for place in ('none.json', ''):
    with pytest.raises(errors.InputError, match=r'^path=.*: cannot be read: '):
      partition.from_manifest(tmp_path / place)


def test_other_data(clients, path):
  read = partition.from_manifest(path)
  other = clients.y.copy()
  other[[0, 1]] = other[0] ^ 1
  for y, classes, hint in (
    (clients.y[:-1], NUM_CLASSES, '300 examples of 12 classes, not 299'),
    (clients.y, 10, '300 examples of 12 classes, not 300 of 10'),
    (other, NUM_CLASSES, 'labels_sha256 does not match y'),
  ):
    with pytest.raises(errors.InputError) as caught:
      read(y, classes)
    assert f'{path}: is for other data: {hint}' in str(caught.value)


def test_changed_indices(clients, path):
  content = json.loads(path.read_text())
  client = content['clients'][5]
  client['indices'] = client['indices'][:-1]
  path.write_text(json.dumps(content))
  hint = r"client 5 \('5'\): label_counts must be \{'0': "
  with pytest.raises(errors.InputError, match=hint):
    again(clients, path)


def test_labels_of_any_dtype(clients, path):
  """The digest does not depend on the type of the labels."""
  read = partition.from_manifest(path)
  assert read(clients.y.astype('>i8'), NUM_CLASSES) is read.parts
