"""Tables in the paper's form, with the paper's numbers beside ours."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from safl_tf.experiments.paper import experiments
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import names

if TYPE_CHECKING:
  import pandas as pd

Results = results_lib.Results
PaperNumbers = results_lib.PaperNumbers

# Rounds of the paper in the tables of accuracy by round.
_ROUNDS = {
  'convergence_mnist': (20, 35, 50, 56, 70, 100),
  'convergence_speech': (20, 35, 50, 56, 70, 100),
  'fraction': (20, 30, 50, 70, 100),
  'techniques': (10, 20, 30, 40, 50, 70, 100),
}
_LEVELS = (0.8, 0.95)  # accuracies in the paper's claims
_SETTINGS = {
  'init_shared': 'one initial model for all',
  'loss_mean': 'loss averaged, not summed',
  'adam': 'Adam',
  'momentum': 'momentum 0.9',
}
_LEAD_COLUMNS = [
  *('', 'FedAvg (%)', 'SAFL (%)', 'lead', 'largest lead', 'in round'),
  *('vary', 'n', 'rate'),
]


class Measure(NamedTuple):
  """Column of metrics.csv, label, unit and formats of a measure.

  Values agree within `tolerance`, which for uploads is relative.
  """

  column: str
  label: str
  factor: float
  digits: int
  paper_format: str
  tolerance: float


MEASURES = {
  'loss': Measure('test_loss', 'loss', 1, 3, '.3f', 0.05),
  'uploads': Measure('uploaded', 'uploads', 1, 0, ',.0f', 0.05),
  'accuracy': Measure('test_accuracy', 'accuracy (%)', 100, 1, '.4g', 0.02),
  'top5': Measure('test_top5_accuracy', 'top-5 (%)', 100, 1, '.4g', 0.02),
}


class Number(NamedTuple):
  """A number of one of the paper's tables.

  Attributes:
    cell: what it is for.
    measure: key of `MEASURES`.
    round: the paper's round. Centralised training is taken after its last.
    paper: the paper's value.
    runs: the runs that stand for it, if finished.
  """

  cell: Mapping[str, Any]
  measure: str
  round: int
  paper: float
  runs: results_lib.Runs | None

  @property
  def ours(self) -> results_lib.Value | None:
    """Our value."""
    if self.runs is None:
      return None
    if self.measure == 'uploads':
      return self.runs.total(self.round)
    return self.runs.at(self.round, MEASURES[self.measure].column)

  @property
  def texts(self) -> tuple[str, str]:
    """Our value and the paper's, formatted."""
    ours, measure = self.ours, MEASURES[self.measure]
    return (
      '-' if ours is None else ours.format(measure.factor, measure.digits),
      format(measure.factor * self.paper, measure.paper_format),
    )

  @property
  def round_label(self) -> str:
    """The paper's round, after the one that stands for it if they differ."""
    is_last = self.cell['algorithm'] == 'centralized'
    return results_lib.round_label(None if is_last else self.round, [self.runs])


def numbers(results: Results, paper: PaperNumbers) -> list[Number]:
  """Returns the numbers of the paper's table; none for a figure."""
  if results.plan.experiment == 'uploads':
    results = with_nearest_nu(results, paper)
  several = []
  for entry in paper.get('numbers', ()):
    keys = entry.keys() - {'round', *MEASURES}
    cell = {key: value for key, value in entry.items() if key in keys}
    if cell.get('dataset') not in results.missing:
      several += [
        Number(cell, key, entry['round'], entry[key], results.get(**cell))
        for key in MEASURES
        if key in entry
      ]
  return several


def values(several: Sequence[Number]) -> 'pd.DataFrame':
  """Returns a row with both values for each number of the paper."""
  import pandas as pd

  none = results_lib.Value(math.nan, None, 0)
  rows = [
    {
      'what': results_lib.describe(number.cell),
      'measure': number.measure,
      'paper_round': number.round,
      'paper': number.paper,
      **(number.ours or none)._asdict(),
      'of_the_papers_size': bool(number.runs and number.runs.part.full_size),
    }
    for number in several
  ]
  return pd.DataFrame(rows)


def tables(results: Results, paper: PaperNumbers) -> dict[str, 'pd.DataFrame']:
  """Returns the tables of an experiment by title, with formatted cells."""
  name = results.plan.experiment
  if name in _ROUNDS:
    return {'Accuracy by round': _by_round(results, _ROUNDS[name])}
  if name == 'biased':
    return {'Accuracy in the last round': _biased(results)}
  if name == 'biased_share':
    return {'Accuracy in the last round': _biased_share(results)}
  if name == 'annealing':
    title = 'Accuracy in % in the last round (first round with 80 %)'
    return {title: _annealing(results)}
  if name == 'sensitivity':
    label = results_lib.round_label(50, results.runs)
    return {
      f'Accuracy in round {label}, leads in points': _sensitivity(results)
    }
  title = f'{experiments.EXPERIMENTS[name].place}: ours (paper)'
  table = _paper_table(numbers(results, paper), paper['columns'])
  if name != 'uploads':
    return {title: table}
  for runs in with_nearest_nu(results, paper).where(algorithm='extended_safl'):
    title += f', ν = {runs.part.cell["nu"]:g}'
  return {title: table, 'Share of uploads by ν': _nu_search(results, paper)}


def _paper_table(
  several: Sequence[Number], column_keys: Sequence[str]
) -> 'pd.DataFrame':
  """Returns cells 'ours (paper)'; columns are the measures and some keys."""
  lines: dict[str, dict[str, str]] = {}
  for number in several:
    by_column = {key: number.cell[key] for key in column_keys}
    by_row = {**number.cell, 'round': number.round}
    row = results_lib.describe(by_row, skip=column_keys)
    column = (
      f'{results_lib.describe(by_column)} {MEASURES[number.measure].label}'
    )
    line = lines.setdefault(row, {'': row, 'our round': '', 'size': ''})
    line[column.strip()] = '{} ({})'.format(*number.texts)
    if number.runs and number.cell['algorithm'] != 'centralized':
      line['our round'] = str(number.runs.part.round_for(number.round))
      line['size'] = "paper's" if number.runs.part.full_size else 'smaller'
  return _frame(lines.values())


def _by_round(results: Results, rounds: Sequence[int]) -> 'pd.DataFrame':
  """Returns accuracies in the paper's rounds, and when levels are reached."""
  clients = [r for r in results.runs if r.algorithm != 'centralized']
  known = [t for t in rounds if any(runs.at(t) for runs in clients)]
  lines = []
  for runs in sorted(results.runs, key=lambda r: r not in clients):
    line = {'': results_lib.describe(runs.part.cell, runs.part)}
    for t in known if runs in clients else ():
      label = f'round {results_lib.round_label(t, clients)} (%)'
      line[label] = format_percent(runs.at(t))
    line['last (%)'] = format_percent(runs.at(None))
    for level in _LEVELS if runs in clients else ():
      reached = runs.first_round(level)
      line[f'{100 * level:g} % in round'] = str(reached or '-')
    lines.append(line)
  return _frame(lines)


def _biased(results: Results) -> 'pd.DataFrame':
  """Returns the accuracy that each algorithm loses to biased clients."""
  lines = []
  for algorithm in results.values('algorithm'):
    line = {'': names.value('algorithm', algorithm)}
    finals = []
    for group in ('without', 'with'):
      runs = results.get(algorithm=algorithm, group=group)
      finals.append(runs and runs.at(None))
      line[f'{group} biased clients (%)'] = format_percent(finals[-1])
    line['lost (points)'] = format_points(subtract(*finals))
    lines.append(line)
  return _frame(lines)


def _biased_share(results: Results) -> 'pd.DataFrame':
  """Returns a row for each algorithm and a column for each kind of clients."""
  lines: dict[str, dict[str, str]] = {}
  for runs in results.runs:
    cell = runs.part.cell
    kinds = ('share', 'digits')
    name = results_lib.describe(cell, skip=kinds)
    parts = [f'{100 * cell["share"]:g} %', cell.get('digits', '')]
    column = ', '.join(filter(None, parts))
    line = lines.setdefault(name, {'one-digit clients': name})
    line[column] = format_percent(runs.at(None))
  return _frame(lines.values())


def _annealing(results: Results) -> 'pd.DataFrame':
  """Returns a row for each setting, and columns for FedAvg and each L."""
  lines: dict[str, dict[str, str]] = {}
  for runs in results.runs:
    cell = runs.part.cell
    line = lines.setdefault(cell['setting'], {'': cell['setting']})
    name = results_lib.describe(cell, skip=['setting'])
    first = runs.first_round(_LEVELS[0]) or '-'
    line[name] = f'{format_percent(runs.at(None))} ({first})'
  return _frame(lines.values())


def leads(results: Results) -> 'pd.DataFrame':
  """Returns SAFL's lead over FedAvg in each setting that both have finished."""
  import pandas as pd

  lines = []
  for safl in results.where(algorithm='safl'):
    cell, flags = safl.part.cell, safl.part.flags
    fedavg = results.get(algorithm='fedavg', setting=cell['setting'])
    if fedavg is None:
      continue
    a, b, by_round = safl.at(50), fedavg.at(50), safl.lead(fedavg)
    n, rate = flags['num_clients'], flags['learning_rate']
    if flags.get('loss_reduction', 'sum') == 'sum':
      rate *= flags['batch_size']
    labels = {'n': f'n = {n}', 'rate': f'rate {rate:g}'} | _SETTINGS
    label = labels.get(cell['vary'], labels.get(cell['setting']))
    lines.append(
      {
        '': label or f'n = {n}, rate {rate:g}',
        'FedAvg (%)': format_percent(b),
        'SAFL (%)': format_percent(a),
        'lead': subtract(a, b),
        'largest lead': by_round.max(),
        'in round': by_round.idxmax(),
        'vary': cell['vary'],
        'n': n,
        'rate': rate,
      }
    )
  return pd.DataFrame(lines, columns=_LEAD_COLUMNS)


def _sensitivity(results: Results) -> 'pd.DataFrame':
  frame = leads(results)
  for column in ('lead', 'largest lead'):
    frame[column] = frame[column].map(format_points)
  return frame.drop(columns=['vary', 'n', 'rate'])


def upload_shares(results: Results, paper: PaperNumbers) -> 'pd.DataFrame':
  """Returns the share of selected clients that upload, by ν and round."""
  import pandas as pd

  shares = {}
  for runs in results.where(algorithm='extended_safl'):
    shares[runs.part.cell['nu']] = {
      t: sent.mean / selected.mean
      for t in paper_shares(paper).index
      if (sent := runs.total(t)) and (selected := runs.total(t, 'selected'))
    }
  columns = paper_shares(paper).index
  return pd.DataFrame.from_dict(shares, 'index', columns=columns)


def paper_shares(paper: PaperNumbers) -> 'pd.Series':
  """Returns the paper's share of uploads of Extended SAFL by round."""
  import pandas as pd

  frame = pd.DataFrame(paper['numbers'])
  uploads = frame.pivot(index='round', columns='algorithm', values='uploads')
  return uploads['extended_safl'] / uploads['safl']


def with_nearest_nu(results: Results, paper: PaperNumbers) -> Results:
  """Returns the results with only the ν whose shares are nearest."""
  shares = upload_shares(results, paper)
  distance = (shares - paper_shares(paper)).abs().mean(axis=1).dropna()
  nearest = (
    distance.idxmin() if len(distance) else next(iter(shares.index), None)
  )
  kept = [r for r in results.runs if r.part.cell.get('nu', nearest) == nearest]
  return results._replace(runs=kept)


def _nu_search(results: Results, paper: PaperNumbers) -> 'pd.DataFrame':
  """Returns shares of uploads by ν, and the ν that has the paper's share."""
  shares, goals = upload_shares(results, paper), paper_shares(paper)
  searched = results.where(algorithm='extended_safl')
  last, goal = goals.index[-1], goals.iloc[-1]

  def line(nu: str, shares: 'pd.Series', accuracy: str) -> dict[str, str]:
    cells = {
      f'round {results_lib.round_label(t, searched)} (%)': f'{100 * share:.1f}'
      for t, share in shares.dropna().items()
    }
    return {'ν': nu, **cells, 'accuracy (%)': accuracy}

  lines = [
    line(f'{nu:g}', shares.loc[nu], format_percent(runs.at(last)))
    for nu, runs in zip(shares.index, searched, strict=True)
  ]
  for (a, low), (b, high) in itertools.pairwise(shares[last].items()):
    if min(low, high) < goal < max(low, high):
      nu = a * (b / a) ** ((goal - low) / (high - low))
      lines.append(line(f'{nu:.2g} (interpolated)', goals.tail(1), ''))
  accuracies = [
    entry['accuracy']
    for entry in paper['numbers']
    if (entry['algorithm'], entry['round']) == ('extended_safl', last)
  ]
  lines.append(line('in the paper', goals, f'{100 * accuracies[0]:.4g}'))
  return _frame(lines)


def format_percent(value: results_lib.Value | None) -> str:
  """Returns a share in %, or '-' if there is none."""
  return '-' if value is None else value.format(100, 1)


def subtract(a: results_lib.Value | None, b: results_lib.Value | None) -> float:
  """Returns the difference of two means; NaN if one is missing."""
  return a.mean - b.mean if a and b else math.nan


def format_points(difference: float) -> str:
  """Returns a difference in points as '+24.5'; '-' for NaN."""
  if math.isnan(difference):
    return '-'
  return f'{round(100 * difference, 1) + 0.0:+.1f}'


def _frame(lines: Iterable[Mapping[str, Any]]) -> 'pd.DataFrame':
  """Returns lines as a table; absent cells are empty."""
  import pandas as pd

  return pd.DataFrame(list(lines), dtype=object).fillna('')
