"""Functions that clients minimise, made so that the theory applies to them.

  F_k(w) = ½·(w - w*)ᵀ H_k (w - w*) + a_k·Σ_j sin²(w_j - w*_j)

have the common minimum F_k(w*) = 0 (A1). Without the waves, a_k = 0, they are
quadratic with curvatures in [μ, λ] (A2). With them they are not convex, but
strongly quasi-convex (A4). Gradients get Gaussian noise of total variance
σ_k² (A3).

A Keras model holds w and trains it like any other: a client's data say what its
H_k, a_k and σ_k are. Rules, averages and plain SGD act on every element by
itself, so one model holds the w of many independent trials side by side.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import seeds
from safl_tf.data import client_data
from safl_tf.util import validation

MINIMISER = 1.0  # every element of w*
# The least value of sin(2x)/x, at 2x = 4.4934.
_DEEPEST = -0.4344672564


@dataclasses.dataclass(frozen=True)
class Bed:
  """n clients with functions of d variables.

  Attributes:
    hessians: H_k, symmetric [n, d, d].
    variance: σ_k² [n].
    waves: a_k [n].
    sizes: m_k [n], by which z̄ weighs clients; copies of the same data.
    offset: of the mean of w_0^(k) from w*, in every element.
    spread: standard deviation of an element of w_0^(k).
  """

  hessians: np.ndarray
  variance: np.ndarray
  waves: np.ndarray
  sizes: np.ndarray
  offset: float
  spread: float

  @property
  def dimension(self) -> int:
    """How many variables there are: d."""
    return self.hessians.shape[1]

  @property
  def eta(self) -> np.ndarray:
    """η_k = m_k/Σ m."""
    return self.sizes / self.sizes.sum()

  @property
  def zeta(self) -> float:
    """ζ = E‖w_0^(k) - w*‖², the same for every client."""
    return self.dimension * (self.offset**2 + self.spread**2)

  def clients(self) -> client_data.ClientData:
    """The clients' data: m_k times (H_k, a_k, σ_k)."""
    settings = np.stack([self.waves, np.sqrt(self.variance)], axis=1)
    n = len(self.sizes)
    return client_data.ClientData.from_arrays(
      (self.hessians.astype(np.float32), settings.astype(np.float32)),
      np.zeros(n, np.int32),
      [np.full(m, k) for k, m in enumerate(self.sizes)],
    )

  def model_fn(self, trials: int) -> Callable[[], keras.Model]:
    """Makes Keras models that hold the w of so many trials."""
    validation.integer('trials', trials, low=1)
    d = self.dimension

    def make() -> keras.Model:
      entries = [keras.Input((d, d)), keras.Input((2,))]
      start = keras.initializers.RandomNormal(
        MINIMISER + self.offset, self.spread
      )
      return keras.Model(entries, Landscape(trials, d, start)(entries))

    return make

  def gradients(self, w: np.ndarray) -> np.ndarray:
    """∇F_k of the w of clients and trials, both [n, trials, d]."""
    e = w - MINIMISER
    bowl = np.einsum('nij,ntj->nti', self.hessians, e)
    return bowl + self.waves[:, None, None] * np.sin(2 * e)


def make(
  n: int,
  mu: float,
  lam: float,
  variance: Any = 1.0,
  dimension: int = 4,
  wave: float = 0.0,
  sizes: Any = 1,
  offset: float = 0.2,
  spread: float = 0.2,
  seed: int = 0,
) -> Bed:
  """Clients whose H_k have curvatures evenly from μ to λ, each turned its way.

  Args:
    n: number of clients.
    mu: μ, the least curvature.
    lam: λ, the largest; if it is μ, every H_k is μ·I.
    variance: σ_k², one for all or one for each.
    dimension: d.
    wave: a_k of all clients.
    sizes: m_k, one for all or one for each.
    offset: of the mean of w_0^(k) from w*, in every element.
    spread: standard deviation of an element of w_0^(k).
    seed: of the directions.
  """
  validation.integer('n', n, low=1)
  validation.real('mu', mu, 0, open_low=True)
  validation.real('lam', lam, mu)
  curvatures = np.linspace(mu, lam, dimension)
  hessians = []
  for k in range(n):
    rng = seeds.generator(seed, seeds.Role.PARTITION, k)
    turn, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    hessians.append(turn * curvatures @ turn.T)
  if mu == lam:
    hessians = [mu * np.eye(dimension)] * n
  return Bed(
    np.array(hessians),
    np.broadcast_to(np.asarray(variance, float), n),
    np.full(n, wave),
    np.broadcast_to(np.asarray(sizes, int), n),
    offset,
    spread,
  )


def quasi_convexity(curvature: float, wave: float) -> float:
  """The largest μ of A4 for F(w) = h/2·‖w-w*‖² + a·Σ_j sin²(w_j-w*_j).

    <∇F(w), e> = h‖e‖² + a·Σ_j e_j·sin 2e_j ≥ (h - 0.4345·a)·‖e‖²

  so μ is twice that. F'' goes down to h - 2a: not convex for a > h/2.
  """
  return 2 * (curvature + wave * _DEEPEST)


class Landscape(keras.layers.Layer):
  """Holds w; the loss it adds is F_k(w) + ξᵀw, summed over trials.

  ξ is new in every step. The gradient is ∇F_k(w) + ξ; logits are constant, so
  the classification's loss adds nothing. All rows of a batch are the same.

  Args:
    trials: how many w there are.
    dimension: of each.
    start: initializer of w.
  """

  def __init__(
    self,
    trials: int,
    dimension: int,
    start: keras.Initializer,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self._shape = (trials, dimension)
    self._start = start
    self._seeds = keras.random.SeedGenerator(0)  # set anew for every round

  def build(self, input_shape: Any) -> None:
    """Makes w."""
    self.w = self.add_weight(shape=self._shape, initializer=self._start)

  def call(self, inputs: Any) -> tf.Tensor:
    """Adds the loss."""
    hessian, settings = (tf.reduce_mean(x, axis=0) for x in inputs)
    wave, deviation = settings[0], settings[1]
    e = self.w - MINIMISER
    bowl = tf.reduce_sum(e * tf.matmul(e, hessian)) / 2
    hills = wave * tf.reduce_sum(tf.sin(e) ** 2)
    xi = keras.random.normal(self._shape, seed=self._seeds)
    xi *= deviation / self._shape[1] ** 0.5  # so that E‖ξ‖² = σ²
    self.add_loss(bowl + hills + tf.reduce_sum(xi * self.w))
    return tf.zeros([tf.shape(inputs[1])[0], 1])
