"""Rules that decide whether a client uploads its update."""

import tensorflow as tf

from safl_tf.core import algorithm
from safl_tf.rules import hyperparameter, random_bits
from safl_tf.util import validation

Decision = algorithm.Decision
Gate = algorithm.Gate


def always() -> Gate:
  """Every client uploads: q = 1.

  Example:
    ```pycon
    >>> decision = safl_tf.gate.always().decide(tf.constant([0, 1]), 1.0, {})
    >>> bool(decision.sent), float(decision.q)
    (True, 1.0)
    ```
  """

  def decide(
    seed: tf.Tensor, t: tf.Tensor, metrics: algorithm.Tensors
  ) -> Decision:
    del seed, t, metrics
    return Decision(tf.constant(True), tf.constant(1.0), tf.constant(0.0))

  decide.uses_clock = False  # type: ignore[attr-defined]
  return Gate(decide)


def accuracy_gap(nu: float = 0.5) -> Gate:
  """Extended SAFL's rule, equations (24) and (25).

      Δ = |h(z̄) - h(z)| / (h(z̄) + h(z) + 1e-6)
      q = exp(-Δ/ν)

  Args:
    nu: ν > 0; a larger value uploads more. The paper gives no value; 0.5 gives
      about the uploads of its Table VI. Small values withhold almost all
      updates while z̄ is immature, so that it stays immature.

  Returns:
    A gate on the accuracies, in [0, 1], of the global and the client's model.

  Example:
    ```pycon
    >>> gate = safl_tf.gate.accuracy_gap(nu=0.5)
    >>> h = {'global_accuracy': tf.constant(0.4), 'accuracy': tf.constant(0.6)}
    >>> decision = gate.decide(tf.constant([0, 1]), tf.constant(1.0), h)
    >>> round(float(decision.delta), 2), round(float(decision.q), 2)
    (0.2, 0.67)
    ```
  """
  validation.limited('nu', nu)

  def decide(
    seed: tf.Tensor, t: tf.Tensor, metrics: algorithm.Tensors
  ) -> Decision:
    del t
    h_global = tf.cast(metrics['global_accuracy'], tf.float64)
    h_local = tf.cast(metrics['accuracy'], tf.float64)
    delta = tf.abs(h_global - h_local) / (h_global + h_local + 1e-6)
    q = tf.exp(-delta / hyperparameter.tensor(nu, tf.float64))
    sent = random_bits.bernoulli(seed, [], q)
    return Decision(sent, tf.cast(q, tf.float32), tf.cast(delta, tf.float32))

  decide.uses_clock = False  # type: ignore[attr-defined]
  return Gate(decide, needs=('global_accuracy', 'accuracy'))
