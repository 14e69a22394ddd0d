"""The configuration of local training."""

import dataclasses
from typing import Any

import keras

from safl_tf.util import choices, errors, validation


@dataclasses.dataclass(frozen=True)
class LocalConfig:
  """The configuration of local training; defaults are the paper's.

  Attributes:
    local_epochs: E, passes over the client's data in a round.
    batch_size: B; the last batch of an epoch may be smaller.
    learning_rate: α; not for a Keras optimizer, which has its own.
    optimizer: 'sgd', 'momentum', 'nesterov', 'adagrad', 'adam', 'adamw',
      'rmsprop' or a Keras optimizer, reset at each participation.
    loss_reduction: 'sum' or 'mean' over a batch. With 'sum' a batch's step is
      the sum of Algorithm 1's steps for its examples.
    anneal_clock: the unit of t in p = exp(-t/L): the 'round', or the 'step', (t
      - 1)·E·⌈m_k/B⌉ local gradient steps before this round.
    optimizer_clock: the initial value of the optimizer's step counter, which
      Keras's learning-rate schedules read. 'participation': zero, so a schedule
      restarts in every round. 'run': (t - 1)·E·⌈m_k/B⌉, the steps of a client
      that participated in all rounds before, so a schedule continues over
      rounds. Other slots are reset in both; optimizers with a bias correction 1
      - βⁱ for fresh slots, such as Adam, need 'participation'.
    holdout: the share of its examples that a client does not train on and
      measures models on, if a rule such as Extended SAFL's gate needs it; at
      least one example of two or more. None measures on the training examples.

  Example:
    ```pycon
    >>> config = safl_tf.LocalConfig(local_epochs=2, batch_size=20)
    >>> config.learning_rate, config.optimizer
    (0.002, 'sgd')
    >>> config.steps(50)  # of a client with 50 examples in a round
    6
    ```

    ```python
    schedule = keras.optimizers.schedules.CosineDecay(0.05, decay_steps=100)
    config = safl_tf.LocalConfig(
      optimizer=keras.optimizers.SGD(schedule), optimizer_clock='run')
    result = safl_tf.train(model_fn, clients, config=config, rounds=2)
    ```
  """

  local_epochs: int = 3
  batch_size: int = 50
  learning_rate: float = 0.002
  optimizer: str | keras.optimizers.Optimizer = 'sgd'
  loss_reduction: str = 'sum'
  anneal_clock: str = 'round'
  optimizer_clock: str = 'participation'
  holdout: float | None = None

  def __post_init__(self) -> None:
    validation.limited('local_epochs', self.local_epochs)
    validation.limited('batch_size', self.batch_size)
    validation.limited('learning_rate', self.learning_rate)
    takes = f'one of {", ".join(choices.OPTIMIZERS)} or a Keras optimizer'
    kinds = (str, keras.optimizers.Optimizer)
    validation.instance('optimizer', self.optimizer, kinds, takes)
    if isinstance(self.optimizer, str):
      validation.choice('optimizer', self.optimizer, choices.OPTIMIZERS)
    elif self.learning_rate != LocalConfig.learning_rate:
      hint = 'has no effect: the Keras optimizer has a learning rate of its own'
      raise errors.InputError('learning_rate', self.learning_rate, hint)
    validation.choice(
      'loss_reduction', self.loss_reduction, choices.LOSS_REDUCTIONS
    )
    validation.choice('anneal_clock', self.anneal_clock, choices.ANNEAL_CLOCKS)
    validation.choice(
      'optimizer_clock', self.optimizer_clock, choices.OPTIMIZER_CLOCKS
    )
    if self.holdout is not None:
      validation.limited('holdout', self.holdout)

  def to_json(self) -> dict[str, Any]:
    """Returns the fields as JSON values."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    if not isinstance(self.optimizer, str):
      serialized = keras.optimizers.serialize(self.optimizer)
      config = {k: v for k, v in serialized['config'].items() if k != 'name'}
      fields['optimizer'] = {serialized['class_name']: config}
    return fields

  def steps(self, num_examples: Any) -> Any:
    """Returns the gradient steps of a client in a round, E·⌈m_k/B⌉."""
    return self.local_epochs * (-(-num_examples // self.batch_size))

  def num_held_out(self, num_examples: int) -> int:
    """Returns the number of examples that a client holds out."""
    if self.holdout is None:
      return 0
    return min(num_examples - 1, max(1, round(self.holdout * num_examples)))

  def clock(self, t: int, num_examples: int) -> float:
    """Returns the t of p = exp(-t/L)."""
    if self.anneal_clock == 'round':
      return float(t)
    return float((t - 1) * self.steps(num_examples))

  def iteration(self, t: int, num_examples: int) -> int:
    """Returns the optimizer's step counter at the start of round t."""
    if self.optimizer_clock == 'participation':
      return 0
    return int((t - 1) * self.steps(num_examples))
