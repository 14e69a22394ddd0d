"""Measured errors beside the bounds that speak of them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.experiments.theory import bounds, configs, trials
from safl_tf.experiments.theory import testbed as beds

# A bound has failed if the error exceeds it by so many standard errors.
CERTAIN = 4.0
_ROUNDING = 1e-9


class Comparison(NamedTuple):
  """A measured error and a bound, before the first and after each round.

  Attributes:
    case: what was run.
    bound_name: which bound.
    met: whether the paper's conditions for the bound are met.
    t: local steps.
    mse: mean over trials.
    error: its standard error.
    bound: the bound.
    exact: what `mse` estimates, where it is known.
  """

  case: configs.Case
  bound_name: str
  met: bool
  t: np.ndarray
  mse: np.ndarray
  error: np.ndarray
  bound: np.ndarray
  exact: np.ndarray | None

  @property
  def holds(self) -> np.ndarray:
    """Whether neither the measured nor the exact error surely exceeds it."""
    within = self.mse - CERTAIN * self.error <= self.bound
    if self.exact is None:
      return within
    return within & (self.exact <= self.bound * (1 + _ROUNDING))

  @property
  def ratio(self) -> np.ndarray:
    """Measured error/bound; zero where both are."""
    return self.mse / np.where(self.bound > 0, self.bound, np.inf)

  @property
  def exact_ratio(self) -> np.ndarray | None:
    """The same of the exact error."""
    if self.exact is None:
      return None
    return self.exact / np.where(self.bound > 0, self.bound, np.inf)


def run(
  cases: Sequence[configs.Case],
  trial_count: int,
  rounds: int,
  seed: int,
  executor: str,
  tell: Callable[[configs.Case], None],
) -> list[Comparison]:
  """Runs every setting, each of them once, and compares.

  Args:
    cases: the settings.
    trial_count: independent trials of each.
    rounds: communication rounds where q = 1; elsewhere as many local steps.
    seed: of all draws.
    executor: a name of `names.EXECUTORS`.
    tell: is called with each case before it is run.
  """
  known: dict[configs.Setting, trials.Measured] = {}
  found = []
  for case in cases:
    tell(case)
    setting = case.setting
    if setting not in known:
      rate = trials.decaying_rate if setting.decaying else trials.constant_rate
      trainer = trials.build_process(
        setting.bed,
        setting.rule,
        rate(setting.rate),
        setting.q,
        trial_count,
        executor,
      )
      count = max(1, rounds // setting.q)
      known[setting] = trials.run(trainer, setting.bed, count, seed)
    found += compare(case, known[setting])
  return found


def compare(case: configs.Case, measured: trials.Measured) -> list[Comparison]:
  """A run beside every bound that speaks of it.

  (16), its remark and the corollary (17) are about ŵ_t, (20) is about the
  clients' own models. `met` of (16) and the remark is whether their proof
  speaks of this ε and p; all settings have α < 1/(2λ-μ).
  """
  setting = case.setting
  if setting.wave:
    return [_quasi_convex(case, measured)]
  bed, t, rate = setting.bed, measured.t, setting.rate
  problem = bounds.Problem(
    mu=setting.mu,
    eta=bed.eta.tolist(),
    variance=bed.variance.tolist(),
    zeta=bed.zeta,
    lam=setting.lam,
  )

  def comparison(name: str, met: bool, bound: np.ndarray) -> Comparison:
    exact = setting.exact(len(t) - 1)
    return _comparison(case, name, met, t, measured.squares, bound, exact)

  if setting.decaying:
    met = rate / 2 < problem.rate_limit
    free = dataclasses.replace(problem, lam=None)
    return [comparison('(17)', met, bounds.corollary_bound(t, free, rate))]
  epsilon, p = setting.epsilon, setting.largest_p
  met = bool(bounds.condition_holds(epsilon, setting.p))
  if setting.temperature is not None:
    last = bounds.last_round(setting.temperature, epsilon=epsilon)
    met = bool(t[-1] <= last * setting.q)
  main = bounds.main_bound(t, problem, rate, epsilon, p, setting.q)
  return [
    comparison('(16)', met, main),
    comparison('remark', met, bounds.remark_bound(t, problem, rate)),
    comparison('Jensen', True, bounds.jensen_bound(t, problem, rate)),
  ]


def _quasi_convex(case: configs.Case, measured: trials.Measured) -> Comparison:
  """(20), with σ_k² of A5 the largest mean square of a gradient that was seen.

  A4 makes gradients grow with the distance from w*, so that no σ_k² bounds them
  everywhere; along a run one does.
  """
  setting, bed = case.setting, case.setting.bed
  problem = bounds.Problem(
    mu=beds.quasi_convexity(setting.mu, setting.wave),
    eta=bed.eta.tolist(),
    variance=measured.gradient_squares.max(axis=0).tolist(),
    zeta=bed.zeta,
  )
  bound = bounds.quasi_convex_bound(measured.t, problem, setting.rate)
  return _comparison(
    case, '(20)', True, measured.t, measured.client_squares, bound
  )


def _comparison(
  case: configs.Case,
  name: str,
  met: bool,
  t: np.ndarray,
  squares: np.ndarray,
  bound: np.ndarray,
  exact: np.ndarray | None = None,
) -> Comparison:
  mse = squares.mean(axis=1)
  error = squares.std(axis=1, ddof=1) / math.sqrt(squares.shape[1])
  return Comparison(case, name, met, t, mse, error, bound, exact)
