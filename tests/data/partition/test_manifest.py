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
  assert read.digest() == clients.digest()
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
    wanted = {str(c): count for c, count in enumerate(counts) if count}
    assert client['label_counts'] == wanted


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


def set_to(*keys, value):
  """A change of one place of a manifest."""

  def change(content):
    for key in keys[:-1]:
      content = content[key]
    content[keys[-1]] = value

  return change


def without(*keys):
  def change(content):
    for key in keys[:-1]:
      content = content[key]
    del content[keys[-1]]

  return change


INVALID = [
  (set_to('format', value='x 1'), 'is not a manifest: its format must be "'),
  (without('format'), 'is not a manifest: its format must be "'),
  (without('num_classes'), 'num_classes is missing'),
  (without('clients'), 'clients is missing'),
  (set_to('dataset', value=3), 'dataset must be text'),
  (set_to('partition', value=[]), 'partition must be an object'),
  (set_to('num_examples', value=300.0), 'num_examples must be a whole number'),
  (set_to('num_examples', value=True), 'num_examples must be a whole number'),
  (
    set_to('num_examples', value=0),
    'num_examples=0: must be a whole number >=',
  ),
  (
    set_to('num_classes', value=-1),
    'num_classes=-1: must be a whole number >=',
  ),
  (set_to('clients', value={}), 'clients must be a list'),
  (set_to('clients', value=[]), 'clients must hold at least one'),
  (set_to('clients', 3, value=7), 'client 3: must be an object with id, indic'),
  (without('clients', 3, 'id'), 'client 3: id is missing'),
  (without('clients', 3, 'indices'), "client 3 ('3'): indices is missing"),
  (set_to('clients', 3, 'id', value=3), 'client 3 (3): id must be text'),
  (
    set_to('clients', 3, 'id', value='1'),
    "client 3 ('1'): id must be unique",
  ),
  (
    set_to('clients', 3, 'indices', value=[]),
    "client 3 ('3'): indices must not be empty",
  ),
  (
    set_to('clients', 3, 'indices', value=[1, 300]),
    "client 3 ('3'): index 300 must be in [0, 299]",
  ),
  (
    set_to('clients', 3, 'indices', value=[-1, 2]),
    "client 3 ('3'): index -1 must be in [0, 299]",
  ),
  (
    set_to('clients', 3, 'indices', value=[10**30]),
    f"client 3 ('3'): index {10**30} must be in [0, 299]",
  ),
  *(
    (
      set_to('clients', 3, 'indices', value=[1, value]),
      "client 3 ('3'): indices must be whole numbers",
    )
    for value in (1.0, True, '2', None, [2])
  ),
  (
    set_to('clients', 3, 'label_counts', value=[1]),
    "client 3 ('3'): label_counts must be an object",
  ),
]


@pytest.mark.parametrize('change, hint', INVALID)
def test_invalid_manifests(path, change, hint):
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))
  with pytest.raises(errors.InputError) as caught:
    partition.from_manifest(path)
  assert str(caught.value).startswith(f'path={path}: {hint}')


@pytest.mark.parametrize(
  'data', [b'', b'{"format": ', b'\xff\xfe\xfd', b'[' * 100_000]
)
def test_not_json(path, data):
  path.write_bytes(data)
  with pytest.raises(errors.InputError, match=r'^path=.*: is not JSON \(.+\)$'):
    partition.from_manifest(path)


@pytest.mark.parametrize('text', ['[]', '3', 'null'])
def test_other_json(path, text):
  path.write_text(text)
  with pytest.raises(errors.InputError, match=r'^path=.*: is not a manifest: '):
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
