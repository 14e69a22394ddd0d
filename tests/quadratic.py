"""Clients with quadratic losses, and where algorithms end on them.

  F_k(w) = ½·(w - b_k)ᵀ H_k (w - b_k)

The H_k differ, so that clients that take many steps drift to different places.
All is float64, and rates are powers of two, so that Keras's float32 rates are
exact and only float64 rounding is left.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import client_config, process
from safl_tf.data import client_data

N, D = 6, 3
RATE = 2.0**-5
EPOCHS = 12


@functools.cache
def curvatures():
  """H_k [N, D, D], with eigenvalues from 0.25 to 4."""
  rng = np.random.default_rng(3)
  rotations = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(N)]
  scales = np.geomspace(0.5, 2, N)[:, None] * np.geomspace(0.5, 2, D)
  return np.array([r * s @ r.T for r, s in zip(rotations, scales, strict=True)])


@functools.cache
def centres():
  """b_k [N, D]."""
  return np.random.default_rng(4).normal(size=(N, D))


def minimiser(weights=None):
  """w* of Σ_k weight_k·F_k: that of the mean loss by default."""
  return _zero_of(curvatures(), weights)


def fixed_point(rates, mu=0.0, weights=None):
  """Where FedAvg, or FedProx with μ, ends.

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


def step_rates(config, sizes):
  """The α of each step of a client, in terms of the mean loss."""
  summed = config.loss_reduction == 'sum'
  rates = []
  for m in sizes:
    starts = range(0, m, config.batch_size)
    counts = [min(config.batch_size, m - start) for start in starts]
    steps = [config.learning_rate * (c if summed else 1) for c in counts]
    rates.append(steps * config.local_epochs)
  return rates


def make_process(algorithm, sizes=(3,) * N, **options):
  """A process on the clients' losses, with m_k equal examples each.

  Other options than those of `FederatedProcess` are of `LocalConfig`: by
  default clients take 24 steps, on two examples and on one by turns.
  """
  names = client_config.LocalConfig.__dataclass_fields__
  own = {n: options.pop(n) for n in list(options) if n in names}
  config = {
    'local_epochs': EPOCHS,
    'batch_size': 2,
    'learning_rate': RATE,
    'loss_reduction': 'mean',
    **own,
  }
  clients = client_data.ClientData.from_arrays(
    (curvatures(), centres()),
    np.zeros(N, np.int32),
    [np.full(m, k) for k, m in enumerate(sizes)],
  )
  options = {'executor': 'vectorized', 'jit_compile': 'false', **options}
  return process.FederatedProcess(
    model,
    clients,
    algorithm,
    client_config.LocalConfig(**config),
    from_logits=True,
    **options,
  )


def global_models(trainer, rounds, seed=0):
  """z̄ after each round [rounds, D], and the last state."""
  state, models = trainer.initialize(seed), []
  for _ in range(rounds):
    state, _ = trainer.next(state)
    models.append(state.z_bar)
  return np.array(models), state


def model():
  inputs = [
    keras.Input((D, D), dtype='float64'),
    keras.Input((D,), dtype='float64'),
  ]
  return keras.Model(inputs, Quadratic(dtype='float64')(inputs))


class Quadratic(keras.layers.Layer):
  """Holds w and adds the loss F_k(w); all rows of a batch are equal."""

  def build(self, input_shape):
    self.w = self.add_weight(shape=(D,), initializer='random_normal')

  def call(self, inputs):
    h, b = (tf.reduce_mean(x, axis=0) for x in inputs)
    e = tf.convert_to_tensor(self.w) - b
    self.add_loss(tf.reduce_sum(e * tf.linalg.matvec(h, e)) / 2)
    return tf.zeros([tf.shape(inputs[1])[0], 1])


def _zero_of(matrices, weights):
  """The w with Σ_k weight_k·A_k·(w - b_k) = 0."""
  weights = np.ones(N) if weights is None else np.asarray(weights)
  scaled = weights[:, None, None] * matrices
  return np.linalg.solve(
    scaled.sum(axis=0), np.einsum('kij,kj->i', scaled, centres())
  )
