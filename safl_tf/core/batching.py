"""Plans a client's batches, and gathers the examples of each local step."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import client_config

# On a GPU: dtype -> one that holds all its values. TensorFlow gathers rows of
# small integers on the CPU only, and it keeps int32 in the CPU's memory; every
# step would move the examples of all clients between CPU and GPU.
_STORED = {
  tf.int8: tf.float16,
  tf.uint8: tf.float16,
  tf.int16: tf.float32,
  tf.uint16: tf.float32,
  tf.int32: tf.int64,
  tf.uint32: tf.int64,
}


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


class DeviceArray:
  """An array to gather rows of.

  Attributes:
    dtype: of the rows.
    values: the array on the device.

  Args:
    array: the values.
    device: the TensorFlow device; by default TensorFlow's choice.
  """

  def __init__(self, array: Any, device: str | None = None):
    with tf.device(device):
      values = tf.convert_to_tensor(array)
      self.dtype = stored = values.dtype
      if 'GPU' in (device or ''):
        stored = _STORED.get(self.dtype, self.dtype)
      self.values = tf.cast(values, stored)

  def take(self, rows: tf.Tensor) -> tf.Tensor:
    """Returns rows of the array."""
    return tf.cast(tf.gather(self.values, rows), self.dtype)

  def with_values(self, values: tf.Tensor) -> 'DeviceArray':
    """Returns the same array with other values."""
    other = copy.copy(self)
    other.values = values
    return other


def put(data: Any, device: str | None = None) -> Any:
  """Copies arrays of a structure to a device; those there already stay.

  Args:
    data: a structure of arrays, `DeviceArray`s and Nones.
    device: the TensorFlow device; by default TensorFlow's choice.
  """
  return tf.nest.map_structure(
    lambda array: (
      array
      if array is None or isinstance(array, DeviceArray)
      else DeviceArray(array, device)
    ),
    data,
  )


def take(data: Any, rows: tf.Tensor) -> Any:
  """Returns rows of all arrays of a structure from `put`."""
  return tf.nest.map_structure(
    lambda array: None if array is None else array.take(rows), data
  )


def tensors(data: Any) -> list[tf.Tensor]:
  """Returns the arrays of a structure from `put` as a list of tensors."""
  return [a.values for a in tf.nest.flatten(data) if a is not None]


def with_tensors(data: Any, values: Sequence[tf.Tensor]) -> Any:
  """Returns a structure from `put` with other `tensors`."""
  rest = iter(values)
  return tf.nest.map_structure(
    lambda array: None if array is None else array.with_values(next(rest)),
    data,
  )
