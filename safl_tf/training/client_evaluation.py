"""Evaluates models on the clients' own test examples.

Three models of each client are scored: the global one; the client's own, as its
last local training left it; and the global one after a few local steps. What
counts is how scores are distributed over clients.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from safl_tf.algorithms import fed_avg
from safl_tf.core import client_trainer
from safl_tf.core import process as process_lib
from safl_tf.data import client_data
from safl_tf.data import examples as examples_lib
from safl_tf.reporting import metrics as metrics_lib
from safl_tf.training import evaluation
from safl_tf.util import errors, validation

if TYPE_CHECKING:
  import pandas as pd


@dataclasses.dataclass(frozen=True, repr=False)
class ClientScores:
  """The scores of clients, the result of `evaluate`.

  Attributes:
    rows: of each client: `client`, `test_examples`, and MODEL_METRIC for each
      model and metric.
    metrics: the metrics that `summary` has, the main one first.
    lower_is_better: those of them of which lower values are better.

  Example:
    ```python
    train_clients, test_clients = clients.split()
    result = safl_tf.train(
      model_fn, train_clients, test_clients=test_clients, rounds=3)
    scores = result.client_scores
    scores.summary.loc[('own', 'accuracy'), ['mean', 'worst_decile']]
    scores.frame[['global_accuracy', 'own_accuracy']]  # by client
    ```
  """

  rows: list[dict[str, Any]]
  metrics: list[str]
  lower_is_better: frozenset[str]

  @property
  def frame(self) -> 'pd.DataFrame':
    """The rows as a DataFrame by client."""
    import pandas as pd

    return pd.DataFrame(self.rows).set_index('client')

  @property
  def summary(self) -> 'pd.DataFrame':
    """The statistics over clients, a row for each model and metric."""
    import pandas as pd

    rows = [
      {'model': model, 'metric': metric, **self._statistics(model, metric)}
      for model, metric in self._measured()
    ]
    return pd.DataFrame(rows).set_index(['model', 'metric'])

  def columns(self) -> dict[str, float]:
    """Returns the statistics under their names in metrics.csv."""
    return {
      metrics_lib.client_column(model, metric, name): value
      for model, metric in self._measured()
      for name, value in self._statistics(model, metric).items()
    }

  def _measured(self) -> Iterator[tuple[str, str]]:
    for model in metrics_lib.CLIENT_MODELS:
      for metric in self.metrics:
        if any(f'{model}_{metric}' in row for row in self.rows):
          yield model, metric

  def _statistics(self, model: str, metric: str) -> dict[str, float]:
    name = f'{model}_{metric}'
    known = [row for row in self.rows if name in row]
    return statistics(
      np.array([row[name] for row in known]),
      np.array([row['test_examples'] for row in known]),
      metric in self.lower_is_better,
    )

  def __repr__(self) -> str:
    main = self.metrics[0]
    means = ', '.join(
      f'{model} {self._statistics(model, metric)["mean"]:.4g}'
      for model, metric in self._measured()
      if metric == main
    )
    return f'ClientScores({len(self.rows)} clients, mean {main}: {means})'

  def _repr_html_(self) -> str:
    return self.summary._repr_html_()


def statistics(
  values: np.ndarray, sizes: np.ndarray, lower_is_better: bool = False
) -> dict[str, float]:
  """Returns how a metric is distributed over clients.

  Args:
    values: of each client.
    sizes: the clients' numbers of test examples, the weights of
      `weighted_mean`.
    lower_is_better: whether the worst values are the largest.

  Returns:
    The mean, the weighted mean, the standard deviation over these clients, the
    mean over the worst tenth of them (rounded up) and percentiles.
  """
  worst_first = np.sort(values)[::-1] if lower_is_better else np.sort(values)
  tenth = worst_first[: -(-len(values) // 10)]
  return {
    'mean': float(values.mean()),
    'weighted_mean': float(np.average(values, weights=sizes)),
    'std': float(values.std()),
    'worst_decile': float(tenth.mean()),
    **{
      f'p{q}': float(np.percentile(values, q)) for q in metrics_lib.PERCENTILES
    },
  }


class ClientEvaluator:
  """Evaluates states on clients' test examples.

  Attributes:
    names: the columns of metrics.csv.

  Args:
    process: of the states.
    state: any of them.
    clients: the test examples of clients; those that have the names of the
      process's clients also have models of their own.
    personalize_steps: local steps of the global model before its third test; 0
      leaves it out.
    argument: the user's name of `clients`.
  """

  def __init__(
    self,
    process: process_lib.FederatedProcess,
    state: process_lib.FederatedState,
    clients: client_data.ClientData,
    personalize_steps: int = 0,
    argument: str = 'clients',
  ):
    takes = "a ClientData with the clients' test examples"
    validation.instance(argument, clients, client_data.ClientData, takes)
    validation.integer('personalize_steps', personalize_steps, low=0)
    self._process = process
    self._clients = clients
    self._steps = personalize_steps
    known = {name: k for k, name in enumerate(process.clients.client_ids)}
    self._known = [known.get(name) for name in clients.client_ids]
    self._check(argument)
    self._tools = functools.lru_cache(maxsize=2)(self._create_tools)
    evaluator, _ = self._tools(process.trainer_of(state))
    names = evaluator.names
    main = 'accuracy' if 'accuracy' in names else 'loss'
    own = [n for n in names if n not in ('accuracy', 'top5_accuracy', 'loss')]
    self._metrics = [main, *own]
    self._lower = evaluator.lower_is_better
    self._models = self._find_models()
    self.names = [
      metrics_lib.client_column(model, metric, statistic)
      for model in self._models
      for metric in self._metrics
      for statistic in metrics_lib.STATISTICS
    ]

  def __call__(self, state: process_lib.FederatedState) -> ClientScores:
    """Returns the scores of a state's models."""
    trainer = self._process.trainer_of(state)
    evaluator, personalizer = self._tools(trainer)
    clients = self._clients
    personalized: Iterator[Any] = iter(())
    if personalizer is not None and state.z_bar is not None:
      personalized = self._personalize(state, personalizer)
    rows = []
    for j, (name, k) in enumerate(
      zip(clients.client_ids, self._known, strict=True)
    ):
      indices = clients.indices(j)
      row: dict[str, Any] = {'client': name, 'test_examples': len(indices)}
      models: dict[str, Any] = {}
      if 'global' in self._models:
        models['global'] = state.z_bar
      if 'own' in self._models and k is not None:
        models['own'] = state.client_models[k]
      if 'personalized' in self._models and k is not None:
        models['personalized'] = next(personalized, None)
      for model, z in models.items():
        if z is not None:
          scores = evaluator(z, indices).named()
          row |= {f'{model}_{metric}': v for metric, v in scores.items()}
      rows.append(row)
    return ClientScores(rows, self._metrics, self._lower)

  def _find_models(self) -> list[str]:
    """Returns the kinds of models that are tested."""
    algorithm, models = self._process.algorithm, []
    if not algorithm.alone:
      models.append('global')
    if (
      self._process.keeps_models
      and not algorithm.pooled
      and any(k is not None for k in self._known)
    ):
      models.append('own')
    if self._steps:
      models.append('personalized')
    return models

  def _check(self, argument: str) -> None:
    process, clients = self._process, self._clients
    if self._steps and process.algorithm.alone:
      hint = 'has no effect: with this algorithm there is no global model'
      raise errors.InputError('personalize_steps', self._steps, hint)
    if self._steps and process.algorithm.pooled:
      hint = 'has no effect: with this algorithm there are no clients'
      raise errors.InputError('personalize_steps', self._steps, hint)
    unknown = [
      name
      for name, k in zip(clients.client_ids, self._known, strict=True)
      if k is None
    ]
    if self._steps and unknown:
      hint = 'is no client of the process, so that it has nothing to train on'
      raise errors.InputError(argument, unknown[0], hint)
    try:
      examples_lib.check_alike(clients.y, process.clients.y, 'those trained on')
    except errors.InputError as error:
      raise examples_lib.within(argument, error) from None

  def _create_tools(
    self, trainer: client_trainer.ClientTrainer
  ) -> tuple[evaluation.Evaluator, client_trainer.ClientTrainer | None]:
    """Returns what scores models, and what personalizes them."""
    clients = self._clients
    data = examples_lib.Examples(clients.x, clients.y, clients.sample_weight)
    personalizer = None
    if self._steps:
      plain = fed_avg.build_fed_avg()
      personalizer = trainer.personalizer(self._steps, plain)
    return evaluation.Evaluator(trainer, data), personalizer

  def _personalize(
    self,
    state: process_lib.FederatedState,
    personalizer: client_trainer.ClientTrainer,
  ) -> Iterator[np.ndarray]:
    """Yields the clients' personalized models."""
    ids = np.array(self._known)
    assert state.z_bar is not None
    arrays = {'z': state.z_bar}
    outputs = personalizer.outputs(
      state.seed, state.t, ids, lambda k: (arrays, arrays)
    )
    for output in outputs:
      assert output is not None
      yield output.kept['z']


def evaluate(
  process: process_lib.FederatedProcess,
  state: process_lib.FederatedState,
  clients: client_data.ClientData,
  personalize_steps: int = 0,
) -> ClientScores:
  """Evaluates the models of a state on each client's test examples.

  Args:
    process: what made the state.
    state: a state after some rounds.
    clients: the clients' test examples, as from `ClientData.split`, or the
      user's own with the same names of clients.
    personalize_steps: if not 0, the global model is also tested after so many
      local steps on the client's training examples.

  Returns:
    The scores of the global model, of each client's own model and, if asked
    for, of the personalized global model.

  Raises:
    InputError: the state is that before the first round, or the data do not fit
      the process.

  Example:
    ```python
    train_clients, test_clients = clients.split(test_fraction=0.2)
    result = safl_tf.train(model_fn, train_clients, rounds=3)
    scores = safl_tf.evaluate(
      result.process, result.state, test_clients, personalize_steps=5)
    scores.summary  # a row for each model and metric
    ```
  """
  takes = 'a FederatedProcess, such as Result.process'
  validation.instance('process', process, process_lib.FederatedProcess, takes)
  if state.t == 0:
    hint = 'there are no trained models before the first round'
    raise errors.InputError('state', 'of round 0', hint)
  return ClientEvaluator(process, state, clients, personalize_steps)(state)


def client_table(
  process: process_lib.FederatedProcess,
  state: process_lib.FederatedState,
  scores: ClientScores | None = None,
) -> list[dict[str, Any]]:
  """Returns the rows of clients.csv: each client's data and scores.

  Args:
    process: of the run.
    state: the last one.
    scores: on the clients' test examples. None scores models on the examples
      that clients train on, in columns MODEL_train_METRIC.
  """
  clients = process.clients
  on_training = scores is None
  if scores is None:
    scores = ClientEvaluator(process, state, clients)(state)
  by_name = {row['client']: row for row in scores.rows}
  malicious = set() if process.algorithm.pooled else set(process.malicious)
  table = []
  for k, name in enumerate(clients.client_ids):
    row: dict[str, Any] = {'client': name, 'examples': len(clients.indices(k))}
    if clients.num_classes is not None:
      row['labels'] = len(np.unique(clients.y[clients.indices(k)]))
    row['malicious'] = int(k in malicious)
    for column_name, value in by_name.get(name, {}).items():
      if not on_training:
        row[column_name] = value
      elif column_name not in ('client', 'test_examples'):
        model, _, metric = column_name.partition('_')
        row[f'{model}_train_{metric}'] = value
    table.append(row)
  return table
