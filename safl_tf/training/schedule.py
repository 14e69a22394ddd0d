"""When a run evaluates, saves and stops."""

import dataclasses
from typing import Any

from safl_tf.util import validation

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When to evaluate, save and stop.

  Attributes:
    rounds: number of rounds T.
    eval_every: rounds between evaluations; the last round is evaluated too.
    checkpoint_every: rounds between checkpoints; the last round is saved too.
    stop_at_accuracy: test accuracy in [0, 1] at which to stop early.
    eval_clients_every: rounds between evaluations on the clients' own test
      examples; the last round is evaluated too.
    personalize_steps: local steps of the global model before its third test
      there; 0 leaves it out.
  """

  rounds: int = 30
  eval_every: int = 1
  checkpoint_every: int = 5
  stop_at_accuracy: float | None = None
  eval_clients_every: int = 1
  personalize_steps: int = 0

  def __post_init__(self) -> None:
    validation.limited('eval_clients_every', self.eval_clients_every)
    validation.limited('personalize_steps', self.personalize_steps)
    for name in ('rounds', 'eval_every', 'checkpoint_every'):
      validation.limited(name, getattr(self, name))
    if self.stop_at_accuracy is not None:
      validation.limited('stop_at_accuracy', self.stop_at_accuracy)

  def evaluates(self, t: int) -> bool:
    """Returns whether round t is evaluated."""
    return t % self.eval_every == 0 or t == self.rounds

  def evaluates_clients(self, t: int) -> bool:
    """Returns whether round t is evaluated on the clients' test examples."""
    return t % self.eval_clients_every == 0 or t == self.rounds

  def done(self, t: int, history: list[Row]) -> bool:
    """Returns whether the run ends after round t."""
    goal = self.stop_at_accuracy
    if t >= self.rounds or goal is None:
      return t >= self.rounds
    accuracies = (row['test_accuracy'] for row in history)
    return any(a is not None and a >= goal for a in accuracies)
