"""Runs whose aggregator remembers an array of each client."""

import dataclasses
import itertools

import numpy as np
import pytest

import safl_tf
from safl_tf.core import client_store, process
from safl_tf.rules import aggregate
from safl_tf.training import loop, run_directory
from safl_tf.util import errors
from tests import marks, memories, tiny, tiny_rounds
from tests.training import test_checkpoint as shared
from tests.training import test_run_directory as runs

CLIENTS = 30
ASTW = safl_tf.build_astw(clients_per_round=2)
ALGORITHMS = {
  'layer by layer': ASTW,
  'whole models': safl_tf.build_astw_safl(clients_per_round=2),
  'a server optimizer': dataclasses.replace(
    ASTW, aggregate=aggregate.server_optimizer(ASTW.aggregate, 'yogi')
  ),
}


@pytest.fixture(scope='module')
def clients():
  return tiny.clients([12] * CLIENTS)


def train(clients, rounds, folder=None, kind='ram', algorithm=ASTW, keep=2):
  trainer = process.FederatedProcess(
    runs.wide,
    clients,
    algorithm,
    runs.CONFIG,
    jit_compile='false',
    client_store=kind,
    store_dir=folder,
  )
  directory = folder and run_directory.RunDirectory(folder, None, keep)
  schedule = loop.Schedule(rounds, checkpoint_every=1)
  return loop.run(trainer, schedule, directory=directory, progress=False)


def models_of(state):
  (name,) = (name for name in state.memory if name.endswith('models'))
  return state.memory[name]


def check_same(one, other):
  tiny_rounds.check_same(one, other)
  mine, others = (memories.to_arrays(state.memory) for state in (one, other))
  assert mine.keys() == others.keys()
  for name, array in mine.items():
    assert array.dtype == others[name].dtype
    assert array.tobytes() == others[name].tobytes()


def on_disk(store):
  return isinstance(store._backend, client_store._MappedFile)


@pytest.mark.parametrize('kind', marks.some(['ram', 'mmap'], ['mmap']))
@pytest.mark.parametrize('algorithm', ALGORITHMS.values(), ids=ALGORITHMS)
def test_resumed_run_equals_an_uninterrupted_one(
  tmp_path, clients, algorithm, kind
):
  whole = train(clients, 16, algorithm=algorithm)
  for rounds in (9, 15, 16):
    parts = train(clients, rounds, tmp_path, kind, algorithm)
    assert on_disk(models_of(parts.state)) == (kind == 'mmap')
  assert len(shared.chain(tmp_path / 'checkpoints', 15)) > 1
  check_same(parts.state, whole.state)
  shared.check_files(tmp_path / 'checkpoints')


def test_the_kind_may_change_in_a_run(tmp_path, clients):
  whole = train(clients, 6)
  for rounds, kind in (2, 'ram'), (4, 'mmap'), (6, 'ram'):
    parts = train(clients, rounds, tmp_path, kind)
  check_same(parts.state, whole.state)


def test_a_state_is_a_value(tmp_path, clients):
  trainer = tiny_rounds.make(
    ASTW, clients=clients, client_store='mmap', store_dir=tmp_path
  )
  states, _ = tiny_rounds.run(trainer, 4)
  for before, after in itertools.pairwise(states):
    check_same(trainer.next(before)[0], after)


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_checkpoints_have_only_new_uploads(tmp_path, clients, kind):
  state = train(clients, 40, tmp_path, kind, keep=1).state
  folder = tmp_path / 'checkpoints'
  sizes = {
    file['name']: file['bytes'] for file in shared.manifest(folder, 40)['files']
  }
  model = state.z_bar.nbytes
  assert len(models_of(state)) > CLIENTS * 0.8
  _, *later = sizes.values()
  assert len(later) > 3
  # Two own models, two uploads, z_bar and the mask of deep layers.
  assert all(4 * model < size < 7 * model for size in later)
  with np.load(folder / 'round_000040.npz') as archive:
    ids = archive['memory/models/ids']
    np.testing.assert_array_equal(ids, archive['clients/z/ids'])
    assert len(ids) == 2


@pytest.mark.parametrize('place', [0.3, 0.5, 0.7, 0.9])
def test_flipped_bytes_are_found(tmp_path, clients, place):
  """The run goes on from the checkpoint before, to the same end."""
  whole = train(clients, 8)
  train(clients, 6, tmp_path / 'run')
  path = tmp_path / 'run' / 'checkpoints' / 'round_000006.npz'
  data = bytearray(path.read_bytes())
  start = data.index(b'memory/models/arrays.npy')
  end = start + 2 * whole.state.z_bar.nbytes
  data[int(start + place * (end - start))] ^= 16
  path.write_bytes(data)
  resumed = train(clients, 8, tmp_path / 'run')
  check_same(resumed.state, whole.state)
  assert path.with_name(f'{path.name}.corrupt').exists()


def test_all_corrupt_is_refused(tmp_path, clients):
  train(clients, 3, tmp_path, keep=1)
  path = tmp_path / 'checkpoints' / 'round_000003.npz'
  data = bytearray(path.read_bytes())
  data[data.index(b'memory/models/arrays.npy') + 1000] ^= 1
  path.write_bytes(data)
  with pytest.raises(errors.InputError, match='all checkpoints are corrupt'):
    train(clients, 4, tmp_path, keep=1)
  loaded = run_directory.load(tmp_path)  # the global model is intact
  assert loaded.round_number == 3


def counting(start):
  """An aggregator that counts each client's uploads, from `start`."""

  def apply(memory, updates, z_bar):
    z, _ = aggregate.by_size().apply({}, updates, z_bar)
    ids = updates.ids.tolist()
    counts = memory['counts']
    new = counts.updated({k: counts[k] + 1 for k in ids})
    return aggregate.Aggregated(z, {'counts': new})

  def init(layout):
    del layout
    zeros = client_store.ClientStore(lambda k: np.zeros(1, int))
    return {'counts': zeros.updated(start)}

  return dataclasses.replace(
    safl_tf.build_fed_avg(), aggregate=aggregate.Aggregator(apply, init)
  )


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_a_store_of_users(tmp_path, kind):
  algorithm = counting({2: np.array([10])})  # moved with the store
  trainer = tiny_rounds.make(algorithm, client_store=kind, store_dir=tmp_path)
  states, _ = tiny_rounds.run(trainer, 3)
  counts = states[-1].memory['counts']
  assert on_disk(counts) == (kind == 'mmap')
  expected = [[3], [3], [13], [3], [3], [3]]
  np.testing.assert_array_equal(counts.to_arrays()['arrays'], expected)


def test_stores_that_init_does_not_have_are_refused():
  algorithm = counting({})
  apply = algorithm.aggregate.apply

  def renaming(memory, updates, z_bar):
    z, new = apply({'counts': memory['counts']}, updates, z_bar)
    return aggregate.Aggregated(z, {**new, 'other': new['counts']})

  rule = algorithm.aggregate._replace(apply=renaming)
  trainer = tiny_rounds.make(dataclasses.replace(algorithm, aggregate=rule))
  with pytest.raises(errors.InputError, match='aggregate=other: init must'):
    trainer.next(trainer.initialize())
