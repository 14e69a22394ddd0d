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
  report = heterogeneity.report(COUNTS)
  assert (report.num_clients, report.num_classes) == (4, 4)
  assert report.total_examples == 28
  sizes = [4, 4, 12, 8]
  assert report.sizes == heterogeneity.Spread(7, np.std(sizes), 4, 12)
  assert report.labels == heterogeneity.Spread(2.25, np.std([1, 2, 4, 2]), 1, 4)
  eighth = -(1 / 8) * math.log2(1 / 8) - 7 / 8 * math.log2(7 / 8)
  bits = [0, 1, 2, eighth]
  assert report.entropy.mean == pytest.approx(np.mean(bits))
  assert report.entropy.sd == pytest.approx(np.std(bits))
  assert (report.entropy.min, report.entropy.max) == (0, 2)
  assert report.normalized_entropy == pytest.approx(np.mean(bits) / 2)
  # Shares: (1, 0, 0, 0), (1/2, 1/2, 0, 0), (1/4, ...), (0, 0, 1/8, 7/8).
  assert report.pairs == 6
  pairs = [1 / 2, 3 / 4, 1, 1 / 2, 1, 5 / 8]
  assert report.pair_distance == pytest.approx(np.mean(pairs))
  # All: (9, 5, 4, 10) / 28.
  to_all = [19 / 28, 14 / 28, 5 / 28, 14.5 / 28]
  assert report.global_distance.mean == pytest.approx(np.mean(to_all))
  assert report.global_distance.max == pytest.approx(19 / 28)


def test_gini_by_its_definition():
  sizes = make_counts(40).sum(axis=1)
  differences = [abs(a - b) for a in sizes for b in sizes]
  gini = np.mean(differences) / (2 * sizes.mean())
  assert heterogeneity.gini(sizes) == pytest.approx(gini)


@pytest.mark.parametrize('n', [1, 2, 50])
def test_identical_clients(n):
  report = heterogeneity.report(np.full((n, 8), 5))
  assert report.size_gini == 0
  assert report.entropy == heterogeneity.Spread(3, 0, 3, 3)
  assert report.normalized_entropy == 1
  assert report.global_distance == heterogeneity.Spread(0, 0, 0, 0)
  assert (report.pair_distance, report.pairs) == (0, n * (n - 1) // 2)


def test_disjoint_labels():
  report = heterogeneity.report(np.diag([1, 10, 1000]))
  assert report.pair_distance == 1
  assert report.entropy == heterogeneity.Spread(0, 0, 0, 0)
  assert math.copysign(1, report.entropy.mean) == 1
  assert report.labels == heterogeneity.Spread(1, 0, 1, 1)
  assert report.size_gini > 0.6


def test_one_label():
  report = heterogeneity.report(np.array([[3], [5]]))
  assert report.normalized_entropy == report.pair_distance == 0


def test_pairs():
  counts = make_counts(30)
  shares = counts / counts.sum(axis=1, keepdims=True)
  expected = np.mean(
    [np.abs(p - q).sum() / 2 for p, q in itertools.combinations(shares, 2)]
  )
  assert heterogeneity.report(counts).pair_distance == pytest.approx(expected)


def test_random_pairs():
  counts = make_counts(400)
  exact = heterogeneity.report(counts)
  assert exact.pairs == 400 * 399 // 2
  drawn = [
    heterogeneity.report(counts, seed, max_pairs=20_000) for seed in (1, 1, 2)
  ]
  assert [report.pairs for report in drawn] == [20_000] * 3
  assert drawn[0] == drawn[1]
  assert drawn[0].pair_distance != drawn[2].pair_distance
  for report in drawn:
    assert report.pair_distance == pytest.approx(exact.pair_distance, abs=0.005)
    assert report.entropy == exact.entropy


def test_no_client_is_paired_with_itself():
  report = heterogeneity.report(np.eye(5, dtype=int), max_pairs=9)
  assert (report.pair_distance, report.pairs) == (1, 9)


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
  assert lines[2] == '  per client     7.0 ± 3.3 (4 to 12); Gini 0.250'
  assert lines[3] == 'labels           4'
  assert lines[4] == '  per client     2.2 ± 1.1 (1 to 4)'
  assert lines[5].startswith('  entropy        0.89 ± 0.73 (0 to 2) bits; 44% ')
  assert lines[8].endswith(' 0.729, mean of all pairs')
  assert max(map(len, lines)) <= 80
  many = heterogeneity.report(make_counts(1000))
  assert 'mean of 200,000 random pairs' in str(many)
  one = heterogeneity.report(COUNTS[:1])
  assert str(one).endswith('\n  of two clients -')


def test_json():
  report = heterogeneity.report(COUNTS)
  text = atomic_io.to_json(dataclasses.asdict(report))
  assert '"size_gini": 0.25' in text and 'NaN' not in text


@pytest.mark.parametrize(
  'counts, value',
  [
    (np.zeros((0, 3), int), r'array of shape \[0, 3\]'),
    (np.ones(3, int), r'array of shape \[3\]'),
    (np.array([[1, 0], [0, 0]]), 'a client without examples'),
    (np.array([[3, -1]]), 'a client without examples'),
  ],
)
def test_invalid_counts(counts, value):
  with pytest.raises(errors.InputError, match=f'^label_counts={value}: must'):
    heterogeneity.report(counts)
