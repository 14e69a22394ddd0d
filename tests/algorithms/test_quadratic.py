"""Where algorithms end if clients' losses differ, against closed forms."""

import numpy as np
import pytest

from examples import client_drift as quadratic
from safl_tf.algorithms import registry
from tests import marks

MU, A = 0.5, 1.0
OPTIONS = {
  'fedprox': {'proximal_mu': MU},
  'scaffold_safl': {'temperature': 5.0},  # p = exp(-20) after 100 rounds
  'feddyn': {'feddyn_alpha': A},
}
# The slowest, FedDyn, shrinks the error to 0.8 of it in a round, so that 100
# rounds leave 2e-10. Float64 rounding is at 1e-15.
ROUNDS = 100
TIGHT = 1e-9


def make(name, reduction='mean', fraction=1.0, **options):
  """A process; summed losses of up to two examples need half the rate."""
  algorithm = registry.build(name, fraction=fraction, **OPTIONS.get(name, {}))
  rate = quadratic.RATE / (2 if reduction == 'sum' else 1)
  options = {'learning_rate': rate, 'loss_reduction': reduction, **options}
  return quadratic.make_process(algorithm, **options)


def distances(models, to):
  return np.linalg.norm(models - to, axis=1)


@pytest.mark.parametrize(
  'name, mu, reduction',
  [('fedavg', 0.0, 'mean'), ('fedavg', 0.0, 'sum'), ('fedprox', MU, 'sum')],
)
def test_drifting_clients_end_at_another_point(name, mu, reduction):
  """Both converge, but to a point away from the minimiser."""
  trainer = make(name, reduction)
  rates = quadratic.step_rates(trainer.config, trainer.clients.sizes)
  expected = quadratic.fixed_point(rates, mu)
  assert np.linalg.norm(expected - quadratic.minimiser()) > 0.2
  models, _ = quadratic.global_models(trainer, 60)
  assert distances(models, expected)[-1] < TIGHT


@pytest.mark.parametrize(
  'name, reduction',
  marks.some(
    [
      ('scaffold', 'mean'),
      ('scaffold', 'sum'),
      ('scaffold_safl', 'mean'),
      ('feddyn', 'mean'),
      ('feddyn', 'sum'),
    ],
    [('scaffold', 'sum'), ('feddyn', 'mean')],
  ),
)
def test_corrected_clients_end_at_the_minimiser(name, reduction):
  """SCAFFOLD and FedDyn have no other fixed point, however clients train.

  SCAFFOLD: c_k and c stay if y_k = x - K·α·c. The mean of y_k is x, so c = 0
  and y_k = x. K steps along ∇F_k(w) - c_k end where they started only if
  the first is zero (I - (I - α·H_k)^K is invertible for α < 1/‖H_k‖), so that
  c_k = ∇F_k(x). As c is the mean of c_k, Σ ∇F_k(x) = 0.

  FedDyn: λ_k stays if z_k = z̄, and then z̄ stays if h = 0. K steps along
  ∇F_k(w) - λ_k + a·(w - z̄) end at z̄ only if λ_k = ∇F_k(z̄), by the same
  argument: it does not matter that they do not reach the local minimum. As h
  is the mean of λ_k, Σ ∇F_k(z̄) = 0.
  """
  trainer = make(name, reduction)
  models, state = quadratic.global_models(trainer, ROUNDS)
  minimiser = quadratic.minimiser()
  to_minimiser = distances(models, minimiser)
  assert to_minimiser[-1] < TIGHT
  assert to_minimiser[0] > 0.1 and to_minimiser[9] < 0.05
  kept = 'slope' if name == 'feddyn' else 'c'
  slopes = np.einsum(
    'kij,kj->ki', quadratic.curvatures(), minimiser - quadratic.centres()
  )
  assert np.abs(slopes).max() > 1  # clients disagree at w*
  found = [state.clients[kept][k] for k in range(quadratic.N)]
  # As tight as z̄: curvatures are at most 4.
  np.testing.assert_allclose(found, slopes, rtol=0, atol=10 * TIGHT)


@pytest.mark.parametrize(
  'name, rounds',
  [('scaffold', 120), ('feddyn', 200)],
)
def test_half_of_the_clients_are_enough(name, rounds):
  """The fixed point does not depend on who takes part; only the speed does."""
  trainer = make(name, fraction=0.5)
  models, _ = quadratic.global_models(trainer, rounds)
  assert distances(models, quadratic.minimiser())[-1] < TIGHT


def test_fed_avg_with_half_of_the_clients_does_not_settle():
  models, _ = quadratic.global_models(make('fedavg', fraction=0.5), 60)
  assert distances(models, quadratic.minimiser())[20:].min() > 0.1


SIZES = (1, 2, 3, 4, 5, 8)


@pytest.mark.parametrize(
  'name, reduction',
  marks.some([('scaffold', 'sum'), ('feddyn', 'sum')], [('scaffold', 'sum')]),
)
def test_clients_count_alike_whatever_their_sizes(name, reduction):
  """Summed losses change how far clients go, not where the algorithm ends."""
  trainer = make(name, reduction, sizes=SIZES)
  models, _ = quadratic.global_models(trainer, 120)
  apart = quadratic.minimiser(SIZES) - quadratic.minimiser()
  assert np.linalg.norm(apart) > 0.1
  assert distances(models, quadratic.minimiser())[-1] < TIGHT


def test_fed_avg_weights_clients_by_size():
  """With one step of mean losses, it ends at the weighted minimiser."""
  trainer = make(
    'fedavg', sizes=SIZES, batch_size=8, local_epochs=1, learning_rate=0.25
  )
  trained = quadratic.step_rates(trainer.config, SIZES)
  assert [len(rates) for rates in trained] == [1] * quadratic.N
  weighted = quadratic.minimiser(SIZES)
  np.testing.assert_allclose(
    quadratic.fixed_point(trained, weights=SIZES), weighted, atol=1e-13
  )
  models, _ = quadratic.global_models(trainer, 150)
  assert distances(models, weighted)[-1] < TIGHT


def test_closed_form_of_fed_avg():
  """Σ_k (I - A_k)(w - b_k) = 0 with A_k = (I - α·H_k)^K."""
  steps = [[quadratic.RATE] * 24] * quadratic.N
  w, eye = quadratic.fixed_point(steps), np.eye(quadratic.D)
  total = sum(
    (eye - np.linalg.matrix_power(eye - quadratic.RATE * h, 24)) @ (w - b)
    for h, b in zip(quadratic.curvatures(), quadratic.centres(), strict=True)
  )
  np.testing.assert_allclose(total, 0, atol=1e-13)
