"""Random draws inside compiled rules."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def bernoulli(
  seed: tf.Tensor, shape: Sequence[int], probability: tf.Tensor
) -> tf.Tensor:
  """Draws True with a probability, independently for every element.

  Philox bits are the same with and without XLA and on every device; the floats
  that TensorFlow derives from them are not.

  Args:
    seed: int32 [2].
    shape: of the result.
    probability: a float64 scalar.
  """
  bits = _draw(seed, int(np.prod(shape)))
  return tf.reshape(less(bits, probability), shape)


def _draw(seed: tf.Tensor, size: int) -> tf.Tensor:
  """Draws uint32, two at a time.

  XLA computes each step of Philox many times over when it fuses a draw of 32
  bits: with 1.6M elements that takes 800 ms instead of 10. Signed integers, as
  `tf.vectorized_map` moves unsigned ones from a GPU to the CPU.
  """
  pairs = tf.random.stateless_uniform(
    [(size + 1) // 2],
    seed,
    minval=None,
    maxval=None,
    dtype=tf.int64,
    alg='philox',
  )
  bits = tf.cast(tf.bitcast(pairs, tf.int32), tf.uint32)
  return tf.reshape(bits, [-1])[:size]


def less(bits: tf.Tensor, probability: tf.Tensor) -> tf.Tensor:
  """Returns bits·2⁻³² < p, in uint32: float64 would take twice the memory."""
  last = tf.math.ceil(probability * 2.0**32) - 1
  last = tf.cast(tf.clip_by_value(last, 0, 2.0**32 - 1), tf.uint32)
  return (bits <= last) & (probability > 0)
