import json
import os
import zipfile

import ml_dtypes
import numpy as np
import pytest
from absl import logging

from safl_tf import checkpoints, errors


def content(number):
  """Arrays and metadata that tell which round they belong to."""
  random = np.random.default_rng(number)
  arrays = {
    'z_bar/0': random.normal(size=(300, 7)).astype(np.float32),
    'devices': np.full(4, number),
    'scalar': np.array(number % 256, np.uint8),
  }
  return arrays, {'history': [{'round': number, 'test_loss': number / 3}]}


def save(folder, number, keep=2):
  return checkpoints.Checkpoints(folder, keep).save(number, *content(number))


def check(restored, number):
  assert restored is not None
  got_number, got_arrays, got_meta = restored
  arrays, meta = content(number)
  assert got_number == number
  assert got_meta == meta
  assert got_arrays.keys() == arrays.keys()
  for name, array in arrays.items():
    assert got_arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(got_arrays[name], array)


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  return lines


def test_nothing_to_restore(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path / 'absent')
  assert saved.rounds() == []
  assert saved.restore_latest() is None
  assert not os.path.exists(tmp_path / 'absent')


def test_restores_what_was_saved_and_counts_its_bytes(tmp_path):
  size = save(tmp_path, 12)
  check(checkpoints.Checkpoints(tmp_path).restore_latest(), 12)
  names = ['round_000012.json', 'round_000012.npz']
  assert sorted(os.listdir(tmp_path)) == names
  assert size == sum(os.path.getsize(tmp_path / name) for name in names)


def test_any_name_and_dtype_but_object(tmp_path):
  arrays = {
    'file': np.arange(6).reshape(2, 3).T,
    'allow_pickle': np.zeros((0, 3), np.float16),
    'a/b.npy': np.array(['z̄', 'w']),
    'narrow': np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16),
  }
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(1, arrays, {})
  _, restored, _ = saved.restore_latest()
  for name, array in arrays.items():
    assert restored[name].dtype == array.dtype
    np.testing.assert_array_equal(restored[name], array)
  with pytest.raises(ValueError, match='Object arrays'):
    saved.save(2, {'a': np.array([None])}, {})
  assert saved.rounds() == [1]


def test_numpy_itself_can_read_the_arrays(tmp_path):
  save(tmp_path, 1)
  with np.load(tmp_path / 'round_000001.npz') as archive:
    np.testing.assert_array_equal(archive['devices'], [1, 1, 1, 1])
  with zipfile.ZipFile(tmp_path / 'round_000001.npz') as archive:
    assert archive.testzip() is None


def test_metadata_comes_back_bit_for_bit(tmp_path):
  rows = [{'a': 0.1, 'b': None, 'c': 1e-300, 'd': float('inf')}]
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(1, {}, {'rows': rows, 'counts': {9: 1, 10: 2}})
  _, _, meta = saved.restore_latest()
  assert meta == {'rows': rows, 'counts': {'9': 1, '10': 2}}


@pytest.mark.parametrize('keep', [1, 3])
def test_keeps_the_newest(tmp_path, keep):
  for number in range(1, 6):
    save(tmp_path, number, keep)
  expected = list(range(6 - keep, 6))
  assert checkpoints.Checkpoints(tmp_path).rounds() == expected
  assert len(os.listdir(tmp_path)) == 2 * keep


def test_keep_must_be_positive(tmp_path):
  with pytest.raises(errors.InputError, match='keep=0'):
    checkpoints.Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize('number', [3, 4])
def test_rounds_must_increase(tmp_path, number):
  save(tmp_path, 4)
  with pytest.raises(ValueError, match='after round 4'):
    save(tmp_path, number)
  check(checkpoints.Checkpoints(tmp_path).restore_latest(), 4)


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
  'data cut': ('npz', truncate, 'bytes instead of'),
  'data flipped': ('npz', flip, 'does not match its SHA-256'),
  'data gone': ('npz', os.unlink, 'is missing'),
  'manifest cut': ('json', truncate, 'cannot be parsed'),
  'manifest empty': ('json', lambda path: os.truncate(path, 0), 'be parsed'),
  'manifest changed': ('json', change, 'does not match its checksum'),
  'manifest of another': ('json', impersonate, 'is of round 1'),
  'manifest a list': ('json', lambda path: path.write_text('[]'), 'checksum'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_falls_back_from_a_corrupt_one(tmp_path, warnings, damage):
  kind, harm, wrong = DAMAGES[damage]
  save(tmp_path, 1)
  save(tmp_path, 2)
  harm(tmp_path / f'round_000002.{kind}')
  saved = checkpoints.Checkpoints(tmp_path)
  check(saved.restore_latest(), 1)
  (line,) = warnings
  assert f'round_000002.{kind}' in line
  assert wrong in line
  assert 'falling back to round 1' in line
  assert os.path.exists(tmp_path / 'round_000002.json.corrupt')
  assert saved.rounds() == [1]
  save(tmp_path, 2)  # the round is trained again
  check(saved.restore_latest(), 2)
  assert len(warnings) == 1
  assert os.path.exists(tmp_path / 'round_000002.json.corrupt')


def test_all_corrupt_is_refused_again_and_again(tmp_path, warnings):
  save(tmp_path, 1)
  save(tmp_path, 2)
  before = sorted(os.listdir(tmp_path))
  flip(tmp_path / 'round_000001.npz')
  truncate(tmp_path / 'round_000002.json')
  for _ in range(2):
    with pytest.raises(errors.InputError) as caught:
      checkpoints.Checkpoints(tmp_path).restore_latest()
    assert caught.value.argument == 'experiment'
    assert caught.value.value == str(tmp_path)
    assert 'all checkpoints are corrupt' in caught.value.allowed
    assert 'a new --experiment starts afresh' in caught.value.allowed
    assert sorted(os.listdir(tmp_path)) == before
  assert warnings == []


def test_a_flipped_bit_of_a_manifest_is_seen_or_harmless(tmp_path, warnings):
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(1, {'a': np.zeros(1)}, {'loss': 1e-5, 'name': 'é'})
  path = tmp_path / 'round_000001.json'
  data = path.read_bytes()
  expected = json.loads(data)
  seen = 0
  for i in range(0, 8 * len(data), 3):  # every third bit
    flipped = bytearray(data)
    flipped[i // 8] ^= 1 << i % 8
    path.write_bytes(flipped)
    try:
      _, _, meta = saved.restore_latest()
    except errors.InputError:
      seen += 1
    else:  # e.g. 1e-05 -> 1E-05, or another kind of white space
      assert json.loads(flipped) == expected
      assert meta == expected['meta']
  assert seen > 2 * len(data)
