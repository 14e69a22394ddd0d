"""Partitions into disjoint parts, and independent draws from all the data."""

import numpy as np

from safl_tf.core import seeds
from safl_tf.data.partition import base
from safl_tf.util import errors, validation

_MAX_SHARDS = 10**7


def iid(
  num_clients: int,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Gives all clients the same distribution.

  Without `mean_examples`, cuts a random permutation of the data into n disjoint
  parts whose sizes differ by at most one, and refuses `variance_examples`. With
  `mean_examples`, or with fewer examples than clients, each client draws m_k
  examples (see `partition`), at most N, without replacement.

  Args:
    num_clients: n, the number of clients.
    mean_examples: the mean of m_k; None deals out all examples.
    variance_examples: σ², the variance of m_k.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.iid(num_clients=7))
    >>> data.sizes.tolist()
    [43, 43, 43, 43, 43, 43, 42]
    ```
  """
  sampler = base.Sampler(num_clients, mean_examples, variance_examples, seed)

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    total = len(y)
    if mean_examples is None and total >= sampler.num_clients:
      if variance_examples != 100:
        hint = 'has no effect on parts of equal sizes; give mean_examples too'
        raise errors.InputError('variance_examples', variance_examples, hint)
      rng = seeds.generator(sampler.seed, seeds.Role.PARTITION)
      shuffled = rng.permutation(total).astype(np.int32)
      return np.array_split(shuffled, sampler.num_clients)
    return sampler.parts(
      total,
      lambda rng, k, m: base.draw(rng, total, min(m, total)).astype(np.int32),
    )

  return partition


def shards(
  num_clients: int, shards_per_client: int = 2, seed: int = 0
) -> base.Partition:
  """Gives each client a few shards of the data sorted by label.

  As in McMahan et al. ("Communication-Efficient Learning of Deep Networks from
  Decentralized Data", 2017): the examples, shuffled and then sorted by label,
  are cut into S = n * shards_per_client shards,

      shard j = examples floor(j N / S), ..., floor((j + 1) N / S) - 1,

  and each client gets `shards_per_client` of them at random. Every example has
  one client, sizes differ by at most `shards_per_client`, and most clients hold
  at most that many labels. With more shards than examples, shard j is example
  floor(j N / S), and clients share examples.

  Args:
    num_clients: n, the number of clients.
    shards_per_client: the number of shards of each client.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.shards(num_clients=10, shards_per_client=1))
    >>> data.sizes.tolist()
    [30, 30, 30, 30, 30, 30, 30, 30, 30, 30]
    ```
  """
  num_clients = validation.limited('num_clients', num_clients)
  each = validation.limited('shards_per_client', shards_per_client)
  if num_clients * each > _MAX_SHARDS:
    most = _MAX_SHARDS // num_clients
    hint = f'must be at most {most} for {num_clients} clients'
    raise errors.InputError('shards_per_client', each, hint)
  seed = validation.limited('seed', seed)

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    del num_classes
    base.check_classes('shards', y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    shuffled = rng.permutation(len(y))
    rows = shuffled[np.argsort(y[shuffled], kind='stable')]
    owners = rng.permutation(np.repeat(np.arange(num_clients), each))
    total = len(owners)
    if total <= len(y):
      sizes = np.diff(np.arange(total + 1) * len(y) // total)
      owners = np.repeat(owners, sizes)
    else:
      rows = rows[np.arange(total) * len(y) // total]
      owners, rows = np.unique(np.stack([owners, rows]), axis=1)
    # Groups the rows by owner, in random order.
    shuffled = rng.permutation(len(rows))
    order = shuffled[np.argsort(owners[shuffled], kind='stable')]
    ends = np.cumsum(np.bincount(owners))
    return np.split(rows[order].astype(np.int32), ends[:-1])

  return partition


def quantity(
  num_clients: int, sigma: float = 1.0, seed: int = 0
) -> base.Partition:
  """Gives clients the same label distribution but different sizes.

  Cuts a random permutation of the data into n disjoint parts of sizes

      m_k = 1 + (N - n) w_k / sum_i w_i,    log w_k ~ N(0, sigma^2),

  rounded so that they sum to N. With fewer examples than clients each client
  gets one, and clients share them.

  Args:
    num_clients: n, the number of clients.
    sigma: the standard deviation of log w_k, in [0, 100]; 0 gives equal sizes.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.quantity(num_clients=4, sigma=1.5))
    >>> data.sizes.tolist(), data.total_examples
    ([181, 19, 57, 43], 300)
    ```
  """
  num_clients = validation.limited('num_clients', num_clients)
  sigma = validation.limited('sigma', sigma, 'quantity_sigma')
  seed = validation.limited('seed', seed)

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    del num_classes
    base.check_not_empty(y)
    rng = seeds.generator(seed, seeds.Role.PARTITION)
    logs = sigma * rng.standard_normal(num_clients)
    shuffled = rng.permutation(len(y)).astype(np.int32)
    if num_clients >= len(y):
      return np.split(np.resize(shuffled, num_clients), num_clients)
    weights = np.cumsum(np.exp(logs - logs.max()))
    rest = len(y) - num_clients  # after one example for each client
    ends = np.rint(rest * (weights / weights[-1])).astype(int)
    ends += np.arange(1, num_clients + 1)
    return np.split(shuffled, ends[:-1])

  return partition
