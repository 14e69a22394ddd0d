import itertools

import numpy as np
import pytest

from safl_tf.algorithms.fed_ma import matching
from safl_tf.algorithms.fed_ma.matching import hungarian

# The hidden layers of two small networks: 2 -> 2 -> 1, weights and bias.
A = np.array([[1, 3, 0.1], [2, 4, 0.2]])
B = np.array([[2.2, 4.2, 0.4], [1.2, 3.2, 0.3]])


def matched(rows, sizes=None, reference=None, **settings):
  rows = [np.asarray(r, np.float64) for r in rows]
  sizes = np.ones(len(rows)) if sizes is None else np.asarray(sizes)
  prior, rng = np.zeros(rows[0].shape[1]), np.random.default_rng(0)
  settings = matching.MatchConfig(**settings)
  return matching.match_units(settings, rows, sizes, prior, rng, reference)


def sorted_rows(rows):
  return rows[np.lexsort(rows.T)]


def test_cost_vector():
  cost = hungarian.squared_distances(A, B)
  np.testing.assert_allclose(cost, [[2.97, 0.12], [0.12, 1.29]], atol=1e-12)


def test_map_vector():
  result = matched([A, B], sizes=[2, 1])
  np.testing.assert_array_equal(result.maps, [[0, 1], [1, 0]])
  np.testing.assert_allclose(result.rows, [[1.1, 3.1, 0.2], [2.1, 4.1, 0.3]])


def test_assignment_is_the_best_of_all():
  rng = np.random.default_rng(3)
  for _ in range(20):
    reference, rows = rng.normal(size=(2, 5, 3))
    pi = hungarian.assign(reference, rows)

    def cost(order, reference=reference, rows=rows):
      return ((reference[list(order)] - rows) ** 2).sum()

    best = min(itertools.permutations(range(5)), key=cost)
    assert cost(pi) == pytest.approx(cost(best))


def test_the_largest_client_is_the_reference():
  rows = np.random.default_rng(0).normal(size=(6, 4))
  permutations = [np.random.default_rng(k).permutation(6) for k in range(4)]
  copies = [rows[p] for p in permutations]
  for sizes, largest in (([1, 5, 2, 3], 1), ([3, 1, 3, 3], 0)):
    result = matched(copies, sizes)
    np.testing.assert_array_equal(result.rows, copies[largest])
    np.testing.assert_array_equal(result.maps[largest], range(6))


def test_or_the_global_layer_there_is():
  rows = np.random.default_rng(0).normal(size=(6, 4))
  copies = [rows[np.random.default_rng(k).permutation(6)] for k in range(4)]
  result = matched(copies, [1, 5, 2, 3], reference=rows)
  np.testing.assert_array_equal(result.rows, rows)
  for pi, copy in zip(result.maps, copies, strict=True):
    np.testing.assert_array_equal(rows[pi], copy)


def test_relabelling_clients_permutes_maps_but_not_the_rows():
  rng = np.random.default_rng(0)
  base = 3 * rng.normal(size=(8, 5))
  rows = [
    (base + 0.2 * rng.normal(size=base.shape))[rng.permutation(8)]
    for _ in range(4)
  ]
  result = matched(rows, reference=base)
  for order in itertools.permutations(range(4)):
    again = matched([rows[k] for k in order], reference=base)
    np.testing.assert_array_equal(again.maps, [result.maps[k] for k in order])
    np.testing.assert_allclose(again.rows, result.rows, rtol=1e-12)
  largest = [matched(rows, np.eye(4)[k] + 1).rows for k in range(4)]
  for other in largest[1:]:
    np.testing.assert_allclose(
      sorted_rows(other), sorted_rows(largest[0]), rtol=1e-12
    )


def test_sweeps_go_on_until_nothing_changes():
  """The mean moves, and then another assignment is nearer."""
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(6, 8, 2))
  once, twice, many, more = (
    matched(rows, sweeps=sweeps).maps for sweeps in (1, 2, 50, 60)
  )
  assert not np.array_equal(once, twice)
  np.testing.assert_array_equal(many, more)
  reference = matched(rows, sweeps=50).rows
  for row, pi in zip(rows, many, strict=True):
    np.testing.assert_array_equal(hungarian.assign(reference, row), pi)


def test_it_is_the_limit_of_bbp():
  """For γ -> 0 no unit is opened, and all counts are equal."""
  rng = np.random.default_rng(1)
  base = 3 * rng.normal(size=(10, 6))
  rows = [
    (base + 0.3 * rng.normal(size=base.shape))[rng.permutation(10)]
    for _ in range(5)
  ]
  fixed = matched(rows)
  grown = matched(rows, matching='bbp', gamma=1e-30)
  assert len(grown.rows) == 10
  np.testing.assert_allclose(
    sorted_rows(grown.rows), sorted_rows(fixed.rows), rtol=1e-12
  )
