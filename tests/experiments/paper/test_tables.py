import math

import pandas as pd
import pytest

from safl_tf.experiments.paper import experiments, results, tables
from tests.experiments.paper import make_runs as made


def tables_of(result):
  paper = results.paper_numbers()[result.plan.experiment]
  return tables.tables(result, paper)


def numbers_of(result):
  paper = results.paper_numbers()[result.plan.experiment]
  return tables.numbers(result, paper)


def only_table(result):
  (frame,) = tables_of(result).values()
  return frame


def row(frame, label):
  """The cells of a row by column, without empty ones."""
  (result,) = frame[frame.iloc[:, 0] == label].to_dict('records')
  return {k: v for k, v in list(result.items())[1:] if v != ''}


def test_early_accuracy():
  name = 'early_accuracy'
  several = [
    made.flat(name, a, 50, algorithm=algorithm, dataset=dataset)
    for dataset, accuracies in {
      'mnist': (0.99, 0.878, 0.942),
      'fashion_mnist': (0.92, 0.80, 0.75),
    }.items()
    for algorithm, a in zip(
      ('centralized', 'fedavg', 'safl'), accuracies, strict=True
    )
  ]
  missing = dict.fromkeys(('cifar10', 'speech_commands'), 'is not there')
  result = made.results(name, *several, missing=missing)
  frame = only_table(result)
  assert list(frame['']) == ['MNIST, round 50', 'Fashion-MNIST, round 50']
  assert row(frame, 'MNIST, round 50') == {
    'our round': '50',
    'size': "paper's",
    'Centralised accuracy (%)': '99.0 (99)',
    'Centralised top-5 (%)': '99.0 (99)',
    'FedAvg accuracy (%)': '87.8 (30)',
    'FedAvg top-5 (%)': '87.8 (90)',
    'SAFL accuracy (%)': '94.2 (94)',
    'SAFL top-5 (%)': '94.2 (99)',
  }
  assert row(frame, 'Fashion-MNIST, round 50')['SAFL top-5 (%)'] == '75.0 (99)'
  assert len(tables.values(numbers_of(result))) == 12


def test_sizes_and_rounds_at_the_scale_cpu():
  result = made.complete('early_accuracy', 'cpu')
  frame = only_table(result)
  assert list(frame['size']) == ["paper's", 'smaller', 'smaller', 'smaller']
  assert list(frame['our round']) == ['50', '50', '50', '20']
  values = tables.values(numbers_of(result))
  full = values[values['of_the_papers_size']]
  assert set(full['what']) == {
    f'{name}, MNIST' for name in ('Centralised', 'FedAvg', 'SAFL')
  }


def test_epsilon_temperature():
  cell = {'algorithm': 'safl', 'epsilon': 0.3, 'temperature': 80}
  result = made.results(
    'epsilon_temperature',
    made.flat('epsilon_temperature', 0.95, 20, algorithm='centralized'),
    made.flat('epsilon_temperature', 0.94, 50, **cell),
  )
  frame = only_table(result)
  assert len(frame) == 8
  central, safl, missing = (
    row(frame, f'{label}, round 50')
    for label in ('Centralised', 'SAFL, ε = 0.3, L = 80', 'FedAvg')
  )
  assert (central['loss'], safl['loss']) == ('0.050 (0.075)', '0.060 (0.186)')
  assert safl['accuracy (%)'] == '94.0 (95.3)'
  assert missing == {'loss': '- (0.476)', 'accuracy (%)': '- (88.2)'}


def test_batch_size():
  several = [
    made.flat(
      'batch_size', 0.97 - i / 100, algorithm='safl', batch_size=B, size='half'
    )
    for i, B in enumerate((50, 100, 150, 200))
  ]
  frame = only_table(made.results('batch_size', *several))
  assert list(row(frame, 'SAFL, half of the data, round 100').values()) == [
    *('100', "paper's", '97.0 (97.99)', '96.0 (97.55)'),
    *('95.0 (97.25)', '94.0 (94.01)'),
  ]


def test_values():
  result = made.complete('uploads', 'cpu', seeds=(0, 1))
  frame = tables.values(numbers_of(result))
  assert len(frame) == 18
  number = frame[(frame['what'] == 'FedAvg') & (frame['paper_round'] == 60)]
  (accuracy,) = number[number['measure'] == 'accuracy'].to_dict('records')
  value = result.get(algorithm='fedavg').at(60)
  assert accuracy['paper'] == 0.5222
  assert (accuracy['mean'], accuracy['sd']) == (value.mean, value.sd)
  assert (accuracy['runs'], accuracy['of_the_papers_size']) == (2, True)


def test_accuracy_by_round():
  name = 'convergence_mnist'
  jumps = [0.1] * 33 + [0.85] * 20 + [0.96] * 47
  frame = only_table(
    made.results(
      name,
      made.flat(name, 0.2, algorithm='fedavg', n=40),
      made.runs(name, made.rows(jumps), algorithm='safl', n=40),
      made.flat(name, 0.97, 20, algorithm='centralized'),
    )
  )
  assert list(frame['']) == ['FedAvg, n = 40', 'SAFL, n = 40', 'Centralised']
  assert row(frame, 'FedAvg, n = 40')['95 % in round'] == '-'
  assert row(frame, 'SAFL, n = 40') == {
    **{f'round {t} (%)': '85.0' for t in (35, 50)},
    **{f'round {t} (%)': '96.0' for t in (56, 70, 100)},
    'round 20 (%)': '10.0',
    'last (%)': '96.0',
    '80 % in round': '34',
    '95 % in round': '54',
  }
  assert row(frame, 'Centralised') == {'last (%)': '97.0'}


def test_accuracy_by_round_of_smaller_runs():
  frame = only_table(made.complete('convergence_speech', 'cpu'))
  assert list(frame)[1:3] == ['round 4 for 20 (%)', 'round 7 for 35 (%)']
  assert frame[''][0] == 'FedAvg, n = 2 for 40'


def test_techniques():
  frame = only_table(made.complete('techniques', 'cpu'))
  assert list(frame['']) == [
    *('FedSGD', 'FedAvg', 'ASTW', 'IDA', 'FedMA', 'SAFL', 'ASTW-SAFL'),
    'IDA-SAFL',
  ]
  assert 'round 50 (%)' in frame and 'round 70 (%)' not in frame


def test_biased():
  several = [
    made.flat('biased', accuracy, algorithm=algorithm, group=group)
    for algorithm, group, accuracy in (
      ('fedavg', 'without', 0.9),
      ('fedavg', 'with', 0.6),
      ('safl', 'without', 0.9),
    )
  ]
  frame = only_table(made.results('biased', *several))
  assert frame.values.tolist() == [
    ['FedAvg', '90.0', '60.0', '+30.0'],
    ['SAFL', '90.0', '-', '-'],
    ['Extended SAFL', '-', '-', '-'],
  ]


def test_sensitivity():
  name = 'sensitivity'
  leads = {'base': 0.3, 'alpha0.001': 0.5, 'n120': 0.01, 'init_shared': -0.021}
  several = []
  for setting, lead in leads.items():
    several += [
      made.flat(name, 0.4, 50, algorithm='fedavg', setting=setting),
      made.flat(name, 0.4 + lead, 50, algorithm='safl', setting=setting),
    ]
  histories = [made.rows([0.4] * 6 + [1.0] + [0.7] * 43)]
  several[1] = several[1]._replace(histories=histories)
  # Without its partner, a run has no row.
  several.append(made.flat(name, 0.4, 50, algorithm='fedavg', setting='adam'))
  frame = only_table(made.results(name, *several))
  assert frame.values.tolist() == [
    ['n = 80, rate 0.1', '40.0', '70.0', '+30.0', '+60.0', 7],
    ['rate 0.05', '40.0', '90.0', '+50.0', '+50.0', 1],
    ['n = 120', '40.0', '41.0', '+1.0', '+1.0', 1],
    ['one initial model for all', '40.0', '37.9', '-2.1', '-2.1', 1],
  ]


def test_annealing():
  name = 'annealing'
  several = [
    made.flat(name, 0.7, 50, algorithm='fedavg', setting='n = 50'),
    made.flat(name, 0.9, 50, setting='n = 50', temperature=80),
    made.flat(name, 0.6, 50, setting='n = 12, Adam', temperature=80),
    made.flat(name, 0.95, 50, setting='n = 12, Adam', temperature=10),
  ]
  frame = only_table(made.results(name, *several))
  wanted = {
    '': ['n = 50', 'n = 12, Adam'],
    'FedAvg': ['70.0 (-)', ''],
    'SAFL, L = 80': ['90.0 (1)', '60.0 (-)'],
    'SAFL, L = 10': ['', '95.0 (1)'],
  }
  pd.testing.assert_frame_equal(frame, pd.DataFrame(wanted, dtype=object))


@pytest.mark.parametrize(
  'lead, text', [(0.245, '+24.5'), (-1e-5, '+0.0'), (math.nan, '-')]
)
def test_format_points(lead, text):
  assert tables.format_points(lead) == text


def upload_runs(shares, rounds=80):
  """FedAvg and SAFL, and Extended SAFL by ν -> share of uploads."""
  for algorithm, accuracy in (('fedavg', 0.93), ('safl', 0.96)):
    history = made.rows([accuracy] * rounds, selected=50)
    yield made.runs('uploads', history, algorithm=algorithm)
  for nu, share in shares.items():
    history = made.rows([0.97] * rounds, selected=50, uploaded=50 * share)
    yield made.runs('uploads', history, algorithm='extended_safl', nu=nu)


def test_uploads():
  shares = {0.15: 0.6, 0.3: 0.68, 0.5: 0.75}
  result = tables_of(made.results('uploads', *upload_runs(shares)))
  (title, table), (_, search) = result.items()
  assert title == 'Table VI: ours (paper), ν = 0.3'
  assert row(table, 'round 60') == {
    'our round': '60',
    'size': "paper's",
    'FedAvg uploads': '3,000 (3,050)',
    'FedAvg accuracy (%)': '93.0 (52.22)',
    'SAFL uploads': '3,000 (3,050)',
    'SAFL accuracy (%)': '96.0 (93.72)',
    'Extended SAFL uploads': '2,040 (2,023)',
    'Extended SAFL accuracy (%)': '97.0 (94.83)',
  }
  # 71.2 % lies 45 % of the way from 68 to 75 %, on the scale of log ν.
  weight = (2883 / 4050 - 0.68) / 0.07
  nu = math.exp(math.log(0.3) + weight * math.log(0.5 / 0.3))
  assert search.values.tolist() == [
    ['0.15', '60.0', '60.0', '60.0', '97.0'],
    ['0.3', '68.0', '68.0', '68.0', '97.0'],
    ['0.5', '75.0', '75.0', '75.0', '97.0'],
    [f'{nu:.2g} (interpolated)', '', '', '71.2', ''],
    ['in the paper', '66.3', '69.0', '71.2', '96.51'],
  ]


def test_no_nu_has_the_share_of_the_paper():
  result = tables_of(
    made.results('uploads', *upload_runs({0.3: 0.9, 0.5: 0.8}))
  )
  search = result['Share of uploads by ν']
  assert list(search['ν']) == ['0.3', '0.5', 'in the paper']


def test_uploads_of_short_runs():
  """Without a share in any of the paper's rounds, the first ν is kept."""
  result = made.results('uploads', *upload_runs({0.3: 0.9, 0.5: 0.7}, rounds=5))
  assert next(iter(tables_of(result))) == 'Table VI: ours (paper), ν = 0.3'


@pytest.mark.parametrize('scale', ['paper', 'cpu', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_nothing_and_everything_finished(name, scale):
  tables_of(made.results(name, scale=scale))
  for frame in tables_of(made.complete(name, scale, seeds=(0, 1))).values():
    assert (
      len(frame)
      and not frame.map(lambda cell: str(cell)[0:1] == '-').iloc[:, 1].any()
    )
