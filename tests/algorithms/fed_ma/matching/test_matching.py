"""What is matched, averaged, and counted, whatever the rule."""

import numpy as np
import pytest

from safl_tf.algorithms.fed_ma import matching
from safl_tf.algorithms.fed_ma.matching import averages
from safl_tf.util import errors

RULES = ('hungarian', 'bbp')


def rng():
  return np.random.default_rng(0)


def units(count, features=5, seed=0):
  rows = np.random.default_rng(seed).normal(size=(count, features))
  return rows.astype(np.float32).astype(np.float64)  # as models are


def matched(settings, rows, sizes=None, reference=None, prior=None):
  sizes = np.ones(len(rows)) if sizes is None else np.asarray(sizes)
  prior = np.zeros(rows[0].shape[1]) if prior is None else prior
  return matching.match_units(settings, rows, sizes, prior, rng(), reference)


@pytest.mark.parametrize('average', ['mean', 'map'])
@pytest.mark.parametrize('rule', RULES)
def test_a_client_that_is_alone_stays_as_it_is(rule, average):
  rows = units(4)
  result = matched(matching.MatchConfig(rule, average=average), [rows])
  np.testing.assert_array_equal(result.rows, rows)
  np.testing.assert_array_equal(result.maps, [range(4)])
  np.testing.assert_array_equal(result.counts, [1, 1, 1, 1])


@pytest.mark.parametrize('rule', RULES)
def test_identical_clients_stay_as_they_are(rule):
  rows = 4 * units(6)  # so large that 'bbp' matches them
  result = matched(matching.MatchConfig(rule), [rows] * 5)
  np.testing.assert_array_equal(result.rows, rows)
  np.testing.assert_array_equal(result.maps, [range(6)] * 5)
  np.testing.assert_array_equal(result.counts, [5] * 6)


@pytest.mark.parametrize(
  'clients, factor', [(2, 0.667), (10, 0.909), (50, 0.98)]
)
@pytest.mark.parametrize('rule', RULES)
def test_map_is_a_shrunken_mean(rule, clients, factor):
  rows = 4 * units(6)
  result = matched(matching.MatchConfig(rule, average='map'), [rows] * clients)
  np.testing.assert_allclose(result.rows, rows * clients / (clients + 1))
  assert clients / (clients + 1) == pytest.approx(factor, abs=5e-4)


def test_map_with_a_prior_mean():
  rows = [np.array([[3.0, 0.2]]), np.array([[2.0, 0.3]])]
  prior = np.array([0, matching.BIAS_PRIOR])
  result = matched(matching.MatchConfig(average='map'), rows, prior=prior)
  np.testing.assert_allclose(result.rows, [[5 / 3, 0.6 / 3]])


@pytest.mark.parametrize('average, expected', [('mean', 5 / 2), ('map', 5 / 3)])
@pytest.mark.parametrize('rule', RULES)
def test_clients_may_count_by_size(rule, average, expected):
  """Weights have the mean 1: 0.5 and 1.5, and the prior's is 1."""
  rows = [np.array([[1.0]]), np.array([[3.0]])]
  gamma = {'gamma': 1e-3} if rule == 'bbp' else {}
  settings = matching.MatchConfig(rule, average=average, by_size=True, **gamma)
  result = matched(settings, rows, [100, 300])
  np.testing.assert_allclose(result.rows, [[expected]])


@pytest.mark.parametrize('rule', RULES)
def test_maps_are_injective_and_counts_add_up(rule):
  widths = [7, 7, 7, 7] if rule == 'hungarian' else [7, 4, 9, 1]
  rows = [3 * units(w, seed=w + k) for k, w in enumerate(widths)]
  result = matched(matching.MatchConfig(rule), rows)
  assert result.counts.sum() == sum(widths) and result.counts.min() >= 1
  assert max(widths) <= len(result.rows) <= sum(widths)
  for pi, width in zip(result.maps, widths, strict=True):
    assert len(set(pi.tolist())) == len(pi) == width
  for g, row in enumerate(result.rows):
    members = [
      r[np.flatnonzero(pi == g)]
      for r, pi in zip(rows, result.maps, strict=True)
    ]
    np.testing.assert_allclose(row, np.concatenate(members).mean(axis=0))


def test_average_of_units_with_different_counts():
  rows = [np.array([[1.0], [5.0]]), np.array([[3.0]])]
  maps = [np.array([0, 1]), np.array([0])]
  plain = averages.average_units(rows, maps, np.ones(2))
  np.testing.assert_array_equal(plain, [[2], [5]])
  shrunken = averages.average_units(rows, maps, np.ones(2), np.array([0.5]))
  np.testing.assert_array_equal(shrunken, [[1.5], [2.75]])


def test_class_average_vector():
  kernels = [np.array([[1.0, 2.0]]), np.array([[3.0, 6.0]])]
  counts = np.array([[10, 0], [30, 0]])
  np.testing.assert_array_equal(
    matching.average_classes(kernels, counts), [[2.5, 4.0]]
  )


def test_class_average_of_identical_layers_is_theirs():
  kernel = units(6, 4).astype(np.float32)
  counts = np.random.default_rng(1).integers(0, 9, (7, 4))
  result = matching.average_classes([kernel] * 7, counts).astype(np.float32)
  np.testing.assert_array_equal(result, kernel)


@pytest.mark.parametrize(
  'field, value',
  [
    ('matching', 'greedy'),
    ('schedule', 'weekly'),
    ('average', 'median'),
    ('gamma', 0),
    ('gamma', float('nan')),
    ('sweeps', 0),
  ],
)
def test_refused(field, value):
  with pytest.raises(errors.InputError, match=f'^fedma_{field}={value}: '):
    matching.MatchConfig(**{field: value})
