"""Outputs and gradients of layers, for comparison."""

import tensorflow as tf


def outputs_and_gradients(function, x, slope, variables=()):
  """Returns f(x), and the gradients of Σ slope ⊙ f(x) by x and variables.

  The slope is cut to the shape of f(x).
  """
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
    total = tf.reduce_sum(y * slope[tuple(slice(n) for n in y.shape)])
  values = [getattr(v, 'value', v) for v in variables]
  return [y, *tape.gradient(total, [x, *values])]
