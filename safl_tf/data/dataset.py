"""A data set: training and test examples as arrays."""

import dataclasses
import math
from typing import Any

import numpy as np

from safl_tf.core import seeds
from safl_tf.data import targets
from safl_tf.util import errors


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """Training and test examples.

  Attributes:
    name: the short name of the data set.
    x_train: uint8 pixels or float32 values, [N, height, width, channels], or
      [N, features] for tables; int32 [N, T] for tokens.
    y_train: by `task`: int32 [N], labels in 0..num_classes-1; float32 [N] or
      [N, d]; int32 [N, d], 0 or 1; int32 [N, T].
    x_test: [M, ...], like x_train.
    y_test: [M, ...], like y_train.
    num_classes: the number of classes; None unless for classification.
    class_names: the name of each class, label or token; none for regression.
    client_ids: the client that each training example comes from [N], such as
      a speaker; None if unknown.
    standardised: `mean` and `deviation` of each feature if the inputs are
      (features - mean) / deviation.
    target_standardised: the same for the numbers to predict.
    task: 'classification', 'regression', 'multi_label' or 'tokens'.
    w_train: the weights of the training examples, float32 [N], if any.
    w_test: the weights of the test examples, float32 [M], if any.
    categories: for each column of text in a table, in the order of their
      one-hot features, its categories in order.
  """

  name: str
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int | None
  class_names: tuple[str, ...]
  client_ids: np.ndarray | None = None
  standardised: dict[str, list[float]] | None = None
  target_standardised: dict[str, list[float]] | None = None
  task: str = 'classification'
  w_train: np.ndarray | None = None
  w_test: np.ndarray | None = None
  categories: dict[str, list[str]] | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """(height, width, channels), (features,) or (T,)."""
    return self.x_train.shape[1:]

  @property
  def num_outputs(self) -> int:
    """The numbers that a model must predict for an example, or a token."""
    if self.class_names:
      return len(self.class_names)
    return self.y_train.shape[1] if self.y_train.ndim > 1 else 1

  @property
  def test_data(self) -> tuple[np.ndarray, ...]:
    """(x, y) to test on, or (x, y, sample_weight)."""
    weights = () if self.w_test is None else (self.w_test,)
    return (self.x_test, self.y_test, *weights)

  @property
  def metadata(self) -> dict[str, Any]:
    """The JSON values that are stored with a model trained on this data."""
    metadata: dict[str, Any] = {'class_names': list(self.class_names)}
    if self.task != 'classification':
      metadata['targets'] = self.task
    for name in ('standardised', 'target_standardised', 'categories'):
      if getattr(self, name) is not None:
        metadata[name] = getattr(self, name)
    return metadata


def hold_out(y: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples into training and test rows, independently of any seed.

  Draws `fraction` of each class, rounded, for testing and leaves at least one
  example of it for training, unless `fraction` is 1. Targets that are not class
  numbers are one class. Returns the training rows and the test rows of labels
  y, each in ascending order.
  """
  if fraction == 1:
    return np.arange(0), np.arange(len(y))
  if not targets.is_classes(y):
    y = np.zeros(len(y), np.int32)
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
