"""Random draws inside compiled rules."""

from typing import Any

import tensorflow as tf


def bernoulli(seed: tf.Tensor, shape: Any, probability: tf.Tensor) -> tf.Tensor:
  """Draws True with a probability, independently for every element.

  Philox bits are the same with and without XLA and on every device; the floats
  that TensorFlow derives from them are not.

  Args:
    seed: int32 [2].
    shape: of the result.
    probability: a float64 scalar.
  """
  # Drawn as int32: `tf.vectorized_map` moves uint32 from a GPU to the CPU.
  bits = tf.random.stateless_uniform(
    shape, seed, minval=None, maxval=None, dtype=tf.int32, alg='philox'
  )
  return less(tf.cast(bits, tf.uint32), probability)


def less(bits: tf.Tensor, probability: tf.Tensor) -> tf.Tensor:
  """Returns bits·2⁻³² < p, in uint32: float64 would take twice the memory."""
  last = tf.math.ceil(probability * 2.0**32) - 1
  last = tf.cast(tf.clip_by_value(last, 0, 2.0**32 - 1), tf.uint32)
  return (bits <= last) & (probability > 0)
