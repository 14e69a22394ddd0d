import hashlib
import os
import pydoc_data.topics
import subprocess
import sys

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds

from safl_tf.data import registry
from safl_tf.util import errors

PREPARED = os.environ.get('TFDS_DATA_DIR', '')


def refuse(*args, **kwargs):
  raise AssertionError('no network here')


def unreachable(*args, **kwargs):
  raise requests.ConnectionError('Max retries exceeded')


def answer(status):
  def head(url, timeout):
    assert 0 < timeout <= 10
    response = requests.Response()
    response.status_code = status
    return response

  return head


@pytest.fixture
def tiny_mnist(monkeypatch):
  """Makes TFDS's MNIST builder generate 30 + 10 images."""

  def split(first, size):
    for i in range(first, first + size):
      yield i, {'image': np.full((28, 28, 1), i, np.uint8), 'label': i % 10}

  def splits(self, downloads):
    return {'train': split(0, 30), 'test': split(100, 10)}

  builder = tfds.builder_cls('mnist')
  monkeypatch.setattr(builder, '_split_generators', splits)
  monkeypatch.setattr(requests, 'head', answer(200))


def test_sample():
  data = registry.load('mnist_sample')
  assert data.x_train.shape == (4000, 28, 28, 1)
  assert data.x_test.shape == (1000, 28, 28, 1)
  assert data.x_train.dtype == data.x_test.dtype == np.uint8
  assert data.y_train.dtype == data.y_test.dtype == np.int32
  assert np.bincount(data.y_train).tolist() == [400] * 10
  assert np.bincount(data.y_test).tolist() == [100] * 10
  assert data.y_test[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
  assert data.num_classes == 10
  assert data.class_names == tuple('0123456789')
  assert data.input_shape == (28, 28, 1)
  images = np.concatenate([data.x_train, data.x_test]).reshape(5000, -1)
  assert len(np.unique(images, axis=0)) == 5000  # disjoint
  assert images.max() == 255


def test_sample_bits():
  data = registry.load('mnist_sample')
  parts = (data.x_train, data.y_train, data.x_test, data.y_test)
  digest = hashlib.sha256(b''.join(part.tobytes() for part in parts))
  assert digest.hexdigest()[:16] == '706ec083089fa581'


@pytest.mark.parametrize('name', ['mnist_sample', 'mnist'])
def test_data_dir_must_exist(tmp_path, name):
  (tmp_path / 'file').write_text('')
  for path in (tmp_path / 'file', tmp_path / 'nothing'):
    with pytest.raises(errors.InputError, match=f'^data_dir={path}: '):
      registry.load(name, str(path))


def check_unavailable(caught, name, folder, reason):
  assert str(caught.value) == (
    f'dataset={name}: not prepared in {folder} and cannot be downloaded '
    f'(ConnectionError: {reason}); use mnist_sample, or run python -c "import '
    'tensorflow_datasets as tfds; '
    f"tfds.builder('{name.removeprefix('tfds:')}', data_dir='{folder}')"
    '.download_and_prepare()" on a machine with a network, or set --data_dir '
    'or TFDS_DATA_DIR to a folder that has it'
  )


@pytest.mark.parametrize(
  'name, head, reason',
  [
    ('cifar10', unreachable, 'no connection to www.cs.toronto.edu'),
    ('cifar10', answer(503), 'www.cs.toronto.edu answers with error 503'),
    ('tfds:cifar100', unreachable, 'no connection to www.cs.toronto.edu'),
  ],
)
def test_no_network(tmp_path, monkeypatch, capfd, name, head, reason):
  monkeypatch.setattr(requests, 'head', head)
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', refuse)
  with pytest.raises(errors.InputError) as caught:
    registry.load(name, str(tmp_path))
  check_unavailable(caught, name, tmp_path, reason)
  assert os.listdir(tmp_path) == []
  assert capfd.readouterr() == ('', '')


def test_interrupted_download(tmp_path, monkeypatch):
  def half(self, download_dir):
    os.makedirs(os.path.join(self.data_dir_root, self.name))
    with open(os.path.join(download_dir, 'archive.tmp'), 'w') as file:
      file.write('half')
    raise ConnectionError('Connection reset\nby peer')

  home = tmp_path / 'made' / 'by_load'
  monkeypatch.setenv('TFDS_DATA_DIR', str(home))
  monkeypatch.setattr(requests, 'head', answer(200))
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', half)
  with pytest.raises(errors.InputError) as caught:
    registry.load('cifar10')
  check_unavailable(caught, 'cifar10', home, 'Connection reset')
  assert not home.exists()


def test_download_then_read_without_network(tmp_path, monkeypatch, tiny_mnist):
  (tmp_path / 'other').mkdir()
  first = registry.load('mnist', str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == ['mnist', 'other']
  monkeypatch.setattr(requests, 'head', refuse)
  monkeypatch.setattr('socket.getaddrinfo', refuse)
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  again = registry.load('mnist')
  for data in (first, again):
    assert data.name == 'mnist'
    assert data.x_train.shape == (30, 28, 28, 1)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int32
    assert data.x_test.shape == (10, 28, 28, 1)
    assert (data.x_train[:, 0, 0, 0] % 10 == data.y_train).all()
    assert data.class_names == tuple('0123456789')
  np.testing.assert_array_equal(first.y_train, again.y_train)


def test_damaged_data(tmp_path, monkeypatch, tiny_mnist):
  registry.load('mnist', str(tmp_path))
  monkeypatch.setattr(requests, 'head', refuse)
  [records] = tmp_path.glob('mnist/*/mnist-train*')
  whole = records.read_bytes()
  length = int.from_bytes(whole[:8], 'little') + 16  # of the first record
  for damaged in (whole[:-10], whole[length:], b''):
    records.write_bytes(damaged)
    with pytest.raises(errors.InputError) as caught:
      registry.load('mnist', str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f'dataset=mnist: {records.parent} cannot be ')
    assert '\n' not in message and '{{' not in message
  (records.parent / 'dataset_info.json').write_text('{')
  with pytest.raises(errors.InputError, match=r'/mnist cannot be read'):
    registry.load('mnist', str(tmp_path))


@pytest.mark.real_data
@pytest.mark.skipif(
  not os.path.isdir(os.path.join(PREPARED, 'mnist')),
  reason='TFDS_DATA_DIR holds no prepared mnist',
)
def test_real_mnist(monkeypatch):
  monkeypatch.setattr(requests, 'head', refuse)
  data = registry.load('mnist')
  assert data.x_train.shape == (60000, 28, 28, 1)
  assert data.x_test.shape == (10000, 28, 28, 1)
  # The counts of the digits in MNIST.
  train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
  test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
  assert np.bincount(data.y_train).tolist() == train
  assert np.bincount(data.y_test).tolist() == test


def test_modules_do_not_import_tensorflow():
  code = (
    'import sys\n'
    'from safl_tf.data import arrays, client_data, partition, registry\n'
    'from safl_tf.data.speech_commands import features, loader\n'
    "registry.load('mnist_sample')\n"
    "assert not {'tensorflow', 'pandas'} & set(sys.modules)\n"
  )
  subprocess.run([sys.executable, '-c', code], check=True)


def test_bundled_data():
  data = registry.load('diabetes')
  assert data.y_train.dtype == np.float32 and data.y_train.shape == (354,)
  scale = data.metadata['target_standardised']
  raw = data.y_test * scale['deviation'][0] + scale['mean'][0]
  np.testing.assert_allclose(raw, raw.round(), atol=1e-3)  # whole numbers
  assert len(set(data.client_ids)) == 8 and data.num_outputs == 1
  data = registry.load('synthetic_multi_label')
  assert data.y_train.shape == (1600, 5) and data.num_outputs == 5
  assert set(data.y_train.ravel()) == {0, 1}
  data = registry.load('python_docs')
  assert len(set(data.client_ids)) == 40 and data.num_classes is None
  np.testing.assert_array_equal(data.x_train[0, 1:], data.y_train[0, :-1])
  text = ''.join(data.class_names[c] for c in data.x_train[0])
  assert text == pydoc_data.topics.topics[data.client_ids[0]][:40]
  assert data.y_train.max() == data.num_outputs - 1 and data.y_train.min() == 1
