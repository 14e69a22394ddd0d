"""What a device starts its round from: z̄, its own z, or something between."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from safl_tf import checks, names
from safl_tf.rules import draw


class Mixed(NamedTuple):
  """Where a device starts.

  Attributes:
    w: the model to train from, shape [P].
    p: the probability that an element is kept local.
    kept_local: the share of elements for which u_j = ε was drawn.
  """

  w: tf.Tensor
  p: tf.Tensor
  kept_local: tf.Tensor


# (seed [2] int32, t float32, z_bar [P], z [P]) -> Mixed
Mix = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Mixed]


def replace() -> Mix:
  """FedAvg's rule, equation (4): w = z̄."""

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    del seed, t, z
    return Mixed(w=z_bar, p=tf.constant(0.0), kept_local=tf.constant(0.0))

  return mix


def keep() -> Mix:
  """A device goes on with its own model: w = z (ε = 0 and p = 1 in SAFL)."""

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    del seed, t, z_bar
    return Mixed(w=z, p=tf.constant(1.0), kept_local=tf.constant(1.0))

  return mix


def anneal(
  epsilon: float = 0.3, temperature: float = 80.0, granularity: str = 'element'
) -> Mix:
  """SAFL's rule, equations (6) and (7).

    u_j = ε  with probability p = exp(-t/L),  else 1
    w   = u ⊙ z̄ + (1 - u) ⊙ z

  Args:
    epsilon: ε, the weight of z̄ in an element that is kept local.
    temperature: L, how many rounds the annealing takes to fall to 1/e.
    granularity: 'element' draws every u_j by itself, as printed; 'model' draws
      one u for the whole model, the reading in which a device accepts a state.

  Returns:
    mix(seed, t, z_bar, z) -> Mixed.
  """
  checks.real('epsilon', epsilon, 0, 1)
  checks.real('temperature', temperature, 0, open_low=True)
  checks.choice('mix_granularity', granularity, names.MIX_GRANULARITIES)

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    p = tf.exp(-tf.cast(t, tf.float64) / temperature)
    shape = tf.shape(z) if granularity == 'element' else [1]
    local = draw.bernoulli(seed, shape, p)  # where u_j = ε
    # ε·z̄ + (1-ε)·z, written so that z = z̄ and ε = 1 give exactly z̄.
    perturbed = z if epsilon == 0 else z_bar + (1 - epsilon) * (z - z_bar)
    return Mixed(
      w=tf.where(local, perturbed, z_bar),
      p=tf.cast(p, tf.float32),
      kept_local=tf.reduce_mean(tf.cast(local, tf.float32)),
    )

  return mix
