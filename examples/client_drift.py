"""Client drift: where algorithms end on different quadratic losses.

  python -m examples.client_drift

  F_k(w) = ½·(w - b_k)ᵀ H_k (w - b_k)

The H_k differ, so that clients that take many local steps drift to different
places, and FedAvg stops away from the minimiser w* of the mean loss, at a point
that has a closed form. Prints ‖z̄ - w*‖ after some rounds. All is float64, and
rates are powers of two, so that Keras's float32 rates are exact and only
float64 rounding is left.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import safl_tf

N, D = 6, 3
RATE = 2.0**-5
EPOCHS = 12


@functools.cache
def curvatures() -> np.ndarray:
  """Returns H_k [N, D, D], with eigenvalues from 0.25 to 4."""
  rng = np.random.default_rng(3)
  rotations = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(N)]
  scales = np.geomspace(0.5, 2, N)[:, None] * np.geomspace(0.5, 2, D)
  return np.array([r * s @ r.T for r, s in zip(rotations, scales, strict=True)])


@functools.cache
def centres() -> np.ndarray:
  """Returns b_k [N, D]."""
  return np.random.default_rng(4).normal(size=(N, D))


def minimiser(weights: Sequence[float] | None = None) -> np.ndarray:
  """Returns w* of Σ_k weight_k·F_k: that of the mean loss by default."""
  return _zero_of(curvatures(), weights)


def fixed_point(
  rates: Sequence[Sequence[float]],
  mu: float = 0.0,
  weights: Sequence[float] | None = None,
) -> np.ndarray:
  """Returns where FedAvg, or FedProx with μ, ends.

  A step from z̄ is w - b ← (I - α·H)(w - b) - α·μ·(w - z̄), so that after all
  steps z_k - z̄ = -M_k·∇F_k(z̄), with M ← M + α·(I - (H + μI)·M) from M = 0. The
  weighted mean of z_k - z̄ is zero where Σ weight_k·M_k·H_k·(z̄ - b_k) is; for
  μ = 0, M_k·H_k is I - Π (I - α·H_k).

  Args:
    rates: α of each step, one list for each client.
    mu: μ.
    weights: of the clients.
  """
  matrices = []
  for h, steps in zip(curvatures(), rates, strict=True):
    m = np.zeros((D, D))
    for rate in steps:
      m = m + rate * (np.eye(D) - (h + mu * np.eye(D)) @ m)
    matrices.append(m @ h)
  return _zero_of(np.array(matrices), weights)


def step_rates(
  config: safl_tf.LocalConfig, sizes: Sequence[int]
) -> list[list[float]]:
  """Returns the α of each step of a client, in terms of the mean loss."""
  summed = config.loss_reduction == 'sum'
  rates = []
  for m in sizes:
    starts = range(0, m, config.batch_size)
    counts = [min(config.batch_size, m - start) for start in starts]
    steps = [config.learning_rate * (c if summed else 1) for c in counts]
    rates.append(steps * config.local_epochs)
  return rates


def make_process(
  algorithm: safl_tf.Algorithm, sizes: Sequence[int] = (3,) * N, **options: Any
) -> safl_tf.FederatedProcess:
  """Returns a process on the clients' losses, with m_k equal examples each.

  Other options than those of `FederatedProcess` are of `LocalConfig`: by
  default clients take 24 steps, on two examples and on one by turns.
  """
  names = safl_tf.LocalConfig.__dataclass_fields__
  own = {n: options.pop(n) for n in list(options) if n in names}
  config = {
    'local_epochs': EPOCHS,
    'batch_size': 2,
    'learning_rate': RATE,
    'loss_reduction': 'mean',
    **own,
  }
  clients = safl_tf.ClientData.from_arrays(
    (curvatures(), centres()),
    np.zeros(N, np.int32),
    [np.full(m, k) for k, m in enumerate(sizes)],
  )
  options = {'executor': 'vectorized', 'jit_compile': 'false', **options}
  return safl_tf.FederatedProcess(
    model,
    clients,
    algorithm,
    safl_tf.LocalConfig(**config),
    from_logits=True,
    **options,
  )


def global_models(
  trainer: safl_tf.FederatedProcess, rounds: int, seed: int = 0
) -> tuple[np.ndarray, safl_tf.FederatedState]:
  """Returns z̄ after each round [rounds, D], and the last state."""
  state, models = trainer.initialize(seed), []
  for _ in range(rounds):
    state, _ = trainer.next(state)
    models.append(state.z_bar)
  return np.array(models), state


def model() -> keras.Model:
  """Returns a model that holds w."""
  inputs = [
    keras.Input((D, D), dtype='float64'),
    keras.Input((D,), dtype='float64'),
  ]
  return keras.Model(inputs, Quadratic(dtype='float64')(inputs))


class Quadratic(keras.layers.Layer):
  """Holds w and adds the loss F_k(w); all rows of a batch are equal."""

  def build(self, input_shape: Any) -> None:
    """Creates w."""
    self.w = self.add_weight(shape=(D,), initializer='random_normal')

  def call(self, inputs: Any) -> tf.Tensor:
    """Adds the loss; outputs have no meaning."""
    h, b = (tf.reduce_mean(x, axis=0) for x in inputs)
    e = tf.convert_to_tensor(self.w) - b
    self.add_loss(tf.reduce_sum(e * tf.linalg.matvec(h, e)) / 2)
    return tf.zeros([tf.shape(inputs[1])[0], 1])


def _zero_of(
  matrices: np.ndarray, weights: Sequence[float] | None
) -> np.ndarray:
  """Returns the w with Σ_k weight_k·A_k·(w - b_k) = 0."""
  eta = np.ones(N) if weights is None else np.asarray(weights)
  scaled = eta[:, None, None] * matrices
  return np.linalg.solve(
    scaled.sum(axis=0), np.einsum('kij,kj->i', scaled, centres())
  )


def main() -> None:
  """Prints ‖z̄ - w*‖ as a Markdown table."""
  print('| algorithm | clients | 10 rounds | 50 | 200 |\n|---|---|---|---|---|')
  for fraction, clients in (1.0, 'all'), (0.5, 'half'):
    options: dict[str, Any] = {'fraction': fraction}
    algorithms = {
      'FedAvg': safl_tf.build_fed_avg(**options),
      'FedProx': safl_tf.build_fed_prox(0.5, **options),
      'SCAFFOLD': safl_tf.build_scaffold(**options),
      'SCAFFOLD-SAFL': safl_tf.build_scaffold_safl(temperature=5.0, **options),
      'FedDyn': safl_tf.build_fed_dyn(1.0, **options),
    }
    for name, algorithm in algorithms.items():
      models, _ = global_models(make_process(algorithm), 200)
      away = np.linalg.norm(models - minimiser(), axis=1)
      cells = ' | '.join(f'{away[t - 1]:.1e}' for t in (10, 50, 200))
      print(f'| {name} | {clients} | {cells} |', flush=True)
  steps = [[RATE] * 2 * EPOCHS] * N
  for name, mu in ('FedAvg', 0.0), ('FedProx', 0.5):
    away = np.linalg.norm(fixed_point(steps, mu) - minimiser())
    print(f"{name}'s fixed point, in closed form, is {away:.4f} away from w*.")


if __name__ == '__main__':
  main()
