"""A data set: what to train on and what to test with."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """Examples to classify: images, or arrays that are looked at like images.

  Attributes:
    name: what it is called.
    x_train: [N, height, width, channels]; uint8 pixels, or floats as they are.
      A table's rows are [N, features].
    y_train: int32 [N], labels in 0..num_classes-1.
    x_test: [M, height, width, channels], or [M, features].
    y_test: int32 [M].
    num_classes: the number of labels.
    class_names: what each label stands for.
    client: who each training example comes from [N], such as a speaker, where
      that is known.
    standardised: `mean` and `deviation` of each feature, if x has been made
      (features - mean) / deviation.
  """

  name: str
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  class_names: tuple[str, ...]
  client: np.ndarray | None = None
  standardised: dict[str, list[float]] | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """(height, width, channels), or (features,)."""
    return self.x_train.shape[1:]

  @property
  def about(self) -> dict[str, Any]:
    """What users of a model for it must know, as JSON values."""
    told: dict[str, Any] = {'class_names': list(self.class_names)}
    if self.standardised is not None:
      told['standardised'] = self.standardised
    return told
