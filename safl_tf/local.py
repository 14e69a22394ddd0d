"""One device's round in words: how it trains, what it gets, what it gives."""

import dataclasses
from collections.abc import Iterable
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
    holdout: the share of its examples that a device never trains on and
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
    if self.holdout is not None:
      checks.real('holdout', self.holdout, 0, 0.9, open_low=True)

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

  def num_held_out(self, num_examples: int) -> int:
    """How many of its examples a device doesn't train on."""
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


def split(
  indices: np.ndarray, config: LocalConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """The examples that a device trains on, and those it measures h on."""
  held_out = config.num_held_out(len(indices))
  if not held_out:
    return indices, indices
  order = rng.permutation(indices)
  return order[held_out:], order[:held_out]


def plan_batches(
  indices: np.ndarray,
  config: LocalConfig,
  max_steps: int,
  rng: np.random.Generator,
) -> BatchPlan:
  """Shuffles a device's examples anew for every epoch and cuts batches."""
  orders = (rng.permutation(indices) for _ in range(config.local_epochs))
  return _cut(orders, config.batch_size, max_steps)


def plan_measuring(
  indices: np.ndarray, config: LocalConfig, max_steps: int
) -> BatchPlan:
  """Cuts batches to measure h on; none if there is room for none."""
  return _cut([indices] if max_steps else [], config.batch_size, max_steps)


def _cut(
  orders: Iterable[np.ndarray], batch_size: int, max_steps: int
) -> BatchPlan:
  """One epoch after the other, each in batches."""
  examples = np.zeros((max_steps, batch_size), np.int32)
  counts = np.zeros(max_steps, np.int32)
  end = 0
  for order in orders:
    start, m = end, len(order)
    end += -(-m // batch_size)
    rows = examples[start:end]
    rows[:] = np.resize(order, rows.shape)
    counts[start:end] = batch_size
    counts[end - 1] -= rows.size - m
  return BatchPlan(examples, counts, np.int32(end))


class Task(NamedTuple):
  """What a device needs for its round.

  Attributes:
    z_bar: the server's model [P]; anything if there is none yet.
    has_global: whether there is one.
    z: the device's own model [P].
    seeds: for u, for the upload and for the model's generators, int32 [3, 2].
    clock: t as `mix` sees it.
    plan: the batches to train on.
    measured: the batches to measure h on; none if the gate doesn't ask for h.
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
  measured: BatchPlan
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
