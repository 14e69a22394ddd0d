"""Verdicts from made-up histories, in both directions."""

import pytest

from safl_tf.experiments.paper import claims, experiments
from safl_tf.experiments.paper import results as results_lib
from tests.experiments.paper import make_runs as made

AGREES, DIFFERS = claims.AGREES, claims.DIFFERS
UNTESTED, MISSING = claims.UNTESTED, claims.MISSING
FLAT = [0.1] * 100


def runs(accuracies, algorithm='safl', scale='paper', n=80):
  cell = {'algorithm': algorithm, 'n': n}
  return made.runs(
    'convergence_mnist', made.rows(accuracies), scale=scale, **cell
  )


def reaching(level, at, rounds=100):
  """Accuracies that jump to a level in a round."""
  return [0.1] * (at - 1) + [level] * (rounds - at + 1)


def claims_of(result, *own, name=None):
  """The claims as dicts; `own` replaces the statements of the paper."""
  paper = results_lib.paper_numbers()[name or result.plan.experiment]
  if own:
    paper = {**paper, 'claims': own}
  return claims.claims(result, paper).to_dict('records')


def check(claim, *several, scale='paper'):
  """The one row of a statement on n = 80."""
  result = made.results('convergence_mnist', *several, scale=scale)
  if scale == 'smoke':  # smaller runs, but not those that are never judged
    result = result._replace(plan=result.plan._replace(scale='cpu'))
  claim = {'algorithm': 'safl', 'n': 80, 'says': 'words', **claim}
  (row,) = claims_of(result, claim)
  assert (row['kind'], row['quote']) == ('statement', 'words')
  return row


@pytest.mark.parametrize(
  'accuracies, verdict, ours',
  [
    (reaching(0.96, 56), AGREES, '56'),
    (reaching(0.95, 20), AGREES, '20'),
    (reaching(0.96, 57), DIFFERS, '57'),
    (FLAT, DIFFERS, 'none up to 100 (best 10.0 %)'),
    ([0.1, 0.5] * 20, UNTESTED, 'none up to 40 (best 50.0 %)'),
    (reaching(0.96, 40, 40), AGREES, '40'),
  ],
)
def test_reaches(accuracies, verdict, ours):
  claim = {'reaches': 0.95, 'is': '≤', 'value': 56}
  row = check(claim, runs(accuracies))
  assert (row['verdict'], row['ours'], row['paper']) == (verdict, ours, '≤ 56')
  assert row['claim'] == 'SAFL, n = 80: first round with 95 %'


@pytest.mark.parametrize(
  'accuracies, verdict',
  [
    (reaching(0.9, 71), AGREES),
    (reaching(0.8, 70), DIFFERS),
    (FLAT, AGREES),
    (FLAT[:69], UNTESTED),
    (reaching(0.8, 30, 36), DIFFERS),
  ],
)
def test_reaches_later(accuracies, verdict):
  row = check({'reaches': 0.8, 'is': '>', 'value': 70}, runs(accuracies))
  assert row['verdict'] == verdict
  assert row['reason'] == ('too few rounds' if verdict == UNTESTED else '')


@pytest.mark.parametrize('relation', ['≤', '>'])
@pytest.mark.parametrize('accuracies', [[0.1, 0.1, 0.99], FLAT[:3]])
def test_levels_of_smaller_runs_are_not_compared(accuracies, relation):
  claim = {'reaches': 0.95, 'is': relation, 'value': 56}
  row = check(claim, runs(accuracies, scale='smoke'), scale='smoke')
  assert row['verdict'] == UNTESTED
  assert row['reason'] == 'smaller than in the paper'


def lead(safl, fedavg, scale='paper', **rule):
  rule = {'minus': {'algorithm': 'fedavg'}, **rule}
  a, b = runs(safl, scale=scale), runs(fedavg, 'fedavg', scale)
  return check(rule, a, b, scale=scale)


@pytest.mark.parametrize(
  'safl, verdict, ours, largest, largest_round',
  [
    (reaching(0.7, 30), AGREES, '+60.0', '+60.0', '30'),
    (reaching(0.6, 30), AGREES, '+50.0', '+50.0', '30'),
    (reaching(0.59, 30), DIFFERS, '+49.0', '+49.0', '30'),
    ([0.05] * 99 + [0.3], DIFFERS, '-5.0', '+20.0', '100'),
    ([*FLAT[:40], 0.3], UNTESTED, '-', '', ''),
    (FLAT, UNTESTED, '+0.0', '+0.0', '1'),  # nothing learned
  ],
)
def test_lead_in_a_round(safl, verdict, ours, largest, largest_round):
  row = lead(safl, FLAT, round=50, **{'is': '≥', 'value': 0.5})
  assert (row['verdict'], row['ours']) == (verdict, ours)
  assert (row['paper'], row['round']) == ('≥ 50', '50')
  assert row['largest_lead'] == largest
  assert row['largest_lead_round'] == largest_round


@pytest.mark.parametrize(
  'safl, verdict', [(0.31, AGREES), (0.3, DIFFERS), (0.2, DIFFERS)]
)
def test_smaller_runs_compare_the_sign_of_a_lead(safl, verdict):
  rule = {'round': 100, 'is': '≥', 'value': 0.5}
  row = lead([0.1, 0.2, safl], [0.1, 0.2, 0.3], 'smoke', **rule)
  assert row['verdict'] == verdict
  assert row['paper'] == '> 0 (≥ 50 at full size)'
  assert row['round'] == '3 for 100'
  assert row['claim'] == 'SAFL, n = 3 for 80 vs. FedAvg: lead (points)'


@pytest.mark.parametrize(
  'safl, verdict, ours',
  [
    ([0.2, 0.6, 0.4], AGREES, '+10.0'),
    ([0.2, 0.3, 0.1], DIFFERS, '-10.0'),
    ([None, None], UNTESTED, '-'),
  ],
)
def test_mean_lead(safl, verdict, ours):
  row = lead(safl, [0.2, 0.3, 0.4], **{'is': '>', 'value': 0})
  assert (row['verdict'], row['ours']) == (verdict, ours)
  if verdict != UNTESTED:
    assert row['round'] == 'mean of 1 to 3'


def test_lead_without_learning():
  row = lead([0.15], [0.1], **{'is': '>', 'value': 0})
  assert (row['verdict'], row['reason']) == (UNTESTED, 'nothing learned')


@pytest.mark.parametrize(
  'safl, verdict',
  [(0.92, AGREES), (0.88, AGREES), (0.921, DIFFERS), (0.8, DIFFERS)],
)
def test_about_as_good(safl, verdict):
  rule = {'round': 50, 'is': '±', 'value': 0.02}
  row = lead([safl] * 50, [0.9] * 50, **rule)
  assert (row['verdict'], row['paper']) == (verdict, '± 2')
  assert lead([safl] * 50, [0.9] * 49, **rule)['verdict'] == UNTESTED


def test_about_as_good_as_centralised():
  central = made.runs(
    'convergence_mnist', made.rows([0.5, 0.99]), algorithm='centralized'
  )
  rule = {'minus': {'algorithm': 'centralized'}, 'round': 100}
  rule |= {'is': '±', 'value': 0.02}
  row = check(rule, runs([0.98] * 100), central)
  assert (row['verdict'], row['ours']) == (AGREES, '-1.0')
  assert row['largest_lead'] == ''  # its rounds are other rounds


@pytest.mark.parametrize('several', [[], ['safl'], ['fedavg']])
def test_missing_runs(several):
  rule = {'minus': {'algorithm': 'fedavg'}, 'is': '>', 'value': 0}
  row = check(rule, *(runs([0.9] * 100, name) for name in several))
  assert (row['verdict'], row['ours']) == (MISSING, '-')


def number_row(accuracy, what, measure='accuracy (%)', **columns):
  """The row of a number of Table IV, with SAFL's history."""
  cell = {'algorithm': 'safl', 'epsilon': 0.3, 'temperature': 80}
  history = made.rows([accuracy] * 50, **columns)
  result = made.results(
    'epsilon_temperature', made.runs('epsilon_temperature', history, **cell)
  )
  label = f'{what}: {measure}'
  (row,) = [row for row in claims_of(result) if row['claim'] == label]
  return row


@pytest.mark.parametrize(
  'accuracy, verdict',
  [(0.973, AGREES), (0.933, AGREES), (0.9731, DIFFERS), (0.932, DIFFERS)],
)
def test_accuracies(accuracy, verdict):
  row = number_row(accuracy, 'SAFL, ε = 0.3, L = 80')
  assert (row['verdict'], row['paper']) == (verdict, '95.3')
  assert (row['ours'], row['kind']) == (f'{100 * accuracy:.1f}', 'number')


@pytest.mark.parametrize(
  'loss, verdict',
  [(0.236, AGREES), (0.237, DIFFERS), (float('nan'), DIFFERS)],
)
def test_losses(loss, verdict):
  row = number_row(0.9, 'SAFL, ε = 0.3, L = 80', 'loss', test_loss=loss)
  assert (row['verdict'], row['paper']) == (verdict, '0.186')


def test_numbers_without_runs():
  assert number_row(0.9, 'FedAvg')['verdict'] == MISSING


def test_numbers_of_smaller_runs():
  rows = claims_of(made.complete('early_accuracy', 'cpu'))
  numbers = [row for row in rows if row['kind'] == 'number']
  for row in numbers:
    assert (row['verdict'] == UNTESTED) == (', MNIST:' not in row['claim'])
  (speech,) = [
    row
    for row in numbers
    if row['claim'] == 'SAFL, Speech Commands: accuracy (%)'
  ]
  assert speech['round'] == '20 for 50'


def upload_claims(share, safl_uploads=50, scale='paper', rounds=80):
  histories = {
    'fedavg': made.rows([0.93] * rounds, selected=50),
    'safl': made.rows([0.96] * rounds, selected=50, uploaded=safl_uploads),
  }
  several = [
    made.runs('uploads', history, scale=scale, algorithm=name)
    for name, history in histories.items()
  ]
  history = made.rows([0.97] * rounds, selected=50, uploaded=50 * share)
  cell = {'algorithm': 'extended_safl', 'nu': 0.3}
  several.append(made.runs('uploads', history, scale=scale, **cell))
  rows = claims_of(made.results('uploads', *several, scale=scale))
  return {(row['claim'], row['round'], row['paper']): row for row in rows}


@pytest.mark.parametrize(
  'share, verdict, ours', [(0.68, AGREES, '32.0'), (0.9, DIFFERS, '10.0')]
)
def test_saved_uploads(share, verdict, ours):
  rows = upload_claims(share)
  row = rows['Extended SAFL: uploads saved (%)', '60', '> 30']
  assert (row['verdict'], row['ours']) == (verdict, ours)
  uploads = rows['Extended SAFL: uploads', '60', '2,023']
  assert uploads['verdict'] == verdict
  assert uploads['ours'] == f'{3000 * share:,.0f}'


def test_saved_uploads_of_smaller_and_shorter_runs():
  small = upload_claims(0.5, scale='smoke', rounds=3)
  row = small['Extended SAFL: uploads saved (%)', '2 for 60', '> 30']
  assert (row['verdict'], row['ours']) == (UNTESTED, '50.0')
  row = upload_claims(0.5, rounds=5)[
    'Extended SAFL: uploads saved (%)', '', '> 30'
  ]
  assert (row['verdict'], row['reason']) == (UNTESTED, 'too few rounds')


@pytest.mark.parametrize(
  'uploaded, verdict, ours', [(50, AGREES, '+0'), (49, DIFFERS, '-80')]
)
def test_same_uploads(uploaded, verdict, ours):
  row = upload_claims(0.7, uploaded)['SAFL vs. FedAvg: uploads', '', '± 0']
  assert (row['verdict'], row['ours']) == (verdict, ours)


@pytest.mark.parametrize(
  'fedavg, extended, verdicts',
  [
    (0.3, 0.01, [AGREES, AGREES]),
    (0.021, 0.02, [AGREES, AGREES]),
    (0.02, 0.021, [DIFFERS, DIFFERS]),
    (-0.05, -0.05, [DIFFERS, AGREES]),
  ],
)
def test_biased_clients(fedavg, extended, verdicts):
  several = []
  for algorithm, loss in (('fedavg', fedavg), ('extended_safl', extended)):
    several += [
      made.flat('biased', 0.9, algorithm=algorithm, group='without'),
      made.flat('biased', 0.9 - loss, algorithm=algorithm, group='with'),
    ]
  rows = claims_of(made.results('biased', *several))
  assert [row['verdict'] for row in rows] == verdicts
  assert [row['paper'] for row in rows] == ['> 2', '≤ 2']
  assert {row['round'] for row in rows} == {'last'}
  assert rows[0]['ours'] == f'{100 * fedavg:+.1f}'


def best_of(values):
  several = [
    made.flat(
      'epsilon_temperature',
      accuracy,
      50,
      algorithm='safl',
      epsilon=e,
      temperature=L,
    )
    for (e, L), accuracy in values.items()
  ]
  rows = claims_of(made.results('epsilon_temperature', *several))
  return [row for row in rows if row['claim'].startswith('SAFL: best ')]


@pytest.mark.parametrize(
  'change, verdict, ours',
  [
    ({}, AGREES, 'ε = 0.3, L = 80'),
    ({(0.5, 10): 0.95}, DIFFERS, 'ε = 0.5, L = 10'),
    ({(0.3, 80): 0.1}, DIFFERS, 'ε = 0.3, L = 10'),
  ],
)
def test_best_settings(change, verdict, ours):
  values = {(e, L): 0.9 for e in (0.3, 0.5, 0.7) for L in (10, 80)}
  loss, accuracy = best_of(values | {(0.3, 80): 0.94} | change)
  assert (loss['verdict'], accuracy['verdict']) == (verdict, verdict)
  assert loss['ours'] == accuracy['ours'] == ours
  assert loss['paper'] == accuracy['paper'] == 'ε = 0.3, L = 80'


def test_no_best_settings():
  values = {(e, L): 0.1 for e in (0.3, 0.5, 0.7) for L in (10, 80)}
  assert {row['verdict'] for row in best_of(values)} == {UNTESTED}
  del values[0.5, 10]
  assert {row['verdict'] for row in best_of(values)} == {MISSING}


def test_batch_sizes():
  """SAFL gets worse with large batches, FedAvg better."""
  several = []
  for i, B in enumerate((50, 100, 150, 200)):
    for algorithm, accuracy in (
      ('fedavg', 0.95 + i / 100),
      ('safl', 0.97 - i / 100),
    ):
      cell = {'algorithm': algorithm, 'size': 'half', 'batch_size': B}
      several.append(made.flat('batch_size', accuracy, **cell))
  rows = claims_of(made.results('batch_size', *several))
  verdicts = {
    row['claim'].split(':')[0]: row['verdict']
    for row in rows
    if row['kind'] == 'statement'
  }
  half = 'half of the data'
  assert verdicts[f'SAFL, {half}, B = 50 vs. FedAvg'] == AGREES
  assert verdicts[f'SAFL, {half}, B = 200 vs. FedAvg'] == DIFFERS
  assert verdicts[f'SAFL, {half}, B = 50 vs. B = 200'] == AGREES
  assert verdicts[f'FedAvg, {half}, B = 50 vs. B = 200'] == DIFFERS
  assert verdicts['SAFL, all of the data, B = 50 vs. FedAvg'] == MISSING


def test_techniques():
  ends = {'ida_safl': 0.81, 'ida': 0.5, 'safl': 0.9, 'fedavg': 0.45}
  ends |= {'fedsgd': 0.1, 'fedma': 0.91, 'astw': 0.7, 'astw_safl': 0.6}
  several = [
    made.flat('techniques', end, algorithm=name) for name, end in ends.items()
  ]
  rows = claims_of(made.results('techniques', *several))
  assert [row['verdict'] for row in rows] == [
    *(AGREES, AGREES, DIFFERS, AGREES, AGREES, DIFFERS),
  ]


@pytest.mark.parametrize('scale', ['paper', 'cpu', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_nothing_and_everything_finished(name, scale):
  rows = claims_of(made.results(name, scale=scale))
  assert all(row['verdict'] == MISSING for row in rows)
  rows = claims_of(made.complete(name, scale, seeds=(0, 1)))
  verdicts = {row['verdict'] for row in rows}
  assert MISSING not in verdicts
  if scale == 'smoke':
    assert verdicts <= {UNTESTED}
  else:
    without = ('sensitivity', 'biased_share', 'learning_rate', 'annealing')
    assert AGREES in verdicts or name in without
