"""Plans a client's batches: which examples each local step uses."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from safl_tf.core import client_config


class BatchPlan(NamedTuple):
  """The examples of a client's steps, padded to one shape.

  Attributes:
    examples: rows of the base arrays, int32 [S, B]. Padding repeats the
      client's own examples.
    counts: the size of each batch without padding, int32 [S].
    num_steps: the number of rows that are steps.
  """

  examples: np.ndarray
  counts: np.ndarray
  num_steps: np.int32


def split(
  indices: np.ndarray,
  config: client_config.LocalConfig,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Splits a client's examples into those to train on and to measure h on."""
  held_out = config.num_held_out(len(indices))
  if not held_out:
    return indices, indices
  order = rng.permutation(indices)
  return order[held_out:], order[:held_out]


def plan_batches(
  indices: np.ndarray,
  config: client_config.LocalConfig,
  max_steps: int,
  rng: np.random.Generator,
  steps: int | None = None,
) -> BatchPlan:
  """Plans E epochs of batches, each epoch in a new random order.

  If `steps` is given, so many steps are planned, in as many epochs as they
  need.
  """
  epochs = config.local_epochs
  if steps is not None:
    per_epoch = -(-len(indices) // config.batch_size)
    epochs = -(-steps // per_epoch)
    max_steps = epochs * per_epoch
  orders = (rng.permutation(indices) for _ in range(epochs))
  plan = _plan(orders, config.batch_size, max_steps)
  if steps is None:
    return plan
  return BatchPlan(plan.examples[:steps], plan.counts[:steps], np.int32(steps))


def plan_measuring(
  indices: np.ndarray, config: client_config.LocalConfig, max_steps: int
) -> BatchPlan:
  """Plans the batches to measure h on; none if `max_steps` is 0."""
  return _plan([indices] if max_steps else [], config.batch_size, max_steps)


def _plan(
  orders: Iterable[np.ndarray], batch_size: int, max_steps: int
) -> BatchPlan:
  """Cuts epochs into batches."""
  examples = np.zeros((max_steps, batch_size), np.int32)
  counts = np.zeros(max_steps, np.int32)
  end = 0
  for order in orders:
    start, m = end, len(order)
    end += -(-m // batch_size)
    rows = examples[start:end]
    rows[:] = np.resize(order, rows.shape)
    counts[start:end] = batch_size
    counts[end - 1] -= rows.size - m
  return BatchPlan(examples, counts, np.int32(end))
