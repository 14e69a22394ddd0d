"""The positions of a model's tensors in its vector z."""

import math
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
  """A tensor of z.

  Attributes:
    path: of the Keras variable, such as 'lenet5/conv2d/kernel'.
    shape: of the variable.
    start: of its elements in z.
    trainable: whether it is trained; others, such as moving statistics, are
      changed by training.
  """

  path: str
  shape: tuple[int, ...]
  start: int
  trainable: bool

  @property
  def size(self) -> int:
    """The number of elements."""
    return math.prod(self.shape)

  @property
  def place(self) -> slice:
    """Its elements in z."""
    return slice(self.start, self.start + self.size)


class Layout(NamedTuple):
  """A model's tensors in the order of z, trainable ones first.

  Attributes:
    tensors: those of z.
    dtype: of z.
  """

  tensors: tuple[Tensor, ...]
  dtype: np.dtype = np.dtype(np.float32)

  @property
  def size(self) -> int:
    """P, the length of z."""
    return sum(tensor.size for tensor in self.tensors)

  @property
  def trainable_size(self) -> int:
    """The number of trainable elements, at the start of z."""
    return sum(tensor.size for tensor in self.tensors if tensor.trainable)

  def layers(self) -> list[tuple[Tensor, ...]]:
    """Returns the trainable tensors grouped by Keras layer, from the input.

    LeNet-5 has five such layers, each with its kernel and its bias.
    """
    layers: dict[str, list[Tensor]] = {}
    for tensor in self.tensors:
      if tensor.trainable:
        layers.setdefault(tensor.path.rpartition('/')[0], []).append(tensor)
    return [tuple(tensors) for tensors in layers.values()]
