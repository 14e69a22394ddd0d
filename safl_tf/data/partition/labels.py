"""Partitions that give clients different labels."""

import numpy as np

from safl_tf.data.partition import base
from safl_tf.util import errors, validation


def by_labels(
  num_clients: int,
  max_labels: int = 7,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Gives each client some of the labels: the partition of the paper.

  Client k draws, in this order,

      m_k  its number of examples,
      c_k  ~ Uniform{1, ..., max_labels}, with max_labels <= num_classes,
      c_k  labels, uniformly without replacement, of those that have examples,
      m_k  examples, uniformly without replacement, of all with these labels.

  `partition` says how m_k is drawn. The label proportions follow the data, and
  clients may share examples: the paper's sizes sum to more than the data set.
  m_k and c_k are limited to the examples and labels that exist. With
  `mean_examples`, the examples of client k do not depend on `num_clients`.

  Args:
    num_clients: n, the number of clients.
    max_labels: the maximum number of labels of a client.
    mean_examples: the mean of m_k; None means N / n for N examples.
    variance_examples: σ², the variance of m_k.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.by_labels(num_clients=6, max_labels=2))
    >>> (data.label_counts() > 0).sum(axis=1).tolist()  # labels per client
    [1, 2, 2, 1, 2, 2]
    ```
  """
  sampler = base.Sampler(num_clients, mean_examples, variance_examples, seed)
  max_labels = validation.limited('max_labels', max_labels)
  return _few_labels(sampler, 1, max_labels, sampler.num_clients)


def biased(
  num_clients: int,
  biased_fraction: float = 0.5,
  max_labels: int = 7,
  biased_label: int | None = None,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Gives some clients several labels and the others a single one.

  This is the setting that motivates the paper's extension of SAFL. The last
  round(biased_fraction * n) clients hold a single label. Clients draw as in
  `by_labels`, but c_k ~ Uniform{2, ..., max_labels} in the first group and c_k
  = 1 in the second.

  Args:
    num_clients: n, the number of clients.
    biased_fraction: the share of clients with one label, in [0, 1].
    max_labels: the maximum number of labels of the others.
    biased_label: the label of all biased clients; each draws its own if None.
    mean_examples: the mean of m_k; None means N / n for N examples.
    variance_examples: σ², the variance of m_k.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.biased(num_clients=4, max_labels=3))
    >>> (data.label_counts() > 0).sum(axis=1).tolist()  # labels per client
    [2, 3, 1, 1]
    ```
  """
  sampler = base.Sampler(num_clients, mean_examples, variance_examples, seed)
  share = validation.limited('biased_fraction', biased_fraction)
  high = validation.LIMITS['max_labels'].high
  max_labels = validation.integer('max_labels', max_labels, low=2, high=high)
  if biased_label is not None:
    biased_label = validation.limited('biased_label', biased_label)
  num_unbiased = sampler.num_clients - round(share * sampler.num_clients)
  return _few_labels(sampler, 2, max_labels, num_unbiased, biased_label)


def dirichlet(
  num_clients: int,
  alpha: float = 0.5,
  mean_examples: float | None = None,
  variance_examples: float = 100.0,
  seed: int = 0,
) -> base.Partition:
  """Gives each client its own label proportions.

  With p_c the share of label c in the data, and C labels that have examples,
  client k draws

      m_k    its number of examples, at most N,
      q_k    ~ Dirichlet(alpha * C * p), its label proportions,
      m_k,c  ~ Multinomial(m_k, q_k), its number of examples of label c,

  and m_k,c examples of each label, uniformly without replacement; `partition`
  says how m_k is drawn. With balanced data this is the usual Dirichlet(alpha);
  in the notation of Hsu, Qi and Brown ("Measuring the Effects of Non-Identical
  Data Distribution for Federated Visual Classification", 2019) it is Dir(α p)
  with α = alpha * C.

  If a label has fewer than m_k,c examples, the client's other labels fill up in
  proportion while they have examples: a client may hold fewer than m_k.

  Args:
    num_clients: n, the number of clients.
    alpha: the concentration, in [1e-9, 1e9]. A large value gives every client
      the proportions of the data, a small one a single label.
    mean_examples: the mean of m_k; None means N / n for N examples.
    variance_examples: σ², the variance of m_k.
    seed: of the draws.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.dirichlet(num_clients=4, alpha=0.1))
    >>> data.label_counts().shape
    (4, 3)
    ```
  """
  sampler = base.Sampler(num_clients, mean_examples, variance_examples, seed)
  alpha = validation.limited('alpha', alpha, 'dirichlet_alpha')

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    del num_classes
    base.check_classes('dirichlet', y)
    index = base.LabelIndex(y)
    counts = index.counts[index.present]
    concentration = alpha * len(counts) * counts / len(y)

    def draw(rng: np.random.Generator, k: int, m: int) -> np.ndarray:
      q = rng.dirichlet(concentration)
      held = _multinomial(rng, min(m, len(y)), q, counts)
      chosen = np.flatnonzero(held)
      return index.draw_each(rng, index.present[chosen], held[chosen])

    return sampler.parts(len(y), draw)

  return partition


def _few_labels(
  sampler: base.Sampler,
  min_labels: int,
  max_labels: int,
  num_unbiased: int,
  biased_label: int | None = None,
) -> base.Partition:
  """Gives the first `num_unbiased` clients c_k labels, the others one."""

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    base.check_classes('labels' if min_labels == 1 else 'biased', y)
    index = base.LabelIndex(y)
    validation.integer(
      'max_labels', max_labels, low=min_labels, high=num_classes or 0
    )
    single = index.present
    if biased_label is not None:
      single = single[single == biased_label]
      if not len(single):
        raise errors.InputError(
          'biased_label', biased_label, 'must be a label of some example'
        )

    def draw(rng: np.random.Generator, k: int, m: int) -> np.ndarray:
      labels, c = single, 1
      if k < num_unbiased:
        labels = index.present
        c = int(rng.integers(min_labels, max_labels, endpoint=True))
      return index.draw_any(rng, rng.permutation(labels)[:c], m)

    return sampler.parts(len(y), draw)

  return partition


def _multinomial(
  rng: np.random.Generator, m: int, q: np.ndarray, high: np.ndarray
) -> np.ndarray:
  """Draws from Multinomial(m, q) with at most `high` of each, int [C].

  The excess is drawn again among the labels that are not full. Each pass fills
  one or is the last, so there are at most C.
  """
  held = np.zeros_like(high)
  while (missing := m - held.sum()) and q.any():
    held = np.minimum(held + rng.multinomial(missing, q / q.sum()), high)
    q = np.where(held < high, q, 0.0)
  return held
