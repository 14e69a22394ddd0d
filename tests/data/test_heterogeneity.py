import dataclasses
import itertools
import math

import numpy as np
import pytest

from safl_tf.data import heterogeneity
from safl_tf.util import atomic_io, errors

COUNTS = np.array([[4, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 3], [0, 0, 1, 7]])


def make_counts(n, C=10):
  rng = np.random.default_rng(0)
  counts = rng.poisson(rng.gamma(0.5, 20, (n, C)))
  counts[:, 0] += 1
  return counts


def test_by_hand():
  found = heterogeneity.report(COUNTS)
  assert (found.num_clients, found.num_classes) == (4, 4)
  assert found.total_examples == 28
  sizes = [4, 4, 12, 8]
  assert found.sizes == heterogeneity.Spread(7, np.std(sizes), 4, 12)
  assert found.labels == heterogeneity.Spread(2.25, np.std([1, 2, 4, 2]), 1, 4)
  eighth = -(1 / 8) * math.log2(1 / 8) - 7 / 8 * math.log2(7 / 8)
  bits = [0, 1, 2, eighth]
  assert found.entropy.mean == pytest.approx(np.mean(bits))
  assert found.entropy.sd == pytest.approx(np.std(bits))
  assert (found.entropy.min, found.entropy.max) == (0, 2)
  assert found.normalized_entropy == pytest.approx(np.mean(bits) / 2)
  # Shares: (1, 0, 0, 0), (1/2, 1/2, 0, 0), (1/4, ...), (0, 0, 1/8, 7/8).
  assert found.pairs == 6
  pairs = [1 / 2, 3 / 4, 1, 1 / 2, 1, 5 / 8]
  assert found.pair_distance == pytest.approx(np.mean(pairs))
  # All: (9, 5, 4, 10) / 28.
  to_all = [19 / 28, 14 / 28, 5 / 28, 14.5 / 28]
  assert found.global_distance.mean == pytest.approx(np.mean(to_all))
  assert found.global_distance.max == pytest.approx(19 / 28)


def test_sizes_by_their_definition():
  sizes = make_counts(40).sum(axis=1)
  differences = [abs(a - b) for a in sizes for b in sizes]
  gini = np.mean(differences) / (2 * sizes.mean())
  assert heterogeneity.gini(sizes) == pytest.approx(gini)


@pytest.mark.parametrize('n', [1, 2, 50])
def test_clients_that_are_alike(n):
  found = heterogeneity.report(np.full((n, 8), 5))
  assert found.size_gini == 0
  assert found.entropy == heterogeneity.Spread(3, 0, 3, 3)
  assert found.normalized_entropy == 1
  assert found.global_distance == heterogeneity.Spread(0, 0, 0, 0)
  assert (found.pair_distance, found.pairs) == (0, n * (n - 1) // 2)


def test_clients_with_nothing_in_common():
  found = heterogeneity.report(np.diag([1, 10, 1000]))
  assert found.pair_distance == 1
  assert found.entropy == heterogeneity.Spread(0, 0, 0, 0)
  assert math.copysign(1, found.entropy.mean) == 1
  assert found.labels == heterogeneity.Spread(1, 0, 1, 1)
  assert found.size_gini > 0.6


def test_one_label():
  found = heterogeneity.report(np.array([[3], [5]]))
  assert found.normalized_entropy == found.pair_distance == 0


def test_pairs():
  counts = make_counts(30)
  shares = counts / counts.sum(axis=1, keepdims=True)
  wanted = np.mean(
    [np.abs(p - q).sum() / 2 for p, q in itertools.combinations(shares, 2)]
  )
  assert heterogeneity.report(counts).pair_distance == pytest.approx(wanted)


def test_random_pairs():
  counts = make_counts(400)
  exact = heterogeneity.report(counts)
  assert exact.pairs == 400 * 399 // 2
  drawn = [
    heterogeneity.report(counts, seed, max_pairs=20_000) for seed in (1, 1, 2)
  ]
  assert [found.pairs for found in drawn] == [20_000] * 3
  assert drawn[0] == drawn[1]
  assert drawn[0].pair_distance != drawn[2].pair_distance
  for found in drawn:
    assert found.pair_distance == pytest.approx(exact.pair_distance, abs=0.005)
    assert found.entropy == exact.entropy


def test_no_client_is_paired_with_itself():
  found = heterogeneity.report(np.eye(5, dtype=int), max_pairs=9)
  assert (found.pair_distance, found.pairs) == (1, 9)


def test_blocks(monkeypatch):
  counts = make_counts(30)
  whole = heterogeneity.report(counts)
  monkeypatch.setattr(heterogeneity, '_BLOCK', 25)
  assert heterogeneity.report(counts).pair_distance == pytest.approx(
    whole.pair_distance
  )


def test_text():
  lines = str(heterogeneity.report(COUNTS)).splitlines()
  assert lines[0] == 'clients          4'
  assert lines[1] == 'examples         28 in total'
  assert lines[2] == '  on a client    7.0 ± 3.3 (4 to 12); Gini 0.250'
  assert lines[3] == 'labels           4'
  assert lines[4] == '  on a client    2.2 ± 1.1 (1 to 4)'
  assert lines[5].startswith('  their entropy  0.89 ± 0.73 (0 to 2) bits; 44% ')
  assert lines[8].endswith(' 0.729, mean of all pairs')
  assert max(map(len, lines)) <= 80
  many = heterogeneity.report(make_counts(1000))
  assert 'mean of 200,000 random pairs' in str(many)
  one = heterogeneity.report(COUNTS[:1])
  assert str(one).endswith('\n  of two clients -')


def test_json():
  found = heterogeneity.report(COUNTS)
  text = atomic_io.to_json(dataclasses.asdict(found))
  assert '"size_gini": 0.25' in text and 'NaN' not in text


@pytest.mark.parametrize(
  'counts, told',
  [
    (np.zeros((0, 3), int), r'array of shape \[0, 3\]'),
    (np.ones(3, int), r'array of shape \[3\]'),
    (np.array([[1, 0], [0, 0]]), 'a client without examples'),
    (np.array([[3, -1]]), 'a client without examples'),
  ],
)
def test_counts_that_are_none(counts, told):
  with pytest.raises(errors.InputError, match=f'^label_counts={told}: must'):
    heterogeneity.report(counts)
