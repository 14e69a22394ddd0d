"""Tables that compare runs, and their CSV and Markdown forms.

`run_rows` summarises each run in a row; `algorithm_rows` averages the rows of
an algorithm over its seeds. A mean covers all runs of the algorithm, and is
None if a run lacks the value; only the rounds and megabytes to the target
accuracy cover just the runs that reached it, `reached_target` in number.
"""

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]

_KEYS = ('algorithm', 'seed', 'target_accuracy')
_TO_TARGET = ('rounds_to_target', 'mb_up_to_target')


class Run(NamedTuple):
  """A finished run.

  Attributes:
    algorithm: the algorithm's name.
    seed: the seed of all random draws.
    history: the rows of its metrics.csv, at least one.
  """

  algorithm: str
  seed: int
  history: Sequence[Row]


def quarters(rounds: int) -> list[int]:
  """Returns the rounds that complete 1/4, 1/2 and 3/4 of a run."""
  return sorted({max(1, rounds * k // 4) for k in (1, 2, 3)})


def run_rows(
  runs: Iterable[Run], at_rounds: Sequence[int], target: float
) -> list[Row]:
  """Summarises each run in a row.

  Args:
    runs: the runs, in the order of the rows.
    at_rounds: rounds to report the accuracy at: that of the last evaluation so
      far, or None if the run ended earlier.
    target: the test accuracy to reach.
  """
  rows = []
  for algorithm, seed, history in runs:
    evaluated = [row for row in history if row['test_accuracy'] is not None]
    accuracies = [row['test_accuracy'] for row in evaluated]
    reached = next((r for r in evaluated if r['test_accuracy'] >= target), None)
    last = history[-1]
    row: Row = {
      'algorithm': algorithm,
      'seed': seed,
      'target_accuracy': target,
      'rounds': last['round'],
    }
    for t in at_rounds:
      until = [r['test_accuracy'] for r in evaluated if r['round'] <= t]
      known = until and t <= last['round']
      row[f'accuracy_round_{t}'] = until[-1] if known else None
    rows.append(
      row
      | {
        'final_accuracy': accuracies[-1] if accuracies else None,
        'best_accuracy': max(accuracies, default=None),
        'rounds_to_target': reached and reached['round'],
        'mb_up_to_target': reached and reached['total_bytes_up'] / 1e6,
        'uploads': sum(r['uploaded'] for r in history),
        'mb_up': last['total_bytes_up'] / 1e6,
        'mb_down': last['total_bytes_down'] / 1e6,
        'seconds': sum(r['seconds'] for r in history),
      }
    )
  return rows


def algorithm_rows(rows: Sequence[Row]) -> list[Row]:
  """Averages `run_rows` by algorithm, in order of appearance.

  Every number X becomes X_mean and X_sd, see `mean_and_sd`.
  """
  averaged = []
  for algorithm in dict.fromkeys(row['algorithm'] for row in rows):
    runs = [row for row in rows if row['algorithm'] == algorithm]
    reached = [row for row in runs if row['rounds_to_target'] is not None]
    average: Row = {
      'algorithm': algorithm,
      'seeds': len(runs),
      'target_accuracy': runs[0]['target_accuracy'],
      'reached_target': len(reached),
    }
    for name in (name for name in runs[0] if name not in _KEYS):
      values = [row[name] for row in (reached if name in _TO_TARGET else runs)]
      average[f'{name}_mean'], average[f'{name}_sd'] = mean_and_sd(values)
    averaged.append(average)
  return averaged


def table(rows: Sequence[Row]) -> list[list[str]]:
  """Formats `algorithm_rows` as text: a line of headings, then the cells."""
  goal = f'{100 * rows[0]["target_accuracy"]:g} %'
  names = [re.fullmatch(r'accuracy_round_(\d+)_mean', name) for name in rows[0]]
  rounds = [match[1] for match in names if match]

  def cell(
    row: Row,
    name: str,
    factor: float = 1.0,
    absent: str = '-',
    count: bool = False,
  ) -> str:
    mean, sd = row[f'{name}_mean'], row[f'{name}_sd']
    digits = 0 if count and not sd else 1
    return format_mean_sd(mean, sd, digits, factor, absent)

  cells = [
    {
      'algorithm': row['algorithm'],
      'seeds': str(row['seeds']),
      **{
        f'round {t} (%)': cell(row, f'accuracy_round_{t}', 100) for t in rounds
      },
      'final (%)': cell(row, 'final_accuracy', 100),
      'best (%)': cell(row, 'best_accuracy', 100),
      f'reached {goal}': f'{row["reached_target"]} of {row["seeds"]}',
      f'rounds until {goal}': cell(
        row, 'rounds_to_target', absent='not reached', count=True
      ),
      f'MB up until {goal}': cell(row, 'mb_up_to_target', absent='not reached'),
      'uploads': cell(row, 'uploads', count=True),
      'MB up': cell(row, 'mb_up'),
      'MB down': cell(row, 'mb_down'),
      'seconds': cell(row, 'seconds'),
    }
    for row in rows
  ]
  return [list(cells[0]), *(list(line.values()) for line in cells)]


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
