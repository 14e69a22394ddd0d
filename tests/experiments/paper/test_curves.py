"""Figures 5 to 7 and the sensitivity, with hand-made histories."""

import pytest

from safl_tf.experiments.paper import claims, registry
from tests.experiments.paper import make_runs as made


def test_convergence():
  name = 'convergence_mnist'
  jumps = [0.1] * 33 + [0.85] * 20 + [0.96] * 47
  found = registry.find(
    made.results(
      name,
      *(made.flat(name, 0.2, algorithm='fedavg', n=n) for n in (40, 80)),
      *(
        made.runs(name, made.rows(jumps), algorithm='safl', n=n)
        for n in (40, 80)
      ),
      made.flat(name, 0.97, 20, algorithm='centralized'),
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
  assert made.of(found, claims.AGREES)[2:] == [
    'SAFL, n = 80 reaches 95 % in round 54; the paper: by round 56.',
    'SAFL, n = 80 is 76.0 points ahead of FedAvg in round 56; the paper: ahead '
    'of FedAvg by 50 points. Its largest lead is 76.0 points, in round 54.',
    'SAFL, n = 80 is 1.0 points behind Centralised in round 100; the paper: '
    'about as good as Centralised.',
  ]
  assert made.of(found, claims.DIFFERS) == [
    'FedAvg, n = 80 is 77.0 points behind Centralised in round 100; the paper: '
    'about as good as Centralised.'
  ]
  assert made.of(found, claims.OPEN) == [
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
  found = registry.find(made.complete('convergence_speech', 'cpu'))
  (table,) = found.tables
  assert table.lines[0][1:3] == ['round 4 for 20 (%)', 'round 7 for 35 (%)']
  assert table.lines[1][0] == 'FedAvg, n = 2 for 40'
  assert found.charts['accuracy_n120'].title == 'n = 6 for 120'
  (first, *_) = made.of(found, claims.AGREES)
  assert first.startswith('SAFL, n = 2 for 40 is ')


@pytest.mark.parametrize(
  'lead, verdict', [(0.51, claims.AGREES), (0.3, claims.DIFFERS)]
)
def test_fraction(lead, verdict):
  name = 'fraction'
  cell = {'fraction': 0.7}
  found = registry.find(
    made.results(
      name,
      made.flat(name, 0.2, algorithm='fedavg', **cell),
      made.flat(name, 0.2 + lead, algorithm='safl', **cell),
    )
  )
  assert made.of(found, verdict) == [
    f'SAFL, R = 0.7 is {100 * lead:.1f} points ahead of FedAvg in round 50; '
    'the paper: ahead of FedAvg by 50 points. Its largest lead is '
    f'{100 * lead:.1f} points, in round 1.'
  ]
  assert list(found.charts) == [f'accuracy_R{R}' for R in (0.3, 0.5, 0.7)]


def biased_runs(*losses):
  for algorithm, loss in zip(
    ('fedavg', 'safl', 'extended_safl'), losses, strict=True
  ):
    yield made.flat('biased', 0.9, algorithm=algorithm, group='without')
    yield made.flat('biased', 0.9 - loss, algorithm=algorithm, group='with')


@pytest.mark.parametrize(
  'fedavg, extended, verdicts',
  [
    (0.3, 0.01, [claims.AGREES, claims.AGREES]),
    (0.021, 0.02, [claims.AGREES, claims.AGREES]),
    (0.02, 0.021, [claims.DIFFERS, claims.DIFFERS]),
    (-0.05, -0.05, [claims.DIFFERS, claims.AGREES]),
  ],
)
def test_biased(fedavg, extended, verdicts):
  several = biased_runs(fedavg, 0.1, extended)
  found = registry.find(made.results('biased', *several))
  assert [f.verdict for f in found.findings] == verdicts
  if fedavg == 0.3:
    assert [f.text for f in found.findings] == [
      'FedAvg loses 30.0 points by biased clients; the paper: loses much.',
      'Extended SAFL loses 1.0 points by biased clients; the paper: loses '
      'nothing.',
    ]
    (table,) = found.tables
    assert table.lines == [
      [
        '',
        'without biased clients (%)',
        'with biased clients (%)',
        'lost (points)',
      ],
      ['FedAvg', '90.0', '60.0', '30.0'],
      ['SAFL', '90.0', '80.0', '10.0'],
      ['Extended SAFL', '90.0', '89.0', '1.0'],
    ]
  if fedavg < 0:
    first = found.findings[0].text
    assert first.startswith('FedAvg wins 5.0 points by biased clients; ')


def test_techniques():
  ends = {'ida_safl': 0.81, 'ida': 0.5, 'safl': 0.9, 'fedavg': 0.45}
  ends |= {'fedsgd': 0.1, 'fedma': 0.91, 'astw': 0.7, 'astw_safl': 0.6}
  several = [
    made.flat('techniques', end, algorithm=name) for name, end in ends.items()
  ]
  found = registry.find(made.results('techniques', *several))
  assert [f.verdict for f in found.findings] == [
    claims.AGREES,
    claims.AGREES,
    claims.DIFFERS,
    claims.AGREES,
    claims.AGREES,
    claims.DIFFERS,
  ]
  assert made.of(found, claims.DIFFERS) == [
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
      made.flat(name, 0.4, 50, algorithm='fedavg', **cell),
      made.flat(name, 0.4 + lead, 50, algorithm='safl', **cell),
    ]
  histories = [made.rows([0.4] * 6 + [1.0] + [0.7] * 43)]
  several[1] = several[1]._replace(histories=histories)
  several.append(
    made.flat(name, 0.4, 50, algorithm='fedavg', setting='adam')
  )  # its partner isn't finished
  found = registry.find(made.results(name, *several))
  (table,) = found.tables
  assert table.lines[1] == [
    'n = 80, rate 0.1',
    '40.0',
    '70.0',
    '+30.0',
    '+60.0',
    '7',
  ]
  assert [line[0] for line in table.lines[2:]] == [
    'rate 0.05',
    'rate 0.2',
    'n = 120',
    'one initial model for all',
  ]
  assert made.of(found, claims.SEEN) == [
    'n = 80, rate 0.1: SAFL is 30.0 points ahead of FedAvg.',
    'rate 0.05: SAFL is 50.0 points ahead of FedAvg.',
    'rate 0.2: SAFL is 5.0 points behind FedAvg.',
    'n = 120: SAFL and FedAvg are about as good (1.0 points apart).',
    'one initial model for all: SAFL is 2.1 points behind FedAvg.',
  ]
  chart = found.charts['lead_by_rate']
  assert chart.title == 'Lead against the rate, n = 80'
  assert chart.signed
  then, largest = chart.curves
  assert (then.name, largest.name) == (
    'in round 50',
    'the largest, in any round',
  )
  assert then.x == largest.x == pytest.approx([0.05, 0.1, 0.2])
  assert then.y == pytest.approx([50, 30, -5])
  assert largest.y == pytest.approx([50, 60, -5])
  ours, _, paper = found.charts['lead_by_n'].curves
  assert list(ours.x) == [80, 120]
  assert list(paper.x) == [50, 80]
  assert paper.y == pytest.approx([95.3 - 88.2, 94 - 30])


def test_a_lead_of_nothing_has_no_minus():
  runs = [
    made.flat('sensitivity', accuracy, 50, algorithm=name, setting='base')
    for name, accuracy in (('fedavg', 0.4), ('safl', 0.39999))
  ]
  (table,) = registry.find(made.results('sensitivity', *runs)).tables
  assert table.lines[1][3] == '+0.0'
