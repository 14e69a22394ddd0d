"""SCAFFOLD and FedDyn in NumPy, as their papers print them.

They train `tiny.dense` in float64, on the batches of a process. A step's rate
is in terms of the batch's mean loss: with summed losses it is α times the
number of examples, and K·α the sum of all rates.
"""

import math
from typing import NamedTuple

import numpy as np

from safl_tf.core import batching, seeds

SHAPES = [(8, 5), (5,), (5, 3), (3,)]


def gradient(w, x, y):
  """Returns ∇ of the mean cross-entropy of `tiny.dense` at w."""
  ends = np.cumsum([math.prod(shape) for shape in SHAPES])
  flat = np.split(w, ends[:-1])
  w1, b1, w2, b2 = (v.reshape(s) for v, s in zip(flat, SHAPES, strict=True))
  x = x.astype(np.float64)
  hidden = np.tanh(x @ w1 + b1)
  logits = hidden @ w2 + b2
  e = np.exp(logits - logits.max(axis=1, keepdims=True))
  slope = (e / e.sum(axis=1, keepdims=True) - np.eye(3)[y]) / len(y)
  back = slope @ w2.T * (1 - hidden**2)
  parts = x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)
  return np.concatenate([part.ravel() for part in parts])


def batches(process, seed, t, k):
  """The batches (x, y, rate) of client k in round t."""
  config, clients = process.config, process.clients
  rows = clients.indices(k)
  rng = seeds.generator(seed, seeds.Role.BATCHES, t, k)
  plan = batching.plan_batches(rows, config, config.steps(len(rows)), rng)
  for i in range(plan.num_steps):
    chosen = plan.examples[i, : plan.counts[i]]
    weight = len(chosen) if config.loss_reduction == 'sum' else 1
    rate = config.learning_rate * weight
    yield clients.x[chosen], clients.y[chosen], rate


class Server(NamedTuple):
  """x is the global model, extra the server's c or h, own the c_k or λ_k."""

  x: np.ndarray
  extra: np.ndarray
  own: np.ndarray


def start(z, num_clients):
  x = z.astype(np.float64)
  return Server(x, np.zeros_like(x), np.zeros((num_clients, len(x))))


def scaffold(process, seed, t, ids, state, global_rate=1.0, starts=None):
  """Karimireddy et al. 2020, Algorithm 1, option II.

  Clients start from x, or from `starts`, the models by client.

  Returns the new state and, for each client, the mean of its gradients along
  its path.
  """
  x, c, own = state
  changes, variate_changes, means = [], [], []
  new = own.copy()
  for k in ids:
    begin = y = x if starts is None else starts[k].astype(np.float64)
    gradients, rates = [], []
    for features, labels, rate in batches(process, seed, t, k):
      gradients.append(gradient(y, features, labels))
      rates.append(rate)
      y = y - rate * (gradients[-1] - own[k] + c)
    new[k] = own[k] - c + (begin - y) / np.sum(rates)
    changes.append(y - x)
    variate_changes.append(new[k] - own[k])
    means.append(np.average(gradients, axis=0, weights=rates))
  x = x + global_rate * np.mean(changes, axis=0)
  c = c + len(ids) / len(own) * np.mean(variate_changes, axis=0)
  return Server(x, c, new), means


def fed_dyn(process, seed, t, ids, state, a):
  """Acar et al. 2021, Algorithm 1, with SGD as the local solver."""
  theta, h, slopes = state
  new, models = slopes.copy(), []
  for k in ids:
    w = theta
    for features, labels, rate in batches(process, seed, t, k):
      g = gradient(w, features, labels)
      w = w - rate * (g - slopes[k] + a * (w - theta))
    new[k] = slopes[k] - a * (w - theta)
    models.append(w)
  h = h - a * np.sum(np.array(models) - theta, axis=0) / len(slopes)
  return Server(np.mean(models, axis=0) - h / a, h, new)
