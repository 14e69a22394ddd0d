import numpy as np
import pytest

from safl_tf.algorithms.fed_ma import matching
from safl_tf.algorithms.fed_ma.matching import bbp

PRIOR = np.array([0, 0.1])  # of a weight and a bias
FIRST = np.array([[3.0, 0.0], [0.0, -3.0]])
SECOND = np.array([[0.1, -3.1], [2.9, 0.2]])


def matched(rows, prior=PRIOR, seed=0, **settings):
  settings = matching.MatchConfig('bbp', **settings)
  rng, sizes = np.random.default_rng(seed), np.ones(len(rows))
  return matching.match_units(settings, rows, sizes, prior, rng)


def width(rows, gamma=7.0, sweeps=5, bias=0.0):
  prior = np.zeros(rows[0].shape[1])
  prior[-1] = bias
  return len(matched(rows, prior, gamma=gamma, sweeps=sweeps).counts)


@pytest.mark.parametrize(
  'gamma, opened',
  [
    (7.0, [[7.0005, 5.6142], [6.7455, 5.3592]]),
    (1.0, [[3.1087, 1.7224], [2.8537, 1.4674]]),
  ],
)
def test_score_vector(gamma, opened):
  counts = np.ones(2, int)
  result = bbp.scores(SECOND, PRIOR + FIRST, counts, PRIOR, 2, gamma, 2)
  expected = np.hstack([[[1.6983, 7.7983], [7.1283, 1.0283]], opened])
  np.testing.assert_allclose(result, expected, atol=5e-5)


def test_scores_are_the_sums_over_features():
  rng = np.random.default_rng(0)
  row, sums, prior = (rng.normal(size=s) for s in ((4, 7), (6, 7), (7,)))
  counts, clients, gamma = np.array([1, 3, 12, 2, 9, 15]), 17, 0.7
  result = bbp.scores(row, sums, counts, prior, clients, gamma, 3)
  popular = [1, 3, 10, 2, 9, 10]
  for i, a in enumerate(row):
    for g in range(6):
      s = 1 + counts[g]
      gain = ((sums[g] + a) ** 2 / (s + 1) - sums[g] ** 2 / s).sum()
      c = popular[g]
      expected = gain + np.log(c / (clients - c))
      assert result[i, g] == pytest.approx(expected, rel=1e-12)
    for r in (1, 2, 3):
      gain = ((prior + a) ** 2 / 2 - prior**2).sum()
      expected = gain - 2 * np.log(r) + 2 * np.log(gamma / clients)
      assert result[i, 5 + r] == pytest.approx(expected, rel=1e-12)


def test_map_vector():
  shrunken = matched([FIRST, SECOND], average='map')
  np.testing.assert_array_equal(shrunken.maps, [[0, 1], [1, 0]])
  expected = [[1.96667, 0.1], [0.03333, -2.0]]
  np.testing.assert_allclose(shrunken.rows, expected, atol=5e-6)
  plain = matched([FIRST, SECOND])
  np.testing.assert_allclose(plain.rows, [[2.95, 0.1], [0.05, -3.05]])


def test_clients_of_different_widths():
  wide = np.vstack([SECOND, [5.0, 5.0]])
  result = matched([FIRST, wide], gamma=1.0)
  assert sorted(result.counts.tolist()) == [1, 2, 2]
  # The widest client is the first, so its units keep their places.
  np.testing.assert_array_equal(result.maps[1], [0, 1, 2])
  np.testing.assert_array_equal(result.maps[0], [1, 0])
  np.testing.assert_array_equal(result.counts, [2, 2, 1])


def test_only_large_units_are_matched():
  """Identical ones of two clients are, if |w|² > 6·ln(γ/2) = 7.5."""
  threshold = 6 * np.log(7 / 2)
  assert threshold == pytest.approx(7.5, abs=0.02)
  for square, expected in ((threshold - 0.1, 2), (threshold + 0.1, 1)):
    assert width([np.full((1, 4), np.sqrt(square / 4))] * 2) == expected


@pytest.mark.parametrize(
  'clients, expected', [(2, 19), (5, 24), (10, 25), (50, 16)]
)
def test_identical_units_grow(clients, expected):
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(16, 100)) / 10  # |w|² is about 1
  copies = [rows[rng.permutation(16)] for _ in range(clients)]
  assert width(copies) == expected
  scale = np.sqrt(10) / np.linalg.norm(rows, axis=1, keepdims=True)
  assert width([rows * scale] * clients) == 16


# LeNet-5's layers: inputs, what Glorot's rule counts as outputs, units.
LAYERS = {
  'conv1': (25, 150, 6),
  'conv2': (150, 400, 16),
  'fc1': (256, 120, 120),
  'fc2': (120, 84, 84),
}


def glorot(name, clients):
  inputs, outputs, count = LAYERS[name]
  limit = np.sqrt(6 / (inputs + outputs))
  rng = np.random.default_rng(0)
  return [
    np.hstack(
      [rng.uniform(-limit, limit, (count, inputs)), np.zeros((count, 1))]
    )
    for _ in range(clients)
  ]


@pytest.mark.parametrize(
  'name, clients, expected',
  [
    ('conv1', 2, 9),
    ('conv1', 10, 24),
    ('conv1', 20, 25),
    ('conv2', 2, 19),
    ('conv2', 10, 34),
    ('conv2', 20, 35),
    ('fc1', 2, 124),
    ('fc1', 10, 138),
    ('fc2', 2, 88),
    ('fc2', 10, 102),
  ],
)
def test_initial_layers_grow(name, clients, expected):
  rows = glorot(name, clients)
  assert width(rows, sweeps=1, bias=matching.BIAS_PRIOR) == expected
  for gamma in (1.0, 1e-3):
    grown = width(rows, gamma, sweeps=1, bias=matching.BIAS_PRIOR)
    assert grown == len(rows[0])


def test_a_huge_gamma_matches_nothing():
  rows = [np.random.default_rng(k).normal(size=(5, 3)) for k in range(4)]
  result = matched(rows, np.zeros(3), gamma=1e30)
  assert len(result.counts) == 20 and (result.counts == 1).all()


def test_every_unit_gets_a_place_beyond_the_cap(monkeypatch):
  """As many units as the widest client has twice are always there."""
  monkeypatch.setattr(bbp, '_CAP', 3)
  rows = [np.random.default_rng(k).normal(size=(5, 3)) for k in range(8)]
  result = matched(rows, np.zeros(3), gamma=1e30)
  assert all(len(np.unique(pi)) == 5 for pi in result.maps)
  # Ten at once, and then one for each client.
  assert 10 <= len(result.counts) <= 10 + 8


def test_the_seed_orders_the_sweeps():
  rng = np.random.default_rng(0)
  rows = [rng.normal(size=(12, 6)) for _ in range(8)]
  first, same, *others = (
    np.concatenate(matched(rows, np.zeros(6), seed=seed, sweeps=1).maps)
    for seed in (0, 0, 1, 2, 3)
  )
  np.testing.assert_array_equal(first, same)
  assert any(not np.array_equal(first, other) for other in others)


def test_nothing_is_changed():
  rows = [FIRST.copy(), SECOND.copy()]
  matched(rows)
  np.testing.assert_array_equal(rows, [FIRST, SECOND])
