"""A server's optimizer around a aggregator: its change of z̄ as a gradient."""

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
_INNER = 'inner/'  # what the names of the inner aggregator's arrays start with


def server_optimizer(
  inner: base.Aggregator | None = None,
  optimizer: str = 'adam',
  learning_rate: float | None = None,
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  tau: float = 1e-3,
) -> base.Aggregator:
  """Adaptive federated optimization (Reddi et al. 2021) and FedAvgM.

  With x the server's model z̄ and Δ = (what `inner` makes of the round) - x,

    sgd         x ← x + lr Δ
    momentum    m ← β₁ m + Δ,   x ← x + lr m            (Hsu et al. 2019)
    the others  m ← β₁ m + (1 - β₁) Δ
                v ← v + Δ²                              adagrad
                v ← v - (1 - β₂) Δ² sign(v - Δ²)        yogi
                v ← β₂ v + (1 - β₂) Δ²                  adam
                x ← x + lr m / (√v + τ)

  without a correction of bias; m starts at 0 and v at τ². The first model is
  the inner aggregator's, without a step. What is not trained, such as moving
  statistics, is always the inner aggregator's. sgd with lr = 1 is that aggregator, bit
  for bit.

  Args:
    inner: the aggregator whose result is stepped towards; `by_size()` by default.
    optimizer: 'sgd', 'momentum', 'adagrad', 'adam' or 'yogi'.
    learning_rate: lr; by default 1 for sgd and momentum, 0.01 for the others.
    beta_1: β₁ in [0, 1). What the inner aggregator leaves as it is for a round, m
      goes on moving, unless β₁ is 0.
    beta_2: β₂ in [0, 1).
    tau: τ, how adaptive steps are: the larger, the less.
  """
  inner = base.by_size() if inner is None else inner
  if not isinstance(inner, base.Aggregator):
    raise errors.InputError('inner', inner, 'must be a aggregator or None')
  validation.choice('optimizer', optimizer, choices.SERVER_OPTIMIZERS)
  if learning_rate is None:
    learning_rate = _LEARNING_RATES[optimizer]
  validation.real('learning_rate', learning_rate, 0, open_low=True)
  validation.real('tau', tau, 0, open_low=True)
  for name, value in ('beta_1', beta_1), ('beta_2', beta_2):
    if validation.real(name, value, 0, 1) == 1:
      raise errors.InputError(name, value, 'must be less than 1')

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
    """What lr is multiplied by, and the new slots."""
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
    fused, inners = inner.apply(inners, updates, z_bar)
    # Rounding could make x + (y - x) something else than y.
    is_inner = optimizer == 'sgd' and learning_rate == 1
    if z_bar is not None and not is_inner:
      trained = slice(int(own['trainable_size']))
      x = z_bar[trained].astype(np.float64)
      change, slots = step(own, fused[trained] - x)
      fused = fused.copy()
      fused[trained] = x + learning_rate * change
      own = {**own, **slots}
    return base.Aggregated(fused, {**own, **_prefixed(inners)})

  return base.Aggregator(apply, init, inner.uploads)


def _prefixed(memory: base.Memory) -> base.Memory:
  return {_INNER + name: value for name, value in memory.items()}


def _split(memory: base.Memory) -> tuple[base.Memory, base.Memory]:
  """The optimizer's own arrays, and the inner aggregator's."""
  own, inners = {}, {}
  for name, value in memory.items():
    if name.startswith(_INNER):
      inners[name.removeprefix(_INNER)] = value
    else:
      own[name] = value
  return own, inners
