"""Disjoint partitions and the natural one."""

import numpy as np
import pytest

from safl_tf.data import client_data, partition
from safl_tf.util import errors
from tests.data.partition.test_partition import NUM_CLASSES, labels


@pytest.mark.parametrize('each', [1, 2, 3])
def test_shards_hold_few_labels(each):
  y = np.repeat(np.arange(10), 600).astype(np.int32)
  y = np.random.default_rng(0).permuted(y)
  # 600 is a multiple of a shard's size, so that none has two labels.
  parts = partition.shards(20, each)(y, NUM_CLASSES)
  held = [len(np.unique(y[part])) for part in parts]
  assert max(held) == each and {len(part) for part in parts} == {300}


def test_shards_are_of_neighbouring_labels():
  y = labels(1003)
  parts = partition.shards(7, 1)(y, NUM_CLASSES)
  assert {len(part) for part in parts} == {143, 144}
  ordered = sorted(parts, key=lambda part: y[part].mean())
  together = np.concatenate([np.sort(y[part]) for part in ordered])
  assert (np.diff(together) >= 0).all()


def test_shards_mix_the_examples_of_a_label():
  first, _ = partition.shards(2, 1)(np.zeros(1000, np.int32), 1)
  assert 200 < (first < 500).sum() < 300


def test_more_shards_than_examples():
  y = labels(50)
  parts = partition.shards(40, 3)(y, NUM_CLASSES)
  held = np.bincount(np.concatenate(parts), minlength=50)
  assert held.min() >= 1 and held.max() <= 3
  assert all(1 <= len(part) <= 3 for part in parts)


@pytest.mark.parametrize('sigma', [0.3, 1.0, 2.0])
def test_sizes_are_log_normal(sigma):
  y = np.zeros(3_000_000, np.int8)
  sizes = np.array([len(p) for p in partition.quantity(1000, sigma)(y, 1)])
  assert sizes.sum() == len(y)
  logs = np.sort(np.log(sizes))
  np.testing.assert_allclose(logs.std(), sigma, rtol=0.1)
  middle = logs[500]
  np.testing.assert_allclose(middle - logs[159], sigma, rtol=0.15)
  np.testing.assert_allclose(logs[841] - middle, sigma, rtol=0.15)


def test_sizes_with_extreme_sigma():
  sizes = [len(p) for p in partition.quantity(7, 0.0)(labels(1003), 10)]
  assert set(sizes) == {143, 144}
  sizes = [len(p) for p in partition.quantity(20, 100.0)(labels(5000), 10)]
  assert sorted(sizes)[:-1] == [1] * 19 and sum(sizes) == 5000


def test_quantity_keeps_label_proportions():
  y = labels(60_000)
  for part in partition.quantity(10)(y, NUM_CLASSES):
    share = np.bincount(y[part], minlength=NUM_CLASSES) / len(part)
    np.testing.assert_allclose(share, 0.1, atol=2 * len(part) ** -0.5)


def test_quantity_with_fewer_examples_than_clients():
  parts = partition.quantity(25)(labels(10), NUM_CLASSES)
  assert [len(part) for part in parts] == [1] * 25
  held = np.bincount(np.concatenate(parts), minlength=10)
  assert set(held) == {2, 3}


CLIENTS = {
  'text': (['b', 'a', 'b', 'c', 'a', 'b'], ['a', 'b', 'c']),
  'bytes': ([b'b', b'a', b'b', b'\xc3\xa9', b'a', b'b'], ['a', 'b', '\xe9']),
  'numbers': ([7, -1, 7, 10, -1, 7], ['-1', '7', '10']),
  'objects': (
    np.array(['b', 'aa', 'b', 'c', 'aa', 'b'], object),
    ['aa', 'b', 'c'],
  ),
}


@pytest.mark.parametrize('client, names', CLIENTS.values(), ids=CLIENTS)
def test_by_client(client, names):
  made = partition.by_client(client)
  x, y = np.zeros((6, 2)), np.arange(6) % 3
  clients = client_data.ClientData.from_arrays(x, y, made)
  assert clients.client_ids == names
  rows = [clients.indices(k).tolist() for k in range(3)]
  assert rows == [[1, 4], [0, 2, 5], [3]]
  assert clients.num_examples(names[1]) == 3


def test_given_client_ids_take_precedence():
  made = partition.by_client([1, 2])
  clients = client_data.ClientData.from_arrays(
    np.zeros(2), np.zeros(2, int), made, client_ids=['one', 'two']
  )
  assert clients.client_ids == ['one', 'two']


def test_small_clients_are_left_out():
  client = ['b', 'a', 'b', 'c', 'a', 'b']
  made = partition.by_client(client, min_examples=2)
  assert made.client_ids == ['a', 'b']
  parts = made(np.zeros(6, np.int32), 1)
  assert [part.tolist() for part in parts] == [[1, 4], [0, 2, 5]]
  assert all(part.dtype == np.int32 for part in parts)
  for number, hint in ((4, '.*most 3$'), (0, 'must be')):
    with pytest.raises(
      errors.InputError, match=f'^min_examples={number}: {hint}'
    ):
      partition.by_client(client, min_examples=number)


@pytest.mark.parametrize(
  'client, content',
  [
    ([], r'array of shape \[0\]'),
    ([['a', 'b']], r'array of shape \[1, 2\]'),
    ([0.5, 1.5], 'array of float'),
    (np.array([0.5, 1.5]), 'array of float64'),
    ([1, '1'], 'array of int, str'),
    ([1, True], 'array of bool, int'),
    (['a', 'a\0'], 'array of str'),
    ([2**70, 1], 'array of int'),
    ([True, False], 'array of bool'),
    (np.array(['a', None]), 'array of NoneType, str'),
    (np.array(['a', float('nan')], object), 'array of float, str'),
  ],
)
def test_invalid_client_ids(client, content):
  with pytest.raises(errors.InputError, match=f'^client={content}: must hold'):
    partition.by_client(client)


def test_client_ids_of_other_data():
  made = partition.by_client(['a', 'b'])
  with pytest.raises(errors.InputError, match=r'^client=.* 2: .* the 3 labels'):
    made(np.zeros(3, np.int32), 1)
