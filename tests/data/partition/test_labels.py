"""Partitions that give clients different labels: biased and dirichlet."""

import numpy as np
import pytest

from safl_tf.data import partition
from safl_tf.util import errors
from tests.data.partition.test_partition import NUM_CLASSES, labels


def shares(parts, y):
  """p_k,c, the share of each label on each client."""
  counts = [np.bincount(y[part], minlength=NUM_CLASSES) for part in parts]
  return np.array([count / count.sum() for count in counts])


def numbers_of_labels(parts, y):
  return [len(np.unique(y[part])) for part in parts]


@pytest.mark.parametrize(
  'fraction, biased', [(0.0, 0), (0.25, 10), (0.5, 20), (1.0, 40)]
)
def test_biased_groups(fraction, biased):
  y = labels(20_000)
  make = partition.biased(40, fraction, mean_examples=300)
  held = numbers_of_labels(make(y, NUM_CLASSES), y)
  first, second = held[: 40 - biased], held[40 - biased :]
  assert all(2 <= number <= 7 for number in first)
  assert second == [1] * biased


def test_biased_first_group_is_uniform():
  y = labels(20_000)
  make = partition.biased(600, 0.0, max_labels=4, mean_examples=100)
  held = numbers_of_labels(make(y, NUM_CLASSES), y)
  counts = np.bincount(held, minlength=5)
  assert counts[:2].sum() == 0 and len(counts) == 5
  np.testing.assert_allclose(counts[2:], 200, atol=4 * 200**0.5)


def test_biased_labels_differ():
  y = labels(20_000)
  parts = partition.biased(50, 1.0)(y, NUM_CLASSES)
  assert len({int(y[part[0]]) for part in parts}) == NUM_CLASSES


def test_one_label_for_the_biased_group():
  y = labels(20_000)
  make = partition.biased(10, 0.5, biased_label=2)
  parts = make(y, NUM_CLASSES)
  assert all(set(y[part]) == {2} for part in parts[5:])
  free = partition.biased(10, 0.5)(y, NUM_CLASSES)
  assert all(map(np.array_equal, parts[:5], free[:5]))


@pytest.mark.parametrize('label', [7, 10])
def test_biased_label_without_examples(label):
  y = labels(20_000) % 5
  with pytest.raises(
    errors.InputError, match=f'^biased_label={label}: must be'
  ):
    partition.biased(10, biased_label=label)(y, NUM_CLASSES)


def test_large_alpha_gives_the_shares_of_the_data():
  y = labels(20_000) // 2 * 2  # 0, 2, 4, 6, 8
  y[:5000] = 9
  make = partition.dirichlet(20, 1e9, mean_examples=5000)
  data_shares = np.bincount(y, minlength=NUM_CLASSES) / len(y)
  held = shares(make(y, NUM_CLASSES), y)
  np.testing.assert_allclose(held, np.tile(data_shares, (20, 1)), atol=0.03)


@pytest.mark.parametrize('alpha', [1e-9, 1e-4])
def test_small_alpha_gives_one_label(alpha):
  y = labels(20_000)
  parts = partition.dirichlet(200, alpha, mean_examples=50)(y, NUM_CLASSES)
  assert numbers_of_labels(parts, y) == [1] * 200
  assert len({int(y[part[0]]) for part in parts}) == NUM_CLASSES


@pytest.mark.parametrize('alpha', [0.1, 0.5, 5.0])
def test_shares_vary_as_a_dirichlet_does(alpha):
  y = np.repeat(np.arange(NUM_CLASSES), 2000).astype(np.int32)
  make = partition.dirichlet(
    2000, alpha, mean_examples=400, variance_examples=0
  )
  held = shares(make(y, NUM_CLASSES), y)
  np.testing.assert_allclose(held.mean(axis=0), 0.1, atol=0.03)
  of_q = 0.1 * 0.9 / (NUM_CLASSES * alpha + 1)  # Dirichlet's variance
  of_draws = (0.1 * 0.9 - of_q) / 400  # a binomial's, on average over q
  np.testing.assert_allclose(held.var(), of_q + of_draws, rtol=0.1)


def test_unequal_labels_keep_their_shares_on_average():
  y = np.repeat([0, 1, 2], [500, 1500, 8000]).astype(np.int32)
  make = partition.dirichlet(4000, 0.5, mean_examples=100)
  mean = shares(make(y, 3), y).mean(axis=0)
  np.testing.assert_allclose(mean[:3], [0.05, 0.15, 0.8], atol=0.02)


def test_examples_of_a_label_are_uniform():
  y = np.repeat(np.arange(4), 25).astype(np.int32)
  make = partition.dirichlet(4000, 1.0, mean_examples=4, variance_examples=0)
  held = np.bincount(np.concatenate(make(y, 4)), minlength=100)
  assert held.sum() == 16_000
  np.testing.assert_allclose(held, 160, rtol=0.35)


def test_exhausted_labels_are_replaced_by_others():
  y = np.repeat(np.arange(5), 20).astype(np.int32)
  make = partition.dirichlet(50, 0.5, mean_examples=60, variance_examples=0)
  parts = make(y, 5)
  assert [len(part) for part in parts] == [60] * 50
  whole = partition.dirichlet(5, 0.5, mean_examples=1000)(y, 5)
  assert all(sorted(part) == list(range(100)) for part in whole)


def test_one_label_limits_the_size():
  y = np.array([1] + 19 * [0], np.int32)
  make = partition.dirichlet(200, 1e-9, 15, variance_examples=0)
  sizes = {0: 15, 1: 1}
  first = [int(y[part[0]]) for part in make(y, 2)]
  assert set(first) == {0, 1}
  assert [len(part) for part in make(y, 2)] == [sizes[c] for c in first]
