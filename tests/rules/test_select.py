import math

import numpy as np
import pytest

from safl_tf.rules import select
from safl_tf.util import errors


@pytest.mark.parametrize('fraction', [0.001, 0.1, 0.25, 0.5, 0.777, 1.0])
@pytest.mark.parametrize('n', [1, 2, 7, 100])
def test_number_of_clients(fraction, n):
  ids = select.uniform(fraction)(0, 1, n)
  assert len(ids) == max(1, round(fraction * n))


def test_number_given():
  rule = select.uniform(clients_per_round=3)
  assert [len(rule(0, t, 10)) for t in range(1, 5)] == [3] * 4
  np.testing.assert_array_equal(rule(0, 1, 3), [0, 1, 2])


def test_ids_are_sorted_unique_and_in_range():
  rule = select.uniform(0.5)
  for t in range(1, 50):
    ids = rule(0, t, 21)
    assert (np.diff(ids) > 0).all()
    assert ids[0] >= 0 and ids[-1] < 21


def test_all_clients():
  np.testing.assert_array_equal(select.uniform()(3, 8, 5), np.arange(5))


def test_function_of_seed_and_round_only():
  rule = select.uniform(0.3)
  first = [rule(5, t, 40) for t in (1, 2, 3)]
  again = [select.uniform(0.3)(5, t, 40) for t in (3, 2, 1)][::-1]
  assert all(map(np.array_equal, first, again))
  assert not np.array_equal(first[0], first[1])
  assert not np.array_equal(first[0], rule(6, 1, 40))


def test_uniform():
  stats = pytest.importorskip('scipy.stats')
  n, s, rounds = 20, 5, 4000
  rule = select.uniform(clients_per_round=s)
  draws = np.array([rule(0, t, n) for t in range(rounds)])
  counts = np.bincount(draws.ravel(), minlength=n)
  # Without replacement counts vary less than multinomial ones, by the factor
  # (n - s) / (n - 1).
  expected = rounds * s / n
  chi_square = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - s)
  assert 1e-4 < stats.chi2.sf(chi_square, n - 1) < 1 - 1e-4
  # Pairs, too: 0 and 1 are together with probability s(s-1) / n(n-1).
  both = ((draws == 0).any(axis=1) & (draws == 1).any(axis=1)).mean()
  p = s * (s - 1) / (n * (n - 1))
  assert abs(both - p) < 4 * math.sqrt(p * (1 - p) / rounds)


def test_too_many():
  with pytest.raises(errors.InputError, match=r'^clients_per_round=6: .* 5$'):
    select.uniform(clients_per_round=6)(0, 1, 5)


@pytest.mark.parametrize(
  'argument, value',
  [
    ('fraction', 0),
    ('fraction', 1.5),
    ('fraction', math.nan),
    ('clients_per_round', 0),
    ('clients_per_round', 2.5),
  ],
)
def test_refused(argument, value):
  with pytest.raises(errors.InputError, match=f'^{argument}={value}: must be'):
    select.uniform(**{argument: value})
