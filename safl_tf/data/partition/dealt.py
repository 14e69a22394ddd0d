"""Partitions that deal the data out, and draws from all the data."""

import numpy as np

from safl_tf import checks, seeds
from safl_tf.data.partition import base


def iid(
  num_devices: int,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Devices that all draw from the same distribution.

  Without `mean_examples` the data are dealt out: a random permutation is cut
  into n disjoint parts whose sizes differ by at most one and
  `variance_examples` plays no role. With `mean_examples`, or with fewer
  examples than devices, device k draws m_k examples (see the package) without
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
  size = base.size_rule(num_devices, mean_examples, variance_examples)
  seed = checks.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    if mean_examples is None and len(y) >= num_devices:
      rng = seeds.generator(seed, seeds.Role.PARTITION)
      shuffled = rng.permutation(len(y)).astype(np.int32)
      return np.array_split(shuffled, num_devices)

    def device(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = min(size(rng, len(y)), len(y))
      return base.draw(rng, len(y), m).astype(np.int32)

    return [device(k) for k in range(num_devices)]

  return partition


def shards(
  num_devices: int, shards_per_device: int = 2, seed: int = 0
) -> base.Partition:
  """Devices that get a few pieces of the data sorted by label.

  As in McMahan et al. ("Communication-Efficient Learning of Deep Networks from
  Decentralized Data", 2017): the examples, shuffled and then sorted by label,
  are cut into S = n * shards_per_device shards,

    shard j = examples floor(j N / S), ..., floor((j + 1) N / S) - 1,

  and each device gets `shards_per_device` of them at random. So every example
  has one device, sizes differ by at most `shards_per_device`, and most devices
  hold at most that many labels. With more shards than examples, shard j is
  example floor(j N / S) alone, and devices share examples.

  Args:
    num_devices: n, the number of devices.
    shards_per_device: how many shards each gets.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_devices = checks.integer('num_devices', num_devices, low=1)
  each = checks.integer('shards_per_device', shards_per_device, low=1)
  seed = checks.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(y[shuffled], kind='stable')]
    # Owners of the shards, and then of the examples in them.
    owners = rng.permutation(np.repeat(np.arange(num_devices), each))
    total = len(owners)
    if total <= len(y):
      sizes = np.diff(np.arange(total + 1) * len(y) // total)
      return base.deal(rng, np.repeat(owners, sizes), by_label)
    examples = by_label[np.arange(total) * len(y) // total]
    pairs = np.unique(np.stack([owners, examples]), axis=1)
    return base.deal(rng, *pairs)

  return partition


def quantity(
  num_devices: int, sigma: float = 1.0, seed: int = 0
) -> base.Partition:
  """Devices whose labels are alike but whose sizes are not.

  A random permutation of the data is cut into n disjoint parts of sizes

    m_k = 1 + (N - n) w_k / sum_i w_i,    log w_k ~ N(0, sigma^2),

  up to rounding: they sum to N. sigma = 0 gives equal sizes. With fewer
  examples than devices each device gets one, and devices share them.

  Args:
    num_devices: n, the number of devices.
    sigma: how much sizes differ, in [0, 100]; with 1, two thirds of the devices
      are within a factor e of the middle one.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_devices = checks.integer('num_devices', num_devices, low=1)
  sigma = checks.real('sigma', sigma, low=0, high=100)
  seed = checks.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    logs = sigma * rng.standard_normal(num_devices)
    shuffled = rng.permutation(len(y)).astype(np.int32)
    if num_devices >= len(y):
      return np.split(np.resize(shuffled, num_devices), num_devices)
    reached = np.cumsum(np.exp(logs - logs.max()))
    spare = len(y) - num_devices
    ends = np.rint(spare * (reached / reached[-1])).astype(int)
    ends += np.arange(1, num_devices + 1)
    return np.split(shuffled, ends[:-1])

  return partition
