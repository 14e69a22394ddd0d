import copy
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from safl_tf.core import client_store
from safl_tf.util import errors


class Initial:
  """Draws models and remembers for whom."""

  def __init__(self):
    self.asked = []

  def __call__(self, k):
    self.asked.append(k)
    return np.full(3, k, np.float32)


def row(*values):
  return np.array(values, np.float32)


@pytest.fixture(params=['ram', 'mmap'])
def start(request, tmp_path):
  return client_store.create(request.param, Initial(), tmp_path)


def test_a_wrong_kind_is_refused():
  with pytest.raises(errors.InputError, match='one of ram, mmap'):
    client_store.create('disk', Initial())


def test_initial_models_are_drawn_when_asked_for():
  initial = Initial()
  clients = client_store.ClientStore(initial)
  assert initial.asked == [] and len(clients) == 0
  np.testing.assert_array_equal(clients[5], [5, 5, 5])
  assert initial.asked == [5]
  assert len(clients) == 0  # looking costs nothing


def test_updated_is_a_new_value(start):
  new = start.updated({2: row(1, 1, 1), 4: row(0, 0, 0)})
  newer = new.updated({2: row(9, 9, 9)})
  np.testing.assert_array_equal(start[2], [2, 2, 2])
  np.testing.assert_array_equal(new[2], [1, 1, 1])
  np.testing.assert_array_equal(newer[2], [9, 9, 9])
  np.testing.assert_array_equal(newer[4], [0, 0, 0])
  assert [len(s) for s in (start, new, newer)] == [0, 2, 2]


def test_values_stay_what_they_were_whatever_comes_and_goes(start):
  """Against a dict of copies, with many values alive and others dropped."""
  random = np.random.default_rng(0)
  alive = [(start, {})]
  for _ in range(100):
    clients, models = alive[random.integers(len(alive))]
    ids = random.choice(12, random.integers(5), replace=False).tolist()
    changed = {k: random.normal(size=3).astype(np.float32) for k in ids}
    alive.append((clients.updated(changed), {**models, **copy_of(changed)}))
    if len(alive) > 8:
      del alive[random.integers(len(alive))]
    for clients, models in alive:
      assert len(clients) == len(models)
      for k in range(12):
        expected = models.get(k, np.full(3, k))
        np.testing.assert_array_equal(clients[k], expected)


def copy_of(models):
  return {k: model.copy() for k, model in models.items()}


def test_what_did_not_change_is_shared():
  new = client_store.ClientStore(Initial()).updated(
    {2: row(1, 1, 1), 4: row(0, 0, 0)}
  )
  assert new.updated({2: row(9, 9, 9)})[4] is new[4]


def test_a_row_of_a_matrix_does_not_keep_the_matrix():
  matrix = np.zeros((5, 3), np.float32) + 0
  clients = client_store.ClientStore(Initial()).updated({1: matrix[1]})
  gone = weakref.ref(matrix)
  del matrix
  assert gone() is None
  np.testing.assert_array_equal(clients[1], [0, 0, 0])


def test_changed_since(start):
  first = start.updated({k: row(k, 0, 0) for k in (7, 0, 12)})
  second = first.updated({12: row(1, 2, 3), 3: row(1, 2, 3)})
  assert start.changed_since(None) == []
  assert second.changed_since(None) == [0, 3, 7, 12]
  assert second.changed_since({}) == [0, 3, 7, 12]
  assert second.changed_since(start.versions) == [0, 3, 7, 12]
  assert second.changed_since(first.versions) == [3, 12]
  assert second.changed_since(second.versions) == []
  assert first.updated({}).changed_since(first.versions) == []
  same = first.updated({0: first[0]})  # trained, whatever came out
  assert same.changed_since(first.versions) == [0]
  other = start.updated({k: row(k, 0, 0) for k in (7, 0, 12)})
  assert other.changed_since(first.versions) == [0, 7, 12]
  fork = first.updated({12: row(1, 2, 3)})
  assert fork.changed_since(second.versions) == [12]


def test_versions_keep_no_model_alive():
  model = row(1, 1, 1)
  gone = weakref.ref(model)
  versions = client_store.ClientStore(Initial()).updated({1: model}).versions
  del model
  gc.collect()
  assert gone() is None and list(versions) == [1]


def test_to_arrays(start):
  random = np.random.default_rng(0)
  models = {k: random.normal(size=3).astype(np.float32) for k in (7, 0, 12)}
  arrays = start.updated(models).to_arrays()
  np.testing.assert_array_equal(arrays['ids'], [0, 7, 12])
  expected = np.stack([models[k] for k in (0, 7, 12)])
  assert arrays['arrays'].tobytes() == expected.tobytes()
  assert arrays['arrays'].dtype == np.float32
  assert [len(array) for array in start.to_arrays().values()] == [0, 0]


def test_a_shallow_copy_is_as_good(start):
  clients = start.updated({1: row(1, 1, 1)})
  copied = copy.copy(clients)
  del clients
  copied.updated({2: row(2, 2, 2)})
  np.testing.assert_array_equal(copied[1], [1, 1, 1])


ARRAYS = {
  'a matrix': np.arange(12, dtype=np.float64).reshape(3, 4),
  'a transposed matrix': np.arange(12, dtype=np.int16).reshape(3, 4).T,
  'a number': np.array(7),
  'nothing': np.zeros(0, np.float32),
  'rows of nothing': np.zeros((4, 0), np.uint8),
  'truth': np.array([True, False, True]),
  'narrow numbers': np.array([[1.5, -2, 0.1]]).astype(ml_dtypes.bfloat16),
  'big-endian numbers': np.arange(5, dtype='>f4'),
  'text': np.array(['z', 'w_k']),
}


def check_equal(got, expected):
  assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
  assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize('array', ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_any_shape_and_dtype(start, array):
  clients = start.updated({k: array.copy() for k in (1, 5)})
  clients = clients.updated({5: clients[5], 2: clients.put(array)})
  for k in (1, 2, 5):
    check_equal(clients[k], array)
  check_equal(clients.to_arrays()['arrays'], np.stack([array] * 3))


def test_objects_are_refused(start):
  with pytest.raises(ValueError, match='dtype object'):
    start.updated({1: np.array([None])})
  with pytest.raises(ValueError, match='dtype object'):
    start.put(np.array([None]))
  start.updated({1: row(1, 1, 1)})


def test_arrays_are_stored_before_they_belong_to_a_client(start):
  handles = {k: start.put(row(k, k, 0)) for k in (3, 8)}
  assert len(start) == 0
  for k, handle in handles.items():
    np.testing.assert_array_equal(handle.read(), [k, k, 0])
  new = start.updated({**handles, 4: row(4, 4, 4)})
  again = new.updated({5: handles[3]})  # the same array for two clients
  del handles
  gc.collect()
  assert new.changed_since(None) == [3, 4, 8]
  assert again.changed_since(new.versions) == [5]
  for k, value in {3: 3, 8: 8, 5: 3}.items():
    np.testing.assert_array_equal(again[k], [value, value, 0])


def test_handles_of_other_stores_are_refused(start, tmp_path):
  for kind in 'ram', 'mmap':
    other = start.on(kind, tmp_path)
    for array in (row(1, 2, 3), np.zeros(0)):
      handle = start.on(kind, tmp_path).put(array)
      for store in start, other:
        with pytest.raises(ValueError, match='no handle of this store'):
          store.updated({1: handle})
  for wrong in None, [1.0, 2.0, 3.0], np.float32(1):
    with pytest.raises(ValueError, match='is no array and no handle'):
      start.updated({1: wrong})


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
def test_on_another_backend(start, kind, tmp_path):
  clients = start.updated({1: row(1, 1, 1)})
  moved = clients.on(kind, tmp_path)
  assert len(moved) == 0
  np.testing.assert_array_equal(moved[1], start[1])
  other = moved.updated({1: np.zeros((2, 2))})  # may be of another type
  np.testing.assert_array_equal(other[1], np.zeros((2, 2)))
  np.testing.assert_array_equal(clients[1], [1, 1, 1])


def test_a_handle_does_not_keep_the_matrix_of_a_row():
  matrix = np.zeros((5, 3), np.float32) + 0
  handle = client_store.ClientStore(Initial()).put(matrix[1])
  gone = weakref.ref(matrix)
  del matrix
  assert gone() is None
  np.testing.assert_array_equal(handle.read(), [0, 0, 0])


@pytest.mark.parametrize('use', [list, np.asarray, np.isfinite])
def test_a_loop_over_all_clients_is_refused(use):
  """Every client has an initial array, so the loop would never end."""
  with pytest.raises(TypeError):
    use(client_store.create('ram', lambda k: np.zeros(3)))
