"""One device's round: mix, train E epochs, decide whether to upload.

Everything here is about a single device, in pieces that are pure functions; an
executor compiles them, runs their loops and adds the device axis.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf import algorithms, checks, flat_model, losses, names, optimizers
from safl_tf.rules import mix


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


class Training(NamedTuple):
  """Where a device's training stands.

  Attributes:
    parts: the model's tensors.
    slots: the optimizer's.
    loss: summed over the examples trained on so far.
  """

  parts: flat_model.Parts
  slots: list[tf.Tensor]
  loss: tf.Tensor


class Control:
  """How the pieces of a round are run: here, as a graph for one device.

  Args:
    cut: whether a short batch has the size it has, or is filled up to B with
      examples of weight zero, as fixed shapes need.
  """

  def __init__(self, cut: bool):
    self._cut = cut

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    """Runs piece(*args)."""
    return piece(*args)

  def loop(
    self,
    num_steps: tf.Tensor,
    piece: Callable[..., Any],
    carry: Any,
    plan: BatchPlan,
    *args: Any,
  ) -> Any:
    """Runs carry = piece(cut, i, carry, plan, *args) for i < num_steps."""

    def body(i: tf.Tensor, carry: Any) -> tuple[tf.Tensor, Any]:
      return i + 1, piece(self._cut, i, carry, plan, *args)

    _, carry = tf.while_loop(
      lambda i, _: i < num_steps, body, (0, carry), parallel_iterations=1
    )
    return carry


class LocalUpdate:
  """A device's whole round, Task -> Update.

  Args:
    model: the Keras model as functions of a vector.
    algorithm: whose `mix` and `gate` are used.
    config: how to train.
    x: all inputs, one array or a structure of them; held once.
    y: all labels.
    device: the TensorFlow device to compute on, which holds x and y.
  """

  def __init__(
    self,
    model: flat_model.FlatModel,
    algorithm: algorithms.Algorithm,
    config: LocalConfig,
    x: Any,
    y: Any,
    device: str = '/CPU:0',
  ):
    self._model = model
    self._algorithm = algorithm
    self._config = config
    self.device = device
    with tf.device(device):
      self._x = tf.nest.map_structure(tf.convert_to_tensor, x)
      self._y = tf.convert_to_tensor(y, tf.int32)
    self._loss = losses.get(config.loss, model.from_logits)
    self._optimizer = optimizers.PureOptimizer(
      optimizers.get(config.optimizer, config.learning_rate),
      model.template.trainable_variables,
    )
    # Half-precision gradients of small losses would vanish.
    half = model.template.dtype_policy.compute_dtype == 'float16'
    self._loss_scale = 1024.0 if half else 1.0

  def signature(self, max_steps: int | None = None) -> Task:
    """What a task is made of; devices of all sizes share it.

    Args:
      max_steps: the number of rows of batch plans, if it is known.
    """
    vector = tf.TensorSpec([self._model.size], self._model.dtype)
    return Task(
      z_bar=vector,
      has_global=tf.TensorSpec([], tf.bool),
      z=vector,
      seeds=tf.TensorSpec([3, 2], tf.int32),
      clock=tf.TensorSpec([], tf.float32),
      plan=BatchPlan(
        examples=tf.TensorSpec([max_steps, self._config.batch_size], tf.int32),
        counts=tf.TensorSpec([max_steps], tf.int32),
        num_steps=tf.TensorSpec([], tf.int32),
      ),
    )

  def __call__(self, task: Task, control: Control) -> Update:
    """What a device of S_t does in Algorithms 1 and 2."""
    call, loop, plan = control.call, control.loop, task.plan
    mixed, training = call(self._begin, task)
    training = loop(plan.num_steps, self._step, training, plan)
    if not self._algorithm.gate.needs_accuracy:
      return call(self._end, task, mixed, training)
    z_bar, correct = call(self._begin_count, task)
    epoch = plan.num_steps // self._config.local_epochs
    correct = loop(epoch, self._count, correct, plan, z_bar, training.parts)
    return call(self._end, task, mixed, training, correct)

  def _begin(self, task: Task) -> tuple[mix.Mixed, Training]:
    """Mixes; without a global model a device starts from its own."""
    mixed = self._algorithm.mix(task.seeds[0], task.clock, task.z_bar, task.z)
    mixed = mix.Mixed(
      w=tf.where(task.has_global, mixed.w, task.z),
      p=mixed.p,
      kept_local=tf.where(task.has_global, mixed.kept_local, 1.0),
    )
    parts = self._model.unflatten(mixed.w, task.seeds[2])
    slots = [tf.identity(slot) for slot in self._optimizer.initial]
    return mixed, Training(parts, slots, tf.constant(0.0))

  def _step(
    self, cut: bool, i: tf.Tensor, training: Training, plan: BatchPlan
  ) -> Training:
    """Equation (2) for the i-th batch, with the optimizer's step."""
    inputs, labels, weights = self._batch(cut, i, plan)
    parts = training.parts
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
    slots, trainable = self._optimizer.apply(
      training.slots, gradients, parts.trainable
    )
    parts = flat_model.Parts(trainable, non_trainable)
    return Training(parts, slots, training.loss + total)

  def _begin_count(self, task: Task) -> tuple[flat_model.Parts, tf.Tensor]:
    """The global model's tensors, and none counted yet."""
    return self._model.unflatten(task.z_bar, task.seeds[2]), tf.zeros([2])

  def _count(
    self,
    cut: bool,
    i: tf.Tensor,
    correct: tf.Tensor,
    plan: BatchPlan,
    *models: flat_model.Parts,
  ) -> tf.Tensor:
    """Adds how many of the i-th batch each model gets right."""
    inputs, labels, weights = self._batch(cut, i, plan)
    found = []
    for parts in models:
      outputs, _, _ = self._model.apply(parts, inputs, training=False)
      right = tf.argmax(outputs, axis=1, output_type=tf.int32) == labels
      found.append(tf.reduce_sum(tf.cast(right, tf.float32) * weights))
    return correct + tf.stack(found)

  def _end(
    self,
    task: Task,
    mixed: mix.Mixed,
    training: Training,
    correct: tf.Tensor | None = None,
  ) -> Update:
    """The trained model, and whether it is sent."""
    seen = tf.reduce_sum(task.plan.counts)
    h_global = h_local = tf.constant(1.0)
    if correct is not None:  # h, on the device's own data
      m = tf.cast(seen // self._config.local_epochs, tf.float32)
      h_global, h_local = tf.unstack(correct / m)
    decision = self._algorithm.gate.decide(
      task.seeds[1], task.clock, h_global, h_local
    )
    z = self._model.flatten(training.parts)
    return Update(
      z=z,
      finite=tf.reduce_all(tf.math.is_finite(z)),
      sent=decision.sent | ~task.has_global,
      q=tf.where(task.has_global, decision.q, 1.0),
      delta=tf.where(task.has_global, decision.delta, 0.0),
      p=mixed.p,
      kept_local=mixed.kept_local,
      train_loss=training.loss / tf.cast(seen, tf.float32),
    )

  def _batch(
    self, cut: bool, i: tf.Tensor, plan: BatchPlan
  ) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Inputs, labels and weights of the i-th batch."""
    # Not plan.counts[i]: XLA would compile a step anew for every i.
    examples, count = tf.gather(plan.examples, i), tf.gather(plan.counts, i)
    if cut:
      examples = examples[:count]
      weights = tf.ones([count], tf.float32)
    else:
      real = tf.range(self._config.batch_size) < count
      weights = tf.cast(real, tf.float32)
    inputs = tf.nest.map_structure(lambda a: tf.gather(a, examples), self._x)
    return inputs, tf.gather(self._y, examples), weights
