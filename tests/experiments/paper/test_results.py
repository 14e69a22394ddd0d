import math

import pytest

from safl_tf.experiments.paper import results as results_lib
from tests.experiments.paper import make_runs as made

FLAT = [0.1] * 100


def runs(accuracies, *more, algorithm='safl', n=80, scale='paper'):
  histories = [made.rows(values) for values in (accuracies, *more)]
  cell = {'algorithm': algorithm, 'n': n}
  return made.runs('convergence_mnist', *histories, scale=scale, **cell)


def test_means_over_seeds():
  result = runs([0.1, None, 0.3, 0.4], [0.3, 0.9, 0.5, 0.6])
  assert result.algorithm == 'safl' and result.last == 4
  assert result.at(1) == pytest.approx((0.2, math.sqrt(0.02), 2))
  # Round 2 of the first run has no evaluation, so round 1 stands for it.
  assert result.at(2) == pytest.approx((0.5, math.sqrt(0.32), 2))
  assert result.at(5) is None
  assert (
    result.at(None) == result.at(4) == pytest.approx((0.5, 0.1 * 2**0.5, 2))
  )
  assert result.total(3) == (30, 0, 2) and result.total(5) is None
  assert list(result.total_uploads()) == [10, 20, 30, 40]
  by_round = result.by_round()
  assert list(by_round.index) == [1, 3, 4]
  assert list(by_round['mean']) == pytest.approx([0.2, 0.4, 0.5])
  assert list(by_round['std']) == pytest.approx([math.sqrt(0.02)] * 3)
  first = [result.first_round(level) for level in (0.4, 0.45, 0.6)]
  assert first == [3, 4, None]
  assert result.best() == pytest.approx(0.5)
  assert runs([None, 0.2]).at(1) is None


def test_one_seed_has_no_deviation():
  assert runs([0.5]).at(1) == (0.5, None, 1)


def test_diverged_loss():
  """NaN is a value, unlike a missing evaluation."""
  history = made.rows([0.5, 0.5, 0.5], test_loss=[0.1, math.nan, None])
  result = made.runs('fraction', history, algorithm='fedavg', fraction=0.5)
  value = result.at(3, 'test_loss')
  assert math.isnan(value.mean) and value.sd is None
  assert list(result.by_round('test_loss').index) == [1]


@pytest.mark.parametrize(
  'value, factor, digits, text',
  [
    ((0.9417, None, 1), 100, 1, '94.2'),
    ((0.9417, 0.003, 2), 100, 1, '94.2 ± 0.3'),
    ((0.18649, None, 1), 1, 3, '0.186'),
    ((2023.4, None, 1), 1, 0, '2,023'),
  ],
)
def test_format(value, factor, digits, text):
  assert results_lib.Value(*value).format(factor, digits) == text


def test_rounds_of_smaller_runs():
  result = runs(made.ramp(20, 0.05, 1.0), scale='smoke')
  part = result.part._replace(flags={**result.part.flags, 'rounds': 20})
  result = result._replace(part=part)
  assert result.at(100).mean == pytest.approx(1.0)
  assert result.at(50).mean == pytest.approx(0.5)
  assert result.at(105) is None
  assert results_lib.round_label(50, [result]) == '10 for 50'


def test_centralised_training_is_taken_after_its_last_round():
  cell = {'algorithm': 'centralized'}
  result = made.runs('convergence_mnist', made.rows([0.5, 0.99]), **cell)
  assert result.at(1).mean == result.at(100).mean == 0.99


def test_has_learned():
  assert not runs([0.1, 0.19]).has_learned()
  assert runs([0.2, 0.1]).has_learned()
  assert not runs([None]).has_learned()
  cell = {'algorithm': 'safl', 'n': 80}
  words = made.runs('convergence_speech', made.rows([0.07]), **cell)
  assert words.has_learned()  # of 30


def test_lead():
  lead = runs([0.2, 0.6, None, 0.5]).lead(runs([0.1, 0.7, 0.3]))
  assert lead.to_dict() == pytest.approx({1: 0.1, 2: -0.1})


def test_cells():
  a, b = runs(FLAT, n=40), runs(FLAT, n=80)
  central = made.runs(
    'convergence_mnist', made.rows(FLAT), algorithm='centralized'
  )
  result = made.results('convergence_mnist', b, central, a)
  assert result.get(algorithm='safl', n=80) is b
  assert result.get(algorithm='safl', n=120) is None
  assert result.get(algorithm='centralized', n=80) is central
  assert result.where(n=40) == [a]
  assert result.where(algorithm='safl') == [a, b]
  assert result.values('n') == [40, 80, 120]
  assert result.seconds == 3 * 100 * 2


@pytest.mark.parametrize(
  'cell, clients, text',
  [
    ({'algorithm': 'safl', 'n': 80}, 80, 'SAFL, n = 80'),
    ({'algorithm': 'safl', 'n': 80}, 4, 'SAFL, n = 4 for 80'),
    ({'fraction': 0.7}, 100, 'R = 0.7'),
    ({'dataset': 'fashion_mnist'}, 80, 'Fashion-MNIST'),
    ({'epsilon': 0.3, 'temperature': 80}, 50, 'ε = 0.3, L = 80'),
    ({'size': 'half', 'batch_size': 50}, 20, 'half of the data, B = 50'),
  ],
)
def test_describe(cell, clients, text):
  part = runs(FLAT).part._replace(flags={'num_clients': clients})
  assert results_lib.describe(cell, part) == text


def test_describe_skips_keys():
  cell = {'algorithm': 'safl', 'n': 80}
  assert results_lib.describe(cell, skip=['n']) == 'SAFL'
