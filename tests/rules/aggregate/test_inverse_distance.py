import dataclasses
import math

import numpy as np
import pytest

import safl_tf
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.rules import aggregate
from safl_tf.util import errors

Z = np.array([[0, 0], [1, 0], [0, 4]], np.float32)
M = np.array([100, 200, 300])
VECTORS = [  # settings, eta
  ({}, [0.410954, 0.378881, 0.210165]),
  ({'norm': 'l1'}, [0.418605, 0.348837, 0.232558]),
  ({'reference': 'size'}, [0.337636, 0.324728, 0.337636]),
]
SETTINGS = [
  {},
  {'norm': 'l1'},
  {'reference': 'size'},
  {'power': 2.5},
  {'by_size': True},
  {'reference': 'size', 'norm': 'l1', 'power': 0.5, 'by_size': True},
]


def updates(z, m):
  return aggregate.Updates(
    t=1, ids=np.arange(len(z)), arrays={'z': z}, m=np.asarray(m), num_clients=99
  )


def fused(z, m, **settings):
  return (
    aggregate.inverse_distance(**settings).apply({}, updates(z, m), None).z_bar
  )


def models(count=6, size=50, dtype=np.float64):
  rng = np.random.default_rng(0)
  spread = np.linspace(1, 3, count)[:, None]
  z = (spread * rng.normal(size=(count, size))).astype(dtype)
  return z, rng.integers(1, 900, count)


def by_hand(z, m, reference='mean', norm='l2', power=1.0, by_size=False):
  z = np.stack(z).astype(np.float64)
  weights = m if reference == 'size' else None
  gap = z - np.average(z, axis=0, weights=weights)
  d = np.abs(gap).sum(1) if norm == 'l1' else np.sqrt((gap**2).sum(1))
  d = d + 1e-12 * (1 + d.max())
  eta = d**-power * (m if by_size else 1)
  return eta / eta.sum()


@pytest.mark.parametrize('settings, expected', VECTORS)
def test_vectors(settings, expected):
  eta = aggregate.inverse_distance_weights(Z, M, **settings)
  np.testing.assert_allclose(eta, expected, rtol=0, atol=5e-7)


def test_vector_of_the_model():
  z_bar = fused(Z, M)
  np.testing.assert_allclose(z_bar, [0.378881, 0.840661], rtol=0, atol=5e-7)


@pytest.mark.parametrize('settings', SETTINGS)
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_is_what_the_formula_says(settings, dtype):
  z, m = models(dtype=dtype)
  eta = aggregate.inverse_distance_weights(z, m, **settings)
  expected = by_hand(z, m, **settings)
  assert eta.dtype == np.float64
  np.testing.assert_allclose(eta, expected, rtol=1e-13)
  z_bar = fused(z, m, **settings)
  assert z_bar.dtype == dtype
  precision = 4 * np.finfo(dtype).eps
  np.testing.assert_allclose(z_bar, expected @ z, rtol=0, atol=precision)


@pytest.mark.parametrize('settings', SETTINGS)
def test_coefficients_are_positive_and_sum_to_one(settings):
  eta = aggregate.inverse_distance_weights(*models(), **settings)
  assert (eta > 0).all()
  assert eta.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize('norm', ['l1', 'l2'])
@pytest.mark.parametrize('power', [0.5, 1, 3])
def test_the_nearer_the_heavier(norm, power):
  z, m = models()
  gap = z - z.mean(axis=0)
  d = np.linalg.norm(gap, 1 if norm == 'l1' else 2, axis=1)
  eta = aggregate.inverse_distance_weights(z, m, norm=norm, power=power)
  ordered = eta[np.argsort(d)]
  assert (np.diff(ordered) < 0).all()
  assert ordered[0] == eta.max()


@pytest.mark.parametrize('norm', ['l1', 'l2'])
def test_two_clients(norm):
  """Both lie equally far from their mean, and from FedAvg's as m says."""
  z, _ = models(2)
  m = np.array([100, 400])
  plain = aggregate.inverse_distance_weights(z, m, norm=norm)
  np.testing.assert_allclose(plain, [0.5, 0.5], rtol=1e-12)
  sized = aggregate.inverse_distance_weights(z, m, reference='size', norm=norm)
  np.testing.assert_allclose(sized, [0.2, 0.8], rtol=1e-11)


@pytest.mark.parametrize('settings', SETTINGS)
@pytest.mark.parametrize(
  'change',
  [
    lambda z: z + np.linspace(-5, 5, z.shape[1]),
    lambda z: 7.5 * z,
    lambda z: z[:, ::-1],
  ],
  ids=['translation', 'scaling', 'permutation'],
)
def test_invariances(settings, change):
  z, m = models()
  before = aggregate.inverse_distance_weights(z, m, **settings)
  after = aggregate.inverse_distance_weights(change(z), m, **settings)
  np.testing.assert_allclose(after, before, rtol=1e-11)


@pytest.mark.parametrize(
  'settings', [s for s in SETTINGS if s.get('norm') != 'l1']
)
def test_rotations_do_not_matter(settings):
  z, m = models()
  rotation, _ = np.linalg.qr(models(z.shape[1])[0])
  before = aggregate.inverse_distance_weights(z, m, **settings)
  after = aggregate.inverse_distance_weights(z @ rotation, m, **settings)
  np.testing.assert_allclose(after, before, rtol=1e-11)


@pytest.mark.parametrize('settings', SETTINGS)
def test_order_of_clients_does_not_matter(settings):
  z, m = models()
  order = np.random.default_rng(1).permutation(len(z))
  eta = aggregate.inverse_distance_weights(z, m, **settings)
  again = aggregate.inverse_distance_weights(z[order], m[order], **settings)
  np.testing.assert_allclose(again, eta[order], rtol=1e-13)


@pytest.mark.parametrize('settings', SETTINGS)
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('count', [1, 2, 7, 10])
def test_equal_models_stay(settings, dtype, count):
  (z, *_), _ = models(dtype=dtype)
  z[3] = -0.0
  m = np.arange(1, count + 1)
  got = fused([z.copy() for _ in range(count)], m, **settings)
  assert got.dtype == dtype
  assert got.tobytes() == z.tobytes()


def test_the_result_is_nobodys_model():
  z, m = models(1)
  z_bar = fused(z, m)
  z_bar[0] += 1
  assert z_bar[0] != z[0, 0]


@pytest.mark.parametrize('count', [1, 2, 7])
@pytest.mark.parametrize('value', [0, 0.1])
def test_equal_models_weigh_the_same(count, value):
  z = np.full((count, 30), value)
  eta = aggregate.inverse_distance_weights(z, np.arange(1, count + 1))
  np.testing.assert_array_equal(eta, np.full(count, 1 / count))


def test_equal_distances_weigh_the_same():
  z = np.concatenate([np.eye(4), -np.eye(4)])
  eta = aggregate.inverse_distance_weights(z, np.arange(1, 9))
  np.testing.assert_array_equal(eta, np.full(8, 1 / 8))


def test_one_model_at_the_reference_gets_almost_all():
  z = np.array([[-1.0], [0], [1]])
  eta = aggregate.inverse_distance_weights(z, [1, 1, 1])
  np.testing.assert_allclose(eta, [2e-12, 1, 2e-12], rtol=1e-11)


def test_several_models_at_the_reference_share():
  z = np.array([[-1.0], [0], [1], [0]])
  eta = aggregate.inverse_distance_weights(z, [1, 1, 1, 1])
  assert eta[1] == eta[3]
  np.testing.assert_allclose(eta, [1e-12, 0.5, 1e-12, 0.5], rtol=1e-11)


def test_an_outlier_weighs_little():
  rng = np.random.default_rng(2)
  z = 0.01 * rng.normal(size=(10, 40))
  z[4] = 100 / math.sqrt(40)
  eta = aggregate.inverse_distance_weights(z, np.ones(10))
  assert eta[4] < 1 / 10
  assert eta[4] == eta.min()


def test_large_powers_do_not_overflow():
  z, m = models()
  eta = aggregate.inverse_distance_weights(1e-9 * z, m, power=400)
  nearest = np.argmin(np.linalg.norm(z - z.mean(axis=0), axis=1))
  assert eta[nearest] == pytest.approx(1)
  assert eta.sum() == pytest.approx(1)


def test_power_0_is_the_mean():
  z, m = models()
  np.testing.assert_allclose(
    fused(z, m, power=0), z.mean(axis=0), rtol=0, atol=1e-15
  )


def test_distances_are_in_float64():
  """In float32, gaps of 1e-3 about 1e4 would be lost."""
  gaps = np.array([[1], [-2], [0], [1]]) / 1024
  z = (10_000 + gaps).astype(np.float32)
  np.testing.assert_array_equal(z.astype(np.float64) - 10_000, gaps)
  eta = aggregate.inverse_distance_weights(z, np.ones(4), norm='l1')
  expected = aggregate.inverse_distance_weights(gaps, np.ones(4), norm='l1')
  np.testing.assert_allclose(eta, expected, rtol=1e-7)


def test_remembers_nothing_and_changes_nothing():
  z, m = models(dtype=np.float32)
  z.setflags(write=False)
  rule = aggregate.inverse_distance()
  first = rule.apply({}, updates(z, m), None)
  other = rule.apply({}, updates(z, m), np.full(z.shape[1], 9, np.float32))
  assert first.memory == other.memory == {}
  np.testing.assert_array_equal(first.z_bar, other.z_bar)


def test_description_has_the_settings():
  rule = aggregate.inverse_distance('size', 'l1', 2.0, True)
  description = algorithm_lib.describe(
    dataclasses.replace(safl_tf.build_fed_avg(), aggregate=rule)
  )['aggregate']
  settings = "(by_size=True, norm='l1', power=2.0, reference='size')"
  assert f'inverse_distance.apply{settings}' in description


@pytest.mark.parametrize(
  'argument, value',
  [
    ('reference', 'median'),
    ('norm', 'l3'),
    ('power', -1),
    ('power', math.nan),
    ('power', math.inf),
  ],
)
def test_refused(argument, value):
  message = f'{argument}={value}: .*must be'
  with pytest.raises(errors.InputError, match=message):
    aggregate.inverse_distance(**{argument: value})
  with pytest.raises(errors.InputError, match=message):
    aggregate.inverse_distance_weights(Z, M, **{argument: value})
