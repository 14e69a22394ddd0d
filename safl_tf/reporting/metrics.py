"""The metrics of histories: how they are named, and which one comes first.

A history is a run's rows of metrics, see `metrics_log`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

History = Sequence[Mapping[str, float | int | None]]

_FIXED = ('test_accuracy', 'test_top5_accuracy', 'test_loss')
# The models that are tested on clients.
CLIENT_MODELS = ('global', 'own', 'personalized')
PERCENTILES = (5, 25, 50, 75, 95)
# Statistics over clients, and their headings.
STATISTICS = {
  'mean': 'mean',
  'weighted_mean': 'weighted mean',
  'std': 'sd over clients',
  'worst_decile': 'worst tenth',
  **{f'p{q}': f'{q}th percentile' for q in PERCENTILES},
}
_CLIENT = re.compile(rf'client_({"|".join(CLIENT_MODELS)})_(\w+)_p50')


class Metric(NamedTuple):
  """A metric of the test data.

  Attributes:
    column: of metrics.csv.
    name: in the columns of tables, such as final_accuracy.
    percent: whether it is shown in percent.
    higher_is_better: False for a loss.
    text: to display; made of the column if empty.
  """

  column: str
  name: str
  percent: bool = False
  higher_is_better: bool = True
  text: str = ''

  @property
  def title(self) -> str:
    """The name to display, such as 'Test accuracy'."""
    return self.text or title(self.column)

  @property
  def axis(self) -> str:
    """The label of an axis; of a longer text, what is after the comma."""
    name = self.title.lower().rpartition(', ')[2]
    return name + (' (%)' if self.percent else '')

  @property
  def factor(self) -> float:
    """From the values of the history to those that are shown."""
    return 100.0 if self.percent else 1.0

  def best(self, values: Iterable[float]) -> float | None:
    """Returns the best of some values; None if there are none."""
    return (max if self.higher_is_better else min)(values, default=None)


ACCURACY = Metric('test_accuracy', 'accuracy', percent=True)
LOSS = Metric('test_loss', 'loss', higher_is_better=False)


def main(histories: Iterable[History]) -> Metric:
  """Returns the accuracy if any history has it, else the loss."""
  has = any(has_values(history, ACCURACY.column) for history in histories)
  return ACCURACY if has else LOSS


def has_values(history: History, column: str) -> bool:
  """Returns whether any row has a value in a column."""
  return any(row.get(column) is not None for row in history)


def extra(histories: Iterable[History]) -> list[Metric]:
  """Returns the metrics of the test data besides accuracy and loss."""
  names = dict.fromkeys(n for history in histories for n in _filled(history))
  return [
    Metric(name, name.removeprefix('test_'))
    for name in names
    if name.startswith('test_') and name not in _FIXED
  ]


def client_column(model: str, metric: str, statistic: str) -> str:
  """Returns the column of a statistic over clients in metrics.csv."""
  return f'client_{model}_{metric}_{statistic}'


def means_of_clients(histories: Iterable[History]) -> list[Metric]:
  """Returns the mean over clients of the main metric, for each model."""
  histories = list(histories)
  name, percent = ('accuracy', True)
  models = {m: None for h in histories for m in of_clients(h).get(name, ())}
  if not models:
    name, percent = ('loss', False)
    models = {m: None for h in histories for m in of_clients(h).get(name, ())}
  return [
    Metric(
      client_column(model, name, 'mean'),
      f'client_{model}_{name}',
      percent,
      percent,
      f'{model.capitalize()} models on clients, mean {name}',
    )
    for model in models
  ]


def of_clients(history: History) -> dict[str, list[str]]:
  """Returns metric -> models of the evaluations of the clients."""
  found: dict[str, list[str]] = {}
  for column in _filled(history):
    match = _CLIENT.fullmatch(column)
    if match:
      found.setdefault(match[2], []).append(match[1])
  return found


def _filled(history: History) -> list[str]:
  """Returns the columns that have values."""
  return list(
    dict.fromkeys(
      name
      for row in history
      for name, value in row.items()
      if value is not None
    )
  )


def title(column: str) -> str:
  """Returns the name of a column to display: 'Test top-5 accuracy'."""
  words = column.replace('top5', 'top-5').replace('_', ' ')
  return words[:1].upper() + words[1:]
