"""Which examples each of a client's local steps uses."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from safl_tf.core import client_config


class BatchPlan(NamedTuple):
  """The examples of each of a client's steps, padded to one shape.

  Attributes:
    examples: rows of the base arrays, int32 [S, B]. What pads a short batch is
      again the client's own examples.
    counts: how many of each row are real, int32 [S].
    num_steps: how many rows are real.
  """

  examples: np.ndarray
  counts: np.ndarray
  num_steps: np.int32


def split(
  indices: np.ndarray,
  config: client_config.LocalConfig,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """The examples that a client trains on, and those it measures h on."""
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
) -> BatchPlan:
  """Shuffles a client's examples anew for every epoch and cuts batches."""
  orders = (rng.permutation(indices) for _ in range(config.local_epochs))
  return _cut(orders, config.batch_size, max_steps)


def plan_measuring(
  indices: np.ndarray, config: client_config.LocalConfig, max_steps: int
) -> BatchPlan:
  """Cuts batches to measure h on; none if there is room for none."""
  return _cut([indices] if max_steps else [], config.batch_size, max_steps)


def _cut(
  orders: Iterable[np.ndarray], batch_size: int, max_steps: int
) -> BatchPlan:
  """One epoch after the other, each in batches."""
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
