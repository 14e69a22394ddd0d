import dataclasses
import itertools
import math

import numpy as np
import pytest

import safl_tf
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.rules import aggregate
from safl_tf.util import errors

RULES = {
  'median': aggregate.coordinate_median(),
  'trimmed mean': aggregate.trimmed_mean(0.25),
  'krum': aggregate.krum(),
  'multi-krum': aggregate.multi_krum(),
  'multi-krum of 3': aggregate.multi_krum(2, 3),
  'geometric median': aggregate.geometric_median(),
}
every_rule = pytest.mark.parametrize('rule', RULES.values(), ids=RULES)


def updates(z, m=None):
  m = np.ones(len(z)) if m is None else m
  return aggregate.Updates(
    t=1, ids=np.arange(len(z)), arrays={'z': z}, m=np.asarray(m), num_clients=99
  )


def fused(rule, z, m=None):
  return rule.apply({}, updates(z, m), None).z_bar


def models(count=9, size=20, dtype=np.float64, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(count, size)).astype(dtype)


def krum_scores(z, f):
  """By the definition, over all sets of neighbours."""
  r = len(z)
  count = max(1, r - f - 2)
  scores = []
  for k in range(r):
    others = [np.sum((z[k] - z[j]) ** 2) for j in range(r) if j != k]
    scores.append(min(map(sum, itertools.combinations(others, count))))
  return np.array(scores)


def total_distance(v, z):
  return np.linalg.norm(z - v, axis=1).sum()


@every_rule
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('count', [1, 2, 7, 10])
def test_equal_models_stay(rule, dtype, count):
  (z,) = models(1, dtype=dtype)
  z[3] = -0.0
  got = fused(rule, [z.copy() for _ in range(count)])
  assert got.dtype == dtype
  assert got.tobytes() == z.tobytes()


@every_rule
@pytest.mark.parametrize('value', [1e6, -1e6, 1e15])
def test_two_of_nine_do_no_harm(rule, value):
  z = models()
  z[[2, 6]] = value
  honest = np.delete(z, [2, 6], axis=0)
  z_bar = fused(rule, z)
  assert (z_bar >= honest.min(axis=0) - 1e-9).all()
  assert (z_bar <= honest.max(axis=0) + 1e-9).all()
  assert np.abs(fused(aggregate.by_size(), z)).min() > 1e5  # as the mean would


@every_rule
def test_outliers_that_agree_do_no_harm(rule):
  """The same far model twice, and near copies of it."""
  z = models()
  z[:2] = 1e6 + 1e-3 * models(2)
  assert np.abs(fused(rule, z)).max() < 5


@every_rule
@pytest.mark.parametrize('count', [5, 8, 9])
def test_order_of_clients_does_not_matter(rule, count):
  z = models(count)
  z_bar = fused(rule, z)
  for seed in range(5):
    order = np.random.default_rng(seed).permutation(count)
    np.testing.assert_allclose(fused(rule, z[order]), z_bar, rtol=0, atol=1e-14)


@every_rule
def test_moves_with_the_models(rule):
  z, shift = models(), np.linspace(-40, 40, 20)
  moved = fused(rule, z + shift)
  np.testing.assert_allclose(moved, fused(rule, z) + shift, rtol=0, atol=1e-12)


@every_rule
def test_scales_with_the_models(rule):
  z = models()
  scaled = fused(rule, 1e-6 * z)
  expected = 1e-6 * fused(rule, z)
  np.testing.assert_allclose(scaled, expected, rtol=0, atol=1e-19)


@every_rule
def test_sizes_and_the_global_model_do_not_matter(rule):
  z = models(dtype=np.float32)
  old = np.full(20, 9, np.float32)
  first = rule.apply({}, updates(z), None)
  other = rule.apply({}, updates(z, np.arange(1, 10)), old)
  np.testing.assert_array_equal(first.z_bar, other.z_bar)
  assert first.memory == other.memory == {}


@every_rule
@pytest.mark.parametrize('count', [1, 2, 5])
def test_the_result_is_nobodys_model(rule, count):
  z = models(count)
  z.setflags(write=False)  # nor are they written to
  z_bar = fused(rule, z)
  assert not np.shares_memory(z_bar, z)


@every_rule
def test_float32_models_stay_float32(rule):
  z = models(dtype=np.float32)
  z_bar = fused(rule, z)
  assert z_bar.dtype == np.float32
  expected = fused(rule, z.astype(np.float64)).astype(np.float32)
  np.testing.assert_array_equal(z_bar, expected)


@every_rule
def test_two_models(rule):
  z = models(2)
  expected = z[0] if rule is RULES['krum'] else z.mean(axis=0)
  np.testing.assert_allclose(fused(rule, z), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize('count', [3, 4, 9, 10])
def test_median_is_numpys(count):
  z = models(count)
  got = fused(aggregate.coordinate_median(), z)
  np.testing.assert_allclose(got, np.median(z, axis=0), rtol=1e-15)


@pytest.mark.parametrize('count', [2, 3, 4, 9, 10, 11])
@pytest.mark.parametrize('fraction', [0, 0.1, 0.2, 0.3, 0.49])
def test_trimmed_mean_by_hand(count, fraction):
  z = models(count)
  cut = math.floor(fraction * count)
  expected = []
  for column in z.T:
    left = sorted(column)[cut : count - cut]
    expected.append(sum(left) / len(left))
  got = fused(aggregate.trimmed_mean(fraction), z)
  np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-15)


def test_trimmed_mean_is_scipys():
  stats = pytest.importorskip('scipy.stats')
  z = models(11)
  expected = stats.trim_mean(z, 0.2, axis=0)
  got = fused(aggregate.trimmed_mean(), z)
  np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-15)


def test_nothing_trimmed_is_the_mean():
  z = models()
  got = fused(aggregate.trimmed_mean(0), z)
  np.testing.assert_allclose(got, z.mean(axis=0), rtol=0, atol=1e-15)


@pytest.mark.parametrize('count', [3, 5, 6, 9])
@pytest.mark.parametrize('f', [None, 0, 1, 2, 20])
def test_krum_by_hand(count, f):
  z = models(count, seed=count)
  known = max(0, math.floor((count - 3) / 2)) if f is None else f
  scores = krum_scores(z, known)
  np.testing.assert_array_equal(
    fused(aggregate.krum(f), z), z[np.argmin(scores)]
  )


@pytest.mark.parametrize('count', [3, 5, 6, 9])
@pytest.mark.parametrize('f', [None, 0, 1, 2, 20])
@pytest.mark.parametrize('selected', [None, 1, 3, 20])
def test_multi_krum_by_hand(count, f, selected):
  z = models(count, seed=count)
  known = max(0, math.floor((count - 3) / 2)) if f is None else f
  wanted = max(1, count - known) if selected is None else selected
  chosen = np.argsort(krum_scores(z, known))[:wanted]
  got = fused(aggregate.multi_krum(f, selected), z)
  np.testing.assert_allclose(got, z[chosen].mean(axis=0), rtol=0, atol=1e-15)


def test_multi_krum_of_one_is_krum():
  z = models()
  np.testing.assert_array_equal(
    fused(aggregate.multi_krum(2, 1), z), fused(aggregate.krum(2), z)
  )


def test_the_first_of_equal_scores_is_taken():
  z = np.array([[9.0], [1], [-1], [2], [-2]])  # 1 and -1 score the same
  np.testing.assert_array_equal(fused(aggregate.krum(1), z), [1])
  z = z[[0, 2, 1, 3, 4]]
  np.testing.assert_array_equal(fused(aggregate.krum(1), z), [-1])
  np.testing.assert_array_equal(fused(aggregate.multi_krum(1, 1), z), [-1])


def test_krum_tells_near_models_apart_beside_far_ones():
  z = 1e-3 * models()
  z[:2] = [[1e9], [-1e9]]
  expected = fused(aggregate.krum(0), z[2:])  # five neighbours, as below
  np.testing.assert_array_equal(fused(aggregate.krum(2), z), expected)


@pytest.mark.parametrize('count', [3, 4, 7])
@pytest.mark.parametrize('size', [2, 5])
def test_geometric_median_is_the_minimum(count, size):
  optimize = pytest.importorskip('scipy.optimize')
  z = models(count, size, seed=10 * count + size)
  result = optimize.minimize(
    total_distance,
    z.mean(axis=0),
    (z,),
    method='Nelder-Mead',
    options={'xatol': 1e-10, 'fatol': 1e-14, 'maxiter': 20_000},
  )
  z_bar = fused(aggregate.geometric_median(1000), z)
  assert total_distance(z_bar, z) <= result.fun + 1e-9
  np.testing.assert_allclose(z_bar, result.x, rtol=0, atol=1e-5)


def test_geometric_median_has_no_pull():
  z = models()
  z_bar = fused(aggregate.geometric_median(), z)
  gaps = z - z_bar
  pull = (gaps / np.linalg.norm(gaps, axis=1, keepdims=True)).sum(axis=0)
  assert np.linalg.norm(pull) <= 9e-8


def test_geometric_median_of_a_cross_is_where_its_lines_meet():
  z = np.array([[-1.0, 0], [9, 0], [0, -5], [0, 2]])
  z_bar = fused(aggregate.geometric_median(1000), z)
  np.testing.assert_allclose(z_bar, [0, 0], rtol=0, atol=1e-7)


def test_geometric_median_leaves_a_model_it_starts_at():
  """The median of every element is the first model, which is not optimal."""
  z = np.array([[0.0, 0], [10, 1], [11, 1], [-1, -10], [-1, -11]])
  np.testing.assert_array_equal(np.median(z, axis=0), z[0])
  z_bar = fused(aggregate.geometric_median(1000), z)
  assert total_distance(z_bar, z) < total_distance(z[0], z) - 0.1
  gaps = z - z_bar
  pull = (gaps / np.linalg.norm(gaps, axis=1, keepdims=True)).sum(axis=0)
  assert np.linalg.norm(pull) <= 5e-8


@pytest.mark.parametrize('far', [1.0, 1e9])
def test_geometric_median_is_the_model_of_most(far):
  z = far * models(5)
  z[1:4] = 0.1
  np.testing.assert_array_equal(fused(aggregate.geometric_median(), z), z[1])


def test_geometric_median_can_be_a_model():
  """One of three, where the angle of the triangle is above 120 degrees."""
  z = np.array([[0.0, 0], [10, 1], [-10, 1]])
  z_bar = fused(aggregate.geometric_median(1000), z)
  np.testing.assert_allclose(z_bar, z[0], rtol=0, atol=1e-7)


def test_geometric_median_stops():
  z = models()
  exact = fused(aggregate.geometric_median(1000, 0), z)
  misses = [
    np.abs(fused(rule, z) - exact).max()
    for rule in (
      aggregate.geometric_median(1),
      aggregate.geometric_median(3),
      aggregate.geometric_median(1000, 1e-3),
      aggregate.geometric_median(1000, 1e-6),
    )
  ]
  assert misses[0] > misses[1] > 1e-6
  # Every pull is at most r, so that a tolerance of 1 is met at once.
  np.testing.assert_array_equal(
    fused(aggregate.geometric_median(1000, 1), z),
    fused(aggregate.geometric_median(1), z),
  )
  assert misses[2] > misses[3] > 0


@pytest.mark.parametrize(
  'rule, description',
  [
    (aggregate.coordinate_median(), 'coordinate_median.estimate()'),
    (aggregate.trimmed_mean(0.1), 'trimmed_mean.estimate(trim_fraction=0.1)'),
    (aggregate.krum(2), 'krum.estimate(num_byzantine=2)'),
    (
      aggregate.multi_krum(2, 3),
      'multi_krum.estimate(num_byzantine=2, num_selected=3)',
    ),
    (
      aggregate.geometric_median(7, 0.5),
      'geometric_median.estimate(max_iterations=7, tolerance=0.5)',
    ),
  ],
)
def test_description_has_the_settings(rule, description):
  algorithm = dataclasses.replace(safl_tf.build_fed_avg(), aggregate=rule)
  assert description in algorithm_lib.describe(algorithm)['aggregate']


@pytest.mark.parametrize(
  'factory, argument, value',
  [
    (aggregate.trimmed_mean, 'trim_fraction', -0.1),
    (aggregate.trimmed_mean, 'trim_fraction', 0.5),
    (aggregate.trimmed_mean, 'trim_fraction', 0.6),
    (aggregate.trimmed_mean, 'trim_fraction', math.nan),
    (aggregate.krum, 'num_byzantine', -1),
    (aggregate.krum, 'num_byzantine', 0.5),
    (aggregate.multi_krum, 'num_byzantine', -1),
    (aggregate.multi_krum, 'num_selected', 0),
    (aggregate.multi_krum, 'num_selected', 1.5),
    (aggregate.geometric_median, 'max_iterations', 0),
    (aggregate.geometric_median, 'tolerance', -1e-8),
  ],
)
def test_refused(factory, argument, value):
  with pytest.raises(errors.InputError, match=f'{argument}={value}: .*must be'):
    factory(**{argument: value})
