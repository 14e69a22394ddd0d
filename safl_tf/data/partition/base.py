"""Draws that partitions share: clients' sizes, and examples by label."""

import math
from collections.abc import Callable

import numpy as np

from safl_tf.core import seeds
from safl_tf.data import client_data, targets
from safl_tf.util import bounded_io, errors, validation

Partition = client_data.Partition

# draw(rng, k, m): the rows of client k, which holds up to m examples.
ClientDraw = Callable[[np.random.Generator, int, int], np.ndarray]

_CLIENT = 200  # bytes of memory for a client, besides its rows


class Sampler:
  """Draws the examples of each client independently of the other clients."""

  def __init__(
    self,
    num_clients: int,
    mean_examples: float | None,
    variance_examples: float,
    seed: int,
  ):
    self.num_clients = validation.limited('num_clients', num_clients)
    if mean_examples is not None:
      validation.limited('mean_examples', mean_examples)
    self._mean = mean_examples
    variance = validation.limited('variance_examples', variance_examples)
    self._deviation = math.sqrt(variance)
    self.seed = validation.limited('seed', seed)

  def parts(self, total: int, draw: ClientDraw) -> list[np.ndarray]:
    """Returns the rows of all clients, for a data set of `total` examples."""
    mean = total / self.num_clients if self._mean is None else self._mean
    each = min(mean + self._deviation, total)
    reason = bounded_io.shortage(int(self.num_clients * (_CLIENT + 4 * each)))
    if reason is not None:
      raise errors.InputError('num_clients', self.num_clients, reason)
    parts = []
    for k in range(self.num_clients):
      rng = seeds.generator(self.seed, seeds.Role.PARTITION, k)
      m = max(math.floor(rng.normal(mean, self._deviation)), 1)
      parts.append(draw(rng, k, m))
    return parts


def draw(rng: np.random.Generator, total: int, size: int) -> np.ndarray:
  """Draws `size` of 0..total-1 uniformly without replacement, int64 [size].

  Few of many are mostly distinct even with replacement, which takes a third of
  the time; given that they are distinct, they are uniform.
  """
  if size * size < total:
    drawn = (rng.random(size) * total).astype(np.int64)
    if len(set(drawn.tolist())) == size:
      return drawn
  return rng.choice(total, size, replace=False)


def check_not_empty(y: np.ndarray) -> None:
  """Refuses data without examples."""
  if len(y) == 0:
    raise errors.InputError('y', 'no labels', 'must hold at least one label')


def check_classes(name: str, y: np.ndarray) -> None:
  """Refuses targets without classes for the partition of this name."""
  check_not_empty(y)
  hint = '; use iid, quantity, client or index lists'
  targets.refuse_without_classes('partition', name, y, hint)


class LabelIndex:
  """The examples of each label.

  Attributes:
    present: the labels that have examples, in order.
    counts: int [largest label + 1], the number of examples of each label.
  """

  def __init__(self, y: np.ndarray):
    self.counts = np.bincount(y)
    self.present = np.flatnonzero(self.counts)
    # The examples of label c are by_label[starts[c] : starts[c] + counts[c]].
    self._starts = np.cumsum(self.counts) - self.counts
    self._by_label = np.argsort(y, kind='stable').astype(np.int32)

  def draw_any(
    self, rng: np.random.Generator, labels: np.ndarray, size: int
  ) -> np.ndarray:
    """Draws up to `size` examples of the labels without replacement: int32."""
    counts = self.counts[labels]
    ends = counts.cumsum()
    pool = ends[-1]
    drawn = draw(rng, pool, min(size, pool))
    # Shifts a position in the concatenated examples of these labels to the
    # position in by_label.
    shift = self._starts[labels] - ends + counts
    return self._by_label[drawn + shift[ends.searchsorted(drawn, 'right')]]

  def draw_each(
    self, rng: np.random.Generator, labels: np.ndarray, sizes: np.ndarray
  ) -> np.ndarray:
    """Draws sizes[i] examples of labels[i], without replacement: int32."""
    places = [
      self._starts[c] + draw(rng, self.counts[c], size)
      for c, size in zip(labels.tolist(), sizes.tolist(), strict=True)
    ]
    return self._by_label[rng.permutation(np.concatenate(places))]
