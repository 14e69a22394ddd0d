"""Rules that mix z̄ and a client's own z into the model it trains."""

import tensorflow as tf

from safl_tf.core import algorithm
from safl_tf.rules import hyperparameter, random_bits
from safl_tf.util import choices, validation

Mix = algorithm.Mix
Mixed = algorithm.Mixed


def replace() -> Mix:
  """FedAvg's rule, equation (4): w = z̄.

  Example:
    ```pycon
    >>> rule = safl_tf.mix.replace()
    >>> z_bar, z = tf.constant([1.0, 2.0]), tf.constant([5.0, 6.0])
    >>> rule(tf.constant([0, 1]), tf.constant(1.0), z_bar, z).w.numpy().tolist()
    [1.0, 2.0]
    ```
  """

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    del seed, t, z
    return Mixed(w=z_bar, p=tf.constant(0.0), kept_local=tf.constant(0.0))

  mix.uses_clock = False  # type: ignore[attr-defined]
  return mix


def keep() -> Mix:
  """Keeps the client's own model: w = z (SAFL with ε = 0 and p = 1).

  Example:
    ```pycon
    >>> rule = safl_tf.mix.keep()
    >>> z_bar, z = tf.constant([1.0, 2.0]), tf.constant([5.0, 6.0])
    >>> rule(tf.constant([0, 1]), tf.constant(1.0), z_bar, z).w.numpy().tolist()
    [5.0, 6.0]
    ```
  """

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    del seed, t, z_bar
    return Mixed(w=z, p=tf.constant(1.0), kept_local=tf.constant(1.0))

  mix.uses_clock = False  # type: ignore[attr-defined]
  return mix


def anneal(
  epsilon: float = 0.3, temperature: float = 80.0, granularity: str = 'element'
) -> Mix:
  """SAFL's rule, equations (6) and (7).

      u_j = ε  with probability p = exp(-t/L),  else 1
      w   = u ⊙ z̄ + (1 - u) ⊙ z

  Args:
    epsilon: ε in [0, 1], the weight of z̄ in an element that is kept local.
    temperature: L > 0, the number of rounds after which p is 1/e.
    granularity: 'element' draws every u_j independently, as printed; 'model'
      draws one u for the whole model, so that a client accepts or rejects it.

  Returns:
    mix(seed, t, z_bar, z) -> Mixed.

  Example:
    ```pycon
    >>> rule = safl_tf.mix.anneal(epsilon=0.25, temperature=10)
    >>> z_bar, z = tf.zeros([1000]), tf.ones([1000])
    >>> mixed = rule(tf.constant([0, 1]), tf.constant(5.0), z_bar, z)
    >>> sorted(set(mixed.w.numpy().tolist()))  # z̄, or ε·z̄ + (1 - ε)·z
    [0.0, 0.75]
    >>> round(float(mixed.p), 3)  # exp(-5/10)
    0.607
    ```
  """
  validation.limited('epsilon', epsilon)
  validation.limited('temperature', temperature)
  validation.choice('mix_granularity', granularity, choices.MIX_GRANULARITIES)

  def mix(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> Mixed:
    divisor = hyperparameter.tensor(temperature, tf.float64)
    p = tf.exp(-tf.cast(t, tf.float64) / divisor)
    shape = z.shape if granularity == 'element' else [1]
    local = random_bits.bernoulli(seed, shape, p)  # where u_j = ε
    # ε·z̄ + (1-ε)·z, written so that z = z̄ and ε = 1 give exactly z̄.
    weight = hyperparameter.tensor(1 - epsilon, z.dtype)
    perturbed = z if epsilon == 0 else z_bar + weight * (z - z_bar)
    return Mixed(
      w=tf.where(local, perturbed, z_bar),
      p=tf.cast(p, tf.float32),
      kept_local=tf.reduce_mean(tf.cast(local, tf.float32)),
    )

  return mix
