"""Losses: one value for each example, or for each position of a sequence.

A loss is one of this package, by name, or any loss of Keras: an object, a name
or a function (y, outputs) -> losses.
"""

import functools
import inspect
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from safl_tf.core import task
from safl_tf.util import choices, errors, validation

_CLIP = 1e-7

Loss = task.OfExamples

# Cross-entropies of Keras, by class: the activation that gives probabilities.
_CROSSENTROPIES = {
  'SparseCategoricalCrossentropy': 'softmax',
  'CategoricalCrossentropy': 'softmax',
  'CategoricalFocalCrossentropy': 'softmax',
  'BinaryCrossentropy': 'sigmoid',
  'BinaryFocalCrossentropy': 'sigmoid',
}
_ONE_HOT = ('CategoricalCrossentropy', 'CategoricalFocalCrossentropy')
_PLAIN = ('SparseCategoricalCrossentropy', 'CategoricalCrossentropy')
# Reductions of a loss that leave it to `LocalConfig.loss_reduction`.
_REDUCTIONS = ('sum_over_batch_size', 'mean', 'none', None)


class Kind(NamedTuple):
  """What is known of a loss before it is used.

  Attributes:
    name: as the user knows it.
    loss: the loss that was given.
    of: the name of a crossentropy of Keras, or of this package; else None.
    activation: 'softmax' or 'sigmoid', which turns logits into what the loss
      takes for probabilities; None if outputs are neither.
    from_logits: whether the loss takes logits; None if it does not say.
  """

  name: str
  loss: Any
  of: str | None = None
  activation: str | None = None
  from_logits: bool | None = None


def identify(loss: Any) -> Kind:
  """Returns the kind of a loss that a user gave, or refuses it."""
  if isinstance(loss, str) and loss in choices.LOSSES:
    return Kind(loss, loss, loss, 'softmax')
  if isinstance(loss, str):
    names = {n.lower(): n for n in _CROSSENTROPIES}
    of = names.get(loss.lower().replace('_', ''))
    if of is not None:
      return Kind(loss, loss, of, _CROSSENTROPIES[of])
    try:
      keras.losses.get(loss)
    except ValueError:
      known = [n for n in dir(keras.losses) if n[0] != '_' and '_' in n]
      validation.choice('loss', loss, [*choices.LOSSES, *known])
    return Kind(loss, loss)
  if isinstance(loss, keras.losses.Loss):
    if loss.reduction not in _REDUCTIONS:
      hint = 'leave it out; loss_reduction of the configuration decides it'
      raise errors.InputError('loss', f'reduction={loss.reduction}', hint)
    of = type(loss).__name__
    if type(loss) is not getattr(keras.losses, of, None):
      return Kind(loss.name, loss)
    if of not in _CROSSENTROPIES:
      return Kind(loss.name, loss)
    from_logits = bool(loss.get_config()['from_logits'])
    return Kind(loss.name, loss, of, _CROSSENTROPIES[of], from_logits)
  if not callable(loss) or inspect.isclass(loss):
    takes = 'a name, a function (y, outputs) -> losses, or a keras.losses.Loss'
    raise errors.InputError('loss', type(loss).__name__, f'must be {takes}')
  function: Any = loss
  said = None
  if isinstance(loss, functools.partial):
    function = loss.func
    said = bool(loss.keywords.get('from_logits', False))
  name = getattr(function, '__name__', type(function).__name__)
  for of, activation in _CROSSENTROPIES.items():
    if function is getattr(keras.losses, _snake_case(of)):
      return Kind(name, loss, of, activation, said)
  return Kind(name, loss)


def build(kind: Kind, from_logits: bool | None, as_classes: bool) -> Loss:
  """Returns a loss as a function.

  Args:
    kind: of the loss.
    from_logits: whether outputs are logits; None if the loss does not ask.
    as_classes: whether labels are class numbers, not vectors like the outputs.
  """
  if kind.of in choices.LOSSES:
    return get(str(kind.of), bool(from_logits))
  loss = kind.loss
  if kind.of is not None and not isinstance(loss, keras.losses.Loss):
    options = loss.keywords if isinstance(loss, functools.partial) else {}
    make = getattr(keras.losses, kind.of)
    loss = make(**{**options, 'from_logits': bool(from_logits)})
  else:
    loss = keras.losses.get(loss)
  if kind.of in _PLAIN and as_classes and _is_plain(loss):
    return get('categorical', bool(from_logits))
  one_hot = kind.of in _ONE_HOT and as_classes
  call = loss.call if isinstance(loss, keras.losses.Loss) else loss

  def losses(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if one_hot:
      y = tf.one_hot(y, outputs.shape[-1])
    y = like_outputs(y, outputs)
    # Keras, too, gives labels to losses as floating-point numbers.
    return call(tf.cast(y, outputs.dtype), outputs)

  return losses


def like_outputs(y: Any, outputs: Any) -> Any:
  """Returns labels [B] as [B, 1] if outputs are, as Keras does."""
  if len(outputs.shape) == len(y.shape) + 1 and outputs.shape[-1] == 1:
    return y[..., tf.newaxis]
  return y


def get(name: str, from_logits: bool) -> Loss:
  """Returns a loss of this package by name.

  Args:
    name: 'categorical', -ln ŷ_label; or 'paper', the two-term cross-entropy
      that the paper prints, equation (27):
      -Σ_i (y_i ln ŷ_i + (1 - y_i) ln(1 - ŷ_i)).
    from_logits: whether the model's outputs are logits.
  """
  validation.choice('loss', name, choices.LOSSES)
  if name == 'paper':
    return lambda y, outputs: _two_term(
      y, activate(outputs, 'softmax' if from_logits else None)
    )
  if from_logits:
    return lambda y, outputs: tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=y, logits=outputs
    )
  return _negative_log


def activate(outputs: tf.Tensor, activation: str | None) -> tf.Tensor:
  """Returns a model's outputs after 'softmax', 'sigmoid' or nothing."""
  if activation is None:
    return outputs
  return {'softmax': tf.nn.softmax, 'sigmoid': tf.nn.sigmoid}[activation](
    outputs
  )


def _is_plain(loss: keras.losses.Loss) -> bool:
  """Returns whether a crossentropy has only defaults besides from_logits."""
  ours, default = loss.get_config(), type(loss)().get_config()
  names = ours.keys() - {'name', 'reduction', 'from_logits'}
  return all(ours[n] == default[n] for n in names)


def _snake_case(name: str) -> str:
  return ''.join(f'_{c.lower()}' if c.isupper() else c for c in name)[1:]


def _negative_log(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  chosen = tf.gather(y_hat, y, batch_dims=len(y.shape))
  return -tf.math.log(tf.clip_by_value(chosen, _CLIP, 1.0))


def _two_term(y: tf.Tensor, y_hat: tf.Tensor) -> tf.Tensor:
  y_hat = tf.clip_by_value(y_hat, _CLIP, 1.0 - _CLIP)
  truth = tf.one_hot(y, tf.shape(y_hat)[-1], on_value=True, off_value=False)
  terms = tf.where(truth, tf.math.log(y_hat), tf.math.log1p(-y_hat))
  return -tf.reduce_sum(terms, axis=-1)
