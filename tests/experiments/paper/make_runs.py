"""Made-up results of experiments."""

from safl_tf.experiments.paper import experiments
from safl_tf.experiments.paper import results as results_lib

CENTRALIZED = 0.99


def rows(accuracies, selected=10, uploaded=None, **columns):
  """A history with these accuracies; other columns are lists or constants."""
  uploaded = selected if uploaded is None else uploaded
  columns = {
    'test_accuracy': accuracies,
    'test_top5_accuracy': accuracies,
    'test_loss': [None if a is None else 1 - a for a in accuracies],
    'selected': selected,
    'uploaded': uploaded,
    'seconds': 2.0,
    **columns,
  }
  return [
    {
      'round': i + 1,
      **{k: v[i] if isinstance(v, list) else v for k, v in columns.items()},
    }
    for i in range(len(accuracies))
  ]


def part_of(experiment, scale='paper', **cell):
  """The one part of an experiment with this cell."""
  (part,) = [
    part
    for part in experiments.EXPERIMENTS[experiment].plan(scale).parts
    if all(part.cell.get(key) == value for key, value in cell.items())
  ]
  return part


def runs(experiment, *histories, scale='paper', **cell):
  """Runs of a part."""
  return results_lib.Runs(part_of(experiment, scale, **cell), histories)


def flat(experiment, accuracy, rounds=100, scale='paper', **cell):
  """A run with the same accuracy in all rounds."""
  history = rows([accuracy] * rounds)
  return runs(experiment, history, scale=scale, **cell)


def results(experiment, *several, scale='paper', seeds=(0,), missing=None):
  """Results of an experiment of which these runs are finished."""
  plan = experiments.EXPERIMENTS[experiment].plan(scale)
  order = [part.name for part in plan.parts]
  several = sorted(several, key=lambda run: order.index(run.part.name))
  return results_lib.Results(plan, seeds, several, missing or {})


def ramp(rounds, start, end):
  """Accuracies that rise evenly."""
  step = (end - start) / (rounds - 1)
  return [start + i * step for i in range(rounds)]


def complete(experiment, scale='paper', seeds=(0,)):
  """Results of which everything is finished; SAFL rises faster."""
  plan = experiments.EXPERIMENTS[experiment].plan(scale)
  ends = {'fedavg': 0.8, 'safl': 0.9, 'centralized': CENTRALIZED}
  several = []
  for i, part in enumerate(plan.parts):
    end = ends.get(part.cell['algorithm'], 0.85) + i / 1000
    nu = part.cell.get('nu')
    sent = 10 if nu is None else round(100 * nu / (nu + 0.1)) / 10
    histories = [
      rows(ramp(part.rounds, 0.1, end + seed / 100), uploaded=sent)
      for seed in seeds
    ]
    several.append(results_lib.Runs(part, histories))
  return results_lib.Results(plan, tuple(seeds), several, {})
