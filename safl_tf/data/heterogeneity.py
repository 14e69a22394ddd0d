"""Statistics of how different the clients' data are.

With m_k,c the examples of label c on client k, m_k their sum and

  p_k,c = m_k,c / m_k                 the label proportions of client k,
  p_c   = sum_k m_k,c / sum_k m_k     those of all clients together,

the label entropy of client k is H_k = -sum_c p_k,c log2 p_k,c in bits, and the
total-variation distance of two distributions is

  TV(p, q) = 1/2 sum_c |p_c - q_c|,   from 0 (equal) to 1 (disjoint).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from safl_tf.core import seeds
from safl_tf.util import errors, validation

if TYPE_CHECKING:
  from safl_tf.data import client_data

_BLOCK = 1 << 20  # proportions compared at once


@dataclasses.dataclass(frozen=True)
class Spread:
  """Mean, standard deviation, minimum and maximum over the clients."""

  mean: float
  sd: float
  min: float
  max: float

  @classmethod
  def of(cls, values: np.ndarray) -> 'Spread':
    """Computes the statistics of one value per client."""
    numbers = (values.mean(), values.std(), values.min(), values.max())
    return cls(*map(float, numbers))

  def format(self, digits: int) -> str:
    """Returns text such as '199.1 ± 9.8 (180 to 215)'."""
    number = lambda value: f'{value:,.{0 if value.is_integer() else digits}f}'
    return (
      f'{self.mean:,.{digits}f} ± {self.sd:,.{digits}f} '
      f'({number(self.min)} to {number(self.max)})'
    )


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How many examples clients have.

  Attributes:
    num_clients: n.
    total_examples: the sum of m_k.
    sizes: of m_k.
    size_gini: the Gini coefficient of m_k.
  """

  num_clients: int
  total_examples: int
  sizes: Spread
  size_gini: float

  @classmethod
  def of(cls, sizes: np.ndarray) -> 'Sizes':
    """Computes the statistics of m_k, int [n]."""
    total = int(sizes.sum())
    return Sizes(len(sizes), total, Spread.of(sizes), gini(sizes))

  def __str__(self) -> str:
    return '\n'.join(
      [
        f'clients          {self.num_clients:,}',
        f'examples         {self.total_examples:,} in total',
        f'  per client     {self.sizes.format(1)}; Gini {self.size_gini:.3f}',
      ]
    )


@dataclasses.dataclass(frozen=True)
class Report(Sizes):
  """The heterogeneity of clients; the module has the formulas.

  Attributes:
    num_classes: C.
    labels: of the number of labels of a client.
    entropy: of H_k, in bits.
    normalized_entropy: the mean of H_k / log2 C, in [0, 1]; 0 if C = 1.
    global_distance: of TV(p_k, p).
    pair_distance: the mean of TV(p_j, p_k) over pairs j != k; 0 if n = 1.
    pairs: the number of these pairs.
  """

  num_classes: int
  labels: Spread
  entropy: Spread
  normalized_entropy: float
  global_distance: Spread
  pair_distance: float
  pairs: int

  def __str__(self) -> str:
    all_pairs = self.num_clients * (self.num_clients - 1) // 2
    which = 'all' if self.pairs == all_pairs else f'{self.pairs:,} random'
    pairs = f'{self.pair_distance:.3f}, mean of {which} pairs'
    return '\n'.join(
      [
        super().__str__(),
        f'labels           {self.num_classes:,}',
        f'  per client     {self.labels.format(1)}',
        f'  entropy        {self.entropy.format(2)} bits; '
        f'{self.normalized_entropy:.0%} of the maximum',
        'total-variation distance of label proportions (0 to 1)',
        f'  to all data    {self.global_distance.format(3)}',
        f'  of two clients {pairs if self.pairs else "-"}',
      ]
    )


def report(
  label_counts: np.ndarray, seed: int = 0, max_pairs: int = 200_000
) -> Report:
  """Computes the heterogeneity of clients.

  Args:
    label_counts: m_k,c as `ClientData.label_counts` returns it, int [n, C];
      every client has examples.
    seed: for drawing pairs.
    max_pairs: if there are more pairs of clients, this number is drawn with
      replacement.
  """
  counts = _check(label_counts)
  max_pairs = validation.integer('max_pairs', max_pairs, low=1)
  n, C = counts.shape
  sizes = counts.sum(axis=1)
  p = counts / sizes[:, None]
  bits = entropy(p)
  p_all = counts.sum(axis=0) / sizes.sum()
  first, second = _pairs(n, max_pairs, seed)
  return Report(
    **vars(Sizes.of(sizes)),
    num_classes=C,
    labels=Spread.of((counts > 0).sum(axis=1)),
    entropy=Spread.of(bits),
    normalized_entropy=float(bits.mean() / math.log2(C)) if C > 1 else 0.0,
    global_distance=Spread.of(total_variation(p, p_all)),
    pair_distance=_mean_distance(p, first, second),
    pairs=len(first),
  )


def table(
  clients: 'client_data.ClientData', class_names: Sequence[str]
) -> tuple[np.ndarray, Sequence[str]]:
  """Returns the label counts [n, C] and the labels to plot them with.

  For targets without classes, the sizes are the counts of one label.
  """
  if clients.num_classes is None:
    return clients.sizes[:, None], ['all']
  return clients.label_counts(), class_names


def entropy(p: np.ndarray) -> np.ndarray:
  """Returns H_k in bits [n], of proportions [n, C]; 0 log 0 is 0."""
  logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
  return -(p * logs).sum(axis=-1) + 0.0  # not -0


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """Returns TV(p, q) [n], of proportions [n, C]."""
  return np.abs(p - q).sum(axis=-1) / 2


def gini(sizes: np.ndarray) -> float:
  """Returns the Gini coefficient of positive sizes [n].

  With m_1 <= ... <= m_n it is sum_k (2k - n - 1) m_k / (n sum_k m_k): 0 if all
  are equal, nearly 1 if one client has almost everything.
  """
  ordered = np.sort(np.asarray(sizes, float))
  n = len(ordered)
  weights = 2 * np.arange(1, n + 1) - n - 1
  return float(weights @ ordered / (n * ordered.sum()))


def _check(label_counts: np.ndarray) -> np.ndarray:
  counts = np.asarray(label_counts)
  if counts.ndim != 2 or counts.size == 0:
    raise errors.InputError(
      'label_counts', f'array of shape {list(counts.shape)}', 'must be [n, C]'
    )
  if counts.min() < 0 or not counts.any(axis=1).all():
    raise errors.InputError(
      'label_counts',
      'a client without examples',
      'must give each client some, and no negative number',
    )
  return counts


def _pairs(n: int, max_pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns all pairs j < k of 0..n-1, or `max_pairs` random ones, j != k."""
  if n * (n - 1) // 2 <= max_pairs:
    return np.triu_indices(n, 1)
  rng = seeds.generator(seed, seeds.Role.PARTITION, 0, 0)
  first = rng.integers(n, size=max_pairs)
  second = (first + rng.integers(1, n, size=max_pairs)) % n
  return first, second


def _mean_distance(
  p: np.ndarray, first: np.ndarray, second: np.ndarray
) -> float:
  """Returns the mean of TV over pairs of rows, in blocks; 0 for no pairs."""
  if not len(first):
    return 0.0
  step = max(_BLOCK // p.shape[1], 1)
  total = sum(
    total_variation(p[first[i : i + step]], p[second[i : i + step]]).sum()
    for i in range(0, len(first), step)
  )
  return float(total / len(first))
