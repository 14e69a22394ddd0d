"""The test bed of the theory, through the process that trains real models."""

import math

import numpy as np
import pytest

from safl_tf.core import seeds
from safl_tf.experiments.theory import (
  closed_form,
  comparisons,
  configs,
  report,
  trials,
)
from safl_tf.experiments.theory import testbed as beds
from safl_tf.util import errors

EXECUTORS = ('serial', 'threads', 'vectorized')
DIMENSION = 4
CERTAIN = 4.5  # standard errors


def make_process(bed, alpha=0.1, q=1, count=50, executor='threads', **mixing):
  mixing = {'epsilon': 0.3, 'p': 0.9, **mixing}
  return trials.build_process(
    bed,
    trials.constant_mix(**mixing),
    trials.constant_rate(alpha),
    q,
    count,
    executor,
  )


def models(state, n):
  """[n, trials, d]."""
  z = [state.client_models[k].reshape(-1, DIMENSION) for k in range(n)]
  return np.array(z, np.float64)


@pytest.mark.parametrize('lam', [0.5, 2.0])
def test_curvatures(lam):
  bed = beds.make(5, 0.5, lam)
  for hessian in bed.hessians:
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    found = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(found, np.linspace(0.5, lam, 4), rtol=1e-9)
  apart = np.abs(bed.hessians[0] - bed.hessians[1]).max()
  assert apart > 0.1 if lam > 0.5 else apart == 0


@pytest.mark.parametrize('executor', EXECUTORS)
def test_a_step_without_noise(executor):
  """w - α H_k (w - w*), for every client and trial."""
  bed = beds.make(3, 1.0, 2.0, variance=0.0)
  trainer = make_process(bed, executor=executor)
  state = trainer.initialize(1)
  before = models(state, 3)
  state, metrics = trainer.next(state)
  for w, z, hessian in zip(before, models(state, 3), bed.hessians, strict=True):
    wanted = w - 0.1 * (w - beds.MINIMISER) @ hessian
    np.testing.assert_allclose(z, wanted, rtol=0, atol=1e-6)
  assert metrics.train_loss == 0  # of the classification


@pytest.mark.parametrize('wave', [0.0, 3.0])
def test_gradients_are_those_of_training(wave):
  bed = beds.make(2, 1.0, 2.0, variance=0.0, wave=wave, offset=1.0)
  trainer = make_process(bed, alpha=0.25)
  state = trainer.initialize(1)
  before = models(state, 2)
  state, _ = trainer.next(state)
  np.testing.assert_allclose(
    before - models(state, 2), 0.25 * bed.gradients(before), atol=1e-6
  )


def test_executors_agree():
  bed = beds.make(3, 1.0, 2.0, sizes=(1, 2, 3))
  runs = [
    trials.run(make_process(bed, q=2, executor=e), bed, 3) for e in EXECUTORS
  ]
  for other in runs[1:]:
    for field in ('squares', 'client_squares', 'gradient_squares'):
      np.testing.assert_allclose(
        getattr(other, field), getattr(runs[0], field), rtol=1e-4
      )


def test_noise_has_its_variance():
  """Of every client, in every direction, and new in every step."""
  bed = beds.make(2, 1.0, 1.0, variance=(0.5, 3.0))
  trainer = make_process(bed, alpha=0.5, count=4000)
  state = trainer.initialize(2)
  noises = []
  for _ in range(2):
    start = trials.starting_points(trainer)(state) if state.t else None
    w = models(state, 2) if start is None else start.reshape(2, -1, DIMENSION)
    state, _ = trainer.next(state)
    step = w - models(state, 2)
    noises.append(step / 0.5 - (w - beds.MINIMISER))
  for noise in noises:
    for xi, variance in zip(noise, bed.variance, strict=True):
      found = (xi**2).sum(axis=1).mean()
      error = variance * math.sqrt(2 / DIMENSION / 4000)
      assert abs(found - variance) < CERTAIN * error
      covariance = np.cov(xi.T)
      wanted = variance / DIMENSION * np.eye(DIMENSION)
      np.testing.assert_allclose(covariance, wanted, atol=0.1 * variance)
  flat = [noise.ravel() for noise in (noises[0][0], noises[0][1], noises[1][0])]
  correlation = np.corrcoef(flat) - np.eye(3)
  assert np.abs(correlation).max() < CERTAIN / math.sqrt(len(flat[0]))


def test_what_is_measured_is_what_clients_start_from():
  """The next round's own mixing, draw by draw."""
  bed = beds.make(3, 1.0, 2.0, variance=0.0)
  trainer = make_process(bed, p=0.5)
  state = trainer.initialize(3)
  state, _ = trainer.next(state)
  start = trials.starting_points(trainer)(state)
  w = start.reshape(3, -1, DIMENSION)
  kept = np.isclose(
    w, models(state, 3) * 0.7 + 0.3 * state.z_bar.reshape(-1, 4)
  )
  assert 0.4 < kept.mean() < 0.6
  state, _ = trainer.next(state)
  wanted = w - 0.1 * bed.gradients(w)
  np.testing.assert_allclose(models(state, 3), wanted, atol=1e-6)


@pytest.mark.parametrize('p', [0.0, 0.25, 0.9, 1.0])
def test_constant_mixing(p):
  z_bar, z = np.zeros(20_000, np.float32), np.ones(20_000, np.float32)
  for t in (1.0, 1000.0):
    pair = seeds.pair(0, seeds.Role.MIX, int(t))
    mixed = trials.constant_mix(0.25, p)(pair, t, z_bar, z)
    assert float(mixed.p) == pytest.approx(p)
    kept = np.isclose(mixed.w, 0.75)
    np.testing.assert_array_equal(mixed.w.numpy()[~kept], 0)
    assert abs(kept.mean() - p) <= 4 * math.sqrt(p * (1 - p) / len(z))


def test_one_client_is_plain_sgd():
  """r^t·ζ + α²σ²(1 - r^t)/(1 - r), within Monte-Carlo error."""
  bed = beds.make(1, 2.0, 2.0, variance=3.0)
  trainer = make_process(bed, alpha=0.1, count=3000)
  squares = trials.run(trainer, bed, 20, seed=5).squares
  r = 0.8**2
  left = r ** np.arange(21)
  wanted = left * bed.zeta + 0.01 * 3.0 * (1 - left) / (1 - r)
  error = squares.std(axis=1) / math.sqrt(3000)
  assert (np.abs(squares.mean(axis=1) - wanted) < CERTAIN * error).all()


@pytest.mark.parametrize(
  'setting',
  [
    configs.Setting(n=4, epsilon=0.0, p=0.5, q=3, rate=0.2),
    configs.Setting(n=4, rate=1.0, decaying=True, q=2),
    configs.Setting(n=4, temperature=4.0, rate=0.3),
  ],
  ids=['mixing', 'decaying rates', 'annealed'],
)
def test_several_clients_have_the_exact_error(setting):
  [found, *_] = comparisons.run(
    [configs.Case('n', 'it', setting)],
    2000,
    12,
    3,
    'threads',
    lambda case: None,
  )
  assert len(found.t) == 12 // setting.q + 1
  assert found.t[-1] == 12
  wanted = setting.exact(len(found.t) - 1)
  assert (np.abs(found.mse - wanted) < CERTAIN * found.error).all()
  assert found.mse[-1] != pytest.approx(found.mse[0], rel=0.2)


def test_exact_by_hand():
  """Two clients, one round of one step, mixing with ε = 0 and p = ½."""
  v, w = 1.0 + 2.0 / 2, 2.0 / 2
  v, w = 0.64 * v + 0.04 * 3 / 2, 0.64 * w + 0.04 * 3 / 2
  found = closed_form.mse([[0.2]], 2, 1.0, 3.0, 0.0, 0.5, 1.0, 2.0)
  np.testing.assert_allclose(found, [2.0, v + 0.25 * w / 2])


def test_weights_follow_sizes():
  bed = beds.make(3, 1.0, 1.0, variance=0.0, sizes=(1, 2, 5))
  trainer = make_process(bed)
  state, _ = trainer.next(trainer.initialize())
  average = np.tensordot([0.125, 0.25, 0.625], models(state, 3), axes=1)
  np.testing.assert_allclose(state.z_bar, average.ravel(), atol=1e-6)
  np.testing.assert_allclose(bed.eta, [0.125, 0.25, 0.625])


def test_start_has_zeta():
  bed = beds.make(2, 1.0, 1.0, offset=0.3, spread=0.4)
  trainer = make_process(bed, count=4000)
  e = models(trainer.initialize(1), 2) - beds.MINIMISER
  assert bed.zeta == pytest.approx(1.0)
  found = (e**2).sum(axis=2)
  error = found.std() / math.sqrt(found.size)
  assert abs(found.mean() - 1.0) < CERTAIN * error


def test_wavy_functions_are_quasi_convex_only():
  """A4 with μ = 2(h - 0.4345a), tight; but not convex."""
  mu = beds.quasi_convexity(2.0, 3.0)
  e = np.linspace(-30, 30, 200_001)
  e = e[e != 0]
  bed = beds.make(1, 2.0, 2.0, wave=3.0, dimension=1)
  slope = bed.gradients(beds.MINIMISER + e[None, :, None])[0, :, 0]
  share = slope * e / e**2
  assert share.min() == pytest.approx(mu / 2, rel=1e-6)
  assert (np.diff(slope) < 0).any()


def test_a5_is_measured():
  """E‖∇F + ξ‖² at the start: ‖H e‖² and the noise."""
  bed = beds.make(2, 3.0, 3.0, variance=(1.0, 2.0), spread=0.0)
  found = trials.run(make_process(bed, alpha=0.01, count=3), bed, 1)
  np.testing.assert_allclose(
    found.gradient_squares[0], 9 * bed.zeta + bed.variance, rtol=1e-5
  )


def comparison(bound, mse=(1.0, 1.0), error=0.01, exactly=None, **changes):
  case = configs.Case('n', 'it', configs.Setting(**changes))
  return comparisons.Comparison(
    case,
    '(16)',
    True,
    np.arange(2),
    np.array(mse),
    np.full(2, error),
    np.array(bound),
    exactly,
  )


def test_verdicts():
  assert comparison([1.0, 1.1]).holds.tolist() == [True, True]
  assert comparison([0.97, 1.1]).holds.tolist() == [True, True]
  assert comparison([0.95, 1.1]).holds.tolist() == [False, True]
  known = comparison([0.97, 1.1], exactly=np.array([0.98, 1.0]))
  assert known.holds.tolist() == [False, True]
  assert known.exact_ratio[1] == pytest.approx(1 / 1.1)
  np.testing.assert_array_equal(
    comparison([0.0, 2.0], mse=(0.0, 1.0)).ratio, [0, 0.5]
  )


def test_settings_count_once():
  """Although they are in several studies."""
  found = [comparison([0.5, 1]), comparison([0.5, 1]), comparison([2, 2], n=3)]
  told = report.counts(found)
  assert len(told) == 1
  assert '1 of 2 settings' in told[0]


def test_cases():
  cases = configs.all_cases()
  assert len({(c.study, c.name) for c in cases}) == len(cases)
  few = configs.few_cases()
  studies_of = list(dict.fromkeys(c.study for c in cases))
  assert [c.study for c in few] == ['n', *studies_of]
  assert [c.setting.n for c in few[:2]] == [1, 2]


def test_trials_must_be_there():
  with pytest.raises(errors.InputError, match='trials'):
    beds.make(1, 1.0, 1.0).model_fn(0)
