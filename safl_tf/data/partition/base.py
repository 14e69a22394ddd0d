"""What partitions have in common: sizes, draws and an index by label."""

import math
from collections.abc import Callable

import numpy as np

from safl_tf.data import client_data
from safl_tf.util import errors, validation

Partition = client_data.Partition


def size_rule(
  num_clients: int, mean_examples: float | None, variance_examples: float
) -> Callable[[np.random.Generator, int], int]:
  """`size(rng, N)` draws m_k for a data set of N examples."""
  if mean_examples is not None:
    validation.real('mean_examples', mean_examples, low=0, open_low=True)
  variance = validation.real('variance_examples', variance_examples, low=0)
  deviation = math.sqrt(variance)

  def size(rng: np.random.Generator, total: int) -> int:
    mean = total / num_clients if mean_examples is None else mean_examples
    return max(math.floor(rng.normal(mean, deviation)), 1)

  return size


def draw(rng: np.random.Generator, total: int, size: int) -> np.ndarray:
  """`size` of 0..total-1, uniformly without replacement, int64 [size].

  Few of many are mostly distinct even with replacement, which is a third of
  the work; given that they are distinct, they are uniform.
  """
  if size * size < total:
    drawn = (rng.random(size) * total).astype(np.int64)
    if len(set(drawn.tolist())) == size:
      return drawn
  return rng.choice(total, size, replace=False)


def deal(
  rng: np.random.Generator, owners: np.ndarray, rows: np.ndarray
) -> list[np.ndarray]:
  """Each owner's rows, in random order.

  Args:
    rng: for the order.
    owners: int [M], the client that gets each row; all of 0..n-1 are there.
    rows: int [M].

  Returns:
    One int32 array for each client.
  """
  shuffled = rng.permutation(len(rows))
  order = shuffled[np.argsort(owners[shuffled], kind='stable')]
  ends = np.cumsum(np.bincount(owners))
  return np.split(rows[order].astype(np.int32), ends[:-1])


def check_not_empty(y: np.ndarray) -> None:
  """Refuses data without examples."""
  if len(y) == 0:
    raise errors.InputError('y', 'no labels', 'must hold at least one label')


class LabelIndex:
  """The examples of each label.

  Attributes:
    present: the labels that have examples, in order.
    counts: int [largest label + 1], how many each has.
  """

  def __init__(self, y: np.ndarray):
    check_not_empty(y)
    self.counts = np.bincount(y)
    self.present = np.flatnonzero(self.counts)
    # The examples of label c are by_label[starts[c] : starts[c] + counts[c]].
    self._starts = np.cumsum(self.counts) - self.counts
    self._by_label = np.argsort(y, kind='stable').astype(np.int32)

  def draw_any(
    self, rng: np.random.Generator, labels: np.ndarray, size: int
  ) -> np.ndarray:
    """Examples of these labels, uniformly without replacement: int32.

    There are `size` of them, or all if that is fewer.
    """
    counts = self.counts[labels]
    ends = counts.cumsum()
    pool = ends[-1]
    drawn = draw(rng, pool, min(size, pool))
    # A position among these labels' examples, laid end to end, becomes a
    # place in by_label by shifting each label's stretch to its start there.
    shift = self._starts[labels] - ends + counts
    return self._by_label[drawn + shift[ends.searchsorted(drawn, 'right')]]

  def draw_each(
    self, rng: np.random.Generator, labels: np.ndarray, sizes: np.ndarray
  ) -> np.ndarray:
    """sizes[i] examples of labels[i], without replacement: int32, shuffled."""
    places = [
      self._starts[c] + draw(rng, self.counts[c], size)
      for c, size in zip(labels.tolist(), sizes.tolist(), strict=True)
    ]
    return self._by_label[rng.permutation(np.concatenate(places))]
