"""Aggregation over time: every client's last model counts, old ones less."""

import numpy as np

from safl_tf.core import layout as layouts
from safl_tf.rules.aggregate import base as aggregators
from safl_tf.util import validation

_NEVER = -1  # the round of an upload that has not been


def temporal(
  base: float = np.e / 2,
  layerwise: bool = False,
  loop: int = 15,
  deep_rounds: int = 5,
  shallow: int | None = None,
) -> aggregators.Aggregator:
  """ASTW, temporally weighted aggregation (Chen, Sun and Jin 2020).

    z̄ = Σ_k η_k z_k,   η_k = m_k a^-(t-τ_k) / Σ_j m_j a^-(t-τ_j)

  The sums are over all clients that ever uploaded; z_k is what client k sent
  last, in round τ_k.

  Layer by layer, deep layers are uploaded in some rounds only: those at the end
  of each loop and the first of the next. With r = t - 1 that is

    r mod loop = 0   or   r mod loop > loop - deep_rounds

  Elsewhere the deep part of z̄ stays as it is. It has rounds τ_k of its own, and
  a client that never sent its deep part has no weight there. As long as there
  is no z̄, uploads are taken whole, since there would be no deep part otherwise.

  Args:
    base: a, at least 1, by which a model loses weight in a round.
    layerwise: whether deep layers are uploaded in some rounds only.
    loop: the length of a loop in rounds.
    deep_rounds: in how many rounds of a loop deep layers are uploaded.
    shallow: how many layers with weights, from the input, are shallow. By
      default those before the first dense layer, or if that is the first of all
      or there is none, half of the layers, rounded up. What is not trained,
      such as moving statistics, goes with the shallow layers.
  """
  validation.real('base', base, 1)
  validation.integer('loop', loop, 1)
  validation.integer('deep_rounds', deep_rounds, 1, loop)
  if shallow is not None:
    validation.integer('shallow', shallow, 1)

  def init(layout: aggregators.Layout) -> aggregators.Memory:
    return {
      'deep': _deep(layout, shallow if layerwise else len(layout.layers())),
      'ids': np.zeros(0, np.int64),
      'models': np.zeros((0, layout.size), np.float32),
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
    stays = None if _is_deep_round(t, loop, deep_rounds) else z_bar
    memory = _remember(memory, updates, whole=stays is None)
    deep, models = memory['deep'], memory['models']

    def average(tau: np.ndarray) -> np.ndarray:
      known = tau != _NEVER
      eta = np.zeros(len(tau))
      eta[known] = temporal_weights(memory['m'][known], t - tau[known], base)
      return aggregators.weighted_mean(eta, list(models))

    fused = average(memory['tau_g'])
    if deep.any():
      part = average(memory['tau_s']) if stays is None else stays
      fused = np.where(deep, part, fused)
    return aggregators.Aggregated(fused, memory)

  def uploads(layout: aggregators.Layout, t: int) -> int:
    if not layerwise or _is_deep_round(t, loop, deep_rounds):
      return layout.size
    return layout.size - int(_deep(layout, shallow).sum())

  return aggregators.Aggregator(apply, init, uploads)


def temporal_weights(
  m: np.ndarray, age: np.ndarray, base: float = np.e / 2
) -> np.ndarray:
  """η_k = m_k a^-age_k / Σ_j m_j a^-age_j, shape [r], in float64.

  Only differences of ages matter, and the youngest is taken as 0, so that the
  sum never vanishes.

  Args:
    m: the sizes of the clients' data, shape [r].
    age: t - τ_k, how many rounds ago each model came, shape [r].
    base: a.
  """
  age = np.asarray(age, np.float64)
  eta = np.asarray(m, np.float64) * base ** -(age - age.min())
  return eta / eta.sum()


def _is_deep_round(t: int, loop: int, deep_rounds: int) -> bool:
  phase = (t - 1) % loop
  return phase == 0 or phase > loop - deep_rounds


def _deep(layout: aggregators.Layout, shallow: int | None) -> np.ndarray:
  """Which elements of z belong to deep layers, shape [P]."""
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
  """The number of layers before the first dense one, else half of all."""
  layers = layout.layers()

  def is_dense(tensor: layouts.Tensor) -> bool:
    return tensor.path.endswith('/kernel') and len(tensor.shape) == 2

  dense = [i for i, layer in enumerate(layers) if any(map(is_dense, layer))]
  first = dense[0] if dense else 0
  return first or (len(layers) + 1) // 2


def _remember(
  memory: aggregators.Memory, updates: aggregators.Updates, whole: bool
) -> aggregators.Memory:
  """The memory with a round's uploads; with their deep parts only if `whole`.

  Clients are in the order of their ids.
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
  models = np.zeros((len(ids), len(memory['deep'])), updates.z[0].dtype)
  models[before] = memory['models']
  if whole:
    tau_s[now] = updates.t
  sent = whole | ~memory['deep']
  for row, model in zip(now, updates.z, strict=True):
    np.copyto(models[row], model, where=sent)
  return {
    'deep': memory['deep'],
    'ids': ids,
    'models': models,
    'm': m,
    'tau_g': tau_g,
    'tau_s': tau_s,
  }
