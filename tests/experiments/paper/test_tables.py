"""Tables III to V, with hand-made histories."""

import pytest

from safl_tf.experiments.paper import claims, registry
from tests.experiments.paper import make_runs as made


def test_early_accuracy():
  name = 'early_accuracy'
  several = [
    made.flat(name, a, 50, algorithm=algorithm, dataset=data)
    for data, accuracies in {
      'mnist': (0.99, 0.878, 0.942),
      'fashion_mnist': (0.92, 0.80, 0.75),
    }.items()
    for algorithm, a in zip(
      ('centralized', 'fedavg', 'safl'), accuracies, strict=True
    )
  ]
  reason = dict.fromkeys(('cifar10', 'speech_commands'), 'is not there')
  found = registry.find(made.results(name, *several, missing=reason))
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
  assert made.of(found, claims.AGREES) == [
    f'4 of 6 accuracies {bound} as in the paper: Centralised on MNIST 99.0 '
    '(99); SAFL on MNIST 94.2 (94); Centralised on Fashion-MNIST 92.0 (92); '
    'SAFL on Fashion-MNIST 75.0 (75).',
    f'1 of 6 top-5 accuracies {bound} as in the paper: Centralised on MNIST '
    '99.0 (99).',
    "MNIST, top-1: FedAvg 87.8 < SAFL 94.2 < Centralised 99.0, the paper's "
    'order.',
  ]
  assert made.of(found, claims.DIFFERS)[0] == (
    f'2 of 6 accuracies {bound} not as in the paper: FedAvg on MNIST 87.8 '
    '(30); FedAvg on Fashion-MNIST 80.0 (58).'
  )
  assert made.of(found, claims.DIFFERS)[2:] == [
    'Fashion-MNIST, top-1: SAFL 75.0 < FedAvg 80.0 < Centralised 92.0; in the '
    'paper FedAvg < SAFL < Centralised.',
    'SAFL on Fashion-MNIST is 5.0 points behind FedAvg in round 50; the paper: '
    'ahead of FedAvg by 17 points.',
  ]
  assert made.of(found, claims.OPEN) == []
  assert list(found.charts) == ['accuracy_mnist', 'accuracy_fashion_mnist']
  assert len(found.compared) == 12


def test_early_accuracy_of_different_sizes():
  """At the scale cpu only MNIST can be compared."""
  found = registry.find(made.complete('early_accuracy', 'cpu'))
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
  yield made.flat(name, 0.95, 20, algorithm='centralized')
  yield made.flat(name, 0.85, 50, algorithm='fedavg')
  for (epsilon, L), accuracy in values.items():
    cell = {'epsilon': epsilon, 'temperature': L}
    yield made.flat(name, accuracy, 50, algorithm='safl', **cell)


def test_epsilon_temperature():
  values = {(e, L): 0.9 for e in (0.3, 0.5, 0.7) for L in (10, 80)}
  values[0.3, 80] = 0.94
  found = registry.find(
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
  assert made.of(found, claims.AGREES)[-2:] == [
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
  found = registry.find(
    made.results('epsilon_temperature', *epsilon_runs(values))
  )
  assert made.of(found, claims.DIFFERS)[-1] == (
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
  assert made.of(registry.find(results), claims.OPEN)[-1] == text


def test_batch_size():
  """SAFL is ahead but for one cell; FedAvg gets better with large batches."""
  name = 'batch_size'
  several = []
  for size in ('half', 'all'):
    for i, batch in enumerate((50, 100, 150, 200)):
      cell = {'size': size, 'batch_size': batch}
      fedavg, safl = 0.95 + i / 100, 0.97 - i / 100
      several += [
        made.flat(name, fedavg, algorithm='fedavg', **cell),
        made.flat(name, safl, algorithm='safl', **cell),
      ]
  found = registry.find(made.results(name, *several))
  (table,) = found.tables
  assert table.lines[0] == ['', *(f'B = {B} (%)' for B in (50, 100, 150, 200))]
  assert table.lines[3:5] == [
    ['Half of the data, SAFL', '97.0', '96.0', '95.0', '94.0'],
    ['in the paper', '97.99', '97.55', '97.25', '94.01'],
  ]
  for size in ('Half', 'All'):
    told = f"{size}, B = 50: FedAvg 95.0 < SAFL 97.0, the paper's order."
    assert told in made.of(found, claims.AGREES)
    told = (
      f'{size}, B = 200: SAFL 94.0 < FedAvg 98.0; in the paper FedAvg < SAFL.'
    )
    assert told in made.of(found, claims.DIFFERS)
    told = (
      f'{size} of the data, SAFL: 97.0 % with B = 50, 94.0 % with B = 200; '
    )
    assert f'{told}the paper: better with the former.' in made.of(
      found, claims.AGREES
    )
    told = f'{size} of the data, FedAvg: 95.0 % with B = 50, 98.0 % with B = '
    assert f'{told}200; the paper: better with the former.' in made.of(
      found, claims.DIFFERS
    )
  names = [c.name for c in found.charts['accuracy_half'].curves]
  assert names == ['FedAvg', 'SAFL', 'FedAvg, paper', 'SAFL, paper']


@pytest.mark.parametrize(
  'experiment, chart, scale, title',
  [
    ('batch_size', 'accuracy_all', 'paper', 'All of the data, round 100'),
    ('batch_size', 'accuracy_all', 'cpu', 'All of the data, round 50 for 100'),
    ('uploads', 'search', 'cpu', 'Share of uploads in round 80 against ν'),
    (
      'uploads',
      'search',
      'smoke',
      'Share of uploads in round 3 for 80 against ν',
    ),
  ],
)
def test_charts_tell_their_round(experiment, chart, scale, title):
  found = registry.find(made.complete(experiment, scale))
  assert found.charts[chart].title == title
