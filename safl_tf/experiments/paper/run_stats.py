"""What is read off finished runs.

A value is a mean over the runs of a part, which differ in their seed. Rounds
are the paper's; a smaller part has rounds that stand for them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.experiments.paper import runs as runs_lib
from safl_tf.reporting import plots

History = Sequence[Mapping[str, Any]]

ACCURACY = 'test_accuracy'
NAMES = {
  'centralized': 'Centralised',
  'fedsgd': 'FedSGD',
  'fedavg': 'FedAvg',
  'safl': 'SAFL',
  'extended_safl': 'Extended SAFL',
  'ida': 'IDA',
  'ida_safl': 'IDA-SAFL',
  'astw': 'ASTW',
  'astw_safl': 'ASTW-SAFL',
  'fedma': 'FedMA',
}
DATA = {
  'mnist': 'MNIST',
  'fashion_mnist': 'Fashion-MNIST',
  'cifar10': 'CIFAR-10',
  'speech_commands': 'Speech Commands',
}
_CHANCE = 2.0  # whoever has learned is above so many times the chance level


class Value(NamedTuple):
  """A mean over runs; `sd` is None for a single one."""

  mean: float
  sd: float | None
  runs: int


class Runs(NamedTuple):
  """The finished runs of a part, at least one.

  Attributes:
    part: what was run.
    histories: the rows of each run's metrics.csv.
  """

  part: runs_lib.Part
  histories: Sequence[History]

  @property
  def name(self) -> str:
    """The algorithm's, as the paper writes it."""
    return NAMES[self.part.cell['algorithm']]

  @property
  def last(self) -> int:
    """The last round that all runs have done."""
    return min(history[-1]['round'] for history in self.histories)

  def at(self, t: int, column: str = ACCURACY) -> Value | None:
    """A column in the paper's round t: the last value up to there.

    None if a run ended before that round or has no value yet.
    """
    return self._until(self.part.round_for(t), column)

  def final(self, column: str = ACCURACY) -> Value | None:
    """A column in the last round."""
    return self._until(self.last, column)

  def total(self, t: int, column: str = 'uploaded') -> Value | None:
    """The sum of a column over rounds 1 to the paper's round t."""
    t = self.part.round_for(t)
    if t > self.last:
      return None
    return value(
      [
        float(sum(row[column] for row in history if row['round'] <= t))
        for history in self.histories
      ]
    )

  def by_round(self, column: str = ACCURACY) -> dict[int, Value]:
    """The means in the rounds in which all runs have a finite value."""
    found = [
      {
        row['round']: row[column]
        for row in history
        if row[column] is not None and math.isfinite(row[column])
      }
      for history in self.histories
    ]
    rounds = sorted(set.intersection(*map(set, found)))
    return {t: value([run[t] for run in found]) for t in rounds}

  def first(self, level: float) -> int | None:
    """The first round whose mean accuracy is at least `level`."""
    reached = (t for t, v in self.by_round().items() if v.mean >= level)
    return next(reached, None)

  def best(self) -> float:
    """The highest mean accuracy of any round."""
    return max((v.mean for v in self.by_round().values()), default=0.0)

  def has_learned(self) -> bool:
    """Whether it was ever clearly better than guessing."""
    return self.best() >= _CHANCE / self.part.classes

  def curve(self, name: str | None = None) -> plots.Curve:
    """Accuracy in % by round."""
    points = self.by_round()
    return plots.Curve(
      self.name if name is None else name,
      list(points),
      [100 * v.mean for v in points.values()],
      [100 * v.sd for v in points.values() if v.sd is not None],
    )

  def _until(self, t: int, column: str) -> Value | None:
    if t > self.last:
      return None
    found = [
      [row[column] for row in history if row['round'] <= t]
      for history in self.histories
    ]
    known = [[v for v in values if v is not None] for values in found]
    if not all(known):
      return None
    return value([values[-1] for values in known])


class Results(NamedTuple):
  """All that is finished of an experiment.

  Attributes:
    plan: what was to be run.
    seeds: those asked for.
    runs: the finished ones, in the plan's order.
    missing: why parts were left out, by the data set that is missing.
    shared: folders of runs that other experiments have made.
  """

  plan: runs_lib.Plan
  seeds: tuple[int, ...]
  runs: Sequence[Runs]
  missing: Mapping[str, str] = {}
  shared: Sequence[str] = ()

  def get(self, **cell: Any) -> Runs | None:
    """The first runs that stand for a cell of the paper, if there are any.

    A part without one of the keys, as centralised training is without n, stands
    for all of its values.
    """
    for runs in self.runs:
      known = runs.part.cell
      if all(known.get(key, cell[key]) == cell[key] for key in cell):
        return runs
    return None

  def where(self, **cell: Any) -> list[Runs]:
    """All runs that stand for cells with these values."""
    return [
      runs
      for runs in self.runs
      if all(runs.part.cell.get(key) == cell[key] for key in cell)
    ]

  @property
  def seconds(self) -> float:
    """Spent in rounds, by all runs."""
    return sum(
      row['seconds']
      for runs in self.runs
      for history in runs.histories
      for row in history
    )


def value(values: Sequence[float]) -> Value:
  """The mean, and the sample standard deviation of several values."""
  if not all(map(math.isfinite, values)):
    return Value(math.nan, None, len(values))
  sd = statistics.stdev(values) if len(values) > 1 else None
  return Value(statistics.fmean(values), sd, len(values))


def where(key: str, value: Any, part: runs_lib.Part | None = None) -> str:
  """Which runs a sentence is about: 'n = 80', or 'n = 4 for 80' if smaller.

  Args:
    key: of a cell: `n`, `fraction` or `dataset`.
    value: of the cell.
    part: the one that stands for it.
  """
  if key == 'dataset':
    return f'on {DATA[value]}'
  if key == 'fraction':
    return f'R = {value:g}'
  used = value if part is None else part.flags['num_clients']
  return f'n = {value}' if used == value else f'n = {used} for {value}'


def percent(found: Value | None) -> str:
  """A share as '94.2' or '94.2 ± 0.3'; '-' if there is none."""
  return _told(found, 100, 1)


def cost(found: Value | None) -> str:
  """A cost as '0.186'."""
  return _told(found, 1, 3)


def count(found: Value | None) -> str:
  """A number of uploads as '2,023'."""
  return _told(found, 1, 0)


def _told(found: Value | None, factor: float, digits: int) -> str:
  if found is None:
    return '-'
  text = f'{factor * found.mean:,.{digits}f}'
  if found.sd is None:
    return text
  return f'{text} ± {factor * found.sd:,.{digits}f}'
