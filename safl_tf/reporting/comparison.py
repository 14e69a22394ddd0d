"""Runs of several algorithms, put into one table.

A run is its history, the rows of its metrics.csv. `run_rows` reduces each run
to a row of numbers, `algorithm_rows` these to a row per algorithm with means
and sample standard deviations over its runs, which are told apart by seed.

A mean is over all runs of an algorithm; where one of them has no value there
is none. Only rounds and megabytes up to the target accuracy are those of the
runs that reached it, and `reached_target` is their number.
"""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from safl_tf.reporting import plots

Row = dict[str, Any]

_ABOUT = ('algorithm', 'seed', 'target_accuracy')
_TO_TARGET = ('rounds_to_target', 'mb_up_to_target')
# File name -> title, column for x, column for y.
_CHARTS = {
  'accuracy': ('Test accuracy by round', 'round', 'test_accuracy'),
  'loss': ('Test loss by round', 'round', 'test_loss'),
  'traffic': ('Test accuracy by traffic', 'total_bytes_up', 'test_accuracy'),
}
# Column -> what an axis calls it, and the factor to that unit.
_AXES = {
  'round': ('communication round', 1.0),
  'test_accuracy': ('test accuracy (%)', 100.0),
  'test_loss': ('test loss', 1.0),
  'total_bytes_up': ('uploaded in total (MB)', 1e-6),
}


class Run(NamedTuple):
  """One run.

  Attributes:
    algorithm: what was run.
    seed: of its draws.
    history: its rows of metrics, at least one.
  """

  algorithm: str
  seed: int
  history: Sequence[Row]


def quarters(rounds: int) -> list[int]:
  """The rounds after which a quarter, half and three quarters are done."""
  return sorted({max(1, rounds * k // 4) for k in (1, 2, 3)})


def run_rows(
  runs: Iterable[Run], at_rounds: Sequence[int], target: float
) -> list[Row]:
  """A row of numbers for each run.

  Args:
    runs: in the order of the rows.
    at_rounds: rounds to tell the accuracy of: the last evaluation up to there.
      A run that ended before has none.
    target: the test accuracy to reach.
  """
  return [
    {
      'algorithm': run.algorithm,
      'seed': run.seed,
      'target_accuracy': target,
      **_summary(run.history, at_rounds, target),
    }
    for run in runs
  ]


def _summary(
  history: Sequence[Row], at_rounds: Sequence[int], target: float
) -> Row:
  scored = [row for row in history if row['test_accuracy'] is not None]
  accuracies = [row['test_accuracy'] for row in scored]
  first = next((r for r in scored if r['test_accuracy'] >= target), None)
  last = history[-1]
  summary: Row = {'rounds': last['round']}
  for t in at_rounds:
    until = [r['test_accuracy'] for r in scored if r['round'] <= t]
    there = until and t <= last['round']
    summary[f'accuracy_round_{t}'] = until[-1] if there else None
  return summary | {
    'final_accuracy': accuracies[-1] if accuracies else None,
    'best_accuracy': max(accuracies, default=None),
    'rounds_to_target': first and first['round'],
    'mb_up_to_target': first and first['total_bytes_up'] / 1e6,
    'uploads': sum(row['uploaded'] for row in history),
    'mb_up': last['total_bytes_up'] / 1e6,
    'mb_down': last['total_bytes_down'] / 1e6,
    'seconds': sum(row['seconds'] for row in history),
  }


def algorithm_rows(rows: Sequence[Row]) -> list[Row]:
  """What `run_rows` gave -> a row per algorithm, in order of appearance.

  Every number X becomes X_mean and X_sd; the latter is None for one run.
  """
  found = []
  for algorithm in dict.fromkeys(row['algorithm'] for row in rows):
    mine = [row for row in rows if row['algorithm'] == algorithm]
    reached = [row for row in mine if row['rounds_to_target'] is not None]
    made: Row = {
      'algorithm': algorithm,
      'seeds': len(mine),
      'target_accuracy': mine[0]['target_accuracy'],
      'reached_target': len(reached),
    }
    for name in mine[0]:
      if name not in _ABOUT:
        those = reached if name in _TO_TARGET else mine
        both = _mean_and_sd([row[name] for row in those])
        made[f'{name}_mean'], made[f'{name}_sd'] = both
    found.append(made)
  return found


def _mean_and_sd(
  values: Sequence[float | None],
) -> tuple[float | None, float | None]:
  known = [value for value in values if value is not None]
  if not known or len(known) < len(values):
    return None, None
  sd = statistics.stdev(known) if len(known) > 1 else None
  return statistics.fmean(known), sd


def to_csv(rows: Sequence[Row]) -> str:
  """Rows as CSV; numbers read back bit for bit, None is an empty cell."""
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def table(rows: Sequence[Row]) -> list[list[str]]:
  """What `algorithm_rows` gave, to be read: a line of headings, then cells.

  Accuracies are in %, as mean ± sd where there is more than one run.
  """
  accuracies = [
    name.removesuffix('_mean')
    for name in rows[0]
    if name.startswith('accuracy_round_') and name.endswith('_mean')
  ]
  goal = f'{100 * rows[0]["target_accuracy"]:g} %'
  none = 'not reached'
  columns: dict[str, Callable[[Row], str]] = {
    'algorithm': lambda row: row['algorithm'],
    'seeds': lambda row: str(row['seeds']),
  }
  for name in accuracies:
    heading = f'round {name.removeprefix("accuracy_round_")} (%)'
    columns[heading] = _cell(name, 100)
  columns |= {
    'final (%)': _cell('final_accuracy', 100),
    'best (%)': _cell('best_accuracy', 100),
    f'reached {goal}': lambda row: f'{row["reached_target"]} of {row["seeds"]}',
    f'rounds until {goal}': _cell('rounds_to_target', 1, none, whole=True),
    f'MB up until {goal}': _cell('mb_up_to_target', 1, none),
    'uploads': _cell('uploads', whole=True),
    'MB up': _cell('mb_up'),
    'MB down': _cell('mb_down'),
    'seconds': _cell('seconds'),
  }
  lines = [[cell(row) for cell in columns.values()] for row in rows]
  return [list(columns), *lines]


def _cell(
  name: str, factor: float = 1.0, absent: str = '-', whole: bool = False
) -> Callable[[Row], str]:
  """Row -> 'mean ± sd', or `absent`; a count that doesn't vary is `whole`."""

  def told(row: Row) -> str:
    mean, sd = row[f'{name}_mean'], row[f'{name}_sd']
    if mean is None:
      return absent
    digits = 0 if whole and not sd else 1
    text = f'{factor * mean:,.{digits}f}'
    return text if sd is None else f'{text} ± {factor * sd:,.{digits}f}'

  return told


def to_markdown(lines: Sequence[Sequence[str]]) -> str:
  """A table as Markdown, its columns aligned; the first one holds names."""
  lines = [[cell.replace('|', r'\|') for cell in line] for line in lines]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  dashes = ['-' * widths[0], *('-' * (width - 1) + ':' for width in widths[1:])]
  padded = [
    [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
    for line in lines
  ]
  shown = [padded[0], dashes, *padded[1:]]
  return ''.join(f'| {" | ".join(line)} |\n' for line in shown)


def charts(runs: Sequence[Run]) -> dict[str, plots.Chart]:
  """File name -> accuracy by round, loss by round, accuracy by megabytes.

  Each has a curve for every algorithm, in the same order: the mean over its
  runs, at the rounds at which all of them have a finite value.
  """
  histories: dict[str, list[Sequence[Row]]] = {}
  for run in runs:
    histories.setdefault(run.algorithm, []).append(run.history)
  return {
    name: plots.Chart(
      title,
      _AXES[x][0],
      _AXES[y][0],
      [_curve(name, rows, x, y) for name, rows in histories.items()],
      most=100.0 if y == 'test_accuracy' else None,
    )
    for name, (title, x, y) in _CHARTS.items()
  }


def _curve(
  name: str, histories: Sequence[Sequence[Row]], x: str, y: str
) -> plots.Curve:
  points = [
    {
      row['round']: (row[x] * _AXES[x][1], row[y] * _AXES[y][1])
      for row in history
      if row[y] is not None and math.isfinite(row[y])
    }
    for history in histories
  ]
  rounds = sorted(set.intersection(*map(set, points)))
  xs = [statistics.fmean(run[t][0] for run in points) for t in rounds]
  ys = [[run[t][1] for run in points] for t in rounds]
  spread = [statistics.stdev(at) for at in ys] if len(points) > 1 else []
  return plots.Curve(name, xs, [statistics.fmean(at) for at in ys], spread)
