"""Finished runs of an experiment, reduced to means over their seeds.

Rounds that callers pass are the paper's; in a smaller run, an earlier round
stands for the paper's.
"""

import functools
import importlib.resources
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from safl_tf.experiments.paper import plans
from safl_tf.reporting import names as names_lib
from safl_tf.reporting import tables as tables_lib

if TYPE_CHECKING:
  import pandas as pd

History = Sequence[Mapping[str, Any]]
PaperNumbers = Mapping[str, Any]

_LABELS = {
  'n': 'n = {}',
  'fraction': 'R = {}',
  'epsilon': 'ε = {}',
  'temperature': 'L = {}',
  'nu': 'ν = {}',
  'size': '{} of the data',
  'batch_size': 'B = {}',
  'learning_rate': 'α = {}',
  'share': '{:.0%} one-digit clients',
  'digits': '{}',
  'holdout': 'holdout {}',
  'group': '{} biased clients',
  'round': 'round {}',
}
# What goes without saying: the gate measures on the training data.
_UNSAID = (('holdout', 0.0), ('share', 0))
_LEARNED = 2.0  # times the accuracy of guessing


@functools.cache
def paper_numbers() -> dict[str, Any]:
  """Returns the numbers and claims of the paper by experiment."""
  folder = importlib.resources.files('safl_tf.experiments.paper')
  return json.loads((folder / 'paper_numbers.json').read_text('utf-8'))


class Value(NamedTuple):
  """A mean over runs; `sd` is None for a single run."""

  mean: float
  sd: float | None
  runs: int

  def format(self, factor: float, digits: int) -> str:
    """Returns 'mean' or 'mean ± sd'."""
    return tables_lib.format_mean_sd(self.mean, self.sd, digits, factor)


class Runs(NamedTuple):
  """The finished runs of a part, at least one; they differ in the seed.

  Attributes:
    part: what was run.
    histories: the rows of each run's metrics.csv.
  """

  part: plans.Part
  histories: Sequence[History]

  @property
  def algorithm(self) -> str:
    """Name of the algorithm, as a flag has it."""
    return self.part.cell['algorithm']

  @property
  def last(self) -> int:
    """The last round that all runs have finished."""
    return min(history[-1]['round'] for history in self.histories)

  def at(self, t: int | None, column: str = 'test_accuracy') -> Value | None:
    """Returns a column's latest value up to the paper's round t.

    None stands for the last round, which also stands for every round of
    centralised training. There is no value if a run ended before round t.
    """
    if t is None or self.algorithm == 'centralized':
      t = self.last
    else:
      t = self.part.round_for(t)
    frame = self._frame(column)
    frame = frame[frame['round'] <= t].groupby('run').tail(1)
    if t > self.last or len(frame) < len(self.histories):
      return None
    return _mean(frame['value'])

  def total(self, t: int, column: str = 'uploaded') -> Value | None:
    """Returns a column's sum over the rounds up to the paper's round t."""
    t = self.part.round_for(t)
    if t > self.last:
      return None
    frame = self._frame(column)
    return _mean(frame[frame['round'] <= t].groupby('run')['value'].sum())

  def total_uploads(self) -> 'pd.Series':
    """Returns the mean number of uploads up to each round."""
    sent = self._frame('uploaded').groupby('round')['value'].sum()
    return sent.cumsum() / len(self.histories)

  def by_round(self, column: str = 'test_accuracy') -> 'pd.DataFrame':
    """Returns `mean` and `std` by round, where all runs have a finite value."""
    frame = self._frame(column)
    frame = frame[frame['value'].abs() < math.inf]
    stats = frame.groupby('round')['value'].agg(['mean', 'std', 'count'])
    return stats[stats['count'] == len(self.histories)].drop(columns='count')

  def first_round(self, accuracy: float) -> int | None:
    """Returns the first round whose mean accuracy is at least this."""
    mean = self.by_round()['mean']
    reached = mean[mean >= accuracy]
    return int(reached.index[0]) if len(reached) else None

  def best(self) -> float:
    """Returns the highest mean accuracy of any round."""
    return self.by_round()['mean'].max()

  def has_learned(self) -> bool:
    """Returns whether its best accuracy is clearly above guessing."""
    return bool(self.best() >= _LEARNED / self.part.num_classes)

  def lead(self, other: 'Runs') -> 'pd.Series':
    """Returns the difference of the mean accuracies by round."""
    return (self.by_round()['mean'] - other.by_round()['mean']).dropna()

  def _frame(self, column: str) -> 'pd.DataFrame':
    """Returns all values of a column, in long form with run and round."""
    import pandas as pd

    rows = [
      (run, row['round'], float(row[column]))
      for run, history in enumerate(self.histories)
      for row in history
      if row[column] is not None
    ]
    return pd.DataFrame(rows, columns=['run', 'round', 'value'])


class Results(NamedTuple):
  """The finished runs of an experiment.

  Attributes:
    plan: what was planned.
    seeds: the seeds asked for.
    runs: the finished runs, in the plan's order.
    missing: why parts were skipped, by their missing data set.
    shared: folders of runs made by other experiments.
  """

  plan: plans.Plan
  seeds: tuple[int, ...]
  runs: Sequence[Runs]
  missing: Mapping[str, str] = {}
  shared: Sequence[str] = ()

  def get(self, **cell: Any) -> Runs | None:
    """Returns the first runs that stand for a cell of the paper, if any.

    A part without one of the keys stands for all of its values, as centralised
    training does for all n.
    """
    for runs in self.runs:
      known = runs.part.cell
      if all(known.get(key, cell[key]) == cell[key] for key in cell):
        return runs
    return None

  def where(self, **cell: Any) -> list[Runs]:
    """Returns all runs whose cell has these values."""
    return [
      runs
      for runs in self.runs
      if all(runs.part.cell.get(key) == cell[key] for key in cell)
    ]

  def values(self, key: str) -> list[Any]:
    """Returns the distinct values of a cell's key in the plan, in order."""
    cells = [part.cell for part in self.plan.parts]
    return list(dict.fromkeys(cell[key] for cell in cells if key in cell))

  @property
  def seconds(self) -> float:
    """Time spent in rounds, by all runs."""
    histories = [h for runs in self.runs for h in runs.histories]
    return sum(row['seconds'] for history in histories for row in history)


def describe(
  cell: Mapping[str, Any],
  part: plans.Part | None = None,
  skip: Sequence[str] = (),
) -> str:
  """Returns a cell as 'SAFL, n = 80', or 'SAFL, n = 4 for 80' if smaller.

  Args:
    cell: what a number or curve of the paper is for.
    part: the part that stands for it.
    skip: keys of the cell to leave out.
  """
  texts = {
    key: _LABELS.get(key, '{}').format(
      names_lib.value(key, value) if isinstance(value, str) else value
    )
    for key, value in cell.items()
    if key not in skip and (key, value) not in _UNSAID
  }
  if part and 'n' in texts and part.flags['num_clients'] != cell['n']:
    texts['n'] = f'n = {part.flags["num_clients"]} for {cell["n"]}'
  return ', '.join(texts.values())


def round_label(t: int | None, several: Iterable[Runs | None]) -> str:
  """Returns '50', or '2 for 50' where round 2 stands for the paper's 50."""
  clients = [r for r in several if r and r.algorithm != 'centralized']
  if t is None:
    return 'last'
  rounds = sorted({runs.part.round_for(t) for runs in clients} - {t})
  return f'{"/".join(map(str, rounds))} for {t}' if rounds else str(t)


def _mean(values: 'pd.Series') -> Value:
  """Returns the mean, which is NaN if a value is not finite."""
  if not (values.abs() < math.inf).all():
    return Value(math.nan, None, len(values))
  sd = float(values.std()) if len(values) > 1 else None
  return Value(float(values.mean()), sd, len(values))
