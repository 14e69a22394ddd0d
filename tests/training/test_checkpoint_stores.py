"""Checkpoints of several named stores, with arrays of several shapes."""

import os
import shutil
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

from safl_tf.core import client_store
from safl_tf.training import checkpoint, checkpoint_io
from tests.training import test_checkpoint as shared

SIZE = 1000
TYPES = {
  'clients/z': ((SIZE,), np.float32),
  'clients/c': ((20, 50), np.float64),
  'clients/steps': ((), np.int64),
  'clients/empty': ((3, 0), np.float32),
  'memory/narrow': ((7, 2, 3), ml_dtypes.bfloat16),
}


def create(kind='ram', folder=None):
  """Stores in which no client has an array."""
  return {
    name: client_store.create(kind, lambda k: np.zeros(1), folder)
    for name in TYPES
  }


def updated(stores, t, ids, names=TYPES):
  """The stores after a round of some clients."""
  new = dict(stores)
  for name in names:
    shape, dtype = TYPES[name]
    arrays = {}
    for k in ids:
      random = np.random.default_rng((t, k, len(name)))
      arrays[k] = np.asarray(random.normal(size=shape) * 100).astype(dtype)
    new[name] = stores[name].updated(arrays)
  return new


def save(folder, ids, keep=1, kind='ram', names=TYPES):
  """Saves as one process; returns the stores and the bytes of each round."""
  saved, stores, written = (
    checkpoint.Checkpoints(folder, keep),
    create(kind),
    [],
  )
  for t, chosen in enumerate(ids, 1):
    stores = updated(stores, t, chosen, TYPES if t == 1 else names)
    written.append(saved.save(t, {'t': np.array(t)}, {}, stores))
  return stores, written


def check_same(stores, others):
  assert stores.keys() == others.keys() == TYPES.keys()
  for name, store in stores.items():
    shared.check_same_models(store, others[name])
    for k in store.versions:
      assert store[k].shape == TYPES[name][0]


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
@pytest.mark.parametrize('keep', [1, 2])
def test_stores_of_several_shapes(tmp_path, kind, keep):
  rounds = [range(30), [3, 31], [], [4, 40]]
  stores, written = save(tmp_path, rounds, keep, kind)
  assert shared.chain(tmp_path, 4) == ([1, 2, 3, 4] if keep == 1 else [2, 4])
  client = sum(np.zeros(shape, dtype).nbytes for shape, dtype in TYPES.values())
  assert 30 * client < written[0] < 31 * client
  assert written[-1] < (keep + 1) * 2 * client
  for other in 'ram', 'mmap':
    restored = checkpoint.Checkpoints(tmp_path).restore_latest(
      create(other, tmp_path)
    )
    check_same(restored.stores, stores)


def test_numpy_can_read_the_stores(tmp_path):
  stores, _ = save(tmp_path, [[2, 5]])
  with np.load(tmp_path / 'round_000001.npz') as archive:
    assert len(archive.files) == 1 + 2 * len(TYPES)
    for name, (shape, _) in TYPES.items():
      np.testing.assert_array_equal(archive[f'{name}/ids'], [2, 5])
      array = archive[f'{name}/arrays']
      assert array.shape == (2, *shape)
      assert array.tobytes() == stores[name].to_arrays()['arrays'].tobytes()


def test_bytes_decide_what_is_independent(tmp_path):
  """All steps changed in each round: many arrays, but few bytes."""
  everyone = [range(30)] * 4
  _, written = save(tmp_path / 'a', everyone, names=['clients/steps'])
  assert shared.chain(tmp_path / 'a', 4) == [1, 2, 3, 4]
  assert all(10 * later < written[0] for later in written[1:])
  save(tmp_path / 'b', everyone, names=['clients/c'])
  assert shared.chain(tmp_path / 'b', 4) == [4]


def test_each_store_may_have_other_clients(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path, keep=1)
  stores = updated(create(), 1, range(20))
  saved.save(1, {}, {}, stores)
  stores = updated(stores, 2, [3], ['clients/z'])
  stores = updated(stores, 2, [50], ['clients/c'])
  saved.save(2, {}, {}, stores)
  assert shared.chain(tmp_path, 2) == [1, 2]
  with np.load(tmp_path / 'round_000002.npz') as archive:
    ids = {name: archive[f'{name}/ids'].tolist() for name in TYPES}
  assert ids.pop('clients/z') == [3] and ids.pop('clients/c') == [50]
  assert not any(ids.values())
  check_same(saved.restore_latest(create()).stores, stores)


def test_save_of_an_older_state(tmp_path):
  """One store has lost a client: the base is no ancestor."""
  saved = checkpoint.Checkpoints(tmp_path, keep=1)
  old = updated(create(), 1, range(20))
  saved.save(1, {}, {}, old)
  saved.save(2, {}, {}, updated(old, 2, [50], ['clients/steps']))
  assert shared.chain(tmp_path, 2) == [1, 2]
  saved.save(3, {}, {}, old)
  assert shared.chain(tmp_path, 3) == [3]
  check_same(saved.restore_latest(create()).stores, old)


def test_chain_continues_after_a_resume(tmp_path):
  stores, _ = save(tmp_path, [range(30), [1]])
  saved = checkpoint.Checkpoints(tmp_path, keep=1)
  stores = saved.restore_latest(create('mmap', tmp_path)).stores
  stores = updated(stores, 3, [2, 31])
  saved.save(3, {}, {}, stores)
  assert shared.chain(tmp_path, 3) == [1, 2, 3]
  check_same(saved.restore_latest(create()).stores, stores)


def test_other_stores_are_refused(tmp_path):
  save(tmp_path, [range(3)])
  before = sorted(os.listdir(tmp_path))
  for stores in ({}, {'clients/z': create()['clients/z']}):
    with pytest.raises(ValueError, match=r"^stores are \['clients/c', "):
      checkpoint.Checkpoints(tmp_path).restore_latest(stores)
  assert sorted(os.listdir(tmp_path)) == before


def test_a_new_store_makes_a_checkpoint_independent(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path, keep=1)
  stores = updated(create(), 1, range(20))
  del stores['clients/c']
  saved.save(1, {}, {}, stores)
  stores = {**stores, 'clients/c': create()['clients/c']}
  saved.save(2, {}, {}, stores)
  assert shared.chain(tmp_path, 2) == [2]
  check_same(saved.restore_latest(create()).stores, stores)


def test_a_type_that_differs_is_refused(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path)
  stores = updated(create(), 1, range(3))
  wrong = stores['clients/c'].updated({1: np.zeros((50, 20))})
  with pytest.raises(ValueError, match='clients/c of client 1 has another'):
    saved.save(1, {}, {}, {**stores, 'clients/c': wrong})
  assert saved.rounds() == [] and os.listdir(tmp_path) == []


def test_arrays_are_not_all_in_memory(tmp_path):
  """20 MB of matrices in two stores."""
  stores = create('mmap', tmp_path)
  stores = {name: stores[name] for name in ('clients/z', 'clients/c')}
  for name, store in stores.items():
    for k in range(100):
      store = store.updated({k: np.full((100, 250), k, np.float32)})
    stores[name] = store
  saved = checkpoint.Checkpoints(tmp_path / 'saved')
  tracemalloc.start()
  try:
    saved.save(1, {}, {}, stores)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 2e6


@pytest.mark.parametrize('name', TYPES)
def test_flipped_bytes_are_found(tmp_path, name):
  """In the arrays and ids of each store, in each file of a chain."""
  rounds = [range(30), [1, 2], [3], [4], [5]]
  stores, _ = save(tmp_path / 'run', rounds, keep=2)
  chains = [shared.chain(tmp_path / 'run', t) for t in (4, 5)]
  assert chains == [[2, 4], [1, 3, 5]]
  for number in (1, 3, 5):
    path = tmp_path / 'run' / f'round_{number:06d}.npz'
    data = path.read_bytes()
    for part in ('ids', 'arrays'):
      header = data.index(f'{name}/{part}.npy'.encode())
      copy = tmp_path / 'copy'
      shutil.copytree(tmp_path / 'run', copy)
      flipped = bytearray(data)
      flipped[header + len(name) + 160] ^= 1  # after zip's and NumPy's headers
      (copy / path.name).write_bytes(flipped)
      saved = checkpoint.Checkpoints(copy)
      restored = saved.restore_latest(create())
      assert restored.round_number == 4
      check_same(updated(restored.stores, 5, rounds[-1]), stores)
      shutil.rmtree(copy)


@pytest.mark.parametrize('descr, name', [('|O', 'object'), ('|V8', 'finfo')])
def test_arrays_of_python_objects_are_refused(tmp_path, descr, name):
  header = {'descr': descr, 'fortran_order': False, 'shape': (1, 1)}
  with zipfile.ZipFile(tmp_path / 'a.npz', 'w') as archive:
    with archive.open('z/ids.npy', 'w') as member:
      np.lib.format.write_array(member, np.zeros(1, np.int64))
    with archive.open('z/arrays.npy', 'w') as member:
      np.lib.format.write_array_header_1_0(member, header)
      member.write(b'\1' * 8)
  file = {'name': 'a.npz'}
  with pytest.raises(checkpoint_io.CorruptError, match='Python objects'):
    list(checkpoint_io.read_stores(tmp_path, file, {'z': name}))
