import math

import numpy as np
import pytest

from examples import l1_example

GRID = np.linspace(-1, 1, 37)  # has 0, 2/9 and 4/9


@pytest.mark.parametrize(
  'data, expected',
  [
    (l1_example.FIRST, [0, 0]),
    (l1_example.SECOND, [0, 4 / 9]),
    (l1_example.BOTH, [0, 4 / 9]),
  ],
  ids=['client 1', 'client 2', 'both'],
)
def test_minimisers(data, expected):
  minimiser = l1_example.minimiser(data)
  np.testing.assert_allclose(minimiser, expected, atol=1e-12)
  smallest = l1_example.loss(minimiser, data)
  losses = [l1_example.loss(np.array([a, b]), data) for a in GRID for b in GRID]
  assert min(losses) == pytest.approx(smallest)
  best = divmod(int(np.argmin(losses)), len(GRID))
  np.testing.assert_allclose(GRID[list(best)], expected, atol=1e-12)


def test_the_average_is_worse_than_client_2():
  average, best = l1_example.average(), l1_example.minimiser(l1_example.BOTH)
  own = l1_example.minimiser(l1_example.SECOND)
  np.testing.assert_allclose(average, [0, 2 / 9])
  assert np.linalg.norm(best - average) == pytest.approx(2 / 9)
  np.testing.assert_array_equal(best, own)


def test_losses():
  losses = [
    l1_example.loss(np.array([0, second]), l1_example.BOTH)
    for second in (4 / 9, 2 / 9, 0)
  ]
  assert losses == pytest.approx([14 / 9, 5 / 3, 2])


def test_loss_of_the_kept_model_is_between():
  kept = l1_example.perturbed(0.3)
  np.testing.assert_allclose(kept, [0, 0.3 * 2 / 9 + 0.7 * 4 / 9])
  assert 14 / 9 < l1_example.loss(kept, l1_example.BOTH) < 5 / 3


def test_draws_follow_the_rule():
  """Round 80 keeps the local model with p = 1/e."""
  draws = np.array([l1_example.mixed(80, seed)[1] for seed in range(100)])
  own = np.isclose(draws, l1_example.perturbed()[1])
  assert np.isclose(draws[~own], 2 / 9).all()
  p = math.exp(-1)
  assert abs(own.mean() - p) < 4 * math.sqrt(p * (1 - p) / 100)


def test_expected_loss_rises_to_the_average():
  losses = [l1_example.expected_loss(t) for t in (1, 10, 100, 10_000)]
  assert losses == sorted(losses)
  assert losses[-1] == pytest.approx(5 / 3)


def test_main(capsys):
  l1_example.main()
  out = capsys.readouterr().out
  for text in ('[0.0000, 0.4444]    1.5556  0.0000', '1.6667  0.2222'):
    assert text in out
