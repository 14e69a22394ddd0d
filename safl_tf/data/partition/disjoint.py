"""Partitions that deal the data out, and draws from all the data."""

import numpy as np

from safl_tf.core import seeds
from safl_tf.data.partition import base
from safl_tf.util import validation


def iid(
  num_clients: int,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Clients that all draw from the same distribution.

  Without `mean_examples` the data are dealt out: a random permutation is cut
  into n disjoint parts whose sizes differ by at most one and
  `variance_examples` plays no role. With `mean_examples`, or with fewer
  examples than clients, client k draws m_k examples (see the package) without
  replacement, independently of the other clients, so clients may overlap; m_k
  is cut to N.

  Args:
    num_clients: n, the number of clients.
    mean_examples: mean of m_k; None deals out all the data.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  size = base.size_rule(num_clients, mean_examples, variance_examples)
  seed = validation.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    if mean_examples is None and len(y) >= num_clients:
      rng = seeds.generator(seed, seeds.Role.PARTITION)
      shuffled = rng.permutation(len(y)).astype(np.int32)
      return np.array_split(shuffled, num_clients)

    def client(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = min(size(rng, len(y)), len(y))
      return base.draw(rng, len(y), m).astype(np.int32)

    return [client(k) for k in range(num_clients)]

  return partition


def shards(
  num_clients: int, shards_per_client: int = 2, seed: int = 0
) -> base.Partition:
  """Clients that get a few pieces of the data sorted by label.

  As in McMahan et al. ("Communication-Efficient Learning of Deep Networks from
  Decentralized Data", 2017): the examples, shuffled and then sorted by label,
  are cut into S = n * shards_per_client shards,

    shard j = examples floor(j N / S), ..., floor((j + 1) N / S) - 1,

  and each client gets `shards_per_client` of them at random. So every example
  has one client, sizes differ by at most `shards_per_client`, and most clients
  hold at most that many labels. With more shards than examples, shard j is
  example floor(j N / S) alone, and clients share examples.

  Args:
    num_clients: n, the number of clients.
    shards_per_client: how many shards each gets.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  each = validation.integer('shards_per_client', shards_per_client, low=1)
  seed = validation.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(y[shuffled], kind='stable')]
    # Owners of the shards, and then of the examples in them.
    owners = rng.permutation(np.repeat(np.arange(num_clients), each))
    total = len(owners)
    if total <= len(y):
      sizes = np.diff(np.arange(total + 1) * len(y) // total)
      return base.deal(rng, np.repeat(owners, sizes), by_label)
    examples = by_label[np.arange(total) * len(y) // total]
    pairs = np.unique(np.stack([owners, examples]), axis=1)
    return base.deal(rng, *pairs)

  return partition


def quantity(
  num_clients: int, sigma: float = 1.0, seed: int = 0
) -> base.Partition:
  """Clients whose labels are alike but whose sizes are not.

  A random permutation of the data is cut into n disjoint parts of sizes

    m_k = 1 + (N - n) w_k / sum_i w_i,    log w_k ~ N(0, sigma^2),

  up to rounding: they sum to N. sigma = 0 gives equal sizes. With fewer
  examples than clients each client gets one, and clients share them.

  Args:
    num_clients: n, the number of clients.
    sigma: how much sizes differ, in [0, 100]; with 1, two thirds of the clients
      are within a factor e of the middle one.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  sigma = validation.real('sigma', sigma, low=0, high=100)
  seed = validation.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    logs = sigma * rng.standard_normal(num_clients)
    shuffled = rng.permutation(len(y)).astype(np.int32)
    if num_clients >= len(y):
      return np.split(np.resize(shuffled, num_clients), num_clients)
    reached = np.cumsum(np.exp(logs - logs.max()))
    spare = len(y) - num_clients
    ends = np.rint(spare * (reached / reached[-1])).astype(int)
    ends += np.arange(1, num_clients + 1)
    return np.split(shuffled, ends[:-1])

  return partition
