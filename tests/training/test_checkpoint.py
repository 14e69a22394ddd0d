import json
import os
import pathlib
import zipfile

import ml_dtypes
import numpy as np
import pytest
from absl import logging

from safl_tf.core import client_store
from safl_tf.training import checkpoint
from safl_tf.util import errors

CLIENTS, SIZE = 30, 500


def content(number):
  """Returns arrays and metadata that differ in each round."""
  random = np.random.default_rng(number)
  arrays = {
    'z_bar/0': random.normal(size=(300, 7)).astype(np.float32),
    'clients': np.full(4, number),
    'scalar': np.array(number % 256, np.uint8),
  }
  return arrays, {'history': [{'round': number, 'test_loss': number / 3}]}


def initial(k):
  return np.full(SIZE, -k, np.float32)


def create(kind='ram'):
  return client_store.create(kind, initial)


def trained(number):
  """Returns the models that a round trains: most at first, then three."""
  first = range(CLIENTS - 4)
  ids = first if number == 1 else {(3 * number + i) % CLIENTS for i in range(3)}
  return {
    k: np.random.default_rng((number, k)).normal(size=SIZE).astype(np.float32)
    for k in ids
  }


def clients_after(number, client_models=None):
  """Returns the store after some rounds."""
  client_models = create() if client_models is None else client_models
  for t in range(1, number + 1):
    client_models = client_models.updated(trained(t))
  return client_models


def save(folder, number, keep=2):
  """Saves as a new process does."""
  saved = checkpoint.Checkpoints(folder, keep)
  return saved.save(number, *content(number), {'z': clients_after(number)})


def save_all(folder, numbers, keep=2, client_models=None):
  """Saves as one process does; returns the checkpoints and the last store."""
  saved = checkpoint.Checkpoints(folder, keep)
  client_models = create() if client_models is None else client_models
  for number in numbers:
    client_models = client_models.updated(trained(number))
    saved.save(number, *content(number), {'z': client_models})
  return saved, client_models


def restore(folder, kind='ram', **options):
  return checkpoint.Checkpoints(folder).restore_latest(
    {'z': create(kind)}, **options
  )


def check(restored, number):
  assert restored is not None
  assert restored.round_number == number
  arrays, meta = content(number)
  assert restored.meta == meta
  assert restored.arrays.keys() == arrays.keys()
  for name, array in arrays.items():
    assert restored.arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(restored.arrays[name], array)
  check_same_models(restored.stores['z'], clients_after(number))


def check_same_models(one, other):
  mine, others = one.to_arrays(), other.to_arrays()
  assert mine.keys() == others.keys()
  for name, array in others.items():
    assert mine[name].dtype == array.dtype
    assert mine[name].tobytes() == array.tobytes()


def manifest(folder, number):
  path = os.path.join(folder, f'round_{number:06d}.json')
  return json.loads(pathlib.Path(path).read_text())


def chain(folder, number):
  """Returns the rounds whose data files a checkpoint needs."""
  files = manifest(folder, number)['files']
  return [int(file['name'][len('round_') : -len('.npz')]) for file in files]


def check_files(folder):
  """Checks that the folder has exactly the files that checkpoints need."""
  rounds = checkpoint.Checkpoints(folder).rounds()
  needed = {f'round_{number:06d}.json' for number in rounds}
  for number in rounds:
    needed |= {file['name'] for file in manifest(folder, number)['files']}
  assert set(os.listdir(folder)) == needed


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  return lines


def test_nothing_to_restore(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path / 'absent')
  assert saved.rounds() == []
  assert saved.restore_latest() is None
  assert saved.restore_latest({'z': create()}) is None
  assert not os.path.exists(tmp_path / 'absent')


def test_save_and_restore_and_count_of_bytes(tmp_path):
  size = save(tmp_path, 12)
  check(restore(tmp_path), 12)
  names = ['round_000012.json', 'round_000012.npz']
  assert sorted(os.listdir(tmp_path)) == names
  assert size == sum(os.path.getsize(tmp_path / name) for name in names)


def test_arrays_of_any_name_and_dtype_but_object(tmp_path):
  arrays = {
    'file': np.arange(6).reshape(2, 3).T,
    'allow_pickle': np.zeros((0, 3), np.float16),
    'a/b.npy': np.array(['z̄', 'w']),
    'narrow': np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16),
  }
  saved = checkpoint.Checkpoints(tmp_path)
  saved.save(1, arrays, {}, {'z': create()})
  restored = saved.restore_latest({'z': create()}).arrays
  for name, array in arrays.items():
    assert restored[name].dtype == array.dtype
    np.testing.assert_array_equal(restored[name], array)
  with pytest.raises(ValueError, match='Object arrays'):
    saved.save(2, {'a': np.array([None])}, {}, {'z': create()})
  assert saved.rounds() == [1]


def test_numpy_can_read_the_arrays(tmp_path):
  save(tmp_path, 1)
  with np.load(tmp_path / 'round_000001.npz') as archive:
    np.testing.assert_array_equal(archive['clients'], [1, 1, 1, 1])
    arrays = clients_after(1).to_arrays()
    for name, array in arrays.items():
      np.testing.assert_array_equal(archive[f'z/{name}'], array)
  with zipfile.ZipFile(tmp_path / 'round_000001.npz') as archive:
    assert archive.testzip() is None


def test_metadata_round_trips_exactly(tmp_path):
  rows = [{'a': 0.1, 'b': None, 'c': 1e-300, 'd': float('inf')}]
  saved = checkpoint.Checkpoints(tmp_path)
  saved.save(1, {}, {'rows': rows, 'counts': {9: 1, 10: 2}}, {'z': create()})
  meta = saved.restore_latest().meta
  assert meta == {'rows': rows, 'counts': {'9': 1, '10': 2}}


@pytest.mark.parametrize('keep', [1, 3])
def test_keeps_the_newest(tmp_path, keep):
  for number in range(1, 6):
    save(tmp_path, number, keep)
  expected = list(range(6 - keep, 6))
  assert checkpoint.Checkpoints(tmp_path).rounds() == expected
  assert len(os.listdir(tmp_path)) == 2 * keep


def test_keep_must_be_positive(tmp_path):
  with pytest.raises(errors.InputError, match='keep=0'):
    checkpoint.Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize('number', [3, 4])
def test_rounds_must_increase(tmp_path, number):
  save(tmp_path, 4)
  with pytest.raises(ValueError, match='after round 4'):
    save(tmp_path, number)
  check(restore(tmp_path), 4)


def truncate(path):
  os.truncate(path, os.path.getsize(path) // 2)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def change(path):
  path.write_text(path.read_text().replace('0.66666', '0.66667'))


def impersonate(path):
  path.write_bytes((path.parent / f'round_000001{path.suffix}').read_bytes())


DAMAGES = {
  'data truncated': ('npz', truncate, 'bytes instead of'),
  'data flipped': ('npz', flip, 'does not match its SHA-256'),
  'data deleted': ('npz', os.unlink, 'is missing'),
  'manifest truncated': ('json', truncate, 'cannot be parsed'),
  'manifest empty': ('json', lambda path: os.truncate(path, 0), 'be parsed'),
  'manifest changed': ('json', change, 'does not match its checksum'),
  'manifest of another': ('json', impersonate, 'is of round 1'),
  'manifest a list': ('json', lambda path: path.write_text('[]'), 'checksum'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_falls_back_from_a_corrupt_checkpoint(tmp_path, warnings, damage):
  kind, damage_file, message = DAMAGES[damage]
  save(tmp_path, 1)
  save(tmp_path, 2)
  damage_file(tmp_path / f'round_000002.{kind}')
  saved = checkpoint.Checkpoints(tmp_path)
  check(saved.restore_latest({'z': create()}), 1)
  (line,) = warnings
  assert f'round_000002.{kind}' in line
  assert message in line
  assert 'falling back to round 1' in line
  assert os.path.exists(tmp_path / 'round_000002.json.corrupt')
  assert saved.rounds() == [1]
  save(tmp_path, 2)  # the round is trained again
  check(saved.restore_latest({'z': create()}), 2)
  assert len(warnings) == 1
  assert os.path.exists(tmp_path / 'round_000002.json.corrupt')


def test_all_corrupt_is_refused_repeatedly(tmp_path, warnings):
  save(tmp_path, 1)
  save(tmp_path, 2)
  before = sorted(os.listdir(tmp_path))
  flip(tmp_path / 'round_000001.npz')
  truncate(tmp_path / 'round_000002.json')
  for _ in range(2):
    with pytest.raises(errors.InputError) as caught:
      restore(tmp_path)
    assert caught.value.argument == 'experiment'
    assert caught.value.value == str(tmp_path)
    assert 'all checkpoints are corrupt' in caught.value.hint
    assert 'choose another --experiment' in caught.value.hint
    assert sorted(os.listdir(tmp_path)) == before
  assert warnings == []


def test_flipped_bit_of_a_manifest_is_detected_or_harmless(tmp_path, warnings):
  saved = checkpoint.Checkpoints(tmp_path)
  saved.save(
    1, {'a': np.zeros(1)}, {'loss': 1e-5, 'name': 'é'}, {'z': create()}
  )
  path = tmp_path / 'round_000001.json'
  data = path.read_bytes()
  expected = json.loads(data)
  detected = 0
  for i in range(0, 8 * len(data), 3):  # every third bit
    flipped = bytearray(data)
    flipped[i // 8] ^= 1 << i % 8
    path.write_bytes(flipped)
    try:
      meta = saved.restore_latest({'z': create()}).meta
    except errors.InputError:
      detected += 1
    else:  # e.g. 1e-05 -> 1E-05, or another kind of white space
      assert json.loads(flipped) == expected
      assert meta == expected['meta']
  assert detected > 2 * len(data)
