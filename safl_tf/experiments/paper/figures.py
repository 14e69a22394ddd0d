"""Figures of the experiments, as charts for `safl_tf.reporting`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safl_tf.experiments.paper import results as results_lib
from safl_tf.experiments.paper import tables
from safl_tf.reporting import charts as charts_lib
from safl_tf.reporting import names

Results = results_lib.Results
PaperNumbers = results_lib.PaperNumbers
Charts = dict[str, charts_lib.Chart]

# Varied key -> file names of the figures by round, one for each value.
_FILES = {
  'n': 'accuracy_n{}',
  'fraction': 'accuracy_R{}',
  'dataset': 'accuracy_{}',
  'group': 'accuracy_{}',
  'setting': 'accuracy_{}',
}


def figures(results: Results, paper: PaperNumbers) -> Charts:
  """Returns the charts of an experiment by file name.

  Those without a curve of ours are left out.
  """
  charts = _figures(results, paper)
  return {
    file: chart
    for file, chart in charts.items()
    if any(curve.x for curve in chart.curves if not curve.is_paper)
  }


def _figures(results: Results, paper: PaperNumbers) -> Charts:
  name = results.plan.experiment
  if name == 'sensitivity':
    return _sensitivity(results, paper)
  if name == 'uploads':
    return _uploads(results, paper)
  if name == 'biased_share':
    return _biased_share(results)
  numbers = tables.numbers(results, paper)
  if name == 'batch_size':
    return {
      f'accuracy_{size}': _chart(
        results,
        f'Test accuracy by batch size, {size} of the data',
        _beside_paper(
          'batch_size', [n for n in numbers if n.cell['size'] == size]
        ),
        'batch size',
        f'round {numbers[0].round_label}',
      )
      for size in results.values('size')
    }
  charts = _by_round(results, numbers)
  if name == 'epsilon_temperature':
    losses = [n for n in numbers if n.measure == 'loss' and 'epsilon' in n.cell]
    charts['loss'] = charts_lib.Chart(
      'Test loss of SAFL by ε',
      'ε',
      'test loss',
      _beside_paper('epsilon', losses),
      subtitle=_subtitle(results, f'round {losses[0].round_label}'),
    )
  return charts


def _chart(
  results: Results,
  title: str,
  curves: Sequence[charts_lib.Curve],
  x: str = 'communication round',
  *also: str,
  levels: Mapping[str, float] | None = None,
) -> charts_lib.Chart:
  """Returns a chart of accuracies, with the level of guessing."""
  return charts_lib.Chart(
    title,
    x,
    'test accuracy (%)',
    curves,
    y_max=100.0,
    subtitle=_subtitle(results, *also),
    levels={
      'guessing': 100 / results.plan.parts[0].num_classes,
      **(levels or {}),
    },
  )


def _subtitle(results: Results, *also: str) -> str:
  """Returns what all runs train on, their n, ε and L, and their seeds."""
  first, *others = [
    part.flags
    for part in results.plan.parts
    if part.cell['algorithm'] != 'centralized'
  ]
  shared = {
    name: value
    for name, value in first.items()
    if all(flags.get(name) == value for flags in others)
  }
  seeds = max((len(runs.histories) for runs in results.runs), default=0)
  spread = f'mean ± sd of {seeds} seeds' if seeds > 1 else ''
  return ', '.join(filter(None, [names.subtitle(shared), *also, spread]))


def _by_round(results: Results, numbers: Sequence[tables.Number]) -> Charts:
  """Returns accuracy by round, in a chart for each value of the varied key."""
  key = next((key for key in _FILES if results.values(key)), None)
  title = 'Test accuracy by round'
  if key is None:
    curves, levels = _curves(results, {}, numbers)
    return {'accuracy': _chart(results, title, curves, levels=levels)}
  charts = {}
  for value in results.values(key):
    if value not in results.missing:
      runs = results.where(**{key: value})
      text = results_lib.describe({key: value}, runs[0].part if runs else None)
      curves, levels = _curves(results, {key: value}, numbers)
      file = re.sub(r'[^\w.]+', '_', str(value), flags=re.ASCII)
      charts[_FILES[key].format(file)] = _chart(
        results, f'{title}, {text}', curves, levels=levels
      )
  return charts


def _curves(
  results: Results, cell: Mapping[str, Any], numbers: Sequence[tables.Number]
) -> tuple[list[charts_lib.Curve], dict[str, float]]:
  """Returns the accuracies of a cell, and the level of centralised training.

  The paper's numbers are drawn beside runs of its size.
  """
  curves: list[charts_lib.Curve] = []
  levels = {}
  for part in results.plan.parts:
    if any(part.cell.get(key, cell[key]) != cell[key] for key in cell):
      continue
    runs = results.get(**part.cell)
    name = results_lib.describe(part.cell, skip=list(cell))
    algorithm = part.cell['algorithm']
    if algorithm == 'centralized':
      level = runs and runs.at(None)
      if level is not None:
        levels[name] = 100 * level.mean
      continue
    curve = charts_lib.Curve(name, [], [], algorithm=algorithm)
    if runs is not None:
      frame = 100 * runs.by_round()
      curve = curve._replace(
        x=list(frame.index),
        y=list(frame['mean']),
        spread=list(frame['std'].dropna()),
      )
    curves.append(curve)
    theirs = {
      number.round: 100 * number.paper
      for number in numbers
      if number.measure == 'accuracy' and number.runs is runs is not None
    }
    paper = _paper(name, theirs.items(), algorithm)
    known = [(c.algorithm, c.x, c.y) for c in curves if c.is_paper]
    if theirs and part.full_size and (algorithm, paper.x, paper.y) not in known:
      curves.append(paper)
  return curves, levels


def _curve(
  name: str,
  points: Iterable[tuple[float, float | None]],
  algorithm: str | None = None,
) -> charts_lib.Curve:
  """Returns a curve of the points that have a value."""
  known = [(x, y) for x, y in points if y is not None and not math.isnan(y)]
  xs, ys = [x for x, _ in known], [y for _, y in known]
  return charts_lib.Curve(name, xs, ys, algorithm=algorithm)


def _paper(
  name: str, points: Iterable[tuple[float, float]], algorithm: str | None
) -> charts_lib.Curve:
  """Returns the paper's values beside the curve with this name."""
  return _curve(name, points, algorithm)._replace(is_paper=True)


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
    algorithm = group[0].cell['algorithm']
    known = [(n.cell[key], n.ours) for n in group if n.ours]
    points = ((x, factor * value.mean) for x, value in known)
    spread = [factor * value.sd for _, value in known if value.sd is not None]
    ours.append(_curve(name, points, algorithm)._replace(spread=spread))
    theirs = ((n.cell[key], factor * n.paper) for n in group)
    paper.append(_paper(name, theirs, algorithm))
  return [*ours, *paper]


def _uploads(results: Results, paper: PaperNumbers) -> Charts:
  """Returns accuracy by uploads, and the share of uploads against ν."""
  nearest = tables.with_nearest_nu(results, paper)
  ours, theirs = [], []
  for algorithm in ('fedavg', 'safl', 'extended_safl'):
    name = names.value('algorithm', algorithm)
    runs = nearest.get(algorithm=algorithm)
    curve = _curve(name, (), algorithm)
    if runs is not None:
      frame, sent = 100 * runs.by_round(), runs.total_uploads()
      curve = curve._replace(
        x=[sent[t] for t in frame.index],
        y=list(frame['mean']),
        spread=list(frame['std'].dropna()),
      )
    ours.append(curve)
    points = (
      (entry['uploads'], 100 * entry['accuracy'])
      for entry in paper['numbers']
      if entry['algorithm'] == algorithm
    )
    theirs.append(_paper(name, points, algorithm))
  charts = {
    'uploads': _chart(
      results, 'Test accuracy by uploads', [*ours, *theirs], 'uploads in total'
    )
  }
  shares = 100 * tables.upload_shares(results, paper)
  goals = 100 * tables.paper_shares(paper)
  t = goals.index[-1]
  label = results_lib.round_label(t, results.where(algorithm='extended_safl'))
  share = _curve('Extended SAFL', shares[t].items(), 'extended_safl')
  if len(share.x) > 1:
    charts['search'] = charts_lib.Chart(
      'Share of uploads by ν',
      'ν',
      'uploads of those possible (%)',
      [share],
      y_max=100.0,
      subtitle=_subtitle(results, f'up to round {label}'),
      levels={"the paper's share": goals[t]},
    )
  return charts


def _biased_share(results: Results) -> Charts:
  """Returns the last accuracy by the share of one-digit clients."""
  charts = {}
  skip = ('share', 'digits')
  for digits in results.values('digits'):
    points: dict[str, list[tuple[float, results_lib.Value]]] = {}
    algorithms = {}
    for runs in results.runs:
      cell = runs.part.cell
      last = runs.at(None)
      if cell.get('digits', digits) == digits and last:
        name = results_lib.describe(cell, skip=skip)
        algorithms[name] = cell['algorithm']
        points.setdefault(name, []).append((100 * cell['share'], last))
    curves = [
      _curve(
        name, ((x, 100 * y.mean) for x, y in of), algorithms[name]
      )._replace(spread=[100 * y.sd for _, y in of if y.sd is not None])
      for name, of in points.items()
    ]
    charts[f'accuracy_{digits.split()[0]}'] = _chart(
      results,
      f'Accuracy by the share of one-digit clients, {digits}',
      curves,
      'clients with one digit (%)',
      'last round',
    )
  return charts


def _sensitivity(results: Results, paper: PaperNumbers) -> Charts:
  """Returns SAFL's lead against the rate, and against n with the paper's."""
  leads = tables.leads(results)
  base = results.plan.parts[0].flags
  rate = base['learning_rate'] * base['batch_size']
  titles = {
    'rate': (f'rate, n = {base["num_clients"]}', 'rate on the mean loss'),
    'n': (f'number of clients, rate {rate:g}', 'clients n'),
  }
  labels = {
    'lead': f'in round {results_lib.round_label(50, results.runs)}',
    'largest lead': 'largest, in any round',
  }
  theirs = ((int(n), 100 * lead) for n, lead in paper['leads'].items())
  charts = {}
  for key, (title, x) in titles.items():
    rows = leads[leads['vary'].isin(['', key])].sort_values(key)
    curves = [
      _curve(name, zip(rows[key], 100 * rows[column], strict=True), 'safl')
      for column, name in labels.items()
    ]
    if key == 'n':
      name = labels['lead']
      curves.append(_paper(name, theirs, 'safl'))
    y = "SAFL's lead (points)"
    charts[f'lead_by_{key}'] = charts_lib.Chart(
      f"SAFL's lead over FedAvg by {title}",
      x,
      y,
      curves,
      y_max=100.0,
      signed=True,
      subtitle=_subtitle(results),
    )
  return charts
