"""Server optimizers: an aggregator's change of z̄ as a pseudo-gradient."""

from collections.abc import Mapping

import numpy as np

from safl_tf.rules.aggregate import base
from safl_tf.util import choices, errors, validation

_LEARNING_RATES = {
  'sgd': 1.0,
  'momentum': 1.0,
  'adagrad': 0.01,
  'adam': 0.01,
  'yogi': 0.01,
}
# The arguments that each optimizer uses.
_MOMENTS = ('learning_rate', 'beta_1', 'beta_2', 'tau')
OPTIMIZER_ARGUMENTS = {
  'sgd': ('learning_rate',),
  'momentum': ('learning_rate', 'beta_1'),
  'adagrad': ('learning_rate', 'beta_1', 'tau'),
  'adam': _MOMENTS,
  'yogi': _MOMENTS,
}
_DEFAULTS = {'beta_1': 0.9, 'beta_2': 0.99, 'tau': 1e-3}
_INNER = 'inner/'  # prefix of the inner aggregator's arrays


def server_optimizer(
  inner: base.Aggregator | None = None,
  optimizer: str = 'adam',
  learning_rate: float | None = None,
  beta_1: float = _DEFAULTS['beta_1'],
  beta_2: float = _DEFAULTS['beta_2'],
  tau: float = _DEFAULTS['tau'],
) -> base.Aggregator:
  """Wraps an aggregator: FedOpt (Reddi et al. 2021) and FedAvgM.

  With x the global model z̄ and Δ = (the inner aggregate) - x,

      sgd         x ← x + lr Δ
      momentum    m ← β₁ m + Δ,   x ← x + lr m            (Hsu et al. 2019)
      the others  m ← β₁ m + (1 - β₁) Δ
                  v ← v + Δ²                              adagrad
                  v ← v - (1 - β₂) Δ² sign(v - Δ²)        yogi
                  v ← β₂ v + (1 - β₂) Δ²                  adam
                  x ← x + lr m / (√v + τ)

  without bias correction; m starts at 0 and v at τ². The first global model is
  the inner aggregate, without a step, and so are non-trainable values such as
  moving statistics in every round. sgd with lr = 1 equals the inner aggregator
  bit for bit. Values of arguments that the optimizer does not use are refused.

  Args:
    inner: the aggregator to wrap; `by_size()` by default.
    optimizer: 'sgd', 'momentum', 'adagrad', 'adam' or 'yogi'.
    learning_rate: lr; by default 1 for sgd and momentum, 0.01 for the others.
    beta_1: β₁ in [0, 1). Unless it is 0, m keeps changing elements that the
      inner aggregator leaves unchanged in a round.
    beta_2: β₂ in [0, 1).
    tau: τ, the degree of adaptivity; larger values adapt less.

  Example:
    ```python
    fed_adam = dataclasses.replace(
      safl_tf.build_fed_avg(),
      aggregate=safl_tf.aggregate.server_optimizer(
        safl_tf.aggregate.trimmed_mean(0.1), 'adam', learning_rate=0.02))
    result = safl_tf.train(model_fn, clients, fed_adam, rounds=2)
    ```
  """
  inner = base.by_size() if inner is None else inner
  if not isinstance(inner, base.Aggregator):
    raise errors.InputError('inner', inner, 'must be an Aggregator or None')
  validation.choice('optimizer', optimizer, choices.SERVER_OPTIMIZERS)
  if learning_rate is None:
    learning_rate = _LEARNING_RATES[optimizer]
  validation.limited('learning_rate', learning_rate, 'server_learning_rate')
  for name, value in ('beta_1', beta_1), ('beta_2', beta_2), ('tau', tau):
    validation.limited(name, value, f'server_{name}')
    if name not in OPTIMIZER_ARGUMENTS[optimizer] and value != _DEFAULTS[name]:
      raise errors.InputError(name, value, f'has no effect on {optimizer}')

  def init(layout: base.Layout) -> base.Memory:
    size = layout.trainable_size
    memory = _prefixed(inner.init(layout))
    memory['trainable_size'] = np.array(size)
    if optimizer != 'sgd':
      memory['m'] = np.zeros(size)
    if optimizer not in ('sgd', 'momentum'):
      memory['v'] = np.full(size, float(tau) ** 2)
    return memory

  def step(
    slots: base.Memory, delta: np.ndarray
  ) -> tuple[np.ndarray, base.Memory]:
    """Returns the direction of the step and the new slots."""
    if optimizer == 'sgd':
      return delta, {}
    if optimizer == 'momentum':
      m = beta_1 * slots['m'] + delta
      return m, {'m': m}
    m = beta_1 * slots['m'] + (1 - beta_1) * delta
    v, square = slots['v'], delta**2
    if optimizer == 'adagrad':
      v = v + square
    elif optimizer == 'yogi':
      v = v - (1 - beta_2) * square * np.sign(v - square)
    else:
      v = beta_2 * v + (1 - beta_2) * square
    return m / (np.sqrt(v) + tau), {'m': m, 'v': v}

  def apply(
    memory: base.Memory, updates: base.Updates, z_bar: np.ndarray | None
  ) -> base.Aggregated:
    own, inners = _split(memory)
    z, inners = inner.apply(inners, updates, z_bar)
    # Rounding could make x + (y - x) differ from y.
    is_inner = optimizer == 'sgd' and learning_rate == 1
    if z_bar is not None and not is_inner:
      trained = slice(int(own['trainable_size']))
      x = z_bar[trained].astype(np.float64)
      change, slots = step(own, z[trained] - x)
      z = z.copy()
      z[trained] = x + learning_rate * change
      own = {**own, **slots}
    return base.Aggregated(z, {**own, **_prefixed(inners)})

  def broadcast(memory: base.Memory) -> Mapping[str, np.ndarray]:
    return inner.broadcast(_split(memory)[1])

  return base.Aggregator(apply, init, inner.uploads, broadcast, inner.needs)


def _prefixed(memory: base.Memory) -> base.Memory:
  return {_INNER + name: value for name, value in memory.items()}


def _split(memory: base.Memory) -> tuple[base.Memory, base.Memory]:
  """Splits the memory into the optimizer's and the inner aggregator's."""
  own, inners = {}, {}
  for name, value in memory.items():
    if name.startswith(_INNER):
      inners[name.removeprefix(_INNER)] = value
    else:
      own[name] = value
  return own, inners
