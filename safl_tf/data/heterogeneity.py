"""How different the clients' data are.

With m_k,c the examples of label c on client k, m_k their sum and

  p_k,c = m_k,c / m_k                 the client's shares of the labels,
  p_c   = sum_k m_k,c / sum_k m_k     those of all clients together,

a client's label entropy is H_k = -sum_c p_k,c log2 p_k,c in bits, and two
distributions are as far apart as their total variation,

  TV(p, q) = 1/2 sum_c |p_c - q_c|,   0 for the same, 1 for nothing in common.
"""

import dataclasses
import math

import numpy as np

from safl_tf.core import seeds
from safl_tf.util import errors, validation

_BLOCK = 1 << 20  # shares that are compared together


@dataclasses.dataclass(frozen=True)
class Spread:
  """Mean, standard deviation, smallest and largest of a number per client."""

  mean: float
  sd: float
  min: float
  max: float


@dataclasses.dataclass(frozen=True)
class Report:
  """How different clients are; see the module for the formulas.

  Attributes:
    num_clients: n.
    num_classes: C.
    total_examples: the sum of m_k.
    sizes: of m_k.
    size_gini: Gini's coefficient of m_k.
    labels: of the number of labels on a client.
    entropy: of H_k, in bits.
    normalized_entropy: the mean of H_k / log2 C, in [0, 1]; 0 if C = 1.
    global_distance: of TV(p_k, p).
    pair_distance: the mean of TV(p_j, p_k) over pairs j != k; 0 if n = 1.
    pairs: how many pairs that is the mean of.
  """

  num_clients: int
  num_classes: int
  total_examples: int
  sizes: Spread
  size_gini: float
  labels: Spread
  entropy: Spread
  normalized_entropy: float
  global_distance: Spread
  pair_distance: float
  pairs: int

  def __str__(self) -> str:
    all_pairs = self.num_clients * (self.num_clients - 1) // 2
    which = 'all' if self.pairs == all_pairs else f'{self.pairs:,} random'
    of_two = f'{self.pair_distance:.3f}, mean of {which} pairs'
    return '\n'.join(
      [
        f'clients          {self.num_clients:,}',
        f'examples         {self.total_examples:,} in total',
        f'  on a client    {_told(self.sizes, 1)}; Gini {self.size_gini:.3f}',
        f'labels           {self.num_classes:,}',
        f'  on a client    {_told(self.labels, 1)}',
        f'  their entropy  {_told(self.entropy, 2)} bits; '
        f'{self.normalized_entropy:.0%} of the most possible',
        'distance between shares of labels (total variation, 0 to 1)',
        f'  to all data    {_told(self.global_distance, 3)}',
        f'  of two clients {of_two if self.pairs else "-"}',
      ]
    )


def report(
  label_counts: np.ndarray, seed: int = 0, max_pairs: int = 200_000
) -> Report:
  """Measures how different clients are.

  Args:
    label_counts: m_k,c as `ClientData.label_counts` gives it, int [n, C]; every
      client has examples.
    seed: for the pairs, if not all are looked at.
    max_pairs: if there are more pairs of clients than this, so many are drawn
      with replacement.

  Returns:
    A `Report`.
  """
  counts = _checked(label_counts)
  max_pairs = validation.integer('max_pairs', max_pairs, low=1)
  n, C = counts.shape
  sizes = counts.sum(axis=1)
  shares = counts / sizes[:, None]
  bits = entropy(shares)
  everywhere = counts.sum(axis=0) / sizes.sum()
  first, second = _pairs(n, max_pairs, seed)
  return Report(
    num_clients=n,
    num_classes=C,
    total_examples=int(sizes.sum()),
    sizes=_spread(sizes),
    size_gini=gini(sizes),
    labels=_spread((counts > 0).sum(axis=1)),
    entropy=_spread(bits),
    normalized_entropy=float(bits.mean() / math.log2(C)) if C > 1 else 0.0,
    global_distance=_spread(total_variation(shares, everywhere)),
    pair_distance=_mean_distance(shares, first, second),
    pairs=len(first),
  )


def entropy(shares: np.ndarray) -> np.ndarray:
  """H_k in bits [n], of shares p_k,c [n, C]; 0 log 0 is 0."""
  logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
  return -(shares * logs).sum(axis=-1) + 0.0  # not -0


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """TV(p, q) [n], of shares [n, C]."""
  return np.abs(p - q).sum(axis=-1) / 2


def gini(sizes: np.ndarray) -> float:
  """Gini's coefficient of positive sizes [n].

  With m_1 <= ... <= m_n it is sum_k (2k - n - 1) m_k / (n sum_k m_k): 0 if all
  are equal, nearly 1 if one client has almost everything.
  """
  ordered = np.sort(np.asarray(sizes, float))
  n = len(ordered)
  weights = 2 * np.arange(1, n + 1) - n - 1
  return float(weights @ ordered / (n * ordered.sum()))


def _checked(label_counts: np.ndarray) -> np.ndarray:
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


def _pairs(n: int, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """All pairs j < k of 0..n-1, or `most` random ones with j != k."""
  if n * (n - 1) // 2 <= most:
    return np.triu_indices(n, 1)
  rng = seeds.generator(seed, seeds.Role.PARTITION, 0, 0)
  first = rng.integers(n, size=most)
  second = (first + rng.integers(1, n, size=most)) % n
  return first, second


def _mean_distance(
  shares: np.ndarray, first: np.ndarray, second: np.ndarray
) -> float:
  """The mean of TV over pairs of rows, a block at a time; 0 for no pairs."""
  if not len(first):
    return 0.0
  step = max(_BLOCK // shares.shape[1], 1)
  blocks = range(0, len(first), step)
  total = sum(
    total_variation(
      shares[first[i : i + step]], shares[second[i : i + step]]
    ).sum()
    for i in blocks
  )
  return float(total / len(first))


def _spread(values: np.ndarray) -> Spread:
  numbers = (values.mean(), values.std(), values.min(), values.max())
  return Spread(*map(float, numbers))


def _told(spread: Spread, digits: int) -> str:
  """'199.1 ± 9.8 (180 to 215)'."""
  mean, sd = f'{spread.mean:,.{digits}f}', f'{spread.sd:,.{digits}f}'
  ends = [
    f'{end:,.0f}' if end.is_integer() else f'{end:,.{digits}f}'
    for end in (spread.min, spread.max)
  ]
  return f'{mean} ± {sd} ({" to ".join(ends)})'
