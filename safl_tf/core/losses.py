"""Per-example losses of logits or probabilities."""

from collections.abc import Callable

import tensorflow as tf

from safl_tf.util import choices, validation

_CLIP = 1e-7

# (labels [B] int32, outputs [B, C] float32) -> losses [B]
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def get(name: str, from_logits: bool) -> Loss:
  """Returns a loss by name.

  Args:
    name: 'categorical', -ln ŷ_label; or 'paper', the two-term cross-entropy
      that the paper prints, equation (27):
      -Σ_i (y_i ln ŷ_i + (1 - y_i) ln(1 - ŷ_i)).
    from_logits: whether the model's outputs are logits.
  """
  validation.choice('loss', name, choices.LOSSES)
  if name == 'paper':
    return lambda y, outputs: _two_term(y, probabilities(outputs, from_logits))
  if from_logits:
    return lambda y, outputs: tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=y, logits=outputs
    )
  return _negative_log


def probabilities(outputs: tf.Tensor, from_logits: bool) -> tf.Tensor:
  """Returns a model's outputs as class probabilities ŷ."""
  return tf.nn.softmax(outputs) if from_logits else outputs


def _negative_log(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  chosen = tf.gather(y_hat, y, batch_dims=1)
  return -tf.math.log(tf.clip_by_value(chosen, _CLIP, 1.0))


def _two_term(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  y_hat = tf.clip_by_value(y_hat, _CLIP, 1.0 - _CLIP)
  truth = tf.one_hot(y, tf.shape(y_hat)[1], on_value=True, off_value=False)
  terms = tf.where(truth, tf.math.log(y_hat), tf.math.log1p(-y_hat))
  return -tf.reduce_sum(terms, axis=1)
