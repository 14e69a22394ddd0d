"""Suitable and unsuitable TFDS data sets."""

import os
import types

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds

from safl_tf.data import client_data, partition, registry
from safl_tf.data import tfds as tfds_lib
from safl_tf.util import bounded_io, errors

features = tfds.features
IMAGE = features.Image(shape=(4, 5, 3), dtype=np.uint8)
NAMES = features.ClassLabel(names=['ant', 'bee', 'cat'])


class FakeSet(tfds.core.GeneratorBasedBuilder):
  """A data set that the fixture `fake` configures."""

  VERSION = tfds.core.Version('1.0.0')
  parts = {}  # noqa: RUF012
  kinds = {'picture': IMAGE, 'kind': NAMES}  # noqa: RUF012
  keys = ('picture', 'kind')

  def _info(self):
    return self.dataset_info_from_configs(
      features=features.FeaturesDict(self.kinds), supervised_keys=self.keys
    )

  def _split_generators(self, dl_manager):
    return {name: self._generate_examples(name) for name in self.parts}

  def _generate_examples(self, name):
    for i in range(self.parts[name]):
      label = -1 if name == 'unlabelled' else i % 3
      yield i, {'picture': np.full((4, 5, 3), i, np.uint8), 'kind': label}


@pytest.fixture
def fake(monkeypatch):
  """Configures `FakeSet` and disables the network."""

  def head(*args, **kwargs):
    raise requests.ConnectionError

  def change(**changes):
    for name, value in changes.items():
      monkeypatch.setattr(FakeSet, name, value)

  monkeypatch.setattr(requests, 'head', head)
  return change


def test_more_than_the_memory(tmp_path, fake, monkeypatch):
  fake(parts={'train': 60, 'test': 9})
  tfds_lib.load('fake_set', str(tmp_path))
  left = types.SimpleNamespace(available=3000)
  monkeypatch.setattr(bounded_io.psutil, 'virtual_memory', lambda: left)
  with pytest.raises(errors.InputError) as caught:
    tfds_lib.load('fake_set', str(tmp_path))
  assert str(caught.value) == (
    'dataset=fake_set: split train needs 0.0 GB of memory, but 0.0 GB are '
    'available'
  )


def check_examples(x, y):
  assert x.dtype == np.uint8 and y.dtype == np.int32
  assert x.shape[1:] == (4, 5, 3)
  np.testing.assert_array_equal(x[:, 0, 0, 0] % 3, y)


@pytest.mark.parametrize(
  'parts, train, test',
  [
    ({'train': 60, 'test': 9, 'validation': 6}, 60, 9),
    ({'train': 60, 'validation': 6}, 60, 6),
    ({'train': 60, 'extra': 6}, 54, 6),
  ],
)
def test_load(tmp_path, fake, parts, train, test):
  fake(parts=parts)
  data = registry.load('tfds:fake_set', str(tmp_path))
  assert data.name == 'fake_set'
  assert (len(data.x_train), len(data.x_test)) == (train, test)
  assert data.class_names == ('ant', 'bee', 'cat')
  assert data.num_classes == 3
  check_examples(data.x_train, data.y_train)
  check_examples(data.x_test, data.y_test)
  assert np.bincount(data.y_test).tolist() == [test // 3] * 3
  again = registry.load('tfds:fake_set', str(tmp_path))
  np.testing.assert_array_equal(data.x_test, again.x_test)


def test_from_tfds(tmp_path, fake):
  fake(parts={'train': 60, 'test': 9})
  deal = partition.iid(num_clients=6)
  data = client_data.ClientData.from_tfds('fake_set', deal, str(tmp_path))
  assert data.num_clients == 6
  assert data.total_examples == len(data.y) == 60
  assert data.num_classes == 3
  check_examples(data.x, data.y)
  data = client_data.ClientData.from_tfds(
    'fake_set', deal, str(tmp_path), split='train[:6]'
  )
  assert len(data.y) == 6
  for split in ('dev', 'train[9', 'train[:x%]', ''):
    with pytest.raises(errors.InputError) as caught:
      client_data.ClientData.from_tfds('fake_set', deal, str(tmp_path), split)
    assert str(caught.value) == (
      f'split={split}: must be one of test, train, or a part such as '
      'train[:10%]'
    )


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'keys': None}, 'TFDS defines no pair of an input and a label for it'),
    (
      {'keys': ('picture', 'kind', 'kind')},
      'TFDS defines no pair of an input and a label for it',
    ),
    ({'keys': ('kind', 'kind')}, 'its input kind is not an image'),
    (
      {'kinds': {'picture': IMAGE, 'kind': features.Text()}},
      'its label kind is not a class',
    ),
    (
      {'kinds': {'picture': features.Image(), 'kind': NAMES}},
      'its images are not all of one size',
    ),
    (
      {
        'kinds': {
          'picture': features.Image(shape=(4, 5, 1), dtype=np.float32),
          'kind': NAMES,
        }
      },
      'its images are float32, not uint8',
    ),
    ({'parts': {'test': 6, 'dev': 6}}, 'has no split train, but dev, test'),
  ],
)
def test_unsuitable_data_sets(tmp_path, fake, changes, message):
  fake(**changes)
  with pytest.raises(errors.InputError) as caught:
    registry.load('tfds:fake_set', str(tmp_path))
  assert str(caught.value) == f'dataset=tfds:fake_set: {message}'


def test_examples_without_a_label(tmp_path, fake):
  fake(parts={'train': 6, 'unlabelled': 6})
  with pytest.raises(errors.InputError) as caught:
    tfds_lib.load_split('fake_set', 'unlabelled', str(tmp_path))
  assert str(caught.value) == (
    'dataset=tfds:fake_set: has examples without a label in its split '
    'unlabelled'
  )


@pytest.mark.parametrize(
  'name, message',
  [
    (
      'fake_sett',
      'is neither known to TFDS nor prepared in {}; did you mean '
      'tfds:fake_set?',
    ),
    ('qqqqqqqq', 'is neither known to TFDS nor prepared in {}'),
    ('cats_vs_dogs', 'its images are not all of one size'),
    ('imdb_reviews', 'its input text is not an image'),
  ],
)
def test_unsuitable_names(tmp_path, fake, name, message):
  with pytest.raises(errors.InputError) as caught:
    registry.load(f'tfds:{name}', str(tmp_path))
  message = message.format(tmp_path)
  assert str(caught.value) == f'dataset=tfds:{name}: {message}'
  assert os.listdir(tmp_path) == []


def test_unknown_version(tmp_path, fake):
  with pytest.raises(errors.InputError) as caught:
    registry.load('tfds:fake_set:7.0.0', str(tmp_path))
  message = str(caught.value)
  assert message.startswith('dataset=tfds:fake_set:7.0.0: TFDS refuses it (')
  assert '\n' not in message


def test_progress_is_shown(tmp_path, fake, capfd):
  fake(parts={'train': 30})
  registry.load('tfds:fake_set', str(tmp_path))
  assert 'Generating splits' in capfd.readouterr().err
