import re

import pytest

from safl_tf.experiments.paper import experiments, plans, results
from safl_tf.util import choices

ALL = [
  (name, scale) for name in experiments.EXPERIMENTS for scale in plans.SCALES
]


def plan_of(name, scale):
  return experiments.EXPERIMENTS[name].plan(scale)


def test_names():
  assert list(experiments.EXPERIMENTS) == [
    'convergence_mnist',
    'convergence_speech',
    'early_accuracy',
    'epsilon_temperature',
    'batch_size',
    'fraction',
    'uploads',
    'biased',
    'biased_share',
    'learning_rate',
    'techniques',
    'sensitivity',
    'annealing',
  ]
  assert results.paper_numbers().keys() == experiments.EXPERIMENTS.keys()


@pytest.mark.parametrize('name, scale', ALL)
def test_parts_of_a_plan(name, scale):
  plan = plan_of(name, scale)
  assert (plan.experiment, plan.scale) == (name, scale)
  folders = [part.name for part in plan.parts]
  cells = [sorted(part.cell.items()) for part in plan.parts]
  assert len(set(folders)) == len(folders)
  assert all(cells.count(cell) == 1 for cell in cells)
  for part in plan.parts:
    assert re.fullmatch(r'[\w.]+', part.name)
    assert part.flags['algorithm'] == part.cell['algorithm']
    assert part.flags['algorithm'] in choices.ALGORITHMS
    if scale == 'smoke':
      assert part.flags['dataset'] == 'mnist_sample'
      assert not part.full_size


@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_same_cells_at_all_scales(name):
  """A smaller scale has all cells, except for searched or varied settings."""
  cells = {
    scale: [part.cell for part in plan_of(name, scale).parts]
    for scale in plans.SCALES
  }
  free = ('uploads', 'sensitivity')
  if name not in free:
    assert cells['paper'] == cells['cpu'] == cells['smoke']
  algorithms = {
    scale: {cell['algorithm'] for cell in cells[scale]} for scale in cells
  }
  assert algorithms['paper'] == algorithms['cpu'] == algorithms['smoke']


@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_reductions(name):
  """Only the scale paper has none."""
  paper = plan_of(name, 'paper')
  assert paper.reductions == ()
  assert all(part.full_size for part in paper.parts)
  assert plan_of(name, 'cpu').reductions
  assert len(plan_of(name, 'smoke').reductions) == 1


@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_full_size_parts(name):
  """Parts of the paper's size differ from it in the rounds only."""
  full = {tuple(p.cell.items()): p.flags for p in plan_of(name, 'paper').parts}
  for part in plan_of(name, 'cpu').parts:
    if part.full_size:
      theirs = full[tuple(part.cell.items())]
      assert theirs | {'rounds': part.rounds} == part.flags
      assert part.rounds <= theirs['rounds']


@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_times(name):
  assert plan_of(name, 'cpu').seconds() < 60 * 60
  smoke = plan_of(name, 'smoke')
  assert smoke.seconds() < 8 * len(smoke.parts)


@pytest.mark.parametrize(
  'name, cell, wanted',
  [
    (
      'convergence_mnist',
      {'algorithm': 'safl', 'n': 120},
      {'num_clients': 120, 'rounds': 100, 'epsilon': 0.3, 'temperature': 80},
    ),
    (
      'convergence_speech',
      {'algorithm': 'fedavg', 'n': 40},
      {'dataset': 'speech_commands', 'model': 'light_vgg', 'num_clients': 40},
    ),
    (
      'early_accuracy',
      {'algorithm': 'safl', 'dataset': 'cifar10'},
      {'model': 'light_vgg', 'num_clients': 80, 'rounds': 50},
    ),
    (
      'early_accuracy',
      {'algorithm': 'centralized', 'dataset': 'mnist'},
      {'model': 'lenet5', 'partition': 'quantity', 'num_clients': 1},
    ),
    (
      'epsilon_temperature',
      {'algorithm': 'safl', 'epsilon': 0.7, 'temperature': 10},
      {'num_clients': 50, 'rounds': 50, 'epsilon': 0.7, 'temperature': 10},
    ),
    (
      'batch_size',
      {'algorithm': 'safl', 'size': 'half', 'batch_size': 150},
      {'num_clients': 100, 'mean_examples': 300, 'batch_size': 150},
    ),
    (
      'fraction',
      {'algorithm': 'fedavg', 'fraction': 0.7},
      {'num_clients': 100, 'fraction': 0.7},
    ),
    (
      'uploads',
      {'algorithm': 'extended_safl', 'nu': 0.3},
      {'num_clients': 100, 'fraction': 0.5, 'rounds': 80, 'nu': 0.3},
    ),
    (
      'biased',
      {'algorithm': 'safl', 'group': 'with'},
      {'num_clients': 80, 'biased_fraction': 0.5, 'biased_label': 2},
    ),
    (
      'biased',
      {'algorithm': 'safl', 'group': 'without'},
      {'num_clients': 40, 'biased_fraction': 0.0, 'partition': 'biased'},
    ),
    (
      'techniques',
      {'algorithm': 'ida_safl'},
      {'num_clients': 100, 'fraction': 0.5, 'rounds': 100},
    ),
    (
      'sensitivity',
      {'algorithm': 'fedavg', 'setting': 'momentum'},
      {'num_clients': 80, 'optimizer': 'momentum', 'learning_rate': 0.0002},
    ),
  ],
)
def test_settings_of_the_paper(name, cell, wanted):
  (part,) = [
    p for p in plan_of(name, 'paper').parts if p.cell.items() >= cell.items()
  ]
  assert part.flags.items() >= wanted.items()
  assert part.flags['local_epochs'] == 3
  assert part.flags['max_labels'] == 7
  if name != 'batch_size':
    assert (part.flags['batch_size'], part.flags['mean_examples']) == (50, 600)
  if cell.get('setting') is None:
    assert part.flags['learning_rate'] == 0.002


def test_seeds():
  """The paper's 100 trials, and one seed at the smaller scales."""
  assert plan_of('uploads', 'paper').seeds == tuple(range(100))
  assert plan_of('fraction', 'paper').seeds == (0, 1, 2)
  assert plan_of('uploads', 'cpu').seeds == plan_of('biased', 'smoke').seeds
  plan = plan_of('fraction', 'cpu')
  assert plan.seeds == (0,)
  order = [(part.name, seed) for part, seed in plan.runs((4, 2))]
  assert order[:2] == [('fedavg_R0.3', 4), ('safl_R0.3', 4)]
  assert order[2] == ('safl_R0.3_L10', 4)
  assert order[9] == ('fedavg_R0.3', 2) and len(order) == 18


def part_with(**flags):
  base = {
    'algorithm': 'fedavg',
    'dataset': 'mnist',
    'model': 'lenet5',
    'num_clients': 80,
    'mean_examples': 600,
    'local_epochs': 3,
    'rounds': 10,
  }
  return plans.Part('a', {}, {**base, **flags})


@pytest.mark.parametrize(
  'flags, training, testing',
  [
    # Examples in all rounds, times epochs and microseconds; the same for tests.
    ({}, 10 * 80 * 600 * 3 * 23.6, 10 * 10_000 * 23.6 / 3),
    ({'eval_every': 5}, 10 * 80 * 600 * 3 * 23.6, 2 * 10_000 * 23.6 / 3),
    ({'fraction': 0.5}, 10 * 40 * 600 * 3 * 23.6, 10 * 10_000 * 23.6 / 3),
    ({'algorithm': 'fedsgd'}, 10 * 80 * 600 * 23.6, 10 * 10_000 * 23.6 / 3),
    (
      {'algorithm': 'extended_safl'},
      10 * 80 * 600 * 3 * 23.6 * 1.24,
      10 * 10_000 * 23.6 / 3,
    ),
    (
      {'algorithm': 'centralized', 'partition': 'quantity', 'num_clients': 1},
      10 * 60_000 * 3 * 23.6 * 2.5,
      10 * 10_000 * 23.6 / 3,
    ),
    (
      {'algorithm': 'centralized', 'num_clients': 10},
      10 * 6_000 * 3 * 23.6 * 2.5,
      10 * 10_000 * 23.6 / 3,
    ),
    (
      {'model': 'light_vgg', 'dataset': 'cifar10'},
      10 * 80 * 600 * 3 * 6_860,
      10 * 10_000 * 6_860 / 3,
    ),
  ],
)
def test_seconds(flags, training, testing):
  wanted = (training + testing) / 1e6 + 6
  assert part_with(**flags).seconds() == pytest.approx(wanted)


@pytest.mark.parametrize(
  'seconds, text',
  [
    (42.4, '42 s'),
    (99, '99 s'),
    (100, '2 min'),
    (1500, '25 min'),
    (6000, '1.7 h'),
    (36_000, '10 h'),
    (200_000, '2.3 days'),
    (2_000_000, '23 days'),
  ],
)
def test_format_duration(seconds, text):
  assert plans.format_duration(seconds) == text


def test_round_for():
  part = part_with(rounds=20)
  assert [part.round_for(t) for t in (1, 56)] == [1, 56]
  smaller = part._replace(paper_rounds=100)
  rounds = [smaller.round_for(t) for t in (1, 20, 56, 100)]
  assert rounds == [1, 4, 11, 20]


def test_table():
  head, *lines = experiments.table()
  assert head == ['experiment', 'in the paper', 'title', *plans.SCALES]
  assert [line[0] for line in lines] == list(experiments.EXPERIMENTS)
  (uploads,) = [line for line in lines if line[0] == 'uploads']
  assert uploads[1] == 'Table VI'
  assert uploads[3:] == ['41 h', '17 min', '30 s']
