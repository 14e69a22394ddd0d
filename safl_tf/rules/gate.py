"""Whether a device uploads its update."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from safl_tf import checks
from safl_tf.rules import draw


class Decision(NamedTuple):
  """Whether an update is sent.

  Attributes:
    sent: whether the device uploads.
    q: the probability with which it did.
    delta: Δ, the gap that gave q.
  """

  sent: tf.Tensor
  q: tf.Tensor
  delta: tf.Tensor


class Gate(NamedTuple):
  """A rule, and whether it looks at accuracies (which cost two passes)."""

  # (seed [2] int32, t, h_global, h_local) -> Decision
  decide: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Decision]
  needs_accuracy: bool


def always() -> Gate:
  """Every device uploads: q = 1."""

  def decide(
    seed: tf.Tensor, t: tf.Tensor, h_global: tf.Tensor, h_local: tf.Tensor
  ) -> Decision:
    del seed, t, h_global, h_local
    return Decision(tf.constant(True), tf.constant(1.0), tf.constant(0.0))

  return Gate(decide, needs_accuracy=False)


def accuracy_gap(nu: float = 0.5) -> Gate:
  """Extended SAFL's rule, equations (24) and (25).

    Δ = |h(z̄) - h(z)| / (h(z̄) + h(z) + 1e-6)
    q = exp(-Δ/ν)

  Args:
    nu: ν; the larger, the more is uploaded. The paper gives no value; 0.5
      gives about the uploads of its Table VI. Small ones withhold almost
      everything while z̄ is immature, so that it stays immature.

  Returns:
    A gate on the accuracies, in [0, 1], of the global and the device's model.
  """
  checks.real('nu', nu, 0, open_low=True)

  def decide(
    seed: tf.Tensor, t: tf.Tensor, h_global: tf.Tensor, h_local: tf.Tensor
  ) -> Decision:
    del t
    h_global = tf.cast(h_global, tf.float64)
    h_local = tf.cast(h_local, tf.float64)
    delta = tf.abs(h_global - h_local) / (h_global + h_local + 1e-6)
    q = tf.exp(-delta / nu)
    sent = draw.bernoulli(seed, [], q)
    return Decision(sent, tf.cast(q, tf.float32), tf.cast(delta, tf.float32))

  return Gate(decide, needs_accuracy=True)
