"""Figures of the experiments, as charts for `safl_tf.reporting`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safl_tf.experiments.paper import results as results_lib
from safl_tf.experiments.paper import tables
from safl_tf.reporting import charts as charts_lib

Results = results_lib.Results
PaperNumbers = results_lib.PaperNumbers
Charts = dict[str, charts_lib.Chart]

# Varied key -> file names of the figures by round, one for each value.
_FILES = {
  'n': 'accuracy_n{}',
  'fraction': 'accuracy_R{}',
  'dataset': 'accuracy_{}',
  'group': 'accuracy_{}',
}


def figures(results: Results, paper: PaperNumbers) -> Charts:
  """Returns the charts of an experiment by file name."""
  name = results.plan.experiment
  if name == 'sensitivity':
    return _sensitivity(results, paper)
  if name == 'uploads':
    return _uploads(results, paper)
  numbers = tables.numbers(results, paper)
  if name == 'batch_size':
    return {
      f'accuracy_{size}': _chart(
        f'{size} of the data, round {numbers[0].round_label}',
        _beside_paper(
          'batch_size', [n for n in numbers if n.cell['size'] == size]
        ),
        'batch size',
      )
      for size in results.values('size')
    }
  charts = _by_round(results)
  if name == 'epsilon_temperature':
    losses = [n for n in numbers if n.measure == 'loss' and 'epsilon' in n.cell]
    title, curves = 'Test loss against ε', _beside_paper('epsilon', losses)
    charts['cost'] = charts_lib.Chart(title, 'ε', 'test loss', curves)
  return charts


def _chart(
  title: str, curves: Sequence[charts_lib.Curve], x: str = 'communication round'
) -> charts_lib.Chart:
  return charts_lib.Chart(title, x, 'test accuracy (%)', curves, y_max=100.0)


def _by_round(results: Results) -> Charts:
  """Returns accuracy by round, in a chart for each value of the varied key."""
  key = next((key for key in _FILES if results.values(key)), None)
  if key is None:
    return {'accuracy': _chart('Test accuracy by round', _curves(results, {}))}
  charts = {}
  for value in results.values(key):
    if value not in results.missing:
      runs = results.where(**{key: value})
      title = results_lib.describe({key: value}, runs[0].part if runs else None)
      curves = _curves(results, {key: value})
      charts[_FILES[key].format(value)] = _chart(title, curves)
  return charts


def _curves(
  results: Results, cell: Mapping[str, Any]
) -> list[charts_lib.Curve]:
  """Returns the accuracies of a cell, and the level of centralised training."""
  curves, levels = [], []
  for part in results.plan.parts:
    if any(part.cell.get(key, cell[key]) != cell[key] for key in cell):
      continue
    runs = results.get(**part.cell)
    name = results_lib.describe(part.cell, skip=list(cell))
    if part.cell['algorithm'] == 'centralized':
      levels.append((f'{name} (level)', runs and runs.at(None)))
    elif runs is None:
      curves.append(charts_lib.Curve(name, [], []))
    else:
      frame = 100 * runs.by_round()
      points = list(frame.index), list(frame['mean'])
      curves.append(
        charts_lib.Curve(name, *points, list(frame['std'].dropna()))
      )
  last = max([2, *(t for curve in curves for t in curve.x)])
  for name, level in levels:
    ends = [(t, 100 * level.mean) for t in (1, last)] if level else []
    curves.append(_curve(name, ends))
  return curves


def _curve(
  name: str, points: Iterable[tuple[float, float | None]]
) -> charts_lib.Curve:
  """Returns a curve of the points that have a value."""
  known = [(x, y) for x, y in points if y is not None and not math.isnan(y)]
  return charts_lib.Curve(name, [x for x, _ in known], [y for _, y in known])


def _beside_paper(
  key: str, numbers: Sequence[tables.Number]
) -> list[charts_lib.Curve]:
  """Returns curves against a key of the cells: ours, then the paper's."""
  groups: dict[str, list[tables.Number]] = {}
  for number in numbers:
    name = results_lib.describe(number.cell, skip=[key, 'size'])
    groups.setdefault(name, []).append(number)
  factor = tables.MEASURES[numbers[0].measure].factor
  ours, paper = [], []
  for name, group in groups.items():
    known = [(n.cell[key], n.ours) for n in group if n.ours]
    curve = _curve(name, ((x, factor * value.mean) for x, value in known))
    spread = [factor * value.sd for _, value in known if value.sd is not None]
    ours.append(curve._replace(spread=spread))
    points = ((n.cell[key], factor * n.paper) for n in group)
    paper.append(_curve(f'{name}, paper', points))
  return [*ours, *paper]


def _uploads(results: Results, paper: PaperNumbers) -> Charts:
  """Returns accuracy by uploads, and the share of uploads against ν."""
  nearest = tables.with_nearest_nu(results, paper)
  ours, theirs = [], []
  for algorithm in ('fedavg', 'safl', 'extended_safl'):
    name = results_lib.ALGORITHMS[algorithm]
    runs = nearest.get(algorithm=algorithm)
    accuracies = {} if runs is None else 100 * runs.by_round()['mean']
    sent = {} if runs is None else runs.total_uploads()
    ours.append(_curve(name, ((sent[t], y) for t, y in accuracies.items())))
    points = (
      (entry['uploads'], 100 * entry['accuracy'])
      for entry in paper['numbers']
      if entry['algorithm'] == algorithm
    )
    theirs.append(_curve(f'{name}, paper', points))
  shares = 100 * tables.upload_shares(results, paper)
  goals = 100 * tables.paper_shares(paper)
  t = goals.index[-1]
  label = results_lib.round_label(t, results.where(algorithm='extended_safl'))
  title = f'Share of uploads in round {label} against ν'
  search = [
    _curve('Extended SAFL', shares[t].items()),
    _curve('paper', ((nu, goals[t]) for nu in shares.index)),
  ]
  y = 'uploads of those possible (%)'
  return {
    'uploads': _chart(
      'Test accuracy by uploads', [*ours, *theirs], 'uploads in total'
    ),
    'search': charts_lib.Chart(title, 'ν', y, search, y_max=100.0),
  }


def _sensitivity(results: Results, paper: PaperNumbers) -> Charts:
  """Returns SAFL's lead against the rate, and against n with the paper's."""
  leads = tables.leads(results)
  base = results.plan.parts[0].flags
  rate = base['learning_rate'] * base['batch_size']
  titles = {
    'rate': (f'the rate, n = {base["num_clients"]}', 'rate on the mean loss'),
    'n': (f'n, rate {rate:g}', 'clients n'),
  }
  names = {
    'lead': f'in round {results_lib.round_label(50, results.runs)}',
    'largest lead': 'largest, in any round',
  }
  theirs = ((int(n), 100 * lead) for n, lead in paper['leads'].items())
  charts = {}
  for key, (title, x) in titles.items():
    rows = leads[leads['vary'].isin(['', key])].sort_values(key)
    curves = [
      _curve(name, zip(rows[key], 100 * rows[column], strict=True))
      for column, name in names.items()
    ]
    if key == 'n':
      curves.append(_curve('in round 50 of the paper', theirs))
    y = "SAFL's lead (points)"
    charts[f'lead_by_{key}'] = charts_lib.Chart(
      f'Lead against {title}', x, y, curves, y_max=100.0, signed=True
    )
  return charts
