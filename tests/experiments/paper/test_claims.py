"""Every rule, both ways."""

import math

import pytest

from safl_tf.experiments.paper import claims, run_stats
from tests.experiments.paper import make_runs as made

AGREES, DIFFERS, OPEN = claims.AGREES, claims.DIFFERS, claims.OPEN
FLAT = [0.1] * 100


def runs(accuracies, *more, algorithm='safl', n=80, scale='paper'):
  histories = [made.rows(values) for values in (accuracies, *more)]
  cell = {'algorithm': algorithm, 'n': n}
  return made.runs('convergence_mnist', *histories, scale=scale, **cell)


def reaching(level, at, rounds=100):
  """Accuracies that jump to a level in a round."""
  return [0.1] * (at - 1) + [level] * (rounds - at + 1)


def value(mean, sd=None):
  return run_stats.Value(mean, sd, 1)


def test_runs():
  found = runs([0.1, None, 0.3, 0.4], [0.3, 0.9, 0.5, 0.6])
  assert found.name == 'SAFL' and found.last == 4
  assert found.at(1) == run_stats.value([0.1, 0.3])
  assert found.at(2) == run_stats.value([0.1, 0.9])  # the last up to there
  assert found.at(5) is None
  assert found.final() == found.at(4)
  assert found.total(3) == run_stats.value([30, 30]) and found.total(5) is None
  assert list(found.by_round()) == [1, 3, 4]
  assert (found.first(0.4), found.first(0.45), found.first(0.6)) == (3, 4, None)
  assert found.best() == pytest.approx(0.5)
  curve = found.curve()
  assert (curve.name, list(curve.x)) == ('SAFL', [1, 3, 4])
  assert curve.y == pytest.approx([20, 40, 50])
  assert curve.spread == pytest.approx([100 * math.sqrt(0.02)] * 3)
  assert runs([None, 0.2]).at(1) is None


def test_values():
  assert run_stats.value([0.5]) == (0.5, None, 1)
  mean, sd, count = run_stats.value([1.0, 2.0, 3.0])
  assert (mean, sd, count) == (2, 1, 3)
  diverged = run_stats.value([0.5, math.nan])
  assert math.isnan(diverged.mean) and diverged.sd is None
  assert run_stats.percent(value(0.9417)) == '94.2'
  assert run_stats.percent(value(0.9417, 0.003)) == '94.2 ± 0.3'
  assert run_stats.cost(value(0.18649)) == '0.186'
  assert run_stats.count(value(2023.4)) == '2,023'
  assert run_stats.percent(None) == '-'


def test_rounds_of_smaller_runs():
  found = runs(made.ramp(20, 0.05, 1.0), scale='smoke')
  part = found.part._replace(flags={**found.part.flags, 'rounds': 20})
  found = found._replace(part=part)
  assert found.at(100).mean == pytest.approx(1.0)
  assert found.at(50).mean == pytest.approx(0.5)
  assert found.at(105) is None


def test_has_learned():
  assert not runs([0.1, 0.19]).has_learned()
  assert runs([0.2, 0.1]).has_learned()
  cell = {'algorithm': 'safl', 'n': 80}
  words = made.runs('convergence_speech', made.rows([0.07]), **cell)
  assert words.has_learned()  # of 30


def test_cells():
  a, b = runs(FLAT, n=40), runs(FLAT, n=80)
  central = made.runs(
    'convergence_mnist', made.rows(FLAT), algorithm='centralized'
  )
  found = made.results('convergence_mnist', b, central, a)
  assert found.get(algorithm='safl', n=80) is b
  assert found.get(algorithm='safl', n=120) is None
  assert found.get(algorithm='centralized', n=80) is central
  assert found.where(n=40) == [a]
  assert found.where(algorithm='safl') == [a, b]
  assert found.seconds == 3 * 100 * 2


@pytest.mark.parametrize(
  'key, found, clients, told',
  [
    ('n', 80, 80, 'n = 80'),
    ('n', 80, 4, 'n = 4 for 80'),
    ('fraction', 0.7, 100, 'R = 0.7'),
    ('dataset', 'fashion_mnist', 80, 'on Fashion-MNIST'),
  ],
)
def test_where(key, found, clients, told):
  part = runs(FLAT).part._replace(flags={'num_clients': clients})
  assert run_stats.where(key, found, part) == told


def compared(what, ours, paper, measure='accuracy', like_paper=True):
  found = None if ours is None else value(ours)
  return claims.Compared(what, measure, 50, found, paper, like_paper)


def test_values_beside_the_papers():
  found = claims.values(
    [
      compared('A', 0.96, 0.94),
      compared('B', 0.9601, 0.94),
      compared('C', 0.92, 0.94),
      compared('D', 0.878, 0.3),
      compared('E', None, 0.5),
      compared('F', 0.5, 0.5, like_paper=False),
    ],
    'accuracies',
  )
  assert found == [
    (
      AGREES,
      '2 of 4 accuracies as in the paper: A 96.0 (94); C 92.0 (94).',
      2,
    ),
    (
      DIFFERS,
      '2 of 4 accuracies not as in the paper: B 96.0 (94); D 87.8 (30).',
      2,
    ),
  ]
  assert claims.values([compared('F', 0.5, 0.5, like_paper=False)], 'a') == []


@pytest.mark.parametrize(
  'measure, ours, paper, near, told',
  [
    ('cost', 0.236, 0.186, True, 'A 0.236 (0.186)'),
    ('cost', 0.237, 0.186, False, 'A 0.237 (0.186)'),
    ('cost', math.nan, 0.186, False, 'A nan (0.186)'),
    ('uploads', 1922, 2023, True, 'A 1,922 (2,023)'),
    ('uploads', 1921, 2023, False, 'A 1,921 (2,023)'),
    ('top5', 0.97, 0.99, True, 'A 97.0 (99)'),
    ('accuracy', 0.9359, 0.9153, False, 'A 93.6 (91.53)'),
  ],
)
def test_bounds(measure, ours, paper, near, told):
  found = compared('A', ours, paper, measure)
  assert (found.is_near, found.told) == (near, told)


@pytest.mark.parametrize(
  'ours, learned, verdict, text',
  [
    ((0.3, 0.9), True, AGREES, "X: A 30.0 < B 90.0, the paper's order."),
    ((0.9, 0.3), True, DIFFERS, 'X: B 30.0 < A 90.0; in the paper A < B.'),
    ((0.9, 0.9), True, DIFFERS, 'X: A 90.0 < B 90.0; in the paper A < B.'),
    ((0.1, 0.12), False, OPEN, 'X: nothing was learned.'),
    ((0.1, None), True, OPEN, 'X: there is no B.'),
  ],
)
def test_order(ours, learned, verdict, text):
  values = [None if mean is None else value(mean) for mean in ours]
  found = claims.order(
    'X', dict(zip('AB', values, strict=True)), {'A': 0.5, 'B': 0.6}, learned
  )
  assert found == (verdict, text, 0)


def test_equal_numbers_of_the_paper_have_no_order():
  ours = {'A': value(0.9), 'B': value(0.8)}
  found = claims.order('X', ours, {'A': 0.99, 'B': 0.99}, True)
  assert found.verdict == AGREES


@pytest.mark.parametrize(
  'accuracies, verdict, text',
  [
    (reaching(0.96, 56), AGREES, 'reaches 95 % in round 56'),
    (reaching(0.95, 20), AGREES, 'reaches 95 % in round 20'),
    (reaching(0.96, 57), DIFFERS, 'reaches 95 % in round 57'),
    (
      FLAT,
      DIFFERS,
      'does not reach 95 % within 100 rounds (best 10.0 %)',
    ),
    (
      [0.1, 0.5] * 20,
      OPEN,
      'does not reach 95 % within 40 rounds (best 50.0 %)',
    ),
    (reaching(0.96, 40, 40), AGREES, 'reaches 95 % in round 40'),
  ],
)
def test_reaches(accuracies, verdict, text):
  found = claims.reaches('SAFL', runs(accuracies), 0.95, 56)
  assert found == (verdict, f'SAFL {text}; the paper: by round 56.', 0)


@pytest.mark.parametrize(
  'accuracies, verdict, text',
  [
    (reaching(0.9, 71), AGREES, 'reaches 80 % in round 71'),
    (reaching(0.8, 70), DIFFERS, 'reaches 80 % in round 70'),
    (FLAT, AGREES, 'does not reach 80 % within 100 rounds (best 10.0 %)'),
    (FLAT[:69], OPEN, 'does not reach 80 % within 69 rounds (best 10.0 %)'),
    (reaching(0.8, 30, 36), DIFFERS, 'reaches 80 % in round 30'),
  ],
)
def test_reaches_later(accuracies, verdict, text):
  found = claims.reaches('FedAvg', runs(accuracies), 0.8, 70, later=True)
  said = f'FedAvg {text}; the paper: after more than 70 rounds.'
  assert found == (verdict, said, 0)


@pytest.mark.parametrize('later', [False, True])
@pytest.mark.parametrize('accuracies', [[0.1, 0.1, 0.99], FLAT[:3]])
def test_levels_of_smaller_runs_are_not_compared(accuracies, later):
  small = runs(accuracies, scale='smoke')
  found = claims.reaches('SAFL', small, 0.95, 56, later)
  assert found.verdict == OPEN and found.text.endswith(' Sizes differ.')


def ahead(safl, fedavg, t=50, lead=0.5, scale='paper'):
  a = runs(safl, scale=scale)
  b = runs(fedavg, algorithm='fedavg', scale=scale)
  return claims.is_ahead('SAFL', a, b, t, lead)


@pytest.mark.parametrize(
  'safl, verdict, text',
  [
    (
      reaching(0.7, 30),
      AGREES,
      'SAFL is 60.0 points ahead of FedAvg in round 50; the paper: ahead of '
      'FedAvg by 50 points. Its largest lead is 60.0 points, in round 30.',
    ),
    (
      reaching(0.6, 30),
      AGREES,
      'SAFL is 50.0 points ahead of FedAvg in round 50; the paper: ahead of '
      'FedAvg by 50 points. Its largest lead is 50.0 points, in round 30.',
    ),
    (
      reaching(0.59, 30),
      DIFFERS,
      'SAFL is 49.0 points ahead of FedAvg in round 50; the paper: ahead of '
      'FedAvg by 50 points. Its largest lead is 49.0 points, in round 30.',
    ),
    (
      [0.05] * 99 + [0.3],
      DIFFERS,
      'SAFL is 5.0 points behind FedAvg in round 50; the paper: ahead of '
      'FedAvg by 50 points. Its largest lead is 20.0 points, in round 100.',
    ),
    (
      [*FLAT[:40], 0.3],
      OPEN,
      'SAFL: no value for round 50; the paper: ahead of FedAvg by 50 points.',
    ),
    (
      FLAT,
      OPEN,
      'SAFL: nothing was learned; the paper: ahead of FedAvg by 50 points.',
    ),
  ],
)
def test_is_ahead(safl, verdict, text):
  assert ahead(safl, FLAT) == (verdict, text, 0)


@pytest.mark.parametrize(
  'safl, verdict', [(0.31, AGREES), (0.3, DIFFERS), (0.2, DIFFERS)]
)
def test_who_is_ahead_in_smaller_runs(safl, verdict):
  """Only who is ahead, not how far; the last round stands for the 100th."""
  found = ahead([0.1, 0.2, safl], [0.1, 0.2, 0.3], t=100, scale='smoke')
  assert found.verdict == verdict
  assert (
    'in round 3; the paper: ahead of FedAvg by 50 points, at ' in found.text
  )


def test_is_ahead_of_nobody():
  found = ahead([0.05] * 100, [0.3] * 100, lead=None)
  assert found == (
    DIFFERS,
    'SAFL is 25.0 points behind FedAvg in round 50; the paper: ahead of '
    'FedAvg.',
    0,
  )


@pytest.mark.parametrize(
  'safl, verdict, text',
  [
    (
      [0.2, 0.6, 0.4],
      AGREES,
      'SAFL is 10.0 points ahead of FedAvg on average over the rounds up to 3; '
      'the paper: ahead. Its largest lead is 30.0 points, in round 2.',
    ),
    (
      [0.2, 0.3, 0.1],
      DIFFERS,
      'SAFL is 10.0 points behind FedAvg on average over the rounds up to 3; '
      'the paper: ahead.',
    ),
    ([None, None], OPEN, 'SAFL: there is no round to compare.'),
  ],
)
def test_is_ahead_on_average(safl, verdict, text):
  other = runs([0.2, 0.3, 0.4], algorithm='fedavg')
  assert claims.is_ahead_on_average('SAFL', runs(safl), other) == (
    verdict,
    text,
    0,
  )


def test_nobody_is_ahead_if_nothing_was_learned():
  a, b = runs([0.15]), runs([0.1], algorithm='fedavg')
  found = claims.is_ahead_on_average('SAFL', a, b)
  assert found.verdict == OPEN


@pytest.mark.parametrize(
  'safl, verdict, text',
  [
    (0.92, AGREES, 'is 2.0 points ahead of FedMA in round 50'),
    (0.88, AGREES, 'is 2.0 points behind FedMA in round 50'),
    (0.921, DIFFERS, 'is 2.1 points ahead of FedMA in round 50'),
    (0.8, DIFFERS, 'is 10.0 points behind FedMA in round 50'),
  ],
)
def test_is_near(safl, verdict, text):
  other = made.runs('techniques', made.rows([0.9] * 50), algorithm='fedma')
  mine = made.runs('techniques', made.rows([safl] * 50), algorithm='safl')
  found = claims.is_near('SAFL', mine, other, 50)
  assert found == (
    verdict,
    f'SAFL {text}; the paper: about as good as FedMA.',
    0,
  )
  assert claims.is_near('SAFL', mine, other, 51).verdict == OPEN
  poor = made.runs('techniques', made.rows([0.1] * 50), algorithm='fedma')
  low = made.runs('techniques', made.rows([0.1] * 50), algorithm='safl')
  assert claims.is_near('SAFL', low, poor, 50).text == (
    'SAFL: nothing was learned; the paper: about as good as FedMA.'
  )


def test_is_near_centralised():
  """It is taken after its last round, whichever that is."""
  other = made.runs(
    'convergence_mnist', made.rows([0.5, 0.99]), algorithm='centralized'
  )
  found = claims.is_near('SAFL', runs([0.98] * 100), other, 100)
  assert found.verdict == AGREES
  assert '1.0 points behind Centralised in round 100' in found.text


@pytest.mark.parametrize(
  'claim, verdict, text',
  [
    ({'accuracy': 0.95, 'round': 56}, AGREES, 'SAFL, n = 80 reaches 95 %'),
    ({'below': 0.95, 'round': 56}, DIFFERS, 'SAFL, n = 80 reaches 95 %'),
    ({'over': 'fedavg', 'round': 50}, AGREES, 'SAFL, n = 80 is 88.0 points'),
    (
      {'over': 'fedavg', 'round': 50, 'lead': 0.9},
      DIFFERS,
      'SAFL, n = 80 is 88.0 points',
    ),
    ({'over': 'fedavg'}, AGREES, 'SAFL, n = 80 is 88.0 points ahead of FedAvg'),
    ({'near': 'fedavg', 'round': 50}, DIFFERS, 'SAFL, n = 80 is 88.0 points'),
    ({'over': 'ida', 'round': 50}, OPEN, 'SAFL, n = 80: IDA was not run.'),
    ({'over': 'fedavg', 'n': 40}, OPEN, 'SAFL, n = 40: was not run.'),
  ],
)
def test_check(claim, verdict, text):
  found = made.results(
    'convergence_mnist',
    runs([0.98] * 100),
    runs(FLAT, algorithm='fedavg'),
  )
  claim = {'n': 80, 'algorithm': 'safl', 'says': '', **claim}
  checked = claims.check(claim, found)
  assert checked.verdict == verdict
  assert checked.text.startswith(text)


@pytest.mark.parametrize('claim', [{'saving': 0.3}, {'best': {}}])
def test_claims_of_other_kinds(claim):
  assert claims.check(claim, made.results('uploads')) is None
