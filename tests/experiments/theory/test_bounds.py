import math

import numpy as np
import pytest

from safl_tf.experiments.theory import bounds as bounds_lib
from safl_tf.experiments.theory import testbed
from safl_tf.util import errors

T = np.arange(0, 400, 7)
PROBLEM = bounds_lib.Problem(
  mu=0.5, eta=[0.2, 0.3, 0.5], variance=[1.0, 2.0, 4.0], zeta=3.0, lam=2.0
)
ALPHA = 0.1


def make_problem(n, mu, variance, zeta, lam=None):
  """Clients of equal weight, η_k = 1/n."""
  return bounds_lib.Problem(mu, [1 / n] * n, variance, zeta, lam)


def exact_mse(rounds, n, variance, offset, spread, **changes):
  """The exact error for h = 1; E‖w_0 - w*‖² is offset + spread."""
  bed = testbed.Testbed(
    n, variance=variance, offset=(offset / 4) ** 0.5, spread=(spread / 4) ** 0.5
  )
  return testbed.Setting(bed, **changes).exact_mse(rounds)


def test_main_bound_by_hand():
  """(16), written out."""
  epsilon, p, q = 0.3, 0.9, 4
  c = (1 - p * (1 - 0.09)) * ((1 - 0.1 * 3.5) / (1 - 0.05)) ** 2
  noise = 0.04 * 1 + 0.09 * 2 + 0.25 * 4
  kept = 0.95**8
  expected = 0.95 ** (2 * T) * 3 + 0.1 / 0.5 * noise * (1 - kept) / (
    1 - math.exp(-c) * kept
  )
  bound = bounds_lib.main_bound(T, PROBLEM, ALPHA, epsilon, p, q)
  np.testing.assert_allclose(bound, expected, rtol=1e-12)
  assert bound.shape == T.shape
  assert bounds_lib.main_bound(7, PROBLEM, ALPHA, epsilon, p, q) == bound[1]


def test_without_noise_only_the_first_term_remains():
  quiet = bounds_lib.Problem(0.5, [0.5, 0.5], [0.0, 0.0], 3.0, 2.0)
  first = 0.95 ** (2 * T) * 3
  for bound in (
    bounds_lib.main_bound(T, quiet, ALPHA, 0.3, 0.9, 2),
    bounds_lib.remark_bound(T, quiet, ALPHA),
    bounds_lib.jensen_bound(T, quiet, ALPHA),
  ):
    np.testing.assert_allclose(bound, first, rtol=1e-12)


def test_exponent_limits():
  """Nothing is mixed with p = 1 and ε = 0, everything with p = 0 or ε = 1."""
  full = ((1 - ALPHA * 3.5) / (1 - ALPHA * 0.5)) ** 2
  assert bounds_lib.exponent(PROBLEM, ALPHA, 0.0, 1.0) == 0
  assert bounds_lib.exponent(PROBLEM, ALPHA, 1.0, 1.0) == pytest.approx(full)
  assert bounds_lib.exponent(PROBLEM, ALPHA, 0.3, 0.0) == pytest.approx(full)
  without = bounds_lib.main_bound(T, PROBLEM, ALPHA, 0.0, 1.0, 1)
  np.testing.assert_allclose(
    without, bounds_lib.remark_bound(T, PROBLEM, ALPHA), rtol=1e-12
  )


def test_local_steps_raise_the_bound_to_the_remark():
  bounds = [
    bounds_lib.main_bound(10**6, PROBLEM, ALPHA, 0.3, 0.9, q)
    for q in (1, 2, 8, 64, 1000)
  ]
  assert bounds == sorted(bounds)
  remark = bounds_lib.remark_bound(10**6, PROBLEM, ALPHA)
  assert bounds[-1] == pytest.approx(remark, rel=1e-9)


def test_remark_decreases_with_n():
  """ασ̄²/(nμ) remains after many steps."""
  for n in (1, 4, 16):
    variance = np.linspace(1, 3, n).tolist() if n > 1 else [2.0]
    problem = make_problem(n, 0.5, variance, 3.0, 2.0)
    remaining = bounds_lib.remark_bound(10**6, problem, ALPHA)
    assert remaining == pytest.approx(ALPHA * 2.0 / (n * 0.5))


def test_bounds_decrease_with_t():
  t = np.arange(100)
  for bound in (
    bounds_lib.main_bound(t, PROBLEM, ALPHA, 0.3, 0.9, 4),
    bounds_lib.remark_bound(t, PROBLEM, ALPHA),
    bounds_lib.jensen_bound(t, PROBLEM, ALPHA),
    bounds_lib.corollary_bound(t, make_problem(2, 1.0, [1, 1], 1.0, 1.0), 1.0),
    bounds_lib.quasi_convex_bound(t, PROBLEM, 4.0),
  ):
    assert (np.diff(bound) < 0).all()


def test_corollary_by_hand():
  """(17): c is the larger of the noise term and ζ."""
  mu, alpha0, variance = 2.0, 0.6, [0.5, 1.5]
  noise = 2 * 0.36 * 1.5 / (2 - (2 - 1.2) ** 2)
  for zeta in (0.1, 5.0):
    problem = make_problem(2, mu, variance, zeta, lam=2.5)
    bound = bounds_lib.corollary_bound(T, problem, alpha0)
    np.testing.assert_allclose(bound, max(noise, zeta) / (T + 1), rtol=1e-12)


def test_corollary_bounds_its_recursion():
  """E_t = (1-α_tμ)²E_(t-1) + α_t²σ² stays below c/(t+1)."""
  mu, variance = 1.0, 2.0
  for alpha0 in (0.6, 1.0, 1.9, 3.4):
    for zeta in (0.0, 1.0, 50.0):
      problem = make_problem(1, mu, [variance], zeta)
      error = zeta
      for t in range(1, 300):
        rate = alpha0 / (t + 1)
        error = (1 - rate * mu) ** 2 * error + rate**2 * variance
        assert error <= bounds_lib.corollary_bound(t, problem, alpha0) * (
          1 + 1e-9
        )


def test_quasi_convex_by_hand():
  """(20)."""
  alpha0, noise = 3.0, 0.2 * 1 + 0.3 * 2 + 0.5 * 4
  expected = max(9 * noise / (1.5 - 1), 3.0) / (T + 1)
  bound = bounds_lib.quasi_convex_bound(T, PROBLEM, alpha0)
  np.testing.assert_allclose(bound, expected, rtol=1e-12)


@pytest.mark.parametrize('factor', [1.1, 2.0, 3.0])
def test_quasi_convex_bounds_its_recursion(factor):
  for zeta in (0.0, 1.0, 50.0):
    problem = make_problem(1, 2.0, [0.7], zeta)
    error, alpha0 = zeta, factor / 2.0
    for t in range(1, 300):
      rate = alpha0 / (t + 1)
      error = max(0.0, 1 - rate * 2.0) * error + rate**2 * 0.7
      bound = bounds_lib.quasi_convex_bound(t, problem, alpha0)
      assert error <= bound * (1 + 1e-9)


def test_quasi_convex_fails_beyond_three_over_mu():
  """F(w) = w²/4 has μ = 1. With noise of ±1 at w* alone, the first step from w*
  ends at ±α_1, where the gradient is ±α_1/2. All are at most 1 for α_0 = 4, so
  A5 holds with σ² = 1, but the first error exceeds the bound."""
  alpha0 = 4.0
  first = (alpha0 / 2) ** 2
  assert (first**0.5 / 2) ** 2 <= 1
  later = first * (1 - alpha0 / 3 / 2) ** 2
  assert later <= first
  problem = make_problem(1, 1.0, [1.0], 0.0)
  bound = bounds_lib.quasi_convex_bound(1, problem, alpha0)
  assert first == pytest.approx(1.5 * bound)


def test_main_theorem_fails_for_one_client():
  """A single client runs plain SGD, whose error is known."""
  problem = make_problem(1, 1.0, [1.0], 0.0, 1.0)
  error = exact_mse(2000, 1, 1.0, 0.0, 0.0, rate=0.01, epsilon=0.3, p=0.9)
  assert error[-1] == pytest.approx(0.01 / 1.99, rel=1e-9)
  assert bounds_lib.condition_holds(0.3, 0.9)
  t = np.arange(2001)
  main = bounds_lib.main_bound(t, problem, 0.01, 0.3, 0.9)
  assert error[-1] > 4 * main[-1]
  assert (error <= bounds_lib.jensen_bound(t, problem, 0.01) * (1 + 1e-9)).all()


def test_jensen_bounds_exact_errors():
  t = np.arange(0, 61, 3)
  for alpha in (0.05, 0.5, 0.95):
    for p, epsilon in ((0.0, 0.3), (0.5, 0.0), (0.9, 0.3), (1.0, 0.0)):
      for n in (1, 2, 10):
        problem = make_problem(n, 1.0, [2.0] * n, 1.5, 1.0)
        mixing = {'epsilon': epsilon, 'p': p}
        error = exact_mse(20, n, 2.0, 0.5, 1.0, rate=alpha, q=3, **mixing)
        bound = bounds_lib.jensen_bound(t, problem, alpha)
        assert (error <= bound * (1 + 1e-9)).all()


def test_appendix():
  """(42) and (43) for c1 = 1/2, the largest."""
  assert bounds_lib.min_p() == pytest.approx(8 / 9)
  assert round(bounds_lib.min_p(), 3) == 0.889
  assert bounds_lib.last_round(80) == pytest.approx(80 * math.log(9 / 8))
  assert round(bounds_lib.last_round(80), 1) == 9.4
  assert round(bounds_lib.last_round(80, epsilon=0.3), 1) == 9.1
  assert bounds_lib.paired_epsilon(8 / 9) == pytest.approx(0.25)
  assert bounds_lib.paired_epsilon(1.0) == 0


def test_annealing_rounds_that_the_proof_covers():
  """p = exp(-t/80) with the paper's ε is large enough up to round 9."""
  t = np.arange(1, 200)
  holds = bounds_lib.condition_holds(0.3, np.exp(-t / 80))
  np.testing.assert_array_equal(
    holds, t <= bounds_lib.last_round(80, epsilon=0.3)
  )
  assert holds.sum() == 9
  assert bounds_lib.last_round(80, epsilon=0.6) == 0
  assert not bounds_lib.condition_holds(0.6, np.exp(-t / 80)).any()


@pytest.mark.parametrize('c1', [0.5, 0.4, 0.1])
def test_appendix_pairs_meet_the_condition(c1):
  p_min = bounds_lib.min_p(c1)
  assert bounds_lib.margin(c1 / 2, p_min, c1) == pytest.approx(0, abs=1e-12)
  assert not bounds_lib.condition_holds(
    np.linspace(0, 1, 99), p_min - 1e-6, c1
  ).any()
  for p in np.linspace(p_min, 1, 20):
    assert bounds_lib.condition_holds(bounds_lib.paired_epsilon(p, c1), p, c1)
  for epsilon in (0.0, c1 / 2, c1):
    edge = bounds_lib.min_p(c1, epsilon)
    assert bounds_lib.margin(epsilon, edge, c1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
  'argument, call',
  [
    ('alpha', lambda: bounds_lib.main_bound(1, PROBLEM, 1 / 3.5, 0.3, 0.9)),
    ('alpha', lambda: bounds_lib.remark_bound(1, PROBLEM, 0.3)),
    ('alpha', lambda: bounds_lib.jensen_bound(1, PROBLEM, 0.0)),
    ('epsilon', lambda: bounds_lib.main_bound(1, PROBLEM, ALPHA, 1.1, 0.9)),
    ('p', lambda: bounds_lib.main_bound(1, PROBLEM, ALPHA, 0.3, -0.1)),
    ('q', lambda: bounds_lib.main_bound(1, PROBLEM, ALPHA, 0.3, 0.9, 0)),
    ('t', lambda: bounds_lib.remark_bound([1, -1], PROBLEM, ALPHA)),
    ('alpha0', lambda: bounds_lib.quasi_convex_bound(1, PROBLEM, 2.0)),
    ('mu', lambda: bounds_lib.Problem(0.0, [1.0], [1.0], 1.0)),
    ('lam', lambda: bounds_lib.Problem(1.0, [1.0], [1.0], 1.0, 0.9)),
    ('eta', lambda: bounds_lib.Problem(1.0, [0.5, 0.6], [1.0, 1.0], 1.0)),
    ('eta', lambda: bounds_lib.Problem(1.0, [1.5, -0.5], [1.0, 1.0], 1.0)),
    ('variance', lambda: bounds_lib.Problem(1.0, [1.0], [-1.0], 1.0)),
    ('variance', lambda: make_problem(3, 1.0, [1.0, 1.0], 1.0)),
    ('zeta', lambda: bounds_lib.Problem(1.0, [1.0], [1.0], -1.0)),
    ('variance', lambda: make_problem(1, 1.0, [], 1.0)),
    ('eta', lambda: bounds_lib.Problem(1.0, [], [], 1.0)),
    ('eta', lambda: bounds_lib.Problem(1.0, 0.5, [1.0], 1.0)),
    ('c1', lambda: bounds_lib.min_p(0.6)),
    ('temperature', lambda: bounds_lib.last_round(0.0)),
    (
      'lam',
      lambda: bounds_lib.remark_bound(1, make_problem(1, 1.0, [1.0], 1.0), 0.1),
    ),
  ],
)
def test_invalid_arguments(argument, call):
  with pytest.raises(errors.InputError) as caught:
    call()
  assert caught.value.argument == argument


def test_corollary_conditions():
  """α_0 between (2-√2)/μ and (2+√2)/μ, and α_0/2 < 1/(2λ-μ)."""
  unchecked = make_problem(1, 2.0, [1.0], 1.0)
  low, high = (2 - math.sqrt(2)) / 2, (2 + math.sqrt(2)) / 2
  for alpha0 in (low - 1e-6, high + 1e-6, low, high):
    with pytest.raises(errors.InputError, match='alpha0'):
      bounds_lib.corollary_bound(1, unchecked, alpha0)
  for alpha0 in (low + 1e-6, high - 1e-6):
    bounds_lib.corollary_bound(1, unchecked, alpha0)
  # Both can be met only where λ/μ < (3+√2)/2.
  for ratio, allowed in ((2.207, True), (2.208, False)):
    problem = make_problem(1, 2.0, [1.0], 1.0, 2.0 * ratio)
    if allowed:
      bounds_lib.corollary_bound(1, problem, low + 1e-6)
    else:
      with pytest.raises(errors.InputError, match='first rate'):
        bounds_lib.corollary_bound(1, problem, low + 1e-6)
