"""Functions for clients to minimise that meet the paper's assumptions.

  F_k(w) = ½·(w - w*)ᵀ H_k (w - w*) + a_k·Σ_j sin²(w_j - w*_j)

have the common minimum F_k(w*) = 0 (A1). Without waves, a_k = 0, they are
quadratic with curvatures in [μ, λ] (A2). With waves they are not convex, but
strongly quasi-convex (A4). Gradients get Gaussian noise of total variance
σ_k² (A3).

A Keras model holds w and is trained like any other; a client's data are its
H_k, a_k and σ_k. Rules, averages and plain SGD act element by element, so one
model holds the w of many independent trials.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import seeds
from safl_tf.data import client_data
from safl_tf.experiments.theory import bounds
from safl_tf.util import validation

MINIMISER = 1.0  # every element of w*
_MIN_SINE_RATIO = -0.4344672564  # of sin(2x)/x, at 2x = 4.4934


@dataclasses.dataclass(frozen=True)
class Testbed:
  """n clients with functions of d variables.

  The H_k have curvatures spaced evenly from μ to λ, each in random directions.

  Attributes:
    n: number of clients.
    mu: μ, the smallest curvature.
    lam: λ, the largest curvature; if it equals μ, every H_k is μ·I.
    variance: σ_k², one for all clients or one for each.
    sizes: m_k, the clients' weights in z̄, one for all or one for each.
    wave: a_k of all clients.
    offset: distance of the mean of w_0^(k) from w*, in every element.
    spread: standard deviation of an element of w_0^(k).
    dimension: d.
  """

  n: int = 8
  mu: float = 1.0
  lam: float = 1.0
  variance: float | tuple[float, ...] = 1.0
  sizes: int | tuple[int, ...] = 1
  wave: float = 0.0
  offset: float = 0.2
  spread: float = 0.2
  dimension: int = 4

  def __post_init__(self) -> None:
    validation.integer('n', self.n, low=1)
    validation.real('mu', self.mu, 0, open_low=True)
    validation.real('lam', self.lam, self.mu)

  @functools.cached_property
  def hessians(self) -> np.ndarray:
    """H_k, symmetric [n, d, d]."""
    d = self.dimension
    if self.mu == self.lam:
      return np.array([self.mu * np.eye(d)] * self.n)
    curvatures = np.linspace(self.mu, self.lam, d)
    hessians = []
    for k in range(self.n):
      rng = seeds.generator(0, seeds.Role.PARTITION, k)
      rotation, _ = np.linalg.qr(rng.normal(size=(d, d)))
      hessians.append(rotation * curvatures @ rotation.T)
    return np.array(hessians)

  @property
  def variances(self) -> np.ndarray:
    """σ_k² [n]."""
    return np.broadcast_to(np.asarray(self.variance, float), self.n)

  @property
  def client_sizes(self) -> np.ndarray:
    """m_k [n]."""
    return np.broadcast_to(np.asarray(self.sizes, int), self.n)

  @property
  def eta(self) -> np.ndarray:
    """η_k = m_k/Σ m [n]."""
    return self.client_sizes / self.client_sizes.sum()

  @property
  def zeta(self) -> float:
    """ζ = E‖w_0^(k) - w*‖², equal for all clients."""
    return self.dimension * (self.offset**2 + self.spread**2)

  def clients(self) -> client_data.ClientData:
    """Returns the clients' data: m_k copies of (H_k, (a_k, σ_k))."""
    waves = np.full(self.n, self.wave)
    constants = np.stack([waves, np.sqrt(self.variances)], axis=1)
    return client_data.ClientData.from_arrays(
      (self.hessians.astype(np.float32), constants.astype(np.float32)),
      np.zeros(self.n, np.int32),
      [np.full(m, k) for k, m in enumerate(self.client_sizes)],
    )

  def model_fn(self, trials: int) -> Callable[[], keras.Model]:
    """Returns a function that builds a model with the w of several trials."""
    validation.integer('trials', trials, low=1)
    d = self.dimension

    def build() -> keras.Model:
      inputs = [keras.Input((d, d)), keras.Input((2,))]
      initializer = keras.initializers.RandomNormal(
        MINIMISER + self.offset, self.spread
      )
      return keras.Model(inputs, Landscape(trials, d, initializer)(inputs))

    return build

  def gradients(self, w: np.ndarray) -> np.ndarray:
    """Returns ∇F_k(w) for the w of clients and trials, both [n, trials, d]."""
    e = w - MINIMISER
    quadratic = np.einsum('nij,ntj->nti', self.hessians, e)
    return quadratic + self.wave * np.sin(2 * e)


def quasi_convexity(curvature: float, wave: float) -> float:
  """Returns the largest μ of A4 for h/2·‖w-w*‖² + a·Σ_j sin²(w_j-w*_j).

    <∇F(w), e> = h‖e‖² + a·Σ_j e_j·sin 2e_j ≥ (h - 0.4345·a)·‖e‖²

  so μ is twice that. The smallest F'' is h - 2a: not convex for a > h/2.
  """
  return 2 * (curvature + wave * _MIN_SINE_RATIO)


class Landscape(keras.layers.Layer):
  """Holds w and adds the loss F_k(w) + ξᵀw, summed over trials.

  ξ is drawn in every step, so the gradient is ∇F_k(w) + ξ. The logits are
  constant and add nothing to it. All rows of a batch are equal.

  Args:
    trials: number of independent w.
    dimension: d, the length of each.
    initializer: initializer of w.
  """

  def __init__(
    self, trials: int, dimension: int, initializer: keras.Initializer
  ):
    super().__init__()
    self._shape = (trials, dimension)
    self._initializer = initializer
    self._seeds = keras.random.SeedGenerator(0)  # reseeded in every round

  def build(self, input_shape: Any) -> None:
    """Creates w."""
    self.w = self.add_weight(shape=self._shape, initializer=self._initializer)

  def call(self, inputs: Any) -> tf.Tensor:
    """Adds the loss and returns constant logits."""
    hessian, constants = (tf.reduce_mean(x, axis=0) for x in inputs)
    wave, deviation = constants[0], constants[1]
    e = self.w - MINIMISER
    quadratic = tf.reduce_sum(e * tf.matmul(e, hessian)) / 2
    waves = wave * tf.reduce_sum(tf.sin(e) ** 2)
    xi = keras.random.normal(self._shape, seed=self._seeds)
    xi *= deviation / self._shape[1] ** 0.5  # so that E‖ξ‖² = σ²
    self.add_loss(quadratic + waves + tf.reduce_sum(xi * self.w))
    return tf.zeros([tf.shape(inputs[1])[0], 1])


@dataclasses.dataclass(frozen=True)
class Setting:
  """A testbed and how it is trained.

  Attributes:
    testbed: the clients' functions.
    rate: α; or, if decaying, α_0.
    decaying: whether rates are α_t = α_0/(t+1) in step t = 1, 2, ...
    epsilon: ε.
    p: the constant probability of keeping an element local.
    temperature: L of p = exp(-t/L), used instead of `p`.
    q: local steps in a round.
    study: the study it belongs to; not compared, as studies share settings.
    name: its name in the study; not compared.
  """

  testbed: Testbed = Testbed()
  rate: float = 0.05
  decaying: bool = False
  epsilon: float = 0.3
  p: float = 0.9
  temperature: float | None = None
  q: int = 1
  study: str = dataclasses.field(default='', compare=False, repr=False)
  name: str = dataclasses.field(default='', compare=False, repr=False)

  def p_of_round(self, r: int) -> float:
    """Returns the probability p in round r; the largest is that of round 1."""
    if self.temperature is not None:
      return math.exp(-r / self.temperature)
    return self.p

  def exact_mse(self, rounds: int) -> np.ndarray | None:
    """Returns E‖ŵ_t - w*‖² at the start and after each round [rounds + 1].

    It is known if all clients have the same H_k = h·I, σ² and size: then
    V = E‖ŵ - w*‖² and W = E[(1/n)·Σ_k ‖w^(k) - ŵ‖²] have exact recursions. A
    step of rate α does

      V ← (1-αh)²·V + α²σ²/n,   W ← (1-αh)²·W + α²σ²·(1 - 1/n)

    and mixing, with v = 1 - u of mean m_1 = p(1-ε) and mean square
    m_2 = p(1-ε)²,

      V ← V + (m_2 - m_1²)·W/n,   W ← m_2·W - (m_2 - m_1²)·W/n
    """
    bed, n, h = self.testbed, self.testbed.n, self.testbed.mu
    identical = bed.mu == bed.lam and not bed.wave
    if not identical or np.ptp(bed.variances) or np.ptp(bed.client_sizes):
      return None
    spread = bed.dimension * bed.spread**2
    v, w = bed.dimension * bed.offset**2 + spread / n, spread * (1 - 1 / n)
    mse = [v]
    for r in range(1, rounds + 1):
      for t in range((r - 1) * self.q + 1, r * self.q + 1):
        alpha = self.rate / (t + 1) if self.decaying else self.rate
        shrink, noise = (1 - alpha * h) ** 2, alpha**2 * bed.variances[0]
        v = shrink * v + noise / n
        w = shrink * w + noise * (1 - 1 / n)
      p = self.p_of_round(r + 1)  # clients mix at the start of the next round
      m1, m2 = p * (1 - self.epsilon), p * (1 - self.epsilon) ** 2
      scatter = (m2 - m1**2) * w / n
      v, w = v + scatter, m2 * w - scatter
      mse.append(v)
    return np.array(mse)


def all_settings() -> list[Setting]:
  """Returns all settings, study by study."""
  settings = [*_main_settings(1.0), *_main_settings(2.0)]
  studies = list(dict.fromkeys(setting.study for setting in settings))
  settings.sort(key=lambda setting: studies.index(setting.study))
  return [*settings, *_edge_settings(), *_decaying_settings()]


def few_settings() -> list[Setting]:
  """Returns the first setting of each study, and the second one of `n`."""
  settings = all_settings()
  first = {setting.study: setting for setting in reversed(settings)}
  return [s for s in settings if s is first[s.study] or s is settings[1]]


def curvature_label(lam: float) -> str:
  """Returns the label of H_k with curvatures from μ to λ, for μ = 1."""
  return 'H = μI' if lam == 1 else f'λ = {lam:g}μ'


def _main_settings(lam: float) -> Iterator[Setting]:
  """Varies one parameter of the main theorem at a time."""

  def setting(study: str, name: str, n: int = 8, **changes: Any) -> Setting:
    name = f'{curvature_label(lam)}, {name}'
    return Setting(Testbed(n, lam=lam), study=study, name=name, **changes)

  for n in (1, 2, 4, 8, 16, 32):
    yield setting('n', f'n = {n}', n)
  for alpha in (0.02, 0.05, 0.15, 0.3):
    yield setting('alpha', f'α = {alpha}', rate=alpha)
  paired = round(bounds.paired_epsilon(0.95), 3)
  yield setting('mixing', 'p = 0 (FedAvg)', p=0.0)
  yield setting('mixing', 'ε = 0.3, p = 0.5', p=0.5)
  yield setting('mixing', 'ε = 0.3, p = 0.9', p=0.9)
  yield setting('mixing', f'ε = {paired}, p = 0.95', epsilon=paired, p=0.95)
  yield setting('mixing', 'ε = 0, p = 1 (alone)', epsilon=0.0, p=1.0)
  yield setting('mixing', 'ε = 0.3, annealed', temperature=80.0)
  for q in (1, 4, 16):
    yield setting('q', f'q = {q}', q=q)


def _edge_settings() -> Iterator[Setting]:
  """Yields extreme settings that the main theorem allows."""
  edge = functools.partial(Setting, study='edges')
  yield edge(Testbed(variance=0.0), name='H = μI, no noise')
  at_minimum = Testbed(offset=0.0, spread=0.0)
  for rate, epsilon, p in ((0.95, 0.0, 0.5), (0.98, 0.25, 0.9)):
    name = f'H = μI, α = {rate}, ε = {epsilon:g}, p = {p}'
    yield edge(at_minimum, rate, epsilon=epsilon, p=p, name=name)
  unequal = Testbed(
    4, lam=2.0, variance=(4.0, 3.0, 2.0, 1.0), sizes=(1, 2, 3, 4)
  )
  yield edge(unequal, name='λ = 2μ, η ∝ 1..4, σ² = 4..1')


def _decaying_settings() -> Iterator[Setting]:
  """Yields rates α_0/(t+1): the corollary and the quasi-convex theorem."""
  decaying = functools.partial(Setting, decaying=True)
  for lam, alpha0, n, q in (
    (1.0, 1.0, 1, 1),
    (1.0, 1.9, 8, 1),
    (2.0, 0.62, 8, 1),
    (2.0, 0.62, 8, 4),
    (2.0, 2.0, 8, 1),
    (10.0, 1.0, 8, 1),
  ):
    suffix = ', n = 1' if n == 1 else f', q = {q}' if q > 1 else ''
    name = f'{curvature_label(lam)}, α₀ = {alpha0:g}/μ{suffix}'
    testbed = Testbed(n, lam=lam)
    yield decaying(testbed, alpha0, q=q, study='corollary', name=name)
  testbed = Testbed(mu=2.0, lam=2.0, wave=3.0, offset=1.5, spread=0.5)
  mu = quasi_convexity(testbed.mu, testbed.wave)
  for factor, p in ((1.5, 0.9), (3.0, 0.9), (6.0, 0.9), (1.5, 0.0)):
    name = f'α₀ = {factor:g}/μ, p = {p:g}'
    yield decaying(testbed, factor / mu, p=p, study='quasi_convex', name=name)
