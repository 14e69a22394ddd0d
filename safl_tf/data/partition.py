"""Which examples each device holds.

A partition is a function from labels to one list of example indices per
device. Factories here check their arguments at once and return such a function:

  by_labels  few labels per device, as in the paper (non-IID)
  iid        every device draws from all the data

Both take their sizes from

  m_k = max(floor(N(mean_examples, variance_examples)), 1),     k = 0..n-1

and each device draws with its own generator, keyed by (seed, k). A device's
examples are in random order.
"""

import math
from collections.abc import Callable

import numpy as np

from safl_tf import checks, errors, seeds

# partition(y, num_classes): y is int [N] with labels in 0..num_classes-1; the
# result holds one int32 array of indices into y per device.
Partition = Callable[[np.ndarray, int], list[np.ndarray]]


def by_labels(
  num_devices: int,
  max_labels: int = 7,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> Partition:
  """Devices that know only some of the labels: the paper's partition.

  Device k draws, in this order,

    m_k  its number of examples (see the module),
    c_k  ~ Uniform{1, ..., max_labels}, its number of labels,
    c_k  labels, uniformly without replacement, of those that have examples,
    m_k  examples, uniformly without replacement, of all with these labels.

  So the shares of the labels follow the data, and two devices may hold the same
  example: the paper's sizes sum to more than the data set. m_k is cut to the
  number of examples there are, c_k to the number of labels there are. With
  `mean_examples` given, device k's examples do not depend on `num_devices`.

  Args:
    num_devices: n, the number of devices.
    max_labels: the most labels a device may hold; at most `num_classes`.
    mean_examples: mean of m_k; None means N / n.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_devices = checks.integer('num_devices', num_devices, low=1)
  max_labels = checks.integer('max_labels', max_labels, low=1)
  size = _size_rule(num_devices, mean_examples, variance_examples)
  seed = checks.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    _check_not_empty(y)
    checks.integer('max_labels', max_labels, low=1, high=num_classes)
    counts = np.bincount(y, minlength=num_classes)
    starts = np.cumsum(counts) - counts
    # The examples of label c are by_label[starts[c] : starts[c] + counts[c]].
    by_label = np.argsort(y, kind='stable').astype(np.int32)
    present = np.flatnonzero(counts)

    def device(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = size(rng, len(y))
      c = rng.integers(1, max_labels, endpoint=True)
      labels = rng.permutation(present)[:c]
      sizes = counts[labels]
      ends = sizes.cumsum()
      pool = ends[-1]
      drawn = _draw(rng, pool, min(m, pool))
      # A position among these labels' examples, laid end to end, becomes a
      # place in by_label by shifting each label's stretch to its start there.
      shift = starts[labels] - ends + sizes
      return by_label[drawn + shift[ends.searchsorted(drawn, 'right')]]

    return [device(k) for k in range(num_devices)]

  return partition


def iid(
  num_devices: int,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> Partition:
  """Devices that all draw from the same distribution.

  Without `mean_examples` the data are dealt out: a random permutation is cut
  into n disjoint parts whose sizes differ by at most one and
  `variance_examples` plays no role. With `mean_examples`, or with fewer
  examples than devices, device k draws m_k examples (see the module) without
  replacement, independently of the other devices, so devices may overlap; m_k
  is cut to N.

  Args:
    num_devices: n, the number of devices.
    mean_examples: mean of m_k; None deals out all the data.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_devices = checks.integer('num_devices', num_devices, low=1)
  size = _size_rule(num_devices, mean_examples, variance_examples)
  seed = checks.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    _check_not_empty(y)
    if mean_examples is None and len(y) >= num_devices:
      rng = seeds.generator(seed, seeds.Role.PARTITION)
      shuffled = rng.permutation(len(y)).astype(np.int32)
      return np.array_split(shuffled, num_devices)

    def device(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = min(size(rng, len(y)), len(y))
      return _draw(rng, len(y), m).astype(np.int32)

    return [device(k) for k in range(num_devices)]

  return partition


def _size_rule(
  num_devices: int, mean_examples: float | None, variance_examples: float
) -> Callable[[np.random.Generator, int], int]:
  """`size(rng, N)` draws m_k for a data set of N examples."""
  if mean_examples is not None:
    checks.real('mean_examples', mean_examples, low=0, open_low=True)
  variance = checks.real('variance_examples', variance_examples, low=0)
  deviation = math.sqrt(variance)

  def size(rng: np.random.Generator, total: int) -> int:
    mean = total / num_devices if mean_examples is None else mean_examples
    return max(math.floor(rng.normal(mean, deviation)), 1)

  return size


def _draw(rng: np.random.Generator, total: int, size: int) -> np.ndarray:
  """`size` of 0..total-1, uniformly without replacement, int64 [size].

  Few of many are mostly distinct even with replacement, which is a third of
  the work; given that they are distinct, they are uniform.
  """
  if size * size < total:
    drawn = (rng.random(size) * total).astype(np.int64)
    if len(set(drawn.tolist())) == size:
      return drawn
  return rng.choice(total, size, replace=False)


def _check_not_empty(y: np.ndarray) -> None:
  if len(y) == 0:
    raise errors.InputError('y', 'no labels', 'must hold at least one label')
