"""Incremental checkpoints, which build on earlier ones."""

import contextlib
import os
import shutil
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from safl_tf.core import client_store
from safl_tf.training import checkpoint, checkpoint_io, hparams
from safl_tf.util import errors
from tests.training import test_checkpoint as shared
from tests.training.test_checkpoint import warnings  # noqa: F401  a fixture

SIZE = 2000


def models(ids, value=0.0):
  return {k: np.full(SIZE, k + value, np.float32) for k in ids}


def create(kind='ram'):
  return client_store.create(kind, lambda k: np.zeros(SIZE))


class Run:
  """Saves after every round, as one process does; by default in one chain."""

  def __init__(self, folder, keep=1, client_models=None):
    self.folder = folder
    self.saved = checkpoint.Checkpoints(folder, keep)
    self.client_models = create() if client_models is None else client_models
    self.t = 0

  def round(self, ids):
    """Trains clients and saves; returns the bytes written and the chain."""
    self.t += 1
    self.client_models = self.client_models.updated(models(ids, self.t / 1000))
    written = self.saved.save(self.t, {}, {}, {'z': self.client_models})
    return written, shared.chain(self.folder, self.t)

  def check(self):
    """Checks that a new process restores the same models."""
    for kind in 'ram', 'mmap':
      restored = checkpoint.Checkpoints(self.folder).restore_latest(
        {'z': create(kind)}
      )
      assert restored.round_number == self.t
      shared.check_same_models(restored.stores['z'], self.client_models)


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_only_changed_models_are_written(tmp_path, kind):
  run = Run(tmp_path, client_models=create(kind))
  first, files = run.round(range(30))
  assert files == [1]
  second, files = run.round([3, 4, 40])
  assert files == [1, 2]
  model = SIZE * 4
  assert 30 * model < first < 31 * model
  assert 3 * model < second < 4 * model
  paths = [tmp_path / f'round_000002.{kind}' for kind in ('npz', 'json')]
  assert second == sum(path.stat().st_size for path in paths)
  run.check()
  for ids in ([4], [], [5, 41], [0, 4]):
    run.round(ids)
    run.check()
  assert shared.chain(tmp_path, run.t) == [1, 2, 3, 4, 5, 6]


def test_checkpoint_is_independent_if_half_of_the_models_changed(tmp_path):
  run = Run(tmp_path)
  assert run.round(range(10))[1] == [1]
  assert run.round(range(10))[1] == [2]  # all
  assert run.round(range(4))[1] == [2, 3]
  assert run.round(range(5))[1] == [4]  # half
  assert run.round(range(10, 20))[1] == [5]  # half are new
  assert run.round(range(100))[1] == [6]  # all, and most are new
  assert run.round(range(100, 140))[1] == [6, 7]
  run.check()
  shared.check_files(tmp_path)


@pytest.mark.parametrize('keep', [1, 2])
@pytest.mark.parametrize('selected', [1, 3, 10, 25])
def test_number_and_size_of_files(tmp_path, selected, keep):
  """At most twice all models on disk, twice the changed models written.

  Both for each chain.
  """
  random = np.random.default_rng(selected)
  run = Run(tmp_path, keep)
  total = changed = alone = 0
  model = SIZE * 4
  for _ in range(120):
    ids = random.choice(60, selected, replace=False).tolist()
    written, files = run.round(ids)
    total += written
    changed += selected * model
    alone += len(files) == 1
    needed = sum(
      file['bytes'] for file in shared.manifest(tmp_path, run.t)['files']
    )
    assert needed <= 2.1 * len(run.client_models) * model
    disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert disk <= keep * 2.1 * len(run.client_models) * model
  assert 2 <= alone <= (60 if keep == 1 or selected < 25 else 120)
  assert total <= keep * 2.2 * changed
  run.check()


def test_limited_number_of_files(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, '_MAX_FILES', 4)
  run = Run(tmp_path)
  lengths = [len(run.round(range(50))[1])]
  lengths += [len(run.round([k])[1]) for k in range(9)]
  assert lengths == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
  run.check()


@pytest.mark.parametrize('keep', [1, 2, 5])
def test_data_file_is_kept_while_a_checkpoint_needs_it(tmp_path, keep):
  random = np.random.default_rng(keep)
  run = Run(tmp_path / 'run', keep)
  stores = {}
  for _ in range(40):
    run.round(random.choice(20, random.integers(1, 8), replace=False).tolist())
    stores[run.t] = run.client_models
    shared.check_files(run.folder)
    rounds = run.saved.rounds()
    assert rounds == list(range(max(1, run.t - keep + 1), run.t + 1))
    number = int(random.choice(rounds))  # any of them can be restored
    shutil.copytree(run.folder, tmp_path / 'copy')
    for other in rounds[rounds.index(number) + 1 :]:
      os.unlink(tmp_path / 'copy' / f'round_{other:06d}.json')
    restored = checkpoint.Checkpoints(tmp_path / 'copy').restore_latest(
      {'z': create()}
    )
    assert restored.round_number == number
    shared.check_same_models(restored.stores['z'], stores[number])
    shutil.rmtree(tmp_path / 'copy')


def test_chain_continues_after_a_resume(tmp_path):
  run = Run(tmp_path)
  run.round(range(30))
  run.round([1, 2])
  again = Run(tmp_path)
  restored = again.saved.restore_latest({'z': again.client_models})
  again.t, again.client_models = restored.round_number, restored.stores['z']
  written, files = again.round([2, 3])
  assert files == [1, 2, 3] and written < 4 * SIZE * 4
  again.check()


def test_checkpoint_is_independent_without_a_valid_base(tmp_path):
  run = Run(tmp_path)
  run.round(range(30))
  other = Run(tmp_path, client_models=run.client_models)  # has restored nothing
  other.t = run.t
  assert other.round([1])[1] == [2]
  run.t = other.t  # another has saved since
  assert run.round([2])[1] == [3]
  run.check()
  os.unlink(tmp_path / 'round_000003.npz')
  assert run.round([2])[1] == [4]
  run.check()
  with open(tmp_path / 'round_000004.npz', 'ab') as file:
    file.write(b'x')
  assert run.round([2])[1] == [5]
  run.check()
  restored = run.saved.restore_latest()  # without the models
  assert restored.stores == {}
  assert run.round([2])[1] == [5, 6]
  run.check()


def test_save_of_an_older_state(tmp_path):
  """A state is a value: models of a later one must not return."""
  run = Run(tmp_path)
  run.round(range(30))
  old = run.client_models
  run.round([1, 2])
  run.client_models = old
  assert run.round([3])[1] == [1, 2, 3]  # 1 and 2 are written again
  run.check()
  run.round([50])
  run.client_models = old  # has no client 50
  assert run.round([4])[1] == [5]
  run.check()


def test_save_after_a_failed_save(tmp_path, monkeypatch):
  run = Run(tmp_path)
  run.round(range(30))
  for lives in range(6):
    with monkeypatch.context() as patch:
      calls = []

      def fail(*args, calls=calls, lives=lives, replace=os.replace):
        calls.append(args)
        if len(calls) > lives:
          raise OSError('disk full')
        replace(*args)

      patch.setattr(os, 'replace', fail)
      with contextlib.suppress(OSError):
        run.round([1, lives + 2])
    run.round([lives + 3])
    run.check()
    shared.check_files(tmp_path)


def test_model_of_another_type_is_refused(tmp_path):
  run = Run(tmp_path)
  run.round(range(3))
  run.client_models = run.client_models.updated({1: np.zeros(SIZE)})
  with pytest.raises(ValueError, match='z of client 1 has another type'):
    run.round([0])
  assert run.saved.rounds() == [1]
  shared.check_files(tmp_path)


def test_bfloat16_models_without_changes(tmp_path):
  dtype = np.dtype(ml_dtypes.bfloat16)
  saved = checkpoint.Checkpoints(tmp_path, keep=1)
  client_models = create().updated(
    {k: np.full(900, k / 3).astype(dtype) for k in range(5)}
  )
  for number in (1, 2):
    saved.save(number, {}, {}, {'z': client_models})
  assert shared.chain(tmp_path, 2) == [1, 2]
  restored = saved.restore_latest({'z': create()})
  shared.check_same_models(restored.stores['z'], client_models)


def save_five(folder):
  """Saves chains [2], [1, 3], [2, 4] and [1, 3, 5]; returns all stores."""
  run, stores = Run(folder, keep=4), {}
  for ids in (range(30), [1, 2], [3, 4], [4, 5], [6]):
    run.round(ids)
    stores[run.t] = run.client_models
  chains = [shared.chain(folder, number) for number in run.saved.rounds()]
  assert chains == [[2], [1, 3], [2, 4], [1, 3, 5]]
  return stores


CASES = {
  # damaged files -> restored round, corrupt rounds
  '5.npz': (4, [5]),
  '4.npz': (5, []),
  '3.npz': (4, [5]),
  '2.npz': (5, []),
  '1.npz': (4, [5]),
  '5.json': (4, [5]),
  '4.json': (5, []),
  '5.npz 4.npz': (3, [5, 4]),
  '3.npz 4.npz': (2, [5, 4, 3]),
  '1.npz 4.json': (2, [5, 4, 3]),
}


@pytest.mark.parametrize('harm', [shared.truncate, shared.flip, os.unlink])
@pytest.mark.parametrize('case', CASES)
def test_corrupt_file_of_a_chain(tmp_path, warnings, case, harm):  # noqa: F811
  stores = save_five(tmp_path)
  if harm is os.unlink and 'json' in case:
    pytest.skip('then the checkpoint is not there')
  expected, corrupt = CASES[case]
  harmed = {f'round_00000{name}' for name in case.split()}
  before = set(os.listdir(tmp_path))
  for name in harmed:
    harm(tmp_path / name)
  saved = checkpoint.Checkpoints(tmp_path, keep=4)
  restored = saved.restore_latest({'z': create()})
  assert restored.round_number == expected
  shared.check_same_models(restored.stores['z'], stores[expected])
  assert len(warnings) == len(corrupt)
  assert all(any(name in line for name in harmed) for line in warnings)
  renamed = {name for name in os.listdir(tmp_path) if name.endswith('.corrupt')}
  there = before if harm is not os.unlink else before - harmed
  wanted = {f'round_00000{n}.{k}' for n in corrupt for k in ('npz', 'json')}
  assert renamed == {f'{name}.corrupt' for name in wanted & there}

  again = Run(tmp_path, keep=4)  # resumes
  again.saved, again.t, again.client_models = (
    saved,
    expected,
    restored.stores['z'],
  )
  for ids in ([7], [8, 9], [7]):
    again.round(ids)
    again.check()
  assert len(shared.chain(tmp_path, again.t)) > 1


@pytest.mark.parametrize('harm', [shared.truncate, shared.flip, os.unlink])
def test_corrupt_file_of_the_only_chain(tmp_path, warnings, harm):  # noqa: F811
  run = Run(tmp_path)
  for ids in (range(30), [1], [2], [3]):
    run.round(ids)
  harm(tmp_path / 'round_000001.npz')
  before = sorted(os.listdir(tmp_path))
  for _ in range(2):
    with pytest.raises(errors.InputError, match='all checkpoints are corrupt'):
      checkpoint.Checkpoints(tmp_path).restore_latest({'z': create()})
    assert sorted(os.listdir(tmp_path)) == before
  assert warnings == []


def test_only_arrays_are_read_without_the_models(tmp_path, warnings):  # noqa: F811
  shared.save_all(tmp_path, (1, 2), keep=1)
  assert shared.chain(tmp_path, 2) == [1, 2]
  os.unlink(tmp_path / 'round_000001.npz')
  path = tmp_path / 'round_000002.npz'
  data = bytearray(path.read_bytes())
  for model in shared.trained(2).values():  # corrupt its models
    place = data.index(model.tobytes())
    data[place : place + model.nbytes] = bytes(model.nbytes)
  path.write_bytes(data)
  restored = checkpoint.Checkpoints(tmp_path).restore_latest(repair=False)
  arrays, meta = shared.content(2)
  assert (restored.round_number, restored.stores) == (2, {})
  assert restored.meta == meta
  for name, array in arrays.items():
    np.testing.assert_array_equal(restored.arrays[name], array)
  assert warnings == []


def test_arrays_are_verified_without_the_models(tmp_path, warnings):  # noqa: F811
  saved, _ = shared.save_all(tmp_path, (1, 2))
  path = tmp_path / 'round_000002.npz'
  data = path.read_bytes()
  entries = shared.manifest(tmp_path, 2)['arrays']
  detected = 0
  for i in range(0, len(data), 97):
    flipped = bytearray(data)
    flipped[i] ^= 4
    path.write_bytes(flipped)
    restored = saved.restore_latest(repair=False)
    inside = any(
      0 <= i - array['offset'] < array['bytes'] for array in entries.values()
    )
    assert restored.round_number == (1 if inside else 2)
    arrays, _ = shared.content(restored.round_number)
    for name, array in arrays.items():
      np.testing.assert_array_equal(restored.arrays[name], array)
    detected += inside
  assert 50 < detected == len(warnings)


def test_checkpoint_of_another_version(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(hparams, 'FORMAT', 2)
    shared.save(tmp_path, 1)
  with pytest.raises(errors.InputError, match='by an older version of safl_tf'):
    shared.restore(tmp_path)


@pytest.mark.parametrize('piece', [1, 1 << 20])
def test_models_are_read_in_pieces(tmp_path, monkeypatch, piece):
  """30 MB of models in a file are never in memory at once."""
  monkeypatch.setattr(checkpoint_io, '_PIECE_BYTES', piece)
  size, count = 25_000, 300
  client_models = create('mmap')
  for k in range(count):
    client_models = client_models.updated({k: np.full(size, k, np.float32)})
  saved = checkpoint.Checkpoints(tmp_path)
  tracemalloc.start()
  try:
    saved.save(1, {}, {}, {'z': client_models})
    restored = saved.restore_latest({'z': create('mmap')})
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 4e6
  for k in range(count):
    np.testing.assert_array_equal(restored.stores['z'][k], np.full(size, k))
