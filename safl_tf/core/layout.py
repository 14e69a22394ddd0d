"""Where a model's tensors are in its vector z."""

import math
from typing import NamedTuple


class Tensor(NamedTuple):
  """A piece of z.

  Attributes:
    path: of the Keras variable, such as 'lenet5/conv2d/kernel'.
    shape: of the variable.
    start: of its elements in z.
    trainable: whether it is trained; what is not is a moving statistic.
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
  """A model's tensors, in the order of z; what is trained comes first."""

  tensors: tuple[Tensor, ...]

  @property
  def size(self) -> int:
    """P, the length of z."""
    return sum(tensor.size for tensor in self.tensors)

  @property
  def trainable_size(self) -> int:
    """How many elements, at the start of z, are trained."""
    return sum(tensor.size for tensor in self.tensors if tensor.trainable)

  def layers(self) -> list[tuple[Tensor, ...]]:
    """The trained tensors, those of a Keras layer together, from the input.

    LeNet-5 has five such layers, each with its kernel and its bias.
    """
    found: dict[str, list[Tensor]] = {}
    for tensor in self.tensors:
      if tensor.trainable:
        found.setdefault(tensor.path.rpartition('/')[0], []).append(tensor)
    return [tuple(tensors) for tensors in found.values()]
