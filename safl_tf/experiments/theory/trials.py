"""Many independent runs at once, through the process that trains real models.

The theory's w_t^(k) is what a client has after it mixed z̄_t into its own
model. The process does this at the beginning of the next round, so what is
measured is what clients would start round t/q + 1 from: the same rule, the same
seeds and hence the same draws.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.algorithms import fed_avg
from safl_tf.core import client_config, process, seeds
from safl_tf.experiments.theory import testbed as beds
from safl_tf.rules import mix


class Measured(NamedTuple):
  """What was seen after each round, from before the first on.

  Attributes:
    t: local steps taken [rounds + 1].
    squares: ‖ŵ_t - w*‖² of each trial [rounds + 1, trials].
    client_squares: Σ_k η_k‖w_t^(k) - w*‖² of each trial, the same shape.
    gradient_squares: E‖∇F_k(w_t^(k)) + ξ‖² of each client [rounds + 1, n].
  """

  t: np.ndarray
  squares: np.ndarray
  client_squares: np.ndarray
  gradient_squares: np.ndarray


def constant_mix(epsilon: float, p: float) -> mix.Mix:
  """SAFL's rule with a p that stays: its clock is held at t = -ln p, L = 1."""
  anneal = mix.anneal(epsilon, temperature=1.0)
  held = math.inf if p == 0 else -math.log(p)

  def mixed(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> mix.Mixed:
    del t
    return anneal(seed, tf.constant(held, tf.float64), z_bar, z)

  return mixed


def constant_rate(alpha: float) -> dict[str, Any]:
  """Settings of a `LocalConfig` for plain SGD with this rate."""
  return {'learning_rate': alpha}


def decaying_rate(alpha0: float) -> dict[str, Any]:
  """The same for α_t = α_0/(t+1) in the t-th step of a run, t = 1, 2, ..."""
  schedule = keras.optimizers.schedules.InverseTimeDecay(alpha0 / 2, 2, 1.0)
  return {
    'optimizer': keras.optimizers.SGD(schedule),
    'optimizer_clock': 'run',
  }


def build_process(
  bed: beds.Bed,
  rule: mix.Mix,
  rate: dict[str, Any],
  q: int,
  trials: int,
  executor: str = 'vectorized',
) -> process.FederatedProcess:
  """The process that trains a bed.

  Args:
    bed: the functions.
    rule: how clients mix; element by element.
    rate: `constant_rate` or `decaying_rate`.
    q: local steps in a round. A batch holds all of a client's data.
    trials: independent runs.
    executor: a name of `names.EXECUTORS`.
  """
  return process.FederatedProcess(
    bed.model_fn(trials),
    bed.clients(),
    dataclasses.replace(fed_avg.build_fed_avg(), mix=rule),
    client_config.LocalConfig(
      local_epochs=q,
      batch_size=int(bed.sizes.max()),
      loss_reduction='mean',
      **rate,
    ),
    executor=executor,
    stack=len(bed.sizes),
  )


def run(
  trainer: process.FederatedProcess,
  bed: beds.Bed,
  rounds: int,
  seed: int = 0,
) -> Measured:
  """Runs a process of `build_process` and measures after every round."""
  start = starting_points(trainer)
  state = trainer.initialize(seed)
  found = [_measure(bed, _stack(state, len(bed.sizes)))]
  for _ in range(rounds):
    state, _ = trainer.next(state)
    found.append(_measure(bed, start(state)))
  q = trainer.config.local_epochs
  columns = (np.array(column) for column in zip(*found, strict=True))
  return Measured(q * np.arange(rounds + 1), *columns)


def starting_points(
  trainer: process.FederatedProcess,
) -> Callable[[process.FederatedState], np.ndarray]:
  """Gives, of a state, what clients would start the next round from [n, P]."""

  @tf.function(autograph=False)
  def mixed(
    pairs: tf.Tensor, clocks: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> tf.Tensor:
    return tf.vectorized_map(
      lambda own: trainer.algorithm.mix(own[0], own[1], z_bar, own[2]).w,
      (pairs, clocks, z),
    )

  def start(state: process.FederatedState) -> np.ndarray:
    t, sizes = state.t + 1, trainer.clients.sizes
    role = seeds.Role.MIX
    pairs = [seeds.pair(state.seed, role, t, k) for k in range(len(sizes))]
    clocks = [trainer.config.clock(t, int(m)) for m in sizes]
    return mixed(
      tf.constant(np.array(pairs)),
      tf.constant(clocks, tf.float32),
      tf.constant(state.z_bar),
      tf.constant(_stack(state, len(sizes))),
    ).numpy()

  return start


def _stack(state: process.FederatedState, n: int) -> np.ndarray:
  """The clients' own models [n, P]."""
  return np.stack([state.client_models[k] for k in range(n)])


def _measure(bed: beds.Bed, w: np.ndarray) -> tuple[np.ndarray, ...]:
  """One row of each field of `Measured` but for t."""
  w = w.reshape(len(w), -1, bed.dimension).astype(np.float64)
  e, eta = w - beds.MINIMISER, bed.eta
  average = np.tensordot(eta, e, axes=1)
  gradients = bed.gradients(w)
  return (
    (average**2).sum(axis=-1),
    eta @ (e**2).sum(axis=-1),
    (gradients**2).sum(axis=-1).mean(axis=-1) + bed.variance,
  )
