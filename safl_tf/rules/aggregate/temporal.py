"""Temporal aggregation: averages every client's last upload by its age."""

import numpy as np

from safl_tf.core import client_store
from safl_tf.core import layout as layouts
from safl_tf.rules.aggregate import base as aggregators
from safl_tf.util import validation

_NEVER = -1  # the round of a client that has not uploaded


def temporal(
  base: float = np.e / 2,
  layerwise: bool = False,
  loop: int = 15,
  deep_rounds: int = 5,
  shallow: int | None = None,
) -> aggregators.Aggregator:
  """Builds ASTW, temporally weighted aggregation (Chen, Sun and Jin 2020).

      z̄ = Σ_k η_k z_k,   η_k = m_k a^-(t-τ_k) / Σ_j m_j a^-(t-τ_j)

  The sums are over all clients that ever uploaded; z_k is client k's last
  upload, of round τ_k.

  With `layerwise`, clients upload deep layers only in the rounds at the end of
  each loop and in the first of the next. With r = t - 1 these are

      r mod loop = 0   or   r mod loop > loop - deep_rounds

  In other rounds the deep part of z̄ does not change. It has its own τ_k, and a
  client that never uploaded its deep part has no weight there. While there is
  no z̄, uploads count as whole, since there would be no deep part otherwise.

  Args:
    base: a ≥ 1, the factor by which an upload's weight shrinks in every round.
    layerwise: whether clients upload deep layers in some rounds only.
    loop: the length of a loop in rounds.
    deep_rounds: the number of rounds of a loop with deep layers.
    shallow: the number of layers with weights, from the input, that are
      shallow. By default those before the first dense layer, or half of the
      layers, rounded up, if there are none. Non-trainable values such as moving
      statistics belong to the shallow layers.

  Example:
    ```python
    stale_safl = dataclasses.replace(
      safl_tf.build_safl(clients_per_round=2),
      aggregate=safl_tf.aggregate.temporal(base=1.2))
    result = safl_tf.train(model_fn, clients, stale_safl, rounds=2)
    ```
  """
  validation.limited('base', base, 'astw_base')
  validation.instance('layerwise', layerwise, bool, 'True or False')
  validation.integer('loop', loop, 1)
  validation.integer('deep_rounds', deep_rounds, 1, loop)
  if shallow is not None:
    validation.integer('shallow', shallow, 1)

  def init(layout: aggregators.Layout) -> aggregators.Memory:
    size = layout.size
    return {
      'deep': _deep(layout, shallow if layerwise else len(layout.layers())),
      'ids': np.zeros(0, np.int64),
      'models': client_store.ClientStore(lambda k: np.zeros(size, np.float32)),
      'm': np.zeros(0, np.float64),
      'tau_g': np.zeros(0, np.int64),
      'tau_s': np.zeros(0, np.int64),
    }

  def apply(
    memory: aggregators.Memory,
    updates: aggregators.Updates,
    z_bar: np.ndarray | None,
  ) -> aggregators.Aggregated:
    t = updates.t
    fixed = None if _is_deep_round(t, loop, deep_rounds) else z_bar
    memory = _remember(memory, updates, whole=fixed is None)
    deep, models = memory['deep'], memory['models']
    ids = memory['ids'].tolist()

    def average(tau: np.ndarray) -> np.ndarray:
      known = tau != _NEVER
      eta = np.zeros(len(tau))
      eta[known] = temporal_weights(memory['m'][known], t - tau[known], base)
      return aggregators.weighted_mean(eta, (models[k] for k in ids))

    z = average(memory['tau_g'])
    if deep.any():
      part = average(memory['tau_s']) if fixed is None else fixed
      z = np.where(deep, part, z)
    return aggregators.Aggregated(z, memory)

  def uploads(layout: aggregators.Layout, t: int) -> int:
    if not layerwise or _is_deep_round(t, loop, deep_rounds):
      return layout.size
    return layout.size - int(_deep(layout, shallow).sum())

  return aggregators.Aggregator(apply, init, uploads)


def temporal_weights(
  m: np.ndarray, age: np.ndarray, base: float = np.e / 2
) -> np.ndarray:
  """Returns η_k = m_k a^-age_k / Σ_j m_j a^-age_j, shape [r], in float64.

  Ages are shifted so that the youngest is 0 and the sum never underflows.

  Args:
    m: the clients' numbers of examples, shape [r].
    age: t - τ_k, the age of each upload in rounds, shape [r].
    base: a.

  Example:
    ```pycon
    >>> m, age = np.array([10, 10, 20]), np.array([0, 1, 2])
    >>> safl_tf.aggregate.temporal_weights(m, age, base=2).tolist()
    [0.5, 0.25, 0.25]
    ```
  """
  age = np.asarray(age, np.float64)
  eta = np.asarray(m, np.float64) * base ** -(age - age.min())
  return eta / eta.sum()


def _is_deep_round(t: int, loop: int, deep_rounds: int) -> bool:
  phase = (t - 1) % loop
  return phase == 0 or phase > loop - deep_rounds


def _deep(layout: aggregators.Layout, shallow: int | None) -> np.ndarray:
  """Returns the mask of elements of deep layers, shape [P]."""
  layers = layout.layers()
  if shallow is None:
    shallow = _default_shallow(layout)
  validation.integer('shallow', shallow, 1, len(layers))
  deep = np.zeros(layout.size, bool)
  for layer in layers[shallow:]:
    for tensor in layer:
      deep[tensor.place] = True
  return deep


def _default_shallow(layout: aggregators.Layout) -> int:
  """Returns the number of layers before the first dense one, or half."""
  layers = layout.layers()

  def is_dense(tensor: layouts.Tensor) -> bool:
    return tensor.path.endswith('/kernel') and len(tensor.shape) == 2

  dense = [i for i, layer in enumerate(layers) if any(map(is_dense, layer))]
  first = dense[0] if dense else 0
  return first or (len(layers) + 1) // 2


def _remember(
  memory: aggregators.Memory, updates: aggregators.Updates, whole: bool
) -> aggregators.Memory:
  """Adds a round's uploads to the memory; their deep parts only if `whole`.

  Clients are sorted by id.
  """
  ids = np.union1d(memory['ids'], updates.ids)
  before = np.searchsorted(ids, memory['ids'])
  now = np.searchsorted(ids, updates.ids)

  def carried(name: str) -> np.ndarray:
    values = np.full(len(ids), _NEVER, memory[name].dtype)
    values[before] = memory[name]
    return values

  m, tau_g, tau_s = map(carried, ('m', 'tau_g', 'tau_s'))
  m[now] = updates.m
  tau_g[now] = updates.t
  deep, models, new = memory['deep'], memory['models'], {}
  if whole:
    tau_s[now] = updates.t
  for k, z in zip(updates.ids.tolist(), updates.z, strict=True):
    if not whole:
      old = models[k].astype(z.dtype)  # a copy
      np.copyto(old, z, where=~deep)
      z = old
    new[k] = models.put(z)
  return {
    'deep': deep,
    'ids': ids,
    'models': models.updated(new),
    'm': m,
    'tau_g': tau_g,
    'tau_s': tau_s,
  }
