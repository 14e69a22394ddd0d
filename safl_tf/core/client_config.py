"""How a client trains locally."""

import dataclasses
from typing import Any

import keras

from safl_tf.util import choices, validation


@dataclasses.dataclass(frozen=True)
class LocalConfig:
  """How a client trains. The defaults are the paper's.

  Attributes:
    local_epochs: E, passes over the client's data in a round.
    batch_size: B; a last, smaller batch is kept.
    learning_rate: α; not used if `optimizer` is a Keras optimizer.
    optimizer: a name of `choices.OPTIMIZERS` or a Keras optimizer, reset at
      each participation.
    loss: a name of `choices.LOSSES`.
    loss_reduction: whether a batch's losses are added up ('sum': a batch's step
      is then the sum of Algorithm 1's steps for its examples) or averaged.
    anneal_clock: what t in p = exp(-t/L) counts: communication rounds, or the
      local gradient steps that came before this round, (t - 1)·E·⌈m_k/B⌉.
    proximal_mu: μ of FedProx (Li et al. 2020): μ/2·‖w - z̄‖² is added to the
      mean loss, which keeps a client near the global model.
    optimizer_clock: what the optimizer's counter of steps, which Keras's
      learning-rate schedules read, starts a round with. 'participation': zero,
      so that a schedule starts anew, too. 'run': (t - 1)·E·⌈m_k/B⌉, the steps
      of a client that took part in every round before, so that a schedule goes
      on over rounds. The other slots are fresh in both; Adam and its like,
      which divide by 1 - βⁱ to make up for fresh slots, want 'participation'.
    holdout: the share of its examples that a client never trains on and
      measures h on, if the algorithm's gate asks for h; at least one example,
      if it has two. None means that h is measured on what it trains on.
  """

  local_epochs: int = 3
  batch_size: int = 50
  learning_rate: float = 0.002
  optimizer: str | keras.optimizers.Optimizer = 'sgd'
  loss: str = 'categorical'
  loss_reduction: str = 'sum'
  anneal_clock: str = 'round'
  proximal_mu: float = 0.0
  optimizer_clock: str = 'participation'
  holdout: float | None = None

  def __post_init__(self) -> None:
    validation.integer('local_epochs', self.local_epochs, low=1)
    validation.integer('batch_size', self.batch_size, low=1)
    validation.real('learning_rate', self.learning_rate, 0, open_low=True)
    if isinstance(self.optimizer, str):
      validation.choice('optimizer', self.optimizer, choices.OPTIMIZERS)
    validation.choice('loss', self.loss, choices.LOSSES)
    validation.choice(
      'loss_reduction', self.loss_reduction, choices.LOSS_REDUCTIONS
    )
    validation.choice('anneal_clock', self.anneal_clock, choices.ANNEAL_CLOCKS)
    validation.real('proximal_mu', self.proximal_mu, 0)
    validation.choice(
      'optimizer_clock', self.optimizer_clock, choices.OPTIMIZER_CLOCKS
    )
    if self.holdout is not None:
      validation.real('holdout', self.holdout, 0, 0.9, open_low=True)

  def to_json(self) -> dict[str, Any]:
    """The fields as JSON values."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    if not isinstance(self.optimizer, str):
      told = keras.optimizers.serialize(self.optimizer)
      settings = {k: v for k, v in told['config'].items() if k != 'name'}
      fields['optimizer'] = {told['class_name']: settings}
    return fields

  def steps(self, num_examples: Any) -> Any:
    """Gradient steps a client of this size takes in a round: E·⌈m_k/B⌉."""
    return self.local_epochs * (-(-num_examples // self.batch_size))

  def num_held_out(self, num_examples: int) -> int:
    """How many of its examples a client doesn't train on."""
    if self.holdout is None:
      return 0
    return min(num_examples - 1, max(1, round(self.holdout * num_examples)))

  def clock(self, t: int, num_examples: int) -> float:
    """The t of p = exp(-t/L)."""
    if self.anneal_clock == 'round':
      return float(t)
    return float((t - 1) * self.steps(num_examples))

  def iteration(self, t: int, num_examples: int) -> int:
    """What the optimizer's counter of steps starts round t with."""
    if self.optimizer_clock == 'participation':
      return 0
    return int((t - 1) * self.steps(num_examples))
