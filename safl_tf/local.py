"""One device's round in words: how it trains, what it gets, what it gives."""

import dataclasses
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf import checks, names


@dataclasses.dataclass(frozen=True)
class LocalConfig:
  """How a device trains. The defaults are the paper's.

  Attributes:
    local_epochs: E, passes over the device's data in a round.
    batch_size: B; a last, smaller batch is kept.
    learning_rate: α; not used if `optimizer` is a Keras optimizer.
    optimizer: a name of `names.OPTIMIZERS` or a Keras optimizer; its slots are
      fresh at each participation.
    loss: a name of `names.LOSSES`.
    loss_reduction: whether a batch's losses are added up ('sum': a batch's step
      is then the sum of Algorithm 1's steps for its examples) or averaged.
    anneal_clock: what t in p = exp(-t/L) counts: communication rounds, or the
      local gradient steps that came before this round, (t - 1)·E·⌈m_k/B⌉.
    proximal_mu: μ of FedProx (Li et al. 2020): μ/2·‖w - z̄‖² is added to the
      mean loss, which keeps a device near the global model.
    optimizer_clock: what the optimizer's counter of steps, which Keras's
      learning-rate schedules read, starts a round with. 'participation': zero,
      so that a schedule starts anew, too. 'run': (t - 1)·E·⌈m_k/B⌉, the steps
      of a device that took part in every round before, so that a schedule goes
      on over rounds. The other slots are fresh in both; Adam and its like,
      which divide by 1 - βⁱ to make up for fresh slots, want 'participation'.
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

  def __post_init__(self) -> None:
    checks.integer('local_epochs', self.local_epochs, low=1)
    checks.integer('batch_size', self.batch_size, low=1)
    checks.real('learning_rate', self.learning_rate, 0, open_low=True)
    if isinstance(self.optimizer, str):
      checks.choice('optimizer', self.optimizer, names.OPTIMIZERS)
    checks.choice('loss', self.loss, names.LOSSES)
    checks.choice('loss_reduction', self.loss_reduction, names.LOSS_REDUCTIONS)
    checks.choice('anneal_clock', self.anneal_clock, names.ANNEAL_CLOCKS)
    checks.real('proximal_mu', self.proximal_mu, 0)
    checks.choice(
      'optimizer_clock', self.optimizer_clock, names.OPTIMIZER_CLOCKS
    )

  def to_json(self) -> dict[str, Any]:
    """The fields as JSON values."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    if not isinstance(self.optimizer, str):
      told = keras.optimizers.serialize(self.optimizer)
      settings = {k: v for k, v in told['config'].items() if k != 'name'}
      fields['optimizer'] = {told['class_name']: settings}
    return fields

  def steps(self, num_examples: Any) -> Any:
    """Gradient steps a device of this size takes in a round: E·⌈m_k/B⌉."""
    return self.local_epochs * (-(-num_examples // self.batch_size))

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


class BatchPlan(NamedTuple):
  """The examples of each of a device's steps, padded to one shape.

  Attributes:
    examples: rows of the base arrays, int32 [S, B]. What pads a short batch is
      again the device's own examples.
    counts: how many of each row are real, int32 [S].
    num_steps: how many rows are real.
  """

  examples: np.ndarray
  counts: np.ndarray
  num_steps: np.int32


def plan_batches(
  indices: np.ndarray,
  config: LocalConfig,
  max_steps: int,
  rng: np.random.Generator,
) -> BatchPlan:
  """Shuffles a device's examples anew for every epoch and cuts batches."""
  m, B = len(indices), config.batch_size
  per_epoch = -(-m // B)
  examples = np.zeros((max_steps, B), np.int32)
  counts = np.zeros(max_steps, np.int32)
  for e in range(config.local_epochs):
    rows = slice(e * per_epoch, (e + 1) * per_epoch)
    order = rng.permutation(indices)
    examples[rows] = np.resize(order, per_epoch * B).reshape(per_epoch, B)
    counts[rows] = B
    counts[rows.stop - 1] = m - (per_epoch - 1) * B
  num_steps = config.local_epochs * per_epoch
  return BatchPlan(examples, counts, np.int32(num_steps))


class Task(NamedTuple):
  """What a device needs for its round.

  Attributes:
    z_bar: the server's model [P]; anything if there is none yet.
    has_global: whether there is one.
    z: the device's own model [P].
    seeds: for u, for the upload and for the model's generators, int32 [3, 2].
    clock: t as `mix` sees it.
    plan: the batches.
    frozen: how many of the trained tensors, from the input on, stay as they
      are; for algorithms that freeze.
    iteration: where the optimizer's counter of steps starts.
  """

  z_bar: np.ndarray
  has_global: bool
  z: np.ndarray
  seeds: np.ndarray
  clock: float
  plan: BatchPlan
  frozen: np.int32 = np.int32(0)
  iteration: np.int64 = np.int64(0)


class Update(NamedTuple):
  """What a device's round gave.

  Attributes:
    z: the trained model [P]: what is kept and what is uploaded.
    finite: whether every element of z is a finite number.
    sent: whether the device uploads.
    q: with which probability it did.
    delta: Δ, the gap between the global and its own accuracy.
    p: the probability that an element was kept local.
    kept_local: the share of elements that were.
    train_loss: mean loss of the examples as they were trained on.
  """

  z: tf.Tensor
  finite: tf.Tensor
  sent: tf.Tensor
  q: tf.Tensor
  delta: tf.Tensor
  p: tf.Tensor
  kept_local: tf.Tensor
  train_loss: tf.Tensor
