"""A data set: training and test examples as arrays."""

import dataclasses
import math
from typing import Any

import numpy as np

from safl_tf.core import seeds
from safl_tf.util import errors


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """Training and test examples of a classification task.

  Attributes:
    name: the short name of the data set.
    x_train: uint8 pixels or float32 values, [N, height, width, channels], or
      [N, features] for tables.
    y_train: int32 [N], labels in 0..num_classes-1.
    x_test: [M, height, width, channels], or [M, features].
    y_test: int32 [M].
    num_classes: the number of classes.
    class_names: the name of each class.
    client_ids: the client that each training example comes from [N], such as
      a speaker; None if unknown.
    standardised: `mean` and `deviation` of each feature if the inputs are
      (features - mean) / deviation.
  """

  name: str
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  class_names: tuple[str, ...]
  client_ids: np.ndarray | None = None
  standardised: dict[str, list[float]] | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """(height, width, channels), or (features,)."""
    return self.x_train.shape[1:]

  @property
  def metadata(self) -> dict[str, Any]:
    """The JSON values that are stored with a model trained on this data."""
    metadata: dict[str, Any] = {'class_names': list(self.class_names)}
    if self.standardised is not None:
      metadata['standardised'] = self.standardised
    return metadata


def hold_out(y: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples into training and test rows, independently of any seed.

  Draws `fraction` of each class, rounded, for testing and leaves at least one
  example of it for training, unless `fraction` is 1. Returns the training rows
  and the test rows of labels y, int [N], each in ascending order.
  """
  if fraction == 1:
    return np.arange(0), np.arange(len(y))
  is_test = np.zeros(len(y), bool)
  labels, counts = np.unique(y, return_counts=True)
  by_label = np.split(np.argsort(y, kind='stable'), np.cumsum(counts)[:-1])
  for label, rows in zip(labels, by_label, strict=True):
    size = min(math.floor(fraction * len(rows) + 0.5), len(rows) - 1)
    rng = seeds.generator(0, seeds.Role.PARTITION, 0, int(label))
    is_test[rng.permutation(rows)[:size]] = True
  if not is_test.any():
    raise errors.InputError(
      'test_fraction', fraction, 'no class has enough examples to hold one out'
    )
  return np.flatnonzero(~is_test), np.flatnonzero(is_test)
