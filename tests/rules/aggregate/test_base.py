import numpy as np
import pytest

from safl_tf.rules import aggregate


def updates(z, m):
  return aggregate.Updates(
    t=1, ids=np.arange(len(z)), arrays={'z': z}, m=np.asarray(m), num_clients=99
  )


def vectors(count, size=1000, dtype=np.float32):
  rng = np.random.default_rng(0)
  return list(rng.normal(size=(count, size)).astype(dtype))


def test_fed_avg_vector():
  z = np.array([[1, 2], [3, 6]], np.float32)
  rule = aggregate.by_size()
  fused = rule.apply({}, updates(z, [100, 300]), None)
  np.testing.assert_array_equal(fused.z_bar, [2.5, 5])
  assert fused.memory == {}


def test_fed_sgd_vector():
  """F = mean ½(xw - y)², D₁ = {(1, 1)}, D₂ = 3·{(2, 0)}, w = 0.5, α = 0.1."""
  w, rate = 0.5, 0.1
  gradients = np.array([1 * (1 * w - 1), 2 * (2 * w - 0)])
  np.testing.assert_array_equal(gradients, [-0.5, 2])
  z = [np.array([w - rate * g]) for g in gradients]
  z_bar = aggregate.by_size().apply({}, updates(z, [1, 3]), None).z_bar
  np.testing.assert_allclose(z_bar, 0.3625, rtol=1e-15)
  np.testing.assert_allclose(
    z_bar, w - rate * np.average(gradients, weights=[1, 3]), rtol=1e-15
  )


def test_weighted_mean_is_numpys():
  z, m = vectors(7), np.arange(1, 8)
  expected = np.average(np.stack(z).astype(np.float64), axis=0, weights=m)
  got = aggregate.weighted_mean(m, z)
  assert got.dtype == np.float32
  np.testing.assert_array_max_ulp(got, expected.astype(np.float32), maxulp=1)


def test_coefficients_are_normalised():
  z = vectors(3)
  np.testing.assert_array_equal(
    aggregate.weighted_mean([1, 2, 5], z),
    aggregate.weighted_mean([0.25, 0.5, 1.25], z),
  )


def test_one_model_is_itself():
  (z,) = vectors(1)
  assert aggregate.weighted_mean([37], [z]).tobytes() == z.tobytes()


def test_equal_models_stay():
  (z,) = vectors(1)
  got = aggregate.weighted_mean([1, 1, 1, 1], [z] * 4)
  assert got.tobytes() == z.tobytes()


def test_sums_in_float64():
  # In float32 the ones would vanish beside 2^30.
  z = [np.array([value], np.float32) for value in (2**30, 1, -(2**30), 1)]
  assert aggregate.weighted_mean([1, 1, 1, 1], z) == [0.5]


def test_float64_models_stay_float64():
  z = vectors(3, dtype=np.float64)
  got = aggregate.weighted_mean([1, 1, 2], z)
  assert got.dtype == np.float64
  np.testing.assert_allclose(got, np.average(z, axis=0, weights=[1, 1, 2]))


def test_global_model_does_not_matter():
  rule, received = aggregate.by_size(), updates(vectors(3), [1, 2, 3])
  old = np.full(1000, 9, np.float32)
  np.testing.assert_array_equal(
    rule.apply({}, received, old)[0], rule.apply({}, received, None)[0]
  )


def test_inputs_stay_as_they_were():
  z = vectors(3)
  copies = [model.copy() for model in z]
  aggregate.weighted_mean([1, 2, 3], z)
  assert all(map(np.array_equal, z, copies))


def test_counts_must_match():
  with pytest.raises(ValueError):
    aggregate.weighted_mean([1, 2], vectors(3))
