"""Rules for what clients do besides plain training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm
from safl_tf.core import layout as layout_lib
from safl_tf.rules import hyperparameter
from safl_tf.util import errors, validation

ClientRound = algorithm.ClientRound
ClientWork = algorithm.ClientWork
Layout = layout_lib.Layout
Trained = algorithm.Trained


def proximal(mu: float) -> ClientWork:
  """FedProx's rule (Li et al. 2020): a pull towards the global model.

      g ← g + μ·(w - z̄)

  the gradient of the mean loss plus μ/2·‖w - z̄‖². Without a global model there
  is no pull.

  Args:
    mu: μ ≥ 0; a larger value keeps clients nearer to the global model.

  Example:
    ```python
    proximal_safl = dataclasses.replace(
      safl_tf.build_safl(), client_work=safl_tf.client_work.proximal(mu=0.1))
    result = safl_tf.train(model_fn, clients, proximal_safl, rounds=2)
    ```
  """
  validation.limited('proximal_mu', mu)

  def start(begun: ClientRound) -> algorithm.Tensors:
    strength = hyperparameter.tensor(mu, tf.float32)
    pull = tf.where(begun.has_global, strength, 0.0)
    return {'pull': pull, 'anchor': begun.received['z']}

  def gradient(
    g: tf.Tensor, w: tf.Tensor, values: algorithm.Tensors, weight: tf.Tensor
  ) -> tf.Tensor:
    pull = tf.cast(weight * values['pull'], g.dtype)
    return g + pull * (w - values['anchor'])

  return ClientWork(start=start, gradient=gradient)


def one_step() -> ClientWork:
  """FedSGD's rule: one step over all data, and no model of one's own.

  Example:
    ```pycon
    >>> safl_tf.client_work.one_step().full_batch
    True
    >>> algorithm = dataclasses.replace(
    ...   safl_tf.build_fed_avg(), client_work=safl_tf.client_work.one_step())
    ```
  """

  def end(begun: ClientRound, trained: Trained) -> Trained:
    del begun
    return trained._replace(kept={})

  return ClientWork(end=end, full_batch=True)


def freeze() -> ClientWork:
  """Keeps those elements of the model fixed that the server says.

  An aggregator's `broadcast` returns them as 'frozen', bool [P].

  Example:
    ```python
    def broadcast(memory):  # freezes the first layer
      return {'frozen': memory['frozen']}

    def init(layout):
      frozen = np.zeros(layout.size, bool)
      for tensor in layout.layers()[0]:
        frozen[tensor.place] = True
      return {'frozen': frozen}

    half_frozen = dataclasses.replace(
      safl_tf.build_fed_avg(), client_work=safl_tf.client_work.freeze(),
      aggregate=safl_tf.aggregate.by_size()._replace(
        init=init, broadcast=broadcast))
    result = safl_tf.train(model_fn, clients, half_frozen, rounds=2)
    ```
  """

  def receives(layout: Layout) -> algorithm.Arrays:
    return {'frozen': np.zeros(layout.size, bool)}

  def start(begun: ClientRound) -> algorithm.Tensors:
    return {'frozen': begun.received['frozen']}

  def project(
    w: tf.Tensor, before: tf.Tensor, values: algorithm.Tensors
  ) -> tf.Tensor:
    return tf.where(values['frozen'], before, w)

  return ClientWork(receives=receives, start=start, project=project)


def compose(*works: ClientWork) -> ClientWork:
  """Applies client works one after the other, each with its own values.

  Plain training adds nothing. An `InputError` refuses two works that have
  arrays of the same name.

  Args:
    *works: in the order in which they change gradients and tensors.

  Example:
    ```python
    work = safl_tf.client_work.compose(
      safl_tf.build_scaffold().client_work,
      safl_tf.client_work.proximal(mu=0.1))
    both = dataclasses.replace(safl_tf.build_scaffold(), client_work=work)
    result = safl_tf.train(model_fn, clients, both, rounds=2)
    ```
  """
  works = tuple(work for work in works if work != algorithm.PLAIN_TRAINING)
  if len(works) < 2:
    return works[0] if works else algorithm.PLAIN_TRAINING

  def start(begun: ClientRound) -> algorithm.Tensors:
    return {
      f'{i}/{name}': value
      for i, work in enumerate(works)
      if work.start is not None
      for name, value in work.start(begun).items()
    }

  def own(values: algorithm.Tensors, i: int) -> algorithm.Tensors:
    prefix = f'{i}/'
    return {
      name.removeprefix(prefix): value
      for name, value in values.items()
      if name.startswith(prefix)
    }

  def gradient(
    g: tf.Tensor, w: tf.Tensor, values: algorithm.Tensors, weight: tf.Tensor
  ) -> tf.Tensor:
    for i, work in enumerate(works):
      if work.gradient is not None:
        g = work.gradient(g, w, own(values, i), weight)
    return g

  def project(
    w: tf.Tensor, before: tf.Tensor, values: algorithm.Tensors
  ) -> tf.Tensor:
    for i, work in enumerate(works):
      if work.project is not None:
        w = work.project(w, before, own(values, i))
    return w

  def end(begun: ClientRound, trained: Trained) -> Trained:
    for work in works:
      if work.end is not None:
        trained = work.end(begun, trained)
    return trained

  def used(name: str, function: Any) -> Any:
    default = getattr(algorithm.PLAIN_TRAINING, name)
    given = [getattr(work, name) is not default for work in works]
    return function if any(given) else default

  return ClientWork(
    init=used('init', _merged(works, 'init')),
    receives=used('receives', _merged(works, 'receives')),
    start=used('start', start),
    gradient=used('gradient', gradient),
    project=used('project', project),
    end=used('end', end),
    full_batch=any(work.full_batch for work in works),
    plain_sgd=any(work.plain_sgd for work in works),
  )


def _merged(
  works: Sequence[ClientWork], field: str
) -> Callable[[Layout], algorithm.Arrays]:
  """Returns a function layout -> the arrays of all works."""

  def merged(layout: Layout) -> algorithm.Arrays:
    arrays: dict[str, np.ndarray] = {}
    for work in works:
      for name, array in getattr(work, field)(layout).items():
        if name in arrays:
          hint = 'two works have arrays of this name; rename one'
          raise errors.InputError(f'client_work.{field}', name, hint)
        arrays[name] = array
    return arrays

  return merged
