"""Training of `tiny.dense` in NumPy, in float64 and by hand."""

import math

import numpy as np

from safl_tf.core import batching, seeds

SHAPES = [(8, 5), (5,), (5, 3), (3,)]


def evaluate(z, x, y):
  """The examples' losses, whether they are right, and the summed gradient."""
  ends = np.cumsum([math.prod(shape) for shape in SHAPES])
  flat = np.split(z.astype(np.float64), ends[:-1])
  w1, b1, w2, b2 = (v.reshape(s) for v, s in zip(flat, SHAPES, strict=True))
  x = x.astype(np.float64)
  hidden = np.tanh(x @ w1 + b1)
  logits = hidden @ w2 + b2
  e = np.exp(logits - logits.max(axis=1, keepdims=True))
  y_hat = e / e.sum(axis=1, keepdims=True)
  slope = y_hat - np.eye(3)[y]
  back = slope @ w2.T * (1 - hidden**2)
  parts = (x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))
  gradient = np.concatenate([part.ravel() for part in parts])
  losses = -np.log(y_hat[np.arange(len(y)), y])
  return losses, logits.argmax(axis=1) == y, gradient


def batches(clients, config, t, k, seed=0):
  """The rows of client k's batches in round t."""
  rows = clients.indices(k)
  steps = int(config.steps(len(rows)))
  rng = seeds.generator(seed, seeds.Role.BATCHES, t, k)
  plan = batching.plan_batches(rows, config, steps, rng)
  counts = zip(plan.examples, plan.counts, strict=True)
  return [examples[:count] for examples, count in counts]


def train(clients, config, t, k, w, change=lambda g, w: g, seed=0):
  """The model after client k's round t, its mean loss and number of steps.

  `change` is what a client work does to the gradient of the mean loss.
  """
  w, losses, steps = w.astype(np.float64), [], 0
  for rows in batches(clients, config, t, k, seed):
    loss, _, total = evaluate(w, clients.x[rows], clients.y[rows])
    weight = len(rows) if config.loss_reduction == 'sum' else 1
    w = w - config.learning_rate * weight * change(total / len(rows), w)
    losses.extend(loss)
    steps += weight
  return w, np.mean(losses), steps
