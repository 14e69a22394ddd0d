"""What experiments come to, with hand-made histories."""

import copy
import math

import pytest

from safl_tf.reproduction import claims, experiments, findings
from tests.reproduction import made

AGREES, DIFFERS, OPEN, SEEN = (
  claims.AGREES,
  claims.DIFFERS,
  claims.OPEN,
  claims.SEEN,
)


def of(outcome, verdict):
  return [f.text for f in outcome.findings if f.verdict == verdict]


def flat(experiment, accuracy, rounds=100, scale='paper', **cell):
  """A run whose accuracy is the same in all rounds."""
  history = made.rows([accuracy] * rounds)
  return made.runs(experiment, history, scale=scale, **cell)


def leaves(tree, path=()):
  """The paths of all numbers in a tree of dicts and lists."""
  if isinstance(tree, dict):
    for key, value in tree.items():
      yield from leaves(value, (*path, key))
  elif isinstance(tree, list):
    for i, value in enumerate(tree):
      yield from leaves(value, (*path, i))
  elif isinstance(tree, (bool, int, float)):
    yield path


@pytest.fixture(scope='module')
def outcomes():
  """Of all experiments, complete."""
  return {
    name: findings.find(made.complete(name)) for name in experiments.EXPERIMENTS
  }


@pytest.mark.parametrize(
  'path',
  list(leaves(findings.paper_numbers())),
  ids=lambda path: '-'.join(map(str, path)),
)
def test_every_number_of_the_paper_is_used(path, outcomes):
  """Another number would give another outcome."""
  numbers = copy.deepcopy(findings.paper_numbers())
  inner = numbers
  for key in path[:-1]:
    inner = inner[key]
  last = inner[path[-1]]
  inner[path[-1]] = (not last) if isinstance(last, bool) else last * 1.25
  if path[-1] in ('round', 'better', 'worse', 'n'):
    inner[path[-1]] = {56: 57, 35: 3, 70: 10, 50: 100, 200: 150}.get(
      last, last // 2
    )
  results = made.complete(path[0])
  assert findings.find(results, numbers) != outcomes[path[0]]


def test_every_sentence_of_the_paper_is_there():
  for name, numbers in findings.paper_numbers().items():
    assert numbers['source']
    assert all(claim['says'] for claim in numbers.get('claims', ()))
    assert name == 'sensitivity' or numbers['claims']


@pytest.mark.parametrize('scale', ['paper', 'cpu', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_nothing_is_finished_or_everything(name, scale):
  empty = findings.find(made.results(name, scale=scale))
  assert of(empty, AGREES) == of(empty, DIFFERS) == []
  whole = findings.find(made.complete(name, scale, seeds=(0, 1)))
  assert of(whole, AGREES) or name == 'sensitivity'
  cells = [line[1] for table in whole.tables for line in table.lines[1:]]
  assert '-' not in cells
  assert all(c.x for chart in whole.charts.values() for c in chart.curves)
  for table in (*empty.tables, *whole.tables):
    assert len({len(line) for line in table.lines}) == 1


def test_convergence():
  name = 'convergence_mnist'
  jumps = [0.1] * 33 + [0.85] * 20 + [0.96] * 47
  found = findings.find(
    made.results(
      name,
      *(flat(name, 0.2, algorithm='fedavg', n=n) for n in (40, 80)),
      *(
        made.runs(name, made.rows(jumps), algorithm='safl', n=n)
        for n in (40, 80)
      ),
      flat(name, 0.97, 20, algorithm='centralized'),
    )
  )
  (table,) = found.tables
  assert table.lines == [
    [
      '',
      *(f'round {t} (%)' for t in (20, 35, 50, 56, 70, 100)),
      'last (%)',
      '80 % in round',
      '95 % in round',
    ],
    ['FedAvg, n = 40', *['20.0'] * 7, '-', '-'],
    ['SAFL, n = 40', '10.0', '85.0', '85.0', *['96.0'] * 4, '34', '54'],
    ['FedAvg, n = 80', *['20.0'] * 7, '-', '-'],
    ['SAFL, n = 80', '10.0', '85.0', '85.0', *['96.0'] * 4, '34', '54'],
    ['Centralised', *[''] * 6, '97.0', '', ''],
  ]
  assert of(found, AGREES)[2:] == [
    'SAFL, n = 80 reaches 95 % in round 54; the paper: by round 56.',
    'SAFL, n = 80 is 76.0 points ahead of FedAvg in round 56; the paper: ahead '
    'of FedAvg by 50 points. Its largest lead is 76.0 points, in round 54.',
    'SAFL, n = 80 is 1.0 points behind Centralised in round 100; the paper: '
    'about as good as Centralised.',
  ]
  assert of(found, DIFFERS) == [
    'FedAvg, n = 80 is 77.0 points behind Centralised in round 100; the paper: '
    'about as good as Centralised.'
  ]
  assert of(found, OPEN) == [
    'SAFL, n = 120: was not run.',
    'SAFL, n = 120: was not run.',
    'FedAvg, n = 120: was not run.',
  ]
  chart = found.charts['accuracy_n80']
  assert chart.title == 'n = 80'
  assert [c.name for c in chart.curves] == [
    'FedAvg',
    'SAFL',
    'Centralised (level)',
  ]
  assert chart.curves[1].y[33] == pytest.approx(85)
  assert chart.curves[2] == ('Centralised (level)', [1, 100], [97.0] * 2, ())
  assert [len(c.x) for c in found.charts['accuracy_n120'].curves] == [0, 0, 2]


def test_smaller_runs_are_told():
  found = findings.find(made.complete('convergence_speech', 'cpu'))
  (table,) = found.tables
  assert table.lines[0][1:3] == ['round 4 for 20 (%)', 'round 7 for 35 (%)']
  assert table.lines[1][0] == 'FedAvg, n = 2 for 40'
  assert found.charts['accuracy_n120'].title == 'n = 6 for 120'
  (first, *_) = of(found, AGREES)
  assert first.startswith('SAFL, n = 2 for 40 is ')


def test_early_accuracy():
  name = 'early_accuracy'
  several = [
    flat(name, a, 50, algorithm=algorithm, dataset=data)
    for data, accuracies in {
      'mnist': (0.99, 0.878, 0.942),
      'fashion_mnist': (0.92, 0.80, 0.75),
    }.items()
    for algorithm, a in zip(
      ('centralized', 'fedavg', 'safl'), accuracies, strict=True
    )
  ]
  reason = dict.fromkeys(('cifar10', 'speech_commands'), 'is not there')
  found = findings.find(made.results(name, *several, missing=reason))
  (table,) = found.tables
  assert table.lines == [
    [
      '',
      *(
        f'{algorithm} {top} (%)'
        for algorithm in ('Centralised', 'FedAvg', 'SAFL')
        for top in ('top-1', 'top-5')
      ),
    ],
    ['MNIST, round 50', '99.0', '99.0', '87.8', '87.8', '94.2', '94.2'],
    ['in the paper', '99', '99', '30', '90', '94', '99'],
    ['Fashion-MNIST, round 50', '92.0', '92.0', '80.0', '80.0', '75.0', '75.0'],
    ['in the paper', '92', '99', '58', '98', '75', '99'],
  ]
  bound = '(in %, within 2 points)'
  assert of(found, AGREES) == [
    f'4 of 6 accuracies {bound} as in the paper: Centralised on MNIST 99.0 '
    '(99); SAFL on MNIST 94.2 (94); Centralised on Fashion-MNIST 92.0 (92); '
    'SAFL on Fashion-MNIST 75.0 (75).',
    f'1 of 6 top-5 accuracies {bound} as in the paper: Centralised on MNIST '
    '99.0 (99).',
    "MNIST, top-1: FedAvg 87.8 < SAFL 94.2 < Centralised 99.0, the paper's "
    'order.',
  ]
  assert of(found, DIFFERS)[0] == (
    f'2 of 6 accuracies {bound} not as in the paper: FedAvg on MNIST 87.8 '
    '(30); FedAvg on Fashion-MNIST 80.0 (58).'
  )
  assert of(found, DIFFERS)[2:] == [
    'Fashion-MNIST, top-1: SAFL 75.0 < FedAvg 80.0 < Centralised 92.0; in the '
    'paper FedAvg < SAFL < Centralised.',
    'SAFL on Fashion-MNIST is 5.0 points behind FedAvg in round 50; the paper: '
    'ahead of FedAvg by 17 points.',
  ]
  assert of(found, OPEN) == []
  assert list(found.charts) == ['accuracy_mnist', 'accuracy_fashion_mnist']
  assert len(found.compared) == 12


def test_early_accuracy_of_different_sizes():
  """At the scale cpu only MNIST can be compared."""
  found = findings.find(made.complete('early_accuracy', 'cpu'))
  (table,) = found.tables
  assert [line[0] for line in table.lines[1::2]] == [
    'MNIST, round 50',
    'Fashion-MNIST, round 50 (smaller)',
    'CIFAR-10, round 50 (smaller)',
    'Speech Commands, round 20 for 50 (smaller)',
  ]
  assert {c.what.split(' on ')[1] for c in found.compared if c.like_paper} == {
    'MNIST'
  }
  assert sum(f.numbers for f in found.findings) == 6


def epsilon_runs(values):
  """FedAvg, centralised, and SAFL by ε and L; costs are 1 - accuracy."""
  name = 'epsilon_temperature'
  yield flat(name, 0.95, 20, algorithm='centralized')
  yield flat(name, 0.85, 50, algorithm='fedavg')
  for (epsilon, L), accuracy in values.items():
    cell = {'epsilon': epsilon, 'temperature': L}
    yield flat(name, accuracy, 50, algorithm='safl', **cell)


def test_epsilon_temperature():
  values = {(e, L): 0.9 for e in (0.3, 0.5, 0.7) for L in (10, 80)}
  values[0.3, 80] = 0.94
  found = findings.find(
    made.results('epsilon_temperature', *epsilon_runs(values))
  )
  (table,) = found.tables
  assert table.title == 'Test cost and accuracy in round 50'
  assert table.lines[:3] == [
    [
      '',
      *('Centralised cost', 'Centralised (%)', 'FedAvg cost', 'FedAvg (%)'),
      *('SAFL, L = 10 cost', 'SAFL, L = 10 (%)'),
      *('SAFL, L = 80 cost', 'SAFL, L = 80 (%)'),
    ],
    [
      'ε = 0.3',
      *('0.050', '95.0', '0.150', '85.0', '0.100', '90.0', '0.060', '94.0'),
    ],
    [
      'in the paper',
      *('0.075', '98.8', '0.476', '88.2', '0.322', '91.2', '0.186', '95.3'),
    ],
  ]
  assert of(found, AGREES)[-2:] == [
    'ε = 0.3: FedAvg 85.0 < SAFL, L = 10 90.0 < SAFL, L = 80 94.0 < '
    "Centralised 95.0, the paper's order.",
    'The least cost has SAFL, ε = 0.3, L = 80, the best accuracy SAFL, ε = '
    '0.3, L = 80; the paper: both SAFL, ε = 0.3, L = 80.',
  ]
  assert len(found.compared) == 16  # the same numbers in each row count once
  drawn = {c.name: list(c.y) for c in found.charts['cost'].curves}
  assert drawn['L = 80'] == pytest.approx([0.06, 0.1, 0.1])
  assert drawn['L = 80, paper'] == [0.186, 0.204, 0.217]
  values[0.5, 10] = 0.95
  found = findings.find(
    made.results('epsilon_temperature', *epsilon_runs(values))
  )
  assert of(found, DIFFERS)[-1] == (
    'The least cost has SAFL, ε = 0.5, L = 10, the best accuracy SAFL, ε = '
    '0.5, L = 10; the paper: both SAFL, ε = 0.3, L = 80.'
  )


@pytest.mark.parametrize(
  'change, text',
  [
    ({(0.5, 10): None}, 'Not all of SAFL was run.'),
    ({}, 'SAFL: nothing was learned.'),
  ],
)
def test_no_best_epsilon(change, text):
  values = {(e, L): 0.1 for e in (0.3, 0.5, 0.7) for L in (10, 80)} | change
  known = {key: value for key, value in values.items() if value is not None}
  results = made.results('epsilon_temperature', *epsilon_runs(known))
  assert of(findings.find(results), OPEN)[-1] == text


def test_batch_size():
  """SAFL is ahead but for one cell; FedAvg gets better with large batches."""
  name = 'batch_size'
  several = []
  for size in ('half', 'all'):
    for i, batch in enumerate((50, 100, 150, 200)):
      cell = {'size': size, 'batch_size': batch}
      fedavg, safl = 0.95 + i / 100, 0.97 - i / 100
      several += [
        flat(name, fedavg, algorithm='fedavg', **cell),
        flat(name, safl, algorithm='safl', **cell),
      ]
  found = findings.find(made.results(name, *several))
  (table,) = found.tables
  assert table.lines[0] == ['', *(f'B = {B} (%)' for B in (50, 100, 150, 200))]
  assert table.lines[3:5] == [
    ['Half of the data, SAFL', '97.0', '96.0', '95.0', '94.0'],
    ['in the paper', '97.99', '97.55', '97.25', '94.01'],
  ]
  for size in ('Half', 'All'):
    told = f"{size}, B = 50: FedAvg 95.0 < SAFL 97.0, the paper's order."
    assert told in of(found, AGREES)
    told = (
      f'{size}, B = 200: SAFL 94.0 < FedAvg 98.0; in the paper FedAvg < SAFL.'
    )
    assert told in of(found, DIFFERS)
    told = (
      f'{size} of the data, SAFL: 97.0 % with B = 50, 94.0 % with B = 200; '
    )
    assert f'{told}the paper: better with the former.' in of(found, AGREES)
    told = f'{size} of the data, FedAvg: 95.0 % with B = 50, 98.0 % with B = '
    assert f'{told}200; the paper: better with the former.' in of(
      found, DIFFERS
    )
  names = [c.name for c in found.charts['accuracy_half'].curves]
  assert names == ['FedAvg', 'SAFL', 'FedAvg, paper', 'SAFL, paper']


@pytest.mark.parametrize('lead, verdict', [(0.51, AGREES), (0.3, DIFFERS)])
def test_fraction(lead, verdict):
  name = 'fraction'
  cell = {'fraction': 0.7}
  found = findings.find(
    made.results(
      name,
      flat(name, 0.2, algorithm='fedavg', **cell),
      flat(name, 0.2 + lead, algorithm='safl', **cell),
    )
  )
  assert of(found, verdict) == [
    f'SAFL, R = 0.7 is {100 * lead:.1f} points ahead of FedAvg in round 50; '
    'the paper: ahead of FedAvg by 50 points. Its largest lead is '
    f'{100 * lead:.1f} points, in round 1.'
  ]
  assert list(found.charts) == [f'accuracy_R{R}' for R in (0.3, 0.5, 0.7)]


def upload_runs(shares, scale='paper', rounds=80):
  """FedAvg and SAFL, and Extended SAFL by ν -> share of uploads."""
  name = 'uploads'
  for algorithm, accuracy in (('fedavg', 0.93), ('safl', 0.96)):
    history = made.rows([accuracy] * rounds, selected=50)
    yield made.runs(name, history, scale=scale, algorithm=algorithm)
  for nu, share in shares.items():
    history = made.rows([0.97] * rounds, selected=50, uploaded=50 * share)
    cell = {'algorithm': 'extended_safl', 'nu': nu}
    yield made.runs(name, history, scale=scale, **cell)


def test_uploads():
  results = made.results(
    'uploads', *upload_runs({0.15: 0.6, 0.3: 0.68, 0.5: 0.75})
  )
  found = findings.find(results)
  table, search = found.tables
  assert table.title == 'Total uploads and accuracy, Extended SAFL with ν = 0.3'
  assert table.lines[1:3] == [
    ['up to round 60', '3,000', '93.0', '3,000', '96.0', '2,040', '97.0'],
    ['in the paper', '3,050', '52.22', '3,050', '93.72', '2,023', '94.83'],
  ]
  assert search.lines == [
    ['ν', *(f'share, round {t} (%)' for t in (60, 70, 80)), 'accuracy (%)'],
    ['0.15', '60.0', '60.0', '60.0', '97.0'],
    ['0.3', '68.0', '68.0', '68.0', '97.0'],
    ['0.5', '75.0', '75.0', '75.0', '97.0'],
    ['in the paper', '66.3', '69.0', '71.2', '96.51'],
  ]
  agrees = of(found, AGREES)
  assert agrees[1].startswith(
    '8 of 9 numbers of uploads (within 5%) as in the paper: FedAvg, round 60 '
    '3,000 (3,050); SAFL, round 60 3,000 (3,050); Extended SAFL, round 60 2,040'
  )
  assert agrees[2] == (
    'Accuracy, round 60: FedAvg 93.0 < SAFL 96.0 < Extended SAFL 97.0, the '
    "paper's order."
  )
  assert agrees[5:] == [
    'Extended SAFL saves 32.0 % by round 60, 32.0 % by round 70, 32.0 % by '
    'round 80; the paper: more than 30 %.',
    'SAFL uploads 4,000 models, FedAvg 4,000; the paper: as many.',
    'Extended SAFL is 1.0 points ahead of SAFL in round 80; the paper: about '
    'as good as SAFL.',
  ]
  # 0.712 lies 45 % of the way from 0.68 to 0.75, on the scale of log ν.
  part = (2883 / 4050 - 0.68) / 0.07
  nu = math.exp(math.log(0.3) + part * math.log(0.5 / 0.3))
  assert of(found, SEEN) == [
    f"By interpolation, ν = {nu:.2g} gives the paper's share of uploads in "
    'round 80, 71.2 %.'
  ]
  x, y = found.charts['search'].curves[0][1:3]
  assert (list(x), list(y)) == ([0.15, 0.3, 0.5], [60, 68, 75])
  assert found.charts['uploads'].curves[2].x[-1] == 80 * 50 * 0.68
  assert found.charts['uploads'].curves[5].x == [2023, 2448, 2883]


def test_a_nu_that_fits():
  results = made.results('uploads', *upload_runs({0.3: 0.64, 0.5: 0.71}))
  assert of(findings.find(results), SEEN) == [
    "ν = 0.5 gives the paper's share of uploads in round 80, 71.2 %, within a "
    'point: 71.0 %.'
  ]


def test_uploads_that_are_not_saved():
  results = made.results('uploads', *upload_runs({0.3: 0.9, 0.5: 0.71}))
  found = findings.find(
    results._replace(runs=[*results.runs[:2], results.runs[2]])
  )
  assert (
    'Extended SAFL saves 10.0 % by round 60, 10.0 % by round 70, 10.0 % by '
    'round 80; the paper: more than 30 %.'
  ) in of(found, DIFFERS)
  assert of(found, SEEN) == [
    "No ν that was tried gives the paper's share of uploads in round 80, 71.2 "
    '%: 90.0 % with ν = 0.3.'
  ]


def test_uploads_that_are_more():
  fedavg, safl = upload_runs({})
  history = made.rows([0.96] * 80, selected=50, uploaded=49)
  safl = safl._replace(histories=[history])
  found = findings.find(made.results('uploads', fedavg, safl))
  assert 'SAFL uploads 3,920 models, FedAvg 4,000; the paper: as many.' in of(
    found, DIFFERS
  )
  assert 'Extended SAFL: was not run.' in of(found, OPEN)


def biased_runs(*losses):
  for algorithm, loss in zip(
    ('fedavg', 'safl', 'extended_safl'), losses, strict=True
  ):
    yield flat('biased', 0.9, algorithm=algorithm, group='without')
    yield flat('biased', 0.9 - loss, algorithm=algorithm, group='with')


@pytest.mark.parametrize(
  'fedavg, extended, verdicts',
  [
    (0.3, 0.01, [AGREES, AGREES]),
    (0.021, 0.02, [AGREES, AGREES]),
    (0.02, 0.021, [DIFFERS, DIFFERS]),
    (-0.05, -0.05, [DIFFERS, AGREES]),
  ],
)
def test_biased(fedavg, extended, verdicts):
  several = biased_runs(fedavg, 0.1, extended)
  found = findings.find(made.results('biased', *several))
  assert [f.verdict for f in found.findings] == verdicts
  if fedavg == 0.3:
    assert [f.text for f in found.findings] == [
      'FedAvg loses 30.0 points by biased devices; the paper: loses much.',
      'Extended SAFL loses 1.0 points by biased devices; the paper: loses '
      'nothing.',
    ]
    (table,) = found.tables
    assert table.lines == [
      [
        '',
        'without biased devices (%)',
        'with biased devices (%)',
        'lost (points)',
      ],
      ['FedAvg', '90.0', '60.0', '30.0'],
      ['SAFL', '90.0', '80.0', '10.0'],
      ['Extended SAFL', '90.0', '89.0', '1.0'],
    ]
  if fedavg < 0:
    first = found.findings[0].text
    assert first.startswith('FedAvg wins 5.0 points by biased devices; ')


def test_techniques():
  ends = {'ida_safl': 0.81, 'ida': 0.5, 'safl': 0.9, 'fedavg': 0.45}
  ends |= {'fedsgd': 0.1, 'fedma': 0.91, 'astw': 0.7, 'astw_safl': 0.6}
  several = [
    flat('techniques', end, algorithm=name) for name, end in ends.items()
  ]
  found = findings.find(made.results('techniques', *several))
  assert [f.verdict for f in found.findings] == [
    AGREES,
    AGREES,
    DIFFERS,
    AGREES,
    AGREES,
    DIFFERS,
  ]
  assert of(found, DIFFERS) == [
    'SAFL is 45.0 points ahead of FedAvg in round 50; the paper: ahead of '
    'FedAvg by 50 points. Its largest lead is 45.0 points, in round 1.',
    'ASTW-SAFL is 10.0 points behind ASTW on average over the rounds up to '
    '100; the paper: ahead.',
  ]
  (table,) = found.tables
  assert [line[0] for line in table.lines[1:]] == [
    *('FedSGD', 'FedAvg', 'ASTW', 'IDA', 'FedMA', 'SAFL', 'ASTW-SAFL'),
    'IDA-SAFL',
  ]


def test_sensitivity():
  name = 'sensitivity'
  leads = {
    'base': 0.3,
    'alpha0.001': 0.5,
    'alpha0.004': -0.05,
    'n120': 0.01,
    'init_shared': -0.021,
  }
  several = []
  for setting, lead in leads.items():
    cell = {'setting': setting}
    several += [
      flat(name, 0.4, 50, algorithm='fedavg', **cell),
      flat(name, 0.4 + lead, 50, algorithm='safl', **cell),
    ]
  several.append(
    flat(name, 0.4, 50, algorithm='fedavg', setting='adam')
  )  # its partner isn't finished
  found = findings.find(made.results(name, *several))
  (table,) = found.tables
  assert table.lines[1] == [
    'n = 80, rate 0.1',
    '40.0',
    '70.0',
    '+30.0',
    '+30.0',
    '1',
  ]
  assert [line[0] for line in table.lines[2:]] == [
    'rate 0.05',
    'rate 0.2',
    'n = 120',
    'one initial model for all',
  ]
  assert of(found, SEEN) == [
    'n = 80, rate 0.1: SAFL is 30.0 points ahead of FedAvg.',
    'rate 0.05: SAFL is 50.0 points ahead of FedAvg.',
    'rate 0.2: SAFL is 5.0 points behind FedAvg.',
    'n = 120: SAFL and FedAvg are about as good (1.0 points apart).',
    'one initial model for all: SAFL is 2.1 points behind FedAvg.',
  ]
  chart = found.charts['lead_by_rate']
  assert chart.signed
  ((_, x, y, _),) = chart.curves
  assert x == pytest.approx([0.05, 0.1, 0.2])
  assert y == pytest.approx([50, 30, -5])
  ours, paper = found.charts['lead_by_n'].curves
  assert list(ours.x) == [80, 120]
  assert list(paper.x) == [50, 80]
  assert paper.y == pytest.approx([95.3 - 88.2, 94 - 30])
