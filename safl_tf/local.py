"""One device's round, compiled: mix, train E epochs, decide whether to upload.

Everything here is about a single device; an executor adds the device axis.
"""

import dataclasses
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf import algorithms, checks, flat_model, losses, names, optimizers


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
  """

  local_epochs: int = 3
  batch_size: int = 50
  learning_rate: float = 0.002
  optimizer: str | keras.optimizers.Optimizer = 'sgd'
  loss: str = 'categorical'
  loss_reduction: str = 'sum'
  anneal_clock: str = 'round'

  def __post_init__(self) -> None:
    checks.integer('local_epochs', self.local_epochs, low=1)
    checks.integer('batch_size', self.batch_size, low=1)
    checks.real('learning_rate', self.learning_rate, 0, open_low=True)
    if isinstance(self.optimizer, str):
      checks.choice('optimizer', self.optimizer, names.OPTIMIZERS)
    checks.choice('loss', self.loss, names.LOSSES)
    checks.choice('loss_reduction', self.loss_reduction, names.LOSS_REDUCTIONS)
    checks.choice('anneal_clock', self.anneal_clock, names.ANNEAL_CLOCKS)

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


class BatchPlan(NamedTuple):
  """The examples of each of a device's steps, padded to one shape.

  Attributes:
    examples: rows of the base arrays, int32 [S, B]. What pads a short batch is
      again the device's own examples.
    counts: how many of each row are real, int32 [S].
    num_steps: how many rows are real.
    epoch_steps: how many rows hold each example once.
  """

  examples: np.ndarray
  counts: np.ndarray
  num_steps: np.int32
  epoch_steps: np.int32


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
  return BatchPlan(examples, counts, np.int32(num_steps), np.int32(per_epoch))


class Task(NamedTuple):
  """What a device needs for its round.

  Attributes:
    z_bar: the server's model [P]; anything if there is none yet.
    has_global: whether there is one.
    z: the device's own model [P].
    seeds: for u, for the upload and for the model's generators, int32 [3, 2].
    clock: t as `mix` sees it.
    plan: the batches.
  """

  z_bar: np.ndarray
  has_global: bool
  z: np.ndarray
  seeds: np.ndarray
  clock: float
  plan: BatchPlan


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


class LocalUpdate:
  """A device's whole round as one compiled function, Task -> Update.

  It is traced once, whatever the device's size.

  Args:
    model: the Keras model as functions of a vector.
    algorithm: whose `mix` and `gate` are used.
    config: how to train.
    x: all inputs, one array or a structure of them; held once.
    y: all labels.
    jit_compile: whether XLA compiles it. XLA wants fixed shapes: short batches
      are then padded with examples of weight zero. Without XLA they are cut.
  """

  def __init__(
    self,
    model: flat_model.FlatModel,
    algorithm: algorithms.Algorithm,
    config: LocalConfig,
    x: Any,
    y: Any,
    jit_compile: bool,
  ):
    self._model = model
    self._algorithm = algorithm
    self._config = config
    self._x = tf.nest.map_structure(tf.convert_to_tensor, x)
    self._y = tf.convert_to_tensor(y, tf.int32)
    self._jit_compile = jit_compile
    self._loss = losses.get(config.loss, model.from_logits)
    self._optimizer = optimizers.PureOptimizer(
      optimizers.get(config.optimizer, config.learning_rate),
      model.template.trainable_variables,
    )
    # Half-precision gradients of small losses would vanish.
    half = model.template.dtype_policy.compute_dtype == 'float16'
    self._loss_scale = 1024.0 if half else 1.0
    self._compiled = tf.function(
      self._round,
      input_signature=_signature(model, config),
      jit_compile=jit_compile,
      autograph=False,
    )

  def __call__(self, task: Task) -> Update:
    """Runs a device's round."""
    return self._compiled(*task[:-1], *task.plan)

  @property
  def num_traces(self) -> int:
    """How often the round was traced."""
    return self._compiled.experimental_get_tracing_count()

  def _round(
    self,
    z_bar: tf.Tensor,
    has_global: tf.Tensor,
    z: tf.Tensor,
    seeds: tf.Tensor,
    clock: tf.Tensor,
    *plan_tensors: tf.Tensor,
  ) -> Update:
    """What a device of S_t does in Algorithms 1 and 2."""
    plan = BatchPlan(*plan_tensors)
    mixed = self._algorithm.mix(seeds[0], clock, z_bar, z)
    w = tf.where(has_global, mixed.w, z)
    new_z, train_loss = self._train(plan, w, seeds[2])
    gate = self._algorithm.gate
    h_global = h_local = tf.constant(1.0)
    if gate.needs_accuracy:
      h_global = self._accuracy(plan, z_bar, seeds[2])
      h_local = self._accuracy(plan, new_z, seeds[2])
    decision = gate.decide(seeds[1], clock, h_global, h_local)
    return Update(
      z=new_z,
      finite=tf.reduce_all(tf.math.is_finite(new_z)),
      sent=decision.sent | ~has_global,
      q=tf.where(has_global, decision.q, 1.0),
      delta=tf.where(has_global, decision.delta, 0.0),
      p=mixed.p,
      kept_local=tf.where(has_global, mixed.kept_local, 1.0),
      train_loss=train_loss,
    )

  def _train(
    self, plan: BatchPlan, w: tf.Tensor, seed: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """E epochs from w; the new z and the mean loss on the way."""

    def body(i: tf.Tensor, parts: Any, slots: Any, total: tf.Tensor) -> tuple:
      parts, slots, loss = self._step(plan, i, parts, slots)
      return i + 1, parts, slots, total + loss

    _, parts, _, total = tf.while_loop(
      lambda i, *_: i < plan.num_steps,
      body,
      (0, self._model.unflatten(w, seed), self._optimizer.initial, 0.0),
      parallel_iterations=1,
    )
    seen = tf.cast(tf.reduce_sum(plan.counts), tf.float32)
    return self._model.flatten(parts), total / seen

  def _step(
    self,
    plan: BatchPlan,
    i: tf.Tensor,
    parts: flat_model.Parts,
    slots: list[tf.Tensor],
  ) -> tuple[flat_model.Parts, list[tf.Tensor], tf.Tensor]:
    """Equation (2) for one batch, with the optimizer's step."""
    inputs, labels, weights = self._batch(plan, i)
    with tf.GradientTape() as tape:
      tape.watch(parts.trainable)
      outputs, extra, non_trainable = self._model.apply(
        parts, inputs, training=True
      )
      total = tf.reduce_sum(self._loss(labels, outputs) * weights)
      count = tf.reduce_sum(weights)
      if self._config.loss_reduction == 'sum':
        objective = total + extra * count
      else:
        objective = total / count + extra
      objective *= self._loss_scale
    gradients = tape.gradient(
      objective,
      parts.trainable,
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    if self._loss_scale != 1:
      gradients = [g / self._loss_scale for g in gradients]
    slots, trainable = self._optimizer.apply(slots, gradients, parts.trainable)
    return flat_model.Parts(trainable, non_trainable), slots, total

  def _accuracy(
    self, plan: BatchPlan, z: tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    """h(z), on the device's own data."""
    parts = self._model.unflatten(z, seed)

    def body(i: tf.Tensor, correct: tf.Tensor) -> tuple:
      inputs, labels, weights = self._batch(plan, i)
      outputs, _, _ = self._model.apply(parts, inputs, training=False)
      right = tf.argmax(outputs, axis=1, output_type=tf.int32) == labels
      return i + 1, correct + tf.reduce_sum(tf.cast(right, 'float32') * weights)

    _, correct = tf.while_loop(
      lambda i, _: i < plan.epoch_steps, body, (0, 0.0), parallel_iterations=1
    )
    # Not a slice of one epoch: XLA would compile anew for each of its lengths.
    examples = tf.reduce_sum(plan.counts) // self._config.local_epochs
    return correct / tf.cast(examples, tf.float32)

  def _batch(
    self, plan: BatchPlan, i: tf.Tensor
  ) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Inputs, labels and weights of the i-th batch."""
    examples, count = plan.examples[i], plan.counts[i]
    if self._jit_compile:
      real = tf.range(self._config.batch_size) < count
      weights = tf.cast(real, tf.float32)
    else:
      examples = examples[:count]
      weights = tf.ones([count], tf.float32)
    inputs = tf.nest.map_structure(lambda a: tf.gather(a, examples), self._x)
    return inputs, tf.gather(self._y, examples), weights


def _signature(
  model: flat_model.FlatModel, config: LocalConfig
) -> list[tf.TensorSpec]:
  """Of a task: its fields in order, the plan's last."""
  vector = tf.TensorSpec([model.size], model.dtype)
  number = tf.TensorSpec([], tf.int32)
  return [
    vector,
    tf.TensorSpec([], tf.bool),
    vector,
    tf.TensorSpec([3, 2], tf.int32),
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([None, config.batch_size], tf.int32),
    tf.TensorSpec([None], tf.int32),
    number,
    number,
  ]
