"""The evaluations of a run: on test data, and on clients."""

from typing import Any

from safl_tf.core import process as process_lib
from safl_tf.data import client_data, examples
from safl_tf.training import client_evaluation, evaluation, identity
from safl_tf.training import schedule as schedule_lib
from safl_tf.training import scores as scores_lib
from safl_tf.util import errors


class Evaluators:
  """Evaluates states on the test data and on the clients' test examples.

  Attributes:
    test_data: checked, if there are any.
    columns: of metrics.csv, besides those that all runs have.
  """

  def __init__(
    self,
    process: process_lib.FederatedProcess,
    state: process_lib.FederatedState,
    schedule: schedule_lib.Schedule,
    test_data: Any,
    test_clients: client_data.ClientData | None,
  ):
    self._schedule = schedule
    self._test_clients = test_clients
    self._latest: tuple[int, client_evaluation.ClientScores] | None = None
    self.test_data = None
    if test_data is not None:
      self.test_data = examples.read_test(test_data, process.clients)
    self._on_test = evaluation.StateEvaluator(process, state, self.test_data)
    self._on_clients = None
    self.columns = [f'test_{name}' for name in self._on_test.names]
    if test_clients is not None:
      self._on_clients = client_evaluation.ClientEvaluator(
        process,
        state,
        test_clients,
        schedule.personalize_steps,
        'test_clients',
      )
      self.columns += self._on_clients.names
    if schedule.stop_at_accuracy is not None and (
      'test_accuracy' not in self.columns
    ):
      hint = f'there is no accuracy with the loss {process.task.name}'
      raise errors.InputError(
        'stop_at_accuracy', schedule.stop_at_accuracy, hint
      )

  def __call__(
    self, state: process_lib.FederatedState
  ) -> tuple[scores_lib.Scores | None, dict[str, float]]:
    """Returns the scores of a round's state that its schedule asks for."""
    if state.z_bar is None:
      return None, {}
    scores, of_clients = None, {}
    if self._schedule.evaluates(state.t):
      scores = self._on_test(state)
    if self._schedule.evaluates_clients(state.t):
      found = self.client_scores(state)
      of_clients = {} if found is None else found.columns()
    return scores, of_clients

  def client_scores(
    self, state: process_lib.FederatedState
  ) -> client_evaluation.ClientScores | None:
    """Returns the scores of clients; None without test examples of theirs."""
    if self._on_clients is None or state.z_bar is None:
      return None
    if self._latest is None or self._latest[0] != state.t:
      self._latest = state.t, self._on_clients(state)
    return self._latest[1]

  def identity(self) -> dict[str, Any]:
    """Returns what the evaluations of a run depend on besides test data."""
    schedule, clients = self._schedule, self._test_clients
    known: dict[str, Any] = {'eval_every': schedule.eval_every}
    if clients is not None:
      known |= {
        'eval_clients_every': schedule.eval_clients_every,
        'personalize_steps': schedule.personalize_steps,
        'test_clients': identity.of_examples(clients),
      }
    return known
