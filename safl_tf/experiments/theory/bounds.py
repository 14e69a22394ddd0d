"""The paper's bounds on SAFL's mean squared error, and their conditions.

Letters and numbers in brackets are the paper's. t counts local gradient steps,
q per round, so t = r·q after r rounds. The bounds are on ŵ_t = Σ_k η_k w_t^(k),
the average of the clients' models *after* they mixed z̄ into their own.

Functions take t as a number or an array and return as many bounds. Which of
them hold is in docs/theory.md: (16) fails in many settings that it allows;
`jensen_bound`, which is not in the paper, always holds.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from safl_tf.util import errors, validation

_TOLERANCE = 1e-12  # rounding error in a comparison


@dataclasses.dataclass(frozen=True)
class Problem:
  """The constants of the clients' functions F_k.

  Attributes:
    mu: μ > 0 of A2, or of A4 for `quasi_convex_bound`.
    eta: η_k, the clients' weights in z̄; they sum to 1.
    variance: σ_k² of A3, the trace of the covariance of client k's stochastic
      gradient; for `quasi_convex_bound` that of A5, its mean square.
    zeta: ζ = max_k E‖w_0^(k) - w*‖².
    lam: λ ≥ μ of A2; None if unknown.
  """

  mu: float
  eta: Sequence[float]
  variance: Sequence[float]
  zeta: float
  lam: float | None = None

  def __post_init__(self) -> None:
    validation.real('mu', self.mu, 0, open_low=True)
    if self.lam is not None:
      validation.real('lam', self.lam, self.mu)
    for name in ('eta', 'variance'):
      values = np.asarray(getattr(self, name), float)
      if values.shape != (np.size(self.eta),) or not (values >= 0).all():
        raise errors.InputError(
          name, getattr(self, name), 'must be a number >= 0 for each client'
        )
    if abs(sum(self.eta) - 1) > 1e-9:
      raise errors.InputError('eta', self.eta, 'must sum to 1')
    validation.real('zeta', self.zeta, 0)

  @property
  def max_rate(self) -> float:
    """1/(2λ - μ), the exclusive upper limit of α in the main theorem."""
    if self.lam is None:
      raise errors.InputError('lam', None, 'must be known for this bound')
    return 1 / (2 * self.lam - self.mu)

  def noise(self, power: int) -> float:
    """Returns Σ_k η_k^power·σ_k²."""
    return float(np.power(self.eta, power) @ np.asarray(self.variance))


def exponent(problem: Problem, alpha: float, epsilon: float, p: float) -> float:
  """Returns c of (16), by which mixing is claimed to shrink the error.

    c = (1 - p(1 - ε²))·((1 - α(2λ - μ))/(1 - αμ))²,  α < 1/(2λ - μ)

  ε is the weight of z̄ in an element that is kept local, and p the probability
  of keeping it local, constant in the theorem. The problem's λ must be known.
  """
  _check_rate(problem, alpha)
  validation.real('epsilon', epsilon, 0, 1)
  validation.real('p', p, 0, 1)
  shrink = (1 - alpha / problem.max_rate) / (1 - alpha * problem.mu)
  return (1 - p * (1 - epsilon**2)) * shrink**2


def main_bound(
  t: Any, problem: Problem, alpha: float, epsilon: float, p: float, q: int = 1
) -> np.ndarray:
  """Returns the bound of the main theorem, (16): A1, A2, A3, α < 1/(2λ - μ).

    E‖ŵ_t - w*‖² ≤ (1-αμ)^(2t)·ζ
                   + (α/μ)·Σ_k η_k²σ_k²·(1-(1-αμ)^(2q))/(1-e^(-c)(1-αμ)^(2q))

  α is constant, q the largest number of local steps in a round. For c, ε and p
  see `exponent`.
  """
  c = exponent(problem, alpha, epsilon, p)
  validation.integer('q', q, low=1)
  decay = (1 - alpha * problem.mu) ** (2 * q)
  share = (1 - decay) / (1 - math.exp(-c) * decay)
  noise = alpha / problem.mu * problem.noise(2) * share
  return _initial_error(t, problem, alpha) + noise


def remark_bound(t: Any, problem: Problem, alpha: float) -> np.ndarray:
  """Returns the bound of the remark on n: (16) without its last factor ≤ 1.

    E‖ŵ_t - w*‖² ≤ (1-αμ)^(2t)·ζ + (α/μ)·Σ_k η_k²σ_k²

  With η_k = 1/n the second term is ασ̄²/(nμ): the error that remains after many
  steps decreases with the number of clients.
  """
  _check_rate(problem, alpha)
  noise = alpha / problem.mu * problem.noise(2)
  return _initial_error(t, problem, alpha) + noise


def jensen_bound(t: Any, problem: Problem, alpha: float) -> np.ndarray:
  """Returns the bound that the paper's recursions give without the wrong step.

    E‖ŵ_t - w*‖² ≤ Σ_k η_k E‖w_t^(k) - w*‖²
                 ≤ r^t·ζ + α²·Σ_k η_kσ_k²·(1 - r^t)/(1 - r),  r = (1-αμ)²

  The first step is Jensen's inequality. For the second, mixing does not raise
  Σ_k η_k‖·‖² for any p and ε (the first half of the proof of (20)), and a
  gradient step multiplies a squared error by at most r and adds α²σ_k², where
  α ≤ 2/(λ + μ), which α < 1/(2λ - μ) implies. It does not decrease with n.
  """
  _check_rate(problem, alpha)
  r = (1 - alpha * problem.mu) ** 2
  decay = r ** _steps(t)
  noise = alpha**2 * problem.noise(1) * (1 - decay) / (1 - r)
  return decay * problem.zeta + noise


def corollary_bound(t: Any, problem: Problem, alpha0: float) -> np.ndarray:
  """Returns the bound of the corollary, (17): O(1/t) at rates α_t = α_0/(t+1).

    E‖ŵ_t - w*‖² ≤ c/(t+1),
    c = max{2α_0²·max_k σ_k²/(2 - (2 - μα_0)²), ζ},
    (2-√2)/μ < α_0 < (2+√2)/μ

  "Under the same conditions" as (16), so α_1 = α_0/2, the largest rate, must be
  below 1/(2λ - μ). With α_0 > (2-√2)/μ that is possible only for
  λ/μ < (3+√2)/2 = 2.207. Without λ, the condition on α_1 is not checked.
  """
  mu = problem.mu
  low, high = (2 - math.sqrt(2)) / mu, (2 + math.sqrt(2)) / mu
  if not low < validation.real('alpha0', alpha0) < high:
    raise errors.InputError(
      'alpha0',
      alpha0,
      f'must be between (2-√2)/μ = {low:.6g} and (2+√2)/μ = {high:.6g}',
    )
  if problem.lam is not None and alpha0 / 2 >= problem.max_rate:
    raise errors.InputError(
      'alpha0',
      alpha0,
      f'must be below 2/(2λ-μ) = {2 * problem.max_rate:.6g}, so that the '
      'first rate α_0/2 meets the condition of the main theorem',
    )
  c = 2 * alpha0**2 * max(problem.variance) / (2 - (2 - mu * alpha0) ** 2)
  return max(c, problem.zeta) / (_steps(t) + 1)


def quasi_convex_bound(t: Any, problem: Problem, alpha0: float) -> np.ndarray:
  """Returns the bound (20) on non-convex functions: A1, A4 and A5.

    E Σ_k η_k‖w_t^(k) - w*‖² ≤ c/(t+1),  α_t = α_0/(t+1),  α_0 > 1/μ,
    c = max{α_0²·Σ_k η_kσ_k²/(μα_0 - 1), E Σ_k η_k‖w_0^(k) - w*‖²}

  A4 is <∇F_k(w), w - w*> ≥ (μ/2)‖w - w*‖². ζ replaces the second entry of the
  maximum and is at least as large. The proof's induction multiplies by
  1 - α_tμ as if that were never negative. At t = 1 this is correct up to
  α_0 = 2/μ and harmless up to 3/μ; beyond, the bound can fail.
  """
  mu = problem.mu
  validation.real('alpha0', alpha0, 1 / mu, open_low=True)
  c = alpha0**2 * problem.noise(1) / (mu * alpha0 - 1)
  return max(c, problem.zeta) / (_steps(t) + 1)


def margin(epsilon: Any, p: Any, c1: float = 0.5) -> np.ndarray:
  """Returns g(ε, p), which the proof of (16) needs to be ≥ 0; see (41).

    g = p·c1·ε - p·ε² - (1 - c1)(1 - p)

  ε and p are numbers or arrays. c1 is at most 1/2; how much less depends on the
  clients' progress.
  """
  validation.real('c1', c1, 0, 0.5, open_low=True)
  epsilon, p = np.asarray(epsilon, float), np.asarray(p, float)
  return p * c1 * epsilon - p * epsilon**2 - (1 - c1) * (1 - p)


def condition_holds(epsilon: Any, p: Any, c1: float = 0.5) -> np.ndarray:
  """Returns whether g(ε, p) ≥ 0, so that the proof of (16) covers ε and p."""
  return margin(epsilon, p, c1) >= -_TOLERANCE


def paired_epsilon(p: float, c1: float = 0.5) -> float:
  """Returns the ε that (42) pairs with p: 2(1 - c1)(1 - p)/(c1·p)."""
  validation.real('c1', c1, 0, 0.5, open_low=True)
  validation.real('p', p, 0, 1, open_low=True)
  return 2 * (1 - c1) * (1 - p) / (c1 * p)


def min_p(c1: float = 0.5, epsilon: float | None = None) -> float:
  """Returns the smallest p with g(ε, p) ≥ 0; more than 1 if there is none.

  (43): 4(1 - c1)/(2 - c1)²                 with the best ε, c1/2
        (1 - c1)/(1 - c1 + c1·ε - ε²)       with a given one
  """
  validation.real('c1', c1, 0, 0.5, open_low=True)
  if epsilon is None:
    return 4 * (1 - c1) / (2 - c1) ** 2
  validation.real('epsilon', epsilon, 0, 1)
  denominator = 1 - c1 + c1 * epsilon - epsilon**2
  return (1 - c1) / denominator if denominator > 0 else math.inf


def last_round(
  temperature: float, c1: float = 0.5, epsilon: float | None = None
) -> float:
  """Returns the last t at which p = exp(-t/L) ≥ `min_p`; 0 if there is none."""
  validation.real('temperature', temperature, 0, open_low=True)
  return max(0.0, -temperature * math.log(min_p(c1, epsilon)))


def _initial_error(t: Any, problem: Problem, alpha: float) -> np.ndarray:
  """Returns (1-αμ)^(2t)·ζ."""
  return (1 - alpha * problem.mu) ** (2 * _steps(t)) * problem.zeta


def _steps(t: Any) -> np.ndarray:
  steps = np.asarray(t, float)
  if not np.all(np.isfinite(steps) & (steps >= 0)):
    raise errors.InputError('t', t, 'must be numbers >= 0')
  return steps


def _check_rate(problem: Problem, alpha: float) -> None:
  validation.real('alpha', alpha, 0, open_low=True)
  if alpha >= problem.max_rate:
    limit = f'1/(2λ-μ) = {problem.max_rate:.6g}'
    raise errors.InputError('alpha', alpha, f'must be below {limit}')
