"""The settings that are tried."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from safl_tf.experiments.theory import bounds, closed_form, trials
from safl_tf.experiments.theory import testbed as beds
from safl_tf.rules import mix


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is run.

  Attributes:
    n: clients.
    mu: least curvature of the H_k.
    lam: largest.
    rate: α; or, if decaying, α_0.
    decaying: whether rates are α_t = α_0/(t+1).
    epsilon: ε.
    p: the probability that an element is kept local.
    temperature: L of p = exp(-t/L), instead of a constant p.
    q: local steps in a round.
    variance: σ² of all clients, or of each.
    sizes: m_k of all clients, or of each.
    wave: a_k of all clients; the functions are not convex if it is large.
    offset: of the mean of clients' first models from w*, in every element.
    spread: standard deviation of their elements.
  """

  n: int = 8
  mu: float = 1.0
  lam: float = 1.0
  rate: float = 0.05
  decaying: bool = False
  epsilon: float = 0.3
  p: float = 0.9
  temperature: float | None = None
  q: int = 1
  variance: float | tuple[float, ...] = 1.0
  sizes: int | tuple[int, ...] = 1
  wave: float = 0.0
  offset: float = 0.2
  spread: float = 0.2

  @property
  def bed(self) -> beds.Bed:
    """Its functions."""
    return beds.make(
      self.n,
      self.mu,
      self.lam,
      self.variance,
      wave=self.wave,
      sizes=self.sizes,
      offset=self.offset,
      spread=self.spread,
    )

  @property
  def rule(self) -> mix.Mix:
    """How its clients mix."""
    if self.temperature is not None:
      return mix.anneal(self.epsilon, self.temperature)
    return trials.constant_mix(self.epsilon, self.p)

  @property
  def largest_p(self) -> float:
    """The largest p of a run; of all of them it gives the weakest bound."""
    if self.temperature is not None:
      return math.exp(-1 / self.temperature)
    return self.p

  def exact(self, rounds: int) -> np.ndarray | None:
    """The mean squared error after each round, where it is known."""
    bed = self.bed
    alike = self.mu == self.lam and not self.wave
    if not alike or np.ptp(bed.variance) or np.ptp(bed.sizes):
      return None
    t = np.arange(1, rounds * self.q + 1).reshape(rounds, self.q)
    p: Any = self.p
    if self.temperature is not None:  # round r mixes at the start of r + 1
      p = np.exp(-np.arange(2, rounds + 2) / self.temperature)
    return closed_form.mse(
      self.rate / (t + 1) if self.decaying else np.full(t.shape, self.rate),
      self.n,
      self.mu,
      bed.variance[0],
      self.epsilon,
      p,
      bed.dimension * bed.offset**2,
      bed.dimension * bed.spread**2,
    )


class Case(NamedTuple):
  """A setting's place in a study.

  Attributes:
    study: which one.
    name: of the setting in it.
    setting: what is run.
  """

  study: str
  name: str
  setting: Setting


def all_cases() -> list[Case]:
  """Every setting of the full program; some are in several studies."""
  cases = [*_main(1.0, 'H = μI'), *_main(2.0, 'λ = 2μ')]
  studies = list(dict.fromkeys(case.study for case in cases))
  cases.sort(key=lambda case: studies.index(case.study))
  return [*cases, *_edges(), *_decaying()]


def few_cases() -> list[Case]:
  """The first setting of each study, two of n, for a quick look."""
  cases = all_cases()
  first = {case.study: case for case in reversed(cases)}
  return [c for c in cases if c == first[c.study] or c == cases[1]]


def _main(lam: float, kind: str) -> Iterator[Case]:
  """What the main theorem is about, one thing changed at a time."""

  def case(study: str, name: str, **changes: Any) -> Case:
    return Case(study, f'{kind}, {name}', Setting(lam=lam, **changes))

  for n in (1, 2, 4, 8, 16, 32):
    yield case('n', f'n = {n}', n=n)
  for alpha in (0.02, 0.05, 0.15, 0.3):
    yield case('alpha', f'α = {alpha}', rate=alpha)
  paired = round(bounds.paired_epsilon(0.95), 3)
  yield case('mixing', 'p = 0 (FedAvg)', p=0.0)
  yield case('mixing', 'ε = 0.3, p = 0.5', p=0.5)
  yield case('mixing', 'ε = 0.3, p = 0.9', p=0.9)
  yield case('mixing', f'ε = {paired}, p = 0.95', epsilon=paired, p=0.95)
  yield case('mixing', 'ε = 0, p = 1 (alone)', epsilon=0.0, p=1.0)
  yield case('mixing', 'ε = 0.3, annealed', temperature=80.0)
  for q in (1, 4, 16):
    yield case('q', f'q = {q}', q=q)


def _edges() -> Iterator[Case]:
  """Corners of what the main theorem allows."""
  yield Case('edges', 'H = μI, no noise', Setting(variance=0.0))
  for rate, epsilon, p in ((0.95, 0.0, 0.5), (0.98, 0.25, 0.9)):
    yield Case(
      'edges',
      f'H = μI, α = {rate}, ε = {epsilon:g}, p = {p}',
      Setting(rate=rate, epsilon=epsilon, p=p, offset=0.0, spread=0.0),
    )
  yield Case(
    'edges',
    'λ = 2μ, η ∝ 1..4, σ² = 4..1',
    Setting(n=4, lam=2.0, sizes=(1, 2, 3, 4), variance=(4.0, 3.0, 2.0, 1.0)),
  )


def _decaying() -> Iterator[Case]:
  """Rates α_0/(t+1): the corollary and the quasi-convex theorem."""
  for lam, alpha0, n, q in (
    (1.0, 1.0, 1, 1),
    (1.0, 1.9, 8, 1),
    (2.0, 0.62, 8, 1),
    (2.0, 0.62, 8, 4),
    (2.0, 2.0, 8, 1),
    (10.0, 1.0, 8, 1),
  ):
    kind = 'H = μI' if lam == 1 else f'λ = {lam:g}μ'
    more = ', n = 1' if n == 1 else f', q = {q}' if q > 1 else ''
    yield Case(
      'corollary',
      f'{kind}, α₀ = {alpha0:g}/μ{more}',
      Setting(n=n, lam=lam, rate=alpha0, decaying=True, q=q),
    )
  wavy = Setting(mu=2.0, lam=2.0, wave=3.0, offset=1.5, spread=0.5)
  mu = beds.quasi_convexity(wavy.mu, wavy.wave)
  for times, p in ((1.5, 0.9), (3.0, 0.9), (6.0, 0.9), (1.5, 0.0)):
    yield Case(
      'quasi_convex',
      f'α₀ = {times:g}/μ, p = {p:g}',
      dataclasses.replace(wavy, rate=times / mu, decaying=True, p=p),
    )
