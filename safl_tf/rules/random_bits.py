"""The one random draw that rules make."""

from typing import Any

import tensorflow as tf


def bernoulli(seed: tf.Tensor, shape: Any, probability: tf.Tensor) -> tf.Tensor:
  """True with the given probability, independently in every element.

  The bits are Philox's, which are the same with and without XLA and on every
  device (TensorFlow's own floats made of them are not).

  Args:
    seed: int32 [2].
    shape: of the result.
    probability: a float64 scalar.
  """
  bits = tf.random.stateless_uniform(
    shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg='philox'
  )
  return tf.cast(bits, tf.float64) * 2.0**-32 < probability
