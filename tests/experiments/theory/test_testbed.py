"""The testbed, trained by the process that trains real models."""

import math

import numpy as np
import pandas as pd
import pytest

from safl_tf.core import seeds
from safl_tf.experiments.theory import report, testbed, trials
from safl_tf.util import errors

EXECUTORS = ('serial', 'threads', 'vectorized')
DIMENSION = 4
SIGMAS = 4.5  # standard errors


def make_process(bed, alpha=0.1, count=50, executor='threads', **changes):
  setting = testbed.Setting(bed, alpha, **changes)
  return trials.build_process(setting, count, executor)


def models(state, n):
  """[n, trials, d]."""
  z = [state.client_models[k].reshape(-1, DIMENSION) for k in range(n)]
  return np.array(z, np.float64)


@pytest.mark.parametrize('lam', [0.5, 2.0])
def test_curvatures(lam):
  bed = testbed.Testbed(5, 0.5, lam)
  for hessian in bed.hessians:
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    curvatures = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(curvatures, np.linspace(0.5, lam, 4), rtol=1e-9)
  apart = np.abs(bed.hessians[0] - bed.hessians[1]).max()
  assert apart > 0.1 if lam > 0.5 else apart == 0


@pytest.mark.parametrize('executor', EXECUTORS)
def test_step_without_noise(executor):
  """w - α H_k (w - w*), for every client and trial."""
  bed = testbed.Testbed(3, 1.0, 2.0, variance=0.0)
  trainer = make_process(bed, executor=executor)
  state = trainer.initialize(1)
  before = models(state, 3)
  state, metrics = trainer.next(state)
  for w, z, hessian in zip(before, models(state, 3), bed.hessians, strict=True):
    expected = w - 0.1 * (w - testbed.MINIMISER) @ hessian
    np.testing.assert_allclose(z, expected, rtol=0, atol=1e-6)
  assert metrics.train_loss == 0  # of the classification


@pytest.mark.parametrize('wave', [0.0, 3.0])
def test_gradients_match_training(wave):
  bed = testbed.Testbed(2, 1.0, 2.0, variance=0.0, wave=wave, offset=1.0)
  trainer = make_process(bed, alpha=0.25)
  state = trainer.initialize(1)
  before = models(state, 2)
  state, _ = trainer.next(state)
  np.testing.assert_allclose(
    before - models(state, 2), 0.25 * bed.gradients(before), atol=1e-6
  )


@pytest.mark.slow
def test_executors_agree():
  bed = testbed.Testbed(3, 1.0, 2.0, sizes=(1, 2, 3))
  runs = [
    trials.measure(make_process(bed, q=2, executor=e), bed, 3)
    for e in EXECUTORS
  ]
  for other in runs[1:]:
    for field in ('squares', 'client_squares', 'gradient_squares'):
      np.testing.assert_allclose(
        getattr(other, field), getattr(runs[0], field), rtol=1e-4
      )


def test_noise_variance():
  """For every client and direction, independent in every step."""
  bed = testbed.Testbed(2, 1.0, 1.0, variance=(0.5, 3.0))
  trainer = make_process(bed, alpha=0.5, count=4000)
  state = trainer.initialize(2)
  noises = []
  for _ in range(2):
    start = trials.starting_points(trainer)(state) if state.t else None
    w = models(state, 2) if start is None else start.reshape(2, -1, DIMENSION)
    state, _ = trainer.next(state)
    step = w - models(state, 2)
    noises.append(step / 0.5 - (w - testbed.MINIMISER))
  for noise in noises:
    for xi, variance in zip(noise, bed.variances, strict=True):
      mean_square = (xi**2).sum(axis=1).mean()
      error = variance * math.sqrt(2 / DIMENSION / 4000)
      assert abs(mean_square - variance) < SIGMAS * error
      covariance = np.cov(xi.T)
      expected = variance / DIMENSION * np.eye(DIMENSION)
      np.testing.assert_allclose(covariance, expected, atol=0.1 * variance)
  flat = [noise.ravel() for noise in (noises[0][0], noises[0][1], noises[1][0])]
  correlation = np.corrcoef(flat) - np.eye(3)
  assert np.abs(correlation).max() < SIGMAS / math.sqrt(len(flat[0]))


def test_starting_points_match_the_next_round():
  """They repeat the draws of the next round's mixing."""
  bed = testbed.Testbed(3, 1.0, 2.0, variance=0.0)
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
  expected = w - 0.1 * bed.gradients(w)
  np.testing.assert_allclose(models(state, 3), expected, atol=1e-6)


@pytest.mark.parametrize('p', [0.0, 0.25, 0.9, 1.0])
def test_constant_mix(p):
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
  bed = testbed.Testbed(1, 2.0, 2.0, variance=3.0)
  trainer = make_process(bed, alpha=0.1, count=3000)
  squares = trials.measure(trainer, bed, 20, seed=5).squares
  r = 0.8**2
  left = r ** np.arange(21)
  expected = left * bed.zeta + 0.01 * 3.0 * (1 - left) / (1 - r)
  error = squares.std(axis=1) / math.sqrt(3000)
  assert (np.abs(squares.mean(axis=1) - expected) < SIGMAS * error).all()


@pytest.mark.parametrize(
  'changes',
  [
    {'epsilon': 0.0, 'p': 0.5, 'q': 3, 'rate': 0.2},
    {'rate': 1.0, 'decaying': True, 'q': 2},
    {'temperature': 4.0, 'rate': 0.3},
  ],
  ids=['mixing', 'decaying rates', 'annealed'],
)
def test_several_clients_have_the_exact_error(changes):
  setting = testbed.Setting(testbed.Testbed(4), **changes)
  trainer = trials.build_process(setting, 2000, 'threads')
  measured = trials.measure(trainer, setting.testbed, 12 // setting.q, seed=3)
  frame = trials.compare(setting, measured)
  run = frame[frame['bound_name'] == frame['bound_name'][0]]
  assert run['t'].tolist() == list(range(0, 13, setting.q))
  exact = setting.exact_mse(12 // setting.q)
  np.testing.assert_array_equal(run['exact'], exact)
  error = np.abs(run['mse'] - exact)
  assert (error < SIGMAS * run['standard_error']).all()
  mse = run['mse'].tolist()
  assert mse[-1] != pytest.approx(mse[0], rel=0.2)


def test_exact_mse_by_hand():
  """Two clients, one round of one step, mixing with ε = 0 and p = ½."""
  v, w = 1.0 + 2.0 / 2, 2.0 / 2
  v, w = 0.64 * v + 0.04 * 3 / 2, 0.64 * w + 0.04 * 3 / 2
  bed = testbed.Testbed(2, variance=3.0, offset=0.5, spread=0.5**0.5)
  setting = testbed.Setting(bed, rate=0.2, epsilon=0.0, p=0.5)
  np.testing.assert_allclose(setting.exact_mse(1), [2.0, v + 0.25 * w / 2])


def test_weights_follow_sizes():
  bed = testbed.Testbed(3, 1.0, 1.0, variance=0.0, sizes=(1, 2, 5))
  trainer = make_process(bed)
  state, _ = trainer.next(trainer.initialize())
  average = np.tensordot([0.125, 0.25, 0.625], models(state, 3), axes=1)
  np.testing.assert_allclose(state.z_bar, average.ravel(), atol=1e-6)
  np.testing.assert_allclose(bed.eta, [0.125, 0.25, 0.625])


def test_initial_error_is_zeta():
  bed = testbed.Testbed(2, 1.0, 1.0, offset=0.3, spread=0.4)
  trainer = make_process(bed, count=4000)
  e = models(trainer.initialize(1), 2) - testbed.MINIMISER
  assert bed.zeta == pytest.approx(1.0)
  squares = (e**2).sum(axis=2)
  error = squares.std() / math.sqrt(squares.size)
  assert abs(squares.mean() - 1.0) < SIGMAS * error


def test_waves_are_quasi_convex_but_not_convex():
  """A4 with μ = 2(h - 0.4345a), tight; but not convex."""
  mu = testbed.quasi_convexity(2.0, 3.0)
  e = np.linspace(-30, 30, 200_001)
  e = e[e != 0]
  bed = testbed.Testbed(1, 2.0, 2.0, wave=3.0, dimension=1)
  slope = bed.gradients(testbed.MINIMISER + e[None, :, None])[0, :, 0]
  share = slope * e / e**2
  assert share.min() == pytest.approx(mu / 2, rel=1e-6)
  assert (np.diff(slope) < 0).any()


def test_gradient_squares():
  """E‖∇F + ξ‖² at the start: ‖H e‖² and the noise."""
  bed = testbed.Testbed(2, 3.0, 3.0, variance=(1.0, 2.0), spread=0.0)
  measured = trials.measure(make_process(bed, alpha=0.01, count=3), bed, 1)
  np.testing.assert_allclose(
    measured.gradient_squares[0], 9 * bed.zeta + bed.variances, rtol=1e-5
  )


def test_holds():
  def holds(bound, exact=(np.nan, np.nan)):
    mse, error = np.ones(2), np.full(2, 0.01)
    return trials.holds(mse, error, np.array(bound), np.array(exact)).tolist()

  assert holds([1.0, 1.1]) == [True, True]
  assert holds([0.97, 1.1]) == [True, True]
  assert holds([0.95, 1.1]) == [False, True]
  assert holds([0.97, 1.1], exact=[0.98, 1.0]) == [False, True]


def make_frame(mse, study='n', name='it', **changes):
  """The table of a run of two rounds without standard errors."""
  setting = testbed.Setting(study=study, name=name, **changes)
  squares = np.repeat(np.array(mse, float)[:, None], 2, axis=1)
  t = np.arange(len(mse)) * setting.q
  return trials.compare(setting, trials.Measurements(t, squares, squares, []))


def test_summary():
  frame = make_frame([0.01, 0.0, 0.5], q=4)
  (first, *_) = report.summary(frame).to_dict('records')
  assert first == {
    'study': 'n',
    'setting': 'it',
    'bound': '(16)',
    'conditions': 'met',
    'error/bound': f'{0.5 / frame["bound"][2]:.3f}',
    'at t': '8',
    'exact': f'{(frame["exact"] / frame["bound"])[:3].max():.3f}',
    'holds': 'no',
  }


def test_summary_of_zero_errors_and_bounds():
  bed = testbed.Testbed(lam=2.0, variance=0.0, offset=0.0, spread=0.0)
  (first, *_) = report.summary(make_frame([0, 0], testbed=bed)).to_dict(
    'records'
  )
  assert (first['error/bound'], first['exact']) == ('0.000', '')
  assert first['holds'] == 'yes'


def test_shared_settings_count_once():
  frames = [
    make_frame([9.0, 9.0]),
    make_frame([9.0, 9.0], study='alpha'),
    make_frame([0.0, 0.0], rate=0.1),
    make_frame([0.0, 0.0], p=0.1),
  ]
  counts = report.counts(pd.concat(frames)).set_index(['bound', 'conditions'])
  assert list(counts.index) == [
    ('(16)', 'met'),
    ('(16)', 'not met'),
    ('remark', 'met'),
    ('remark', 'not met'),
    ('Jensen', 'met'),
  ]
  assert counts['holds'].tolist() == [
    'in 1 of 2 settings',
    'in 1 of 1 settings',
    'in 1 of 2 settings',
    'in 1 of 1 settings',
    'in 2 of 3 settings',
  ]


def test_settings():
  settings = testbed.all_settings()
  assert len({(s.study, s.name) for s in settings}) == len(settings)
  few = testbed.few_settings()
  studies = list(dict.fromkeys(s.study for s in settings))
  assert [s.study for s in few] == ['n', *studies]
  assert [s.testbed.n for s in few[:2]] == [1, 2]


def test_trials_must_be_positive():
  with pytest.raises(errors.InputError, match='trials'):
    testbed.Testbed(1, 1.0, 1.0).model_fn(0)
