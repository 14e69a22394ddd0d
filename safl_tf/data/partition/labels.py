"""Partitions that give clients different labels."""

import numpy as np

from safl_tf.core import seeds
from safl_tf.data.partition import base
from safl_tf.util import errors, validation


def by_labels(
  num_clients: int,
  max_labels: int = 7,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Clients that know only some of the labels: the paper's partition.

  Client k draws, in this order,

    m_k  its number of examples (see the package),
    c_k  ~ Uniform{1, ..., max_labels}, its number of labels,
    c_k  labels, uniformly without replacement, of those that have examples,
    m_k  examples, uniformly without replacement, of all with these labels.

  So the shares of the labels follow the data, and two clients may hold the same
  example: the paper's sizes sum to more than the data set. m_k is cut to the
  number of examples there are, c_k to the number of labels there are. With
  `mean_examples` given, client k's examples do not depend on `num_clients`.

  Args:
    num_clients: n, the number of clients.
    max_labels: the most labels a client may hold; at most `num_classes`.
    mean_examples: mean of m_k; None means N / n.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  max_labels = validation.integer('max_labels', max_labels, low=1)
  size = base.size_rule(num_clients, mean_examples, variance_examples)
  seed = validation.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    index = base.LabelIndex(y)
    validation.integer('max_labels', max_labels, low=1, high=num_classes)

    def client(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = size(rng, len(y))
      c = rng.integers(1, max_labels, endpoint=True)
      return index.draw_any(rng, rng.permutation(index.present)[:c], m)

    return [client(k) for k in range(num_clients)]

  return partition


def biased(
  num_clients: int,
  biased_fraction: float = 0.5,
  max_labels: int = 7,
  biased_label: int | None = None,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Two groups, as where the paper motivates its extension of SAFL.

  The last round(biased_fraction * n) clients hold a single label, the others
  several. Client k draws, in this order,

    m_k  its number of examples (see the package),
    c_k  ~ Uniform{2, ..., max_labels} in the first group, 1 in the second,
    c_k  labels, uniformly without replacement, of those that have examples,
    m_k  examples, uniformly without replacement, of all with these labels.

  m_k and c_k are cut to what there is, as in `by_labels`.

  Args:
    num_clients: n, the number of clients.
    biased_fraction: the second group's share of the clients, in [0, 1].
    max_labels: the most labels in the first group; at most `num_classes`.
    biased_label: the label that all of the second group hold; if None, each
      draws its own.
    mean_examples: mean of m_k; None means N / n.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  share = validation.real('biased_fraction', biased_fraction, low=0, high=1)
  max_labels = validation.integer('max_labels', max_labels, low=2)
  if biased_label is not None:
    biased_label = validation.integer('biased_label', biased_label, low=0)
  size = base.size_rule(num_clients, mean_examples, variance_examples)
  seed = validation.integer('seed', seed, low=0)
  several = num_clients - round(share * num_clients)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    index = base.LabelIndex(y)
    validation.integer('max_labels', max_labels, low=2, high=num_classes)
    single = index.present
    if biased_label is not None:
      single = single[single == biased_label]
      if not len(single):
        raise errors.InputError(
          'biased_label', biased_label, 'must be a label of some example'
        )

    def client(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = size(rng, len(y))
      if k < several:
        c = rng.integers(2, max_labels, endpoint=True)
        return index.draw_any(rng, rng.permutation(index.present)[:c], m)
      return index.draw_any(rng, rng.permutation(single)[:1], m)

    return [client(k) for k in range(num_clients)]

  return partition


def dirichlet(
  num_clients: int,
  alpha: float = 0.5,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Clients that each have their own proportions of the labels.

  With p_c the share of label c in the data, and C labels that have examples,
  client k draws

    m_k    its number of examples (see the package), at most N,
    q_k    ~ Dirichlet(alpha * C * p), its proportions of the labels,
    m_k,c  ~ Multinomial(m_k, q_k), its number of examples of label c,

  and m_k,c examples of each label, uniformly without replacement. With balanced
  data this is the usual Dirichlet(alpha); in the letters of Hsu, Qi and Brown
  ("Measuring the Effects of Non-Identical Data Distribution for Federated
  Visual Classification", 2019) it is Dir(α p) with α = alpha * C. A large alpha
  gives every client the proportions of the data, a small one a single label.

  A label with fewer than m_k,c examples gives all of them, and the client's
  other labels give the rest, by their proportions, while they have examples: a
  client may end with fewer than m_k.

  Args:
    num_clients: n, the number of clients.
    alpha: in [1e-9, 1e9].
    mean_examples: mean of m_k; None means N / n.
    variance_examples: variance of m_k.
    seed: the run's seed.

  Returns:
    A `Partition`.
  """
  num_clients = validation.integer('num_clients', num_clients, low=1)
  alpha = validation.real('alpha', alpha, low=1e-9, high=1e9)
  size = base.size_rule(num_clients, mean_examples, variance_examples)
  seed = validation.integer('seed', seed, low=0)

  def partition(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    del num_classes
    index = base.LabelIndex(y)
    counts = index.counts[index.present]
    concentration = alpha * len(counts) * counts / len(y)

    def client(k: int) -> np.ndarray:
      rng = seeds.generator(seed, seeds.Role.PARTITION, k)
      m = min(size(rng, len(y)), len(y))
      held = _multinomial(rng, m, rng.dirichlet(concentration), counts)
      chosen = np.flatnonzero(held)
      return index.draw_each(rng, index.present[chosen], held[chosen])

    return [client(k) for k in range(num_clients)]

  return partition


def _multinomial(
  rng: np.random.Generator, m: int, q: np.ndarray, most: np.ndarray
) -> np.ndarray:
  """Multinomial(m, q) with at most `most` of each, int [C].

  What is above `most` is drawn again among those that are not full. Each pass
  fills one or is the last, so there are C at most.
  """
  held = np.zeros_like(most)
  while (left := m - held.sum()) and q.any():
    held = np.minimum(held + rng.multinomial(left, q / q.sum()), most)
    q = np.where(held < most, q, 0.0)
  return held
