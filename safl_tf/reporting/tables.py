"""Tables that compare runs, and their CSV, Markdown and LaTeX forms.

`run_rows` summarises each run in a row; `setting_rows` averages the rows of a
setting over its seeds. A mean covers all runs of the setting, and is None if a
run lacks the value; only the rounds and megabytes to the target accuracy cover
just the runs that reached it, `reached_target` in number. The metric is the
accuracy, or the loss of runs without accuracy, which have no target.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.reporting import metrics, names

Row = dict[str, Any]

NOTES = (
  '± is the sample standard deviation over seeds, as are the bands of curves. '
  'A megabyte is 1,000,000 bytes. Seconds are those in rounds, including '
  'compilation.'
)
_METRIC_NOTES = {
  'accuracy': 'Accuracies are on the test data; the accuracy at a round is '
  'that of the latest evaluation. Rounds and megabytes to the target are means '
  'over the seeds that reached it. ',
  'loss': 'Losses are on the test data, lower is better; the loss at a round '
  'is that of the latest evaluation. ',
}
_TO_TARGET = ('rounds_to_target', 'mb_up_to_target')
_LATEX = {
  **{c: f'\\{c}' for c in '&%$#_{}'},
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '±': r'$\pm$',
}


class Run(NamedTuple):
  """A finished run.

  Attributes:
    setting: what its setting differs in from others, such as the algorithm.
    seed: the seed of all random draws.
    history: the rows of its metrics.csv, at least one.
  """

  setting: Mapping[str, Any]
  seed: int
  history: Sequence[Row]

  @property
  def label(self) -> str:
    """The name of the setting."""
    return names.setting(self.setting)


def quarters(rounds: int) -> list[int]:
  """Returns the rounds that complete 1/4, 1/2 and 3/4 of a run."""
  return sorted({max(1, rounds * k // 4) for k in (1, 2, 3)})


def notes(runs: Sequence[Run]) -> str:
  """Explains the table of some runs."""
  return _METRIC_NOTES[metrics.main(run.history for run in runs).name] + NOTES


def run_rows(
  runs: Sequence[Run], at_rounds: Sequence[int], target: float
) -> list[Row]:
  """Summarises each run in a row.

  Args:
    runs: the runs, in the order of the rows.
    at_rounds: rounds to report the metric at: that of the last evaluation so
      far, or None if the run ended earlier.
    target: the test accuracy to reach.
  """
  metric = metrics.main(run.history for run in runs)
  name, has_target = metric.name, metric is metrics.ACCURACY
  rows = []
  for setting, seed, history in runs:
    values = {
      row['round']: row[metric.column]
      for row in history
      if row[metric.column] is not None
    }
    last = history[-1]
    row: Row = {**setting, 'seed': seed}
    if has_target:
      row['target_accuracy'] = target
    row['rounds'] = last['round']
    for t in at_rounds:
      until = [value for r, value in values.items() if r <= t]
      known = until and t <= last['round']
      row[f'{name}_round_{t}'] = until[-1] if known else None
    row[f'final_{name}'] = [*values.values()][-1] if values else None
    row[f'best_{name}'] = metric.best(values.values())
    if has_target:
      reached = next((t for t, v in values.items() if v >= target), None)
      up = [r['total_bytes_up'] for r in history if r['round'] == reached]
      row['rounds_to_target'] = reached
      row['mb_up_to_target'] = up[0] / 1e6 if up else None
    rows.append(
      row
      | {
        'uploads': sum(r['uploaded'] for r in history),
        'mb_up': last['total_bytes_up'] / 1e6,
        'mb_down': last['total_bytes_down'] / 1e6,
        'seconds': sum(r['seconds'] for r in history),
      }
    )
  return rows


def setting_rows(rows: Sequence[Row]) -> list[Row]:
  """Averages `run_rows` by setting, in order of appearance.

  Every number X becomes X_mean and X_sd, see `mean_and_sd`.
  """
  columns = list(rows[0])
  keys, numbers = _split(columns, 'seed')
  groups: dict[tuple[Any, ...], list[Row]] = {}
  for row in rows:
    groups.setdefault(tuple(row[key] for key in keys), []).append(row)
  averaged = []
  for values, runs in groups.items():
    average: Row = dict(zip(keys, values, strict=True)) | {'seeds': len(runs)}
    reached = runs
    if 'target_accuracy' in numbers:
      reached = [row for row in runs if row['rounds_to_target'] is not None]
      average['target_accuracy'] = runs[0]['target_accuracy']
      average['reached_target'] = len(reached)
    for name in numbers:
      if name != 'target_accuracy':
        of = reached if name in _TO_TARGET else runs
        mean, sd = mean_and_sd([row[name] for row in of])
        average[f'{name}_mean'], average[f'{name}_sd'] = mean, sd
    averaged.append(average)
  return averaged


def _split(columns: Sequence[str], middle: str) -> tuple[list[str], list[str]]:
  """Returns the columns before and after one of them."""
  i = list(columns).index(middle)
  return list(columns[:i]), list(columns[i + 1 :])


def best_row(rows: Sequence[Row]) -> int | None:
  """Returns the number of the `setting_rows` with the best final metric."""
  metric = metric_of(rows[0])
  column = f'final_{metric.name}_mean'
  known = {i: row[column] for i, row in enumerate(rows)}
  known = {i: value for i, value in known.items() if value is not None}
  best = metric.best(known.values())
  return next((i for i, value in known.items() if value == best), None)


def metric_of(row: Row) -> metrics.Metric:
  """Returns the metric of a row of `setting_rows`."""
  has_accuracy = 'final_accuracy_mean' in row
  return metrics.ACCURACY if has_accuracy else metrics.LOSS


def table(rows: Sequence[Row]) -> list[list[str]]:
  """Formats `setting_rows` as text: a line of headings, then the cells."""
  metric = metric_of(rows[0])
  name, (keys, _) = metric.name, _split(list(rows[0]), 'seeds')
  matches = [re.fullmatch(rf'{name}_round_(\d+)_mean', key) for key in rows[0]]
  unit = ' (%)' if metric.percent else f' {name}'

  def score(row: Row, column: str) -> str:
    mean, sd = row[f'{column}_mean'], row[f'{column}_sd']
    digits = 1 if metric.percent else 4
    return format_mean_sd(mean, sd, digits, metric.factor)

  def cell(row: Row, name: str, absent: str = '-', count: bool = False) -> str:
    mean, sd = row[f'{name}_mean'], row[f'{name}_sd']
    digits = 0 if count and not sd else 1
    return format_mean_sd(mean, sd, digits, absent=absent)

  def target(row: Row) -> dict[str, str]:
    if 'target_accuracy' not in row:
      return {}
    goal = f'{100 * row["target_accuracy"]:g} %'
    return {
      f'reached {goal}': f'{row["reached_target"]} of {row["seeds"]}',
      f'rounds until {goal}': cell(
        row, 'rounds_to_target', absent='not reached', count=True
      ),
      f'MB up until {goal}': cell(row, 'mb_up_to_target', absent='not reached'),
    }

  cells = [
    {
      **{names.heading(key): names.value(key, row[key]) for key in keys},
      'seeds': str(row['seeds']),
      **{
        f'round {match[1]}{unit}': score(row, f'{name}_round_{match[1]}')
        for match in matches
        if match
      },
      f'final{unit}': score(row, f'final_{name}'),
      f'best{unit}': score(row, f'best_{name}'),
      **target(row),
      'uploads': cell(row, 'uploads', count=True),
      'MB up': cell(row, 'mb_up'),
      'MB down': cell(row, 'mb_down'),
      'seconds': cell(row, 'seconds'),
    }
    for row in rows
  ]
  return [list(cells[0]), *(list(line.values()) for line in cells)]


def client_rows(runs: Sequence[Run]) -> list[Row]:
  """Averages the last evaluation on clients over the seeds of a setting.

  Returns:
    A row for each setting and model, with X_mean and X_sd of each statistic X
    over clients; none if clients were not evaluated.
  """
  found = metrics.means_of_clients(run.history for run in runs)
  groups: dict[str, list[Run]] = {}
  for run in runs:
    groups.setdefault(run.label, []).append(run)
  rows = []
  for group in groups.values():
    for metric in found:
      prefix = metric.column.removesuffix('mean')
      last = [_last_with(run.history, metric.column) for run in group]
      if any(row is None for row in last):
        continue
      row: Row = {
        **group[0].setting,
        'model': metric.name.split('_')[1],
        'seeds': len(group),
      }
      for name in metrics.STATISTICS:
        values = [(r or {}).get(prefix + name) for r in last]
        row[f'{name}_mean'], row[f'{name}_sd'] = mean_and_sd(values)
      rows.append(row)
  return rows


def client_table(runs: Sequence[Run]) -> list[list[str]]:
  """Formats `client_rows` as text: a line of headings, then the cells."""
  rows, found = (
    client_rows(runs),
    metrics.means_of_clients(run.history for run in runs),
  )
  if not rows:
    return []
  factor, digits = (100.0, 1) if found[0].percent else (1.0, 4)
  keys, _ = _split(list(rows[0]), 'seeds')
  unit = ' (%)' if found[0].percent else ''
  head = [*map(names.heading, keys), 'seeds']
  head += [f'{title}{unit}' for title in metrics.STATISTICS.values()]
  lines = [head]
  for row in rows:
    cells = [names.value(key, row[key]) for key in keys]
    cells.append(str(row['seeds']))
    for name in metrics.STATISTICS:
      mean, sd = row[f'{name}_mean'], row[f'{name}_sd']
      cells.append(format_mean_sd(mean, sd, digits, factor))
    lines.append(cells)
  return lines


def _last_with(history: Sequence[Row], column: str) -> Row | None:
  """Returns the last row with a value in a column."""
  rows = [row for row in history if row.get(column) is not None]
  return rows[-1] if rows else None


def mean_and_sd(
  values: Sequence[float | None],
) -> tuple[float | None, float | None]:
  """Returns the mean and the sample standard deviation.

  Both are None if there is no value or one is None; the standard deviation of
  a single value is None.
  """
  known = [value for value in values if value is not None]
  if not known or len(known) < len(values):
    return None, None
  sd = statistics.stdev(known) if len(known) > 1 else None
  return statistics.fmean(known), sd


def format_mean_sd(
  mean: float | None,
  sd: float | None,
  digits: int = 1,
  factor: float = 1.0,
  absent: str = '-',
) -> str:
  """Formats 'mean ± sd', 'mean' if `sd` is None, or `absent` without a mean."""
  if mean is None:
    return absent
  text = f'{factor * mean:,.{digits}f}'
  return text if sd is None else f'{text} ± {factor * sd:,.{digits}f}'


def to_csv(rows: Sequence[Row]) -> str:
  """Formats rows as CSV; floats keep all digits, None is an empty cell."""
  import pandas as pd

  return pd.DataFrame(rows, dtype=object).to_csv(
    index=False, lineterminator='\n'
  )


def to_markdown(lines: Sequence[Sequence[str]], left: int = 1) -> str:
  """Formats headings and cells as a Markdown table with aligned columns.

  The first `left` columns are aligned to the left, the others to the right.
  """
  lines = [[cell.replace('|', r'\|') for cell in line] for line in lines]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  rule = ['-' * width for width in widths[:left]]
  rule += ['-' * (width - 1) + ':' for width in widths[left:]]
  text = ''
  for line in [lines[0], rule, *lines[1:]]:
    cells = [*map(str.ljust, line[:left], widths)]
    cells += map(str.rjust, line[left:], widths[left:])
    text += f'| {" | ".join(cells)} |\n'
  return text


def to_latex(lines: Sequence[Sequence[str]], left: int = 1) -> str:
  """Formats headings and cells as a LaTeX table for the package booktabs.

  The first `left` columns are aligned to the left, the others to the right.
  """
  head, *body = [' & '.join(map(_escape_latex, line)) for line in lines]
  columns = 'l' * left + 'r' * (len(lines[0]) - left)
  rows = ''.join(f'{line} \\\\\n' for line in body)
  return (
    f'\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n'
    f'{rows}\\bottomrule\n\\end{{tabular}}\n'
  )


def _escape_latex(text: str) -> str:
  return ''.join(_LATEX.get(c, c) for c in text)
