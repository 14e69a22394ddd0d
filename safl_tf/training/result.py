"""The result of a run; a history as a table, in a line and as a figure."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from safl_tf.training import metrics_log
from safl_tf.util import readable

if TYPE_CHECKING:
  import keras
  import pandas as pd

  from safl_tf.core import process, state
  from safl_tf.reporting import plots
  from safl_tf.training import client_evaluation

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
  """The result of a training run.

  Attributes:
    model: a plain Keras model with the global weights.
    history: the rows of metrics.csv.
    state: the final state, from which `process.next` can continue.
    process: the process that was run.
    client_scores: the newest ones on the clients' own test examples, if there
      are any.
    failure: why the model could not be exported, if it could not.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, test_data=(x_test, y_test), rounds=3)
    result.frame[['train_loss', 'test_accuracy']]  # by round
    result.model.save('model.keras')
    state, metrics = result.process.next(result.state)  # round 4
    ```
  """

  model: 'keras.Model'
  history: list[Row]
  state: 'state.FederatedState'
  process: 'process.FederatedProcess'
  client_scores: 'client_evaluation.ClientScores | None' = None
  failure: str | None = None

  @property
  def frame(self) -> 'pd.DataFrame':
    """The history as a DataFrame by round; NaN where a row has no value."""
    return to_frame(self.history)

  def plot(self) -> Any:
    """Returns a matplotlib figure of accuracy, loss and other metrics."""
    return plot(self.history, subject(self.process))

  def __repr__(self) -> str:
    return f'Result({format_values({"": self._title, **self._values})})'

  def _repr_html_(self) -> str:
    return readable.html_table(f'Result of {self._title}', self._values)

  @property
  def _title(self) -> str:
    return self.process.algorithm.name

  @property
  def _values(self) -> dict[str, Any]:
    return summary(self.history)


def to_frame(history: Sequence[Row]) -> 'pd.DataFrame':
  """Returns a history as a DataFrame by round; NaN where there is no value."""
  import pandas as pd

  frame = pd.DataFrame(history, columns=_columns(history)).set_index('round')
  return frame.apply(pd.to_numeric)


def plot(history: Sequence[Row], of: 'plots.Subject') -> Any:
  """Returns a matplotlib figure of a history."""
  from safl_tf.reporting import plots

  return plots.curves(history, of)


def subject(process: 'process.FederatedProcess', **settings: Any) -> Any:
  """Returns what figures say of a run: its rules, n, and these settings."""
  from safl_tf.reporting import plots

  algorithm, clients = process.algorithm, process.clients
  known = {'num_clients': clients.num_clients, **algorithm.settings}
  return plots.subject(algorithm.name, known | settings, clients.num_classes)


def summary(history: Sequence[Row]) -> dict[str, Any]:
  """Returns the number of rounds and the last value of each test metric."""
  summary: dict[str, Any] = {'rounds': len(history)}
  for column in _columns(history):
    values = [row[column] for row in history if row.get(column) is not None]
    if values and column.startswith(('test_', 'train_loss')):
      summary[column] = format(values[-1], '.4g')
  return summary


def format_values(values: dict[str, Any]) -> str:
  """Returns `name=value, ...`; a value without a name stands alone."""
  return ', '.join(f'{k}={v}' if k else str(v) for k, v in values.items())


def _columns(history: Sequence[Row]) -> list[str]:
  """Returns the columns of metrics.csv, then any others."""
  others = (column for row in history for column in row)
  return list(dict.fromkeys([*metrics_log.COLUMNS, *others]))
