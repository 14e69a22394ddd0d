import pytest

from safl_tf.experiments.paper import experiments, figures, results
from tests.experiments.paper import make_runs as made


def figures_of(result):
  paper = results.paper_numbers()[result.plan.experiment]
  return figures.figures(result, paper)


def curves(chart):
  return {
    f'{curve.name}, paper' if curve.is_paper else curve.name: curve
    for curve in chart.curves
  }


def test_convergence():
  name = 'convergence_mnist'
  charts = figures_of(
    made.results(
      name,
      made.runs(
        name, made.rows([0.1] * 33 + [0.85] * 67), algorithm='safl', n=80
      ),
      made.flat(name, 0.97, 20, algorithm='centralized'),
    )
  )
  assert list(charts) == ['accuracy_n80']  # nothing to draw for the others
  chart = charts['accuracy_n80']
  assert chart.title == 'Test accuracy by round, n = 80'
  assert chart.subtitle == 'LeNet-5 on MNIST, ε = 0.3, L = 80'
  fedavg, safl = chart.curves
  assert (fedavg.name, fedavg.x) == ('FedAvg', [])
  assert safl.name == 'SAFL' and safl.y[33] == pytest.approx(85)
  assert safl.algorithm == 'safl'
  assert chart.levels == {'guessing': 10, 'Centralised': 97}
  smaller = figures_of(made.complete('convergence_speech', 'cpu'))
  title = 'Test accuracy by round, n = 6 for 120'
  assert smaller['accuracy_n120'].title == title


def test_the_papers_numbers_beside_runs_of_its_size():
  charts = figures_of(made.complete('early_accuracy', 'cpu'))
  _, theirs, safl, paper = charts['accuracy_mnist'].curves
  assert (paper.name, paper.algorithm) == (safl.name, safl.algorithm)
  assert paper.is_paper and (paper.x, paper.y) == ([50], [94])
  assert (theirs.x, theirs.y) == ([50], [30])
  looks = charts['accuracy_mnist'].looks()
  assert looks[3] == looks[2] != looks[0] == looks[1]
  smaller = charts['accuracy_cifar10'].curves
  assert not any(curve.is_paper for curve in smaller)


def test_spread_over_seeds():
  result = made.complete('fraction', seeds=(0, 1))
  charts = figures_of(result)
  assert list(charts) == [f'accuracy_R{R}' for R in (0.3, 0.5, 0.7)]
  fedavg, *_ = charts['accuracy_R0.3'].curves
  assert charts['accuracy_R0.3'].subtitle.endswith('mean ± sd of 2 seeds')
  value = result.get(algorithm='fedavg', fraction=0.3).at(100)
  assert fedavg.y[-1] == pytest.approx(100 * value.mean)
  assert fedavg.spread[-1] == pytest.approx(100 * value.sd)
  single, *_ = figures_of(made.complete('fraction'))['accuracy_R0.3'].curves
  assert list(single.spread) == []


def test_missing_data_sets_have_no_figure():
  result = made.complete('early_accuracy')._replace(missing={'cifar10': 'why'})
  assert list(figures_of(result)) == [
    *('accuracy_mnist', 'accuracy_fashion_mnist', 'accuracy_speech_commands'),
  ]


def test_loss_against_epsilon():
  name = 'epsilon_temperature'
  several = [
    made.flat(name, a, 50, algorithm='safl', epsilon=epsilon, temperature=80)
    for epsilon, a in ((0.3, 0.94), (0.7, 0.9))
  ]
  drawn = curves(figures_of(made.results(name, *several))['loss'])
  ours, paper = drawn['SAFL, L = 80'], drawn['SAFL, L = 80, paper']
  assert (ours.x, ours.y) == ([0.3, 0.7], pytest.approx([0.06, 0.1]))
  assert (paper.x, paper.y) == ([0.3, 0.5, 0.7], [0.186, 0.204, 0.217])
  assert drawn['SAFL, L = 10'].x == []


@pytest.mark.parametrize(
  'scale, label', [('paper', 'round 100'), ('cpu', 'round 50 for 100')]
)
def test_batch_sizes(scale, label):
  chart = figures_of(made.complete('batch_size', scale))['accuracy_half']
  assert chart.title == 'Test accuracy by batch size, half of the data'
  assert label in chart.subtitle
  assert list(curves(chart)) == [
    *('FedAvg', 'SAFL', 'FedAvg, paper', 'SAFL, paper'),
  ]
  paper = curves(chart)['SAFL, paper']
  assert paper.x == [50, 100, 150, 200]
  assert paper.y == pytest.approx([97.99, 97.55, 97.25, 94.01])


def test_uploads():
  several = [
    made.runs(
      'uploads',
      made.rows([0.97] * 80, selected=50, uploaded=50 * share),
      algorithm='extended_safl',
      nu=nu,
    )
    for nu, share in ((0.15, 0.6), (0.3, 0.68), (0.5, 0.75))
  ]
  charts = figures_of(made.results('uploads', *several))
  (ours,) = charts['search'].curves
  assert (ours.x, ours.y) == ([0.15, 0.3, 0.5], pytest.approx([60, 68, 75]))
  goal = pytest.approx(100 * 2883 / 4050)
  assert charts['search'].levels == {"the paper's share": goal}
  assert charts['search'].title == 'Share of uploads by ν'
  assert 'up to round 80' in charts['search'].subtitle
  drawn = curves(charts['uploads'])
  assert drawn['Extended SAFL'].x[-1] == pytest.approx(80 * 50 * 0.68)
  assert drawn['Extended SAFL, paper'].x == [2023, 2448, 2883]
  small = figures_of(made.complete('uploads', 'smoke'))['search']
  assert 'up to round 3 for 80' in small.subtitle


def test_sensitivity():
  several = []
  for setting, lead in {
    'base': 0.3,
    'alpha0.001': 0.5,
    'alpha0.004': -0.05,
  }.items():
    several += [
      made.flat('sensitivity', 0.4, 50, algorithm='fedavg', setting=setting),
      made.flat(
        'sensitivity', 0.4 + lead, 50, algorithm='safl', setting=setting
      ),
    ]
  several[1] = several[1]._replace(
    histories=[made.rows([0.4] * 6 + [1.0] + [0.7] * 43)]
  )
  charts = figures_of(made.results('sensitivity', *several))
  chart = charts['lead_by_rate']
  assert chart.title == "SAFL's lead over FedAvg by rate, n = 80"
  assert chart.signed
  then, largest = chart.curves
  assert then.name == 'in round 50'
  assert then.x == largest.x == pytest.approx([0.05, 0.1, 0.2])
  assert then.y == pytest.approx([50, 30, -5])
  assert largest.y == pytest.approx([50, 60, -5])
  ours, _, paper = charts['lead_by_n'].curves
  assert ours.x == [80]
  assert (paper.x, paper.y) == ([50, 80], pytest.approx([7.1, 64]))


@pytest.mark.parametrize('scale', ['paper', 'cpu', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_nothing_and_everything_finished(name, scale):
  assert not figures_of(made.results(name, scale=scale))
  whole = figures_of(made.complete(name, scale, seeds=(0, 1)))
  assert whole and all(
    curve.x for chart in whole.values() for curve in chart.curves
  )


def test_one_nu_is_no_search():
  several = made.runs(
    'uploads', made.rows([0.9] * 80), algorithm='extended_safl', nu=0.5
  )
  assert list(figures_of(made.results('uploads', several))) == ['uploads']


def test_biased_share():
  """A curve per algorithm and gate, from no to half of the clients."""
  charts = figures_of(made.complete('biased_share', 'cpu', seeds=(0, 1)))
  assert list(charts) == ['accuracy_same', 'accuracy_different']
  drawn = curves(charts['accuracy_different'])
  assert list(drawn) == [
    *('FedAvg', 'SAFL, L = 80', 'SAFL, L = 10'),
    *('Extended SAFL', 'Extended SAFL, holdout 0.2'),
  ]
  for curve in drawn.values():
    assert curve.x == [0, 10, 25, 50] and len(curve.spread) == 4
