"""A flipped byte in any file of a run's checkpoints."""

import shutil

import pytest

from safl_tf.training import checkpoint
from safl_tf.util import errors
from tests.training import test_checkpoint as shared
from tests.training import test_checkpoint_stores as several

LAST = 5  # the checkpoints of round 5 and 4 need two or three files each
PLACES = [0, 0.25, 0.5, 0.75, 1]  # of the flipped byte in the file


def files(keep):
  """The names of the files after `LAST` rounds."""
  data = range(1, LAST + 1)
  manifests = range(LAST + 1 - keep, LAST + 1)
  return [f'{n}.npz' for n in data] + [f'{n}.json' for n in manifests]


@pytest.fixture(scope='module', params=[2, 3])
def saved(request, tmp_path_factory):
  """The folder of a run with `keep` checkpoints; not to be changed."""
  folder = tmp_path_factory.mktemp('saved')
  shared.save_all(folder, range(1, LAST + 1), request.param)
  names = {f'round_00000{name}' for name in files(request.param)}
  assert {path.name for path in folder.iterdir()} == names
  return folder, request.param


def flip(path, place, bit=4):
  data = bytearray(path.read_bytes())
  data[int(place * (len(data) - 1))] ^= bit
  path.write_bytes(data)


def check_resumed(folder, keep):
  """The run goes on, and has the same models as if nothing had happened."""
  again = checkpoint.Checkpoints(folder, keep)
  restored = again.restore_latest({'z': shared.create()})
  assert restored.round_number >= LAST - 1
  shared.check(restored, restored.round_number)
  client_models = restored.stores['z']
  for t in range(restored.round_number + 1, LAST + 3):
    client_models = client_models.updated(shared.trained(t))
    again.save(t, *shared.content(t), {'z': client_models})
  shared.check(shared.restore(folder), LAST + 2)


@pytest.mark.parametrize('name', files(3))
def test_one_flipped_byte_leaves_a_checkpoint(tmp_path, saved, name):
  folder, keep = saved
  if not (folder / f'round_00000{name}').exists():
    pytest.skip(f'no such file with keep={keep}')
  for place in PLACES:
    copy = tmp_path / str(place)
    shutil.copytree(folder, copy)
    flip(copy / f'round_00000{name}', place)
    check_resumed(copy, keep)


@pytest.mark.parametrize('name', files(3))
@pytest.mark.parametrize('harm', [shared.truncate, lambda path: path.unlink()])
def test_one_lost_file_leaves_a_checkpoint(tmp_path, saved, name, harm):
  folder, keep = saved
  if not (folder / f'round_00000{name}').exists():
    pytest.skip(f'no such file with keep={keep}')
  shutil.copytree(folder, tmp_path / 'copy')
  harm(tmp_path / 'copy' / f'round_00000{name}')
  check_resumed(tmp_path / 'copy', keep)


@pytest.mark.parametrize('name', [f'{n}.npz' for n in range(1, 5)] + ['4.json'])
@pytest.mark.parametrize('place', PLACES)
def test_the_only_checkpoint_is_refused_and_kept(tmp_path, name, place):
  shared.save_all(tmp_path, range(1, 5), keep=1)
  assert shared.chain(tmp_path, 4) == [1, 2, 3, 4]
  path = tmp_path / f'round_00000{name}'
  flip(path, place)
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  with pytest.raises(errors.InputError, match=path.name) as caught:
    shared.restore(tmp_path)
  assert 'all checkpoints are corrupt' in caught.value.hint
  assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


@pytest.mark.parametrize('name', [f'{n}.npz' for n in (2, 3, 4, 5)])
@pytest.mark.parametrize('place', PLACES)
def test_files_with_several_stores(tmp_path, name, place):
  rounds = [range(30), [1, 2], [3], [4], [5]]
  whole, _ = several.save(tmp_path, rounds, keep=2)
  assert shared.chain(tmp_path, 5) == [1, 3, 5]
  flip(tmp_path / f'round_00000{name}', place)
  restored = checkpoint.Checkpoints(tmp_path).restore_latest(several.create())
  assert restored.round_number == (5 if name[0] in '24' else 4)
  stores = restored.stores
  for t in range(restored.round_number + 1, 6):
    stores = several.updated(stores, t, rounds[t - 1])
  several.check_same(stores, whole)


@pytest.mark.attack
@pytest.mark.parametrize('name', files(2))
def test_every_byte_of_a_file(tmp_path, name):
  """About 200 places in each file; each restore is right or of another."""
  shared.save_all(tmp_path, range(1, LAST + 1), keep=2)
  path = tmp_path / f'round_00000{name}'
  data = path.read_bytes()
  for i in range(0, len(data), max(1, len(data) // 200)):
    flipped = bytearray(data)
    flipped[i] ^= 1 << i % 8
    path.write_bytes(flipped)
    restored = shared.restore(tmp_path, repair=False)
    assert restored.round_number >= LAST - 1
    shared.check(restored, restored.round_number)
