"""Run directories: save, resume and load."""

import json
import os

import keras
import numpy as np
import pytest
from absl import logging

import safl_tf
from safl_tf.core import client_config, client_store, process
from safl_tf.training import checkpoint, loop, run_directory
from safl_tf.util import errors
from tests import tiny
from tests.training import test_checkpoint as shared

SIZE = 400
CONFIG = client_config.LocalConfig(
  local_epochs=1, batch_size=8, learning_rate=0.02
)


@pytest.fixture
def logged(monkeypatch):
  """The logged lines."""
  lines = []
  for level in ('info', 'warning'):
    monkeypatch.setattr(
      logging, level, lambda text, *args: lines.append(text % args)
    )
  return lines


def start(kind='ram', folder=None):
  """A state before the first round."""
  clients = {'z': client_store.create(kind, np.zeros, folder)}
  return process.FederatedState(0, 0, None, clients, {})


def after_round(state, ids):
  """A state after another round."""
  t = state.t + 1
  trained = {k: np.full(SIZE, k + t / 100, np.float32) for k in ids}
  return state._replace(
    t=t,
    z_bar=np.full(SIZE, t, np.float32),
    clients={'z': state.client_models.updated(trained)},
    memory={'momentum': np.full(SIZE, t / 2, np.float32), 'count': np.array(t)},
  )


def check_same(one, other):
  assert (one.seed, one.t) == (other.seed, other.t)
  assert one.z_bar.tobytes() == other.z_bar.tobytes()
  assert one.memory.keys() == other.memory.keys()
  for name, array in one.memory.items():
    assert array.dtype == other.memory[name].dtype
    np.testing.assert_array_equal(array, other.memory[name])
  shared.check_same_models(one.client_models, other.client_models)


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_state_round_trips_exactly(tmp_path, kind):
  folder = run_directory.RunDirectory(tmp_path)
  with folder.opened():
    folder.begin({'seed': 0}, 5)
    state, history = folder.restore(start(kind, tmp_path))
    assert (state.t, history) == (0, [])
    for ids in (range(20), [1, 2], [2, 30], []):
      state = after_round(state, ids)
      history.append({'round': state.t})
      folder.save(state, history)
  assert shared.chain(tmp_path / 'checkpoints', 4) == [2, 4]
  for other in 'ram', 'mmap':  # independent of the store it was saved from
    again = run_directory.RunDirectory(tmp_path)
    with again.opened():
      again.begin({'seed': 0}, 5)
      restored, rows = again.restore(start(other, tmp_path))
      check_same(restored, state)
      assert rows == history
  with again.opened():
    again.save(after_round(restored, [3]), [*history, {'round': 5}])
  assert shared.chain(tmp_path / 'checkpoints', 5) == [5]
  names = {path.name for path in tmp_path.iterdir()}
  assert names <= {
    '.safl_tf',
    'checkpoints',
    'hparams.json',
    'logdir',
    'metrics.csv',
  }


@pytest.mark.parametrize('limit', ['_LARGE_BYTES', '_LONG_SECONDS'])
def test_large_checkpoint_is_logged_once(tmp_path, monkeypatch, logged, limit):
  monkeypatch.setattr(run_directory, limit, 0)
  folder = run_directory.RunDirectory(tmp_path, {})
  state = start()
  for _ in range(3):
    state = after_round(state, range(9))
    folder.save(state, [])
  (line,) = logged
  assert line.startswith('checkpoint of round 1: 0 MB in 0.')


def test_small_checkpoint_is_not_logged(tmp_path, logged):
  folder = run_directory.RunDirectory(tmp_path, {})
  folder.save(after_round(start(), range(9)), [])
  assert logged == []


def test_client_store_may_change_in_a_run(tmp_path):
  for kind in ('ram', 'mmap'):
    folder = run_directory.RunDirectory(
      tmp_path, {'seed': 0, 'client_store': kind}
    )
    with folder.opened():
      folder.begin({'seed': 0}, 1)
  with pytest.raises(errors.InputError, match='seed was 0, is 1'):
    run_directory.RunDirectory(tmp_path, {'seed': 1}).check()


@pytest.fixture(scope='module')
def clients():
  return tiny.clients((7, 5, 9, 6, 8) * 4)


def wide():
  """1,203 parameters."""
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      keras.layers.Dense(100, activation='tanh'),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


def train(clients, rounds, folder, kind='ram'):
  """A run of twenty clients of which two train in a round."""
  trainer = process.FederatedProcess(
    wide,
    clients,
    safl_tf.build_safl(fraction=0.1),
    CONFIG,
    jit_compile='false',
    client_store=kind,
    store_dir=folder,
  )
  return loop.run(
    trainer,
    loop.Schedule(rounds, checkpoint_every=1),
    directory=folder and run_directory.RunDirectory(folder),
    progress=False,
  )


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, clients, kind):
  whole, lengths = train(clients, 12, None), []
  for rounds in (3, 7, 8, 12):
    parts = train(clients, rounds, tmp_path, kind)
    lengths.append(len(shared.chain(tmp_path / 'checkpoints', rounds)))
  assert max(lengths) > 2  # it resumed from incremental checkpoints
  check_same(parts.state, whole.state)
  shared.check_files(tmp_path / 'checkpoints')


@pytest.fixture
def trained(tmp_path, clients):
  """A folder with checkpoints of rounds 3 and 4, and their weights."""
  weights = {
    rounds: train(clients, rounds, tmp_path).model.get_weights()
    for rounds in (3, 4)
  }
  return tmp_path, weights


def check_loaded(path, number, weights):
  loaded = run_directory.load(path)
  assert loaded.round_number == number
  for one, other in zip(
    loaded.model.get_weights(), weights[number], strict=True
  ):
    np.testing.assert_array_equal(one, other)


def test_load_does_not_need_the_client_models(trained, logged):
  path, weights = trained
  files = shared.manifest(path / 'checkpoints', 4)['files']
  for file in files[:-1]:
    os.unlink(path / 'checkpoints' / file['name'])
  check_loaded(path, 4, weights)
  assert logged == []


def test_load_falls_back_and_changes_nothing(trained, logged):
  path, weights = trained
  newest = path / 'checkpoints' / 'round_000004.npz'
  place = shared.manifest(path / 'checkpoints', 4)['arrays']['z_bar']
  data = bytearray(newest.read_bytes())
  data[place['offset'] + place['bytes'] - 1] ^= 1
  newest.write_bytes(data)
  before = sorted(os.listdir(path / 'checkpoints'))
  check_loaded(path, 3, weights)
  assert len(logged) == 1 and 'falling back to round 3' in logged[0]
  assert str(newest) in logged[0] and 'SHA-256 of z_bar' in logged[0]
  assert sorted(os.listdir(path / 'checkpoints')) == before
  for number in checkpoint.Checkpoints(path / 'checkpoints').rounds():
    os.truncate(path / 'checkpoints' / f'round_{number:06d}.npz', 9)
  with pytest.raises(errors.InputError, match='all checkpoints are corrupt'):
    run_directory.load(path)


def make_older(path):
  """Turns a run directory into one of a version without a format number."""
  hparams = json.loads((path / 'hparams.json').read_text())
  del hparams['format']
  hparams['flags'] = {
    'num_devices': 20,
    'device_store': 'ram',
    'fusion': 'size',
  }
  (path / 'hparams.json').write_text(json.dumps(hparams))
  for number in checkpoint.Checkpoints(path / 'checkpoints').rounds():
    manifest = shared.manifest(path / 'checkpoints', number) | {'format': 2}
    del manifest['checksum']
    manifest['checksum'] = checkpoint._checksum(manifest)
    file = path / 'checkpoints' / f'round_{number:06d}.json'
    file.write_text(json.dumps(manifest))


def test_run_of_an_older_version_is_refused(trained, clients):
  path, _ = trained
  make_older(path)
  before = sorted(path.rglob('*'))
  for argument, use in {
    'output_dir': lambda: train(clients, 5, path),
    'run': lambda: run_directory.load(path),
    'model': lambda: run_directory.check_is_run(path, 'model'),
  }.items():
    with pytest.raises(errors.InputError) as caught:
      use()
    assert caught.value.argument == argument
    assert caught.value.value == path
    assert caught.value.hint.startswith(
      'was made by an older version of safl_tf; '
    )
  assert sorted(path.rglob('*')) == before
