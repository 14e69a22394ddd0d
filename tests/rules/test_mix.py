import math

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import seeds
from safl_tf.rules import aggregate, mix
from safl_tf.util import errors

PROBABILITIES = [  # L, t, p
  (80, 1, 0.9876),
  (80, 10, 0.8825),
  (80, 35, 0.6456),
  (80, 50, 0.5353),
  (80, 56, 0.4966),
  (80, 60, 0.4724),
  (80, 80, 0.3679),
  (80, 100, 0.2865),
  (10, 10, 0.3679),
  (10, 50, 0.0067),
]
MOMENTS = [  # t, E[u], E[u^2] for epsilon = 0.3, L = 80
  (1, 0.3087, 0.1013),
  (50, 0.6253, 0.5129),
  (100, 0.7994, 0.7393),
]
N = 200_000


def seed(*indices):
  return tf.constant(seeds.pair(0, seeds.Role.MIX, *indices))


def draw_u(rule, t, size=N, key=None):
  """u itself: what a client with z = 0 makes of z_bar = 1."""
  key = seed(t, 0) if key is None else key
  return rule(key, float(t), tf.ones(size), tf.zeros(size)).w.numpy()


def models(size=1000, dtype=np.float32):
  rng = np.random.default_rng(1)
  return [tf.constant(rng.normal(size=size).astype(dtype)) for _ in range(2)]


@pytest.mark.parametrize('temperature, t, expected', PROBABILITIES)
def test_p(temperature, t, expected):
  mixed = mix.anneal(0.3, temperature)(seed(t, 0), t, *models())
  assert mixed.p.numpy() == pytest.approx(math.exp(-t / temperature), rel=1e-6)
  assert mixed.p.numpy() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize('t, mean, square', MOMENTS)
def test_moments_of_u(t, mean, square):
  epsilon, p = 0.3, math.exp(-t / 80)
  assert epsilon * p + 1 - p == pytest.approx(mean, abs=5e-5)
  assert epsilon**2 * p + 1 - p == pytest.approx(square, abs=5e-5)
  u = draw_u(mix.anneal(epsilon, 80), t).astype(np.float64)
  values = np.array([epsilon, 1.0])
  weights = np.array([p, 1 - p])
  for power, expected in (1, mean), (2, square):
    moment = weights @ values**power
    deviation = math.sqrt(weights @ values ** (2 * power) - moment**2)
    bound = 4 * deviation / math.sqrt(N)
    assert abs(np.mean(u**power) - moment) < bound
    assert abs(np.mean(u**power) - expected) < bound + 5e-5


@pytest.mark.parametrize('t', [1, 50, 100])
def test_share_of_elements_kept_local(t):
  rule, p = mix.anneal(0.3, 80), math.exp(-t / 80)
  u = draw_u(rule, t)
  assert set(np.unique(u)) == {np.float32(0.3), np.float32(1)}
  share = np.mean(u < 1)
  assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / N)
  mixed = rule(seed(t, 0), t, tf.ones(N), tf.zeros(N))
  assert mixed.kept_local.numpy() == pytest.approx(share, abs=1e-6)


def test_example():
  z_bar = tf.constant([1.0, 1, 1, 1])
  z = tf.constant([0.0, 2, 4, -2])
  rule = mix.anneal(0.3, 80)
  wanted = np.array([0.3, 1, 0.3, 1], np.float32)
  key = next(
    seed(i)
    for i in range(1000)
    if np.array_equal(draw_u(rule, 56, 4, seed(i)), wanted)
  )
  w = rule(key, 56.0, z_bar, z).w.numpy()
  np.testing.assert_allclose(w, [0.3, 1, 3.1, 1], rtol=1e-6)
  np.testing.assert_allclose(w, wanted * z_bar + (1 - wanted) * z, rtol=1e-6)


@pytest.mark.parametrize('granularity', ['element', 'model'])
@pytest.mark.parametrize('t', [1, 40, 400])
def test_epsilon_1_is_the_global_model(granularity, t):
  z_bar, z = models()
  w = mix.anneal(1.0, 80, granularity)(seed(t), t, z_bar, z).w
  assert w.numpy().tobytes() == z_bar.numpy().tobytes()


def test_cold_is_the_global_model():
  z_bar, z = models()
  mixed = mix.anneal(0.3, 1e-3)(seed(1), 1.0, z_bar, z)
  assert mixed.p == 0 and mixed.kept_local == 0
  assert mixed.w.numpy().tobytes() == z_bar.numpy().tobytes()


def test_epsilon_0_and_hot_is_the_own_model():
  z_bar, z = models()
  mixed = mix.anneal(0.0, 1e20)(seed(1), 1.0, z_bar, z)
  assert mixed.p == 1 and mixed.kept_local == 1
  assert mixed.w.numpy().tobytes() == z.numpy().tobytes()


@pytest.mark.parametrize('epsilon', [0.0, 0.1, 0.3, 0.77, 1.0])
@pytest.mark.parametrize('jit_compile', [False, True])
def test_equal_models_stay(epsilon, jit_compile):
  z_bar, _ = models()
  rule = tf.function(mix.anneal(epsilon, 80), jit_compile=jit_compile)
  w = rule(seed(5), tf.constant(5.0), z_bar, z_bar).w
  assert w.numpy().tobytes() == z_bar.numpy().tobytes()


def test_replace():
  z_bar, z = models()
  mixed = mix.replace()(seed(1), 1.0, z_bar, z)
  assert mixed.w.numpy().tobytes() == z_bar.numpy().tobytes()
  assert mixed.p == 0 and mixed.kept_local == 0


def test_seed_decides():
  rule = mix.anneal(0.3, 80)
  first, again, other = (draw_u(rule, 56, key=seed(i)) for i in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  # Other seeds draw independently: masks are uncorrelated.
  assert abs(np.corrcoef(first, other)[0, 1]) < 4 / math.sqrt(N)
  # So are neighbours within a mask.
  assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 4 / math.sqrt(N)


def test_u_is_drawn_once_for_a_model():
  z_bar, z = models()
  rule, rounds = tf.function(mix.anneal(0.3, 80, 'model')), 400
  t, p = tf.constant(56.0), math.exp(-56 / 80)
  kept = []
  for i in range(rounds):
    mixed = rule(seed(i), t, z_bar, z)
    kept.append(float(mixed.kept_local))
    expected = 0.3 * z_bar + 0.7 * z if kept[-1] else z_bar
    np.testing.assert_allclose(mixed.w, expected, rtol=1e-5, atol=1e-6)
  assert set(kept) == {0.0, 1.0}
  assert abs(np.mean(kept) - p) < 4 * math.sqrt(p * (1 - p) / rounds)


@pytest.mark.parametrize('granularity', ['element', 'model'])
def test_xla_draws_the_same(granularity):
  rule = mix.anneal(0.3, 80, granularity)
  compiled = tf.function(rule, jit_compile=True)
  for t in (1, 56, 100):
    arguments = seed(t), tf.constant(float(t)), tf.ones(999), tf.zeros(999)
    plain, fast = rule(*arguments), compiled(*arguments)
    np.testing.assert_array_equal(plain.w < 1, fast.w < 1)
    np.testing.assert_allclose(plain.w, fast.w, rtol=1e-6)
    assert plain.p == fast.p


def test_float64_models_stay_float64():
  z_bar, z = models(dtype=np.float64)
  w = mix.anneal(0.3, 1e20)(seed(1), 1.0, z_bar, z).w
  assert w.dtype == tf.float64
  np.testing.assert_allclose(w, 0.3 * z_bar + 0.7 * z, rtol=1e-14, atol=1e-15)


def test_mixing_right_after_an_aggregation_is_unbiased():
  """E_u[sum_k eta_k w_k] = z_bar, whatever the models are."""
  epsilon, t, draws = 0.3, 56.0, 400
  rng = np.random.default_rng(3)
  m = np.array([100, 300, 50, 550])
  eta = m / m.sum()
  z = rng.normal(size=(4, 200)).astype(np.float32)
  z_bar = aggregate.weighted_mean(m, z)
  rule = tf.function(mix.anneal(epsilon, 80))
  total = np.zeros(200)
  for i in range(draws):
    for k in range(4):
      total += eta[k] * rule(seed(i, k), tf.constant(t), z_bar, z[k]).w.numpy()
  p = math.exp(-t / 80)
  gap = (1 - epsilon) * (z.astype(np.float64) - z_bar)
  sigma = np.sqrt((eta**2 @ gap**2) * p * (1 - p) / draws)
  scores = (total / draws - z_bar) / sigma
  assert np.abs(scores).max() < 4.5
  assert 0.8 < scores.std() < 1.2  # the spread is what the theory says


@pytest.mark.parametrize(
  'argument, value',
  [
    ('epsilon', -0.1),
    ('epsilon', 1.1),
    ('epsilon', math.nan),
    ('temperature', 0),
    ('temperature', -1.0),
    ('temperature', math.inf),
    ('granularity', 'layer'),
  ],
)
def test_refused(argument, value):
  with pytest.raises(errors.InputError, match=f'{argument}={value}: .*must be'):
    mix.anneal(**{argument: value})
