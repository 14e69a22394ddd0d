"""One client's round: mix, train E epochs, decide whether to upload.

Everything here is about a single client, in pieces that are pure functions; an
executor compiles them, runs their loops and adds the client axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import batching, client_config, flat_model, losses, optimizer


class ClientInput(NamedTuple):
  """What a client needs for its round.

  Attributes:
    z_bar: the server's model [P]; anything if there is none yet.
    has_global: whether there is one.
    z: the client's own model [P].
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
  plan: batching.BatchPlan
  measured: batching.BatchPlan
  frozen: np.int32 = np.int32(0)
  iteration: np.int64 = np.int64(0)


class ClientOutput(NamedTuple):
  """What a client's round gave.

  Attributes:
    z: the trained model [P]: what is kept and what is uploaded.
    finite: whether every element of z is a finite number.
    sent: whether the client uploads.
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
  """Where a client's training stands.

  Attributes:
    parts: the model's tensors.
    slots: the optimizer's.
    loss: summed over the examples trained on so far.
  """

  parts: flat_model.Parts
  slots: list[tf.Tensor]
  loss: tf.Tensor


class Constraints(NamedTuple):
  """What holds a client's training back.

  Attributes:
    anchor: the tensors of z̄ that training is pulled to, if it is.
    strength: of the pull: μ, or zero without a global model.
    frozen: how many of the trained tensors stay as they are.
  """

  anchor: list[tf.Tensor]
  strength: tf.Tensor
  frozen: tf.Tensor


class StepRunner:
  """How the pieces of a round are run: here, as a graph for one client.

  Args:
    trim_padding: whether to trim a short batch to its size, instead of padding
      it to B with examples of weight zero, as fixed shapes need.
  """

  def __init__(self, trim_padding: bool):
    self._trim_padding = trim_padding

  def call(self, piece: Callable[..., Any], *args: Any) -> Any:
    """Runs piece(*args)."""
    return piece(*args)

  def loop(
    self,
    num_steps: tf.Tensor,
    piece: Callable[..., Any],
    carry: Any,
    plan: batching.BatchPlan,
    *args: Any,
  ) -> Any:
    """Runs carry = piece(trim, i, carry, plan, *args) for i < num_steps."""

    def body(i: tf.Tensor, carry: Any) -> tuple[tf.Tensor, Any]:
      return i + 1, piece(self._trim_padding, i, carry, plan, *args)

    _, carry = tf.while_loop(
      lambda i, _: i < num_steps, body, (0, carry), parallel_iterations=1
    )
    return carry


class ClientUpdate:
  """A client's whole round, Task -> ClientOutput.

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
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
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
    self._optimizer = optimizer.PureOptimizer(
      optimizer.get(config.optimizer, config.learning_rate),
      model.template.trainable_variables,
    )
    # Half-precision gradients of small losses would vanish.
    half = model.template.dtype_policy.compute_dtype == 'float16'
    self._loss_scale = 1024.0 if half else 1.0

  def signature(
    self, max_steps: int | None = None, max_measured: int | None = None
  ) -> ClientInput:
    """What a task is made of; clients of all sizes share it.

    Args:
      max_steps: the number of rows of plans for training, if it is known.
      max_measured: that of plans for measuring h.
    """

    def plan(rows: int | None) -> batching.BatchPlan:
      return batching.BatchPlan(
        examples=tf.TensorSpec([rows, self._config.batch_size], tf.int32),
        counts=tf.TensorSpec([rows], tf.int32),
        num_steps=tf.TensorSpec([], tf.int32),
      )

    vector = tf.TensorSpec([self._model.size], self._model.dtype)
    return ClientInput(
      z_bar=vector,
      has_global=tf.TensorSpec([], tf.bool),
      z=vector,
      seeds=tf.TensorSpec([3, 2], tf.int32),
      clock=tf.TensorSpec([], tf.float32),
      plan=plan(max_steps),
      measured=plan(max_measured),
      frozen=tf.TensorSpec([], tf.int32),
      iteration=tf.TensorSpec([], tf.int64),
    )

  def __call__(self, task: ClientInput, control: StepRunner) -> ClientOutput:
    """What a client of S_t does in Algorithms 1 and 2."""
    call, loop, plan = control.call, control.loop, task.plan
    mixed, training = call(self._begin, task)
    if self._algorithm.one_step:
      training = loop(plan.num_steps, self._accumulate, training, plan)
      training = call(self._descend, task, training)
    elif self._algorithm.freezes or self._config.proximal_mu:
      held = call(self._hold, task)
      training = loop(plan.num_steps, self._step, training, plan, held)
    else:
      training = loop(plan.num_steps, self._step, training, plan)
    if not self._algorithm.gate.needs_accuracy:
      return call(self._end, task, mixed, training)
    z_bar, correct = call(self._begin_count, task)
    plan = task.measured
    correct = loop(
      plan.num_steps, self._count, correct, plan, z_bar, training.parts
    )
    return call(self._end, task, mixed, training, correct)

  def _begin(self, task: ClientInput) -> tuple[algorithm_lib.Mixed, Training]:
    """Mixes; without a global model a client starts from its own."""
    mixed = self._algorithm.mix(task.seeds[0], task.clock, task.z_bar, task.z)
    mixed = algorithm_lib.Mixed(
      w=tf.where(task.has_global, mixed.w, task.z),
      p=mixed.p,
      kept_local=tf.where(task.has_global, mixed.kept_local, 1.0),
    )
    parts = self._model.unflatten(mixed.w, task.seeds[2])
    if self._algorithm.one_step:  # they hold the gradient's sum
      slots = [tf.zeros_like(value) for value in parts.trainable]
    else:
      initial = self._optimizer.initial
      if self._config.optimizer_clock == 'run':
        initial = self._optimizer.starting_at(task.iteration)
      slots = [tf.identity(slot) for slot in initial]
    return mixed, Training(parts, slots, tf.constant(0.0))

  def _hold(self, task: ClientInput) -> Constraints:
    """What holds training back in this round."""
    anchor = []
    if self._config.proximal_mu:
      anchor = self._model.unflatten(task.z_bar, task.seeds[2]).trainable
    mu = tf.constant(self._config.proximal_mu, tf.float32)
    strength = tf.where(task.has_global, mu, 0.0)
    return Constraints(anchor, strength, task.frozen)

  def _step(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: Training,
    plan: batching.BatchPlan,
    held: Constraints | None = None,
  ) -> Training:
    """Equation (2) for the i-th batch, with the optimizer's step."""
    summed = self._config.loss_reduction == 'sum'
    gradients, parts, total, count = self._gradients(
      trim_padding, i, training.parts, plan, summed
    )
    old = parts.trainable
    if held is not None and held.anchor:
      pull = held.strength * count if summed else held.strength
      gradients = [
        g + tf.cast(pull, g.dtype) * (w - a)
        for g, w, a in zip(gradients, old, held.anchor, strict=True)
      ]
    slots, trainable = self._optimizer.apply(training.slots, gradients, old)
    if held is not None:
      trainable = [
        tf.where(n < held.frozen, before, after)
        for n, (before, after) in enumerate(zip(old, trainable, strict=True))
      ]
    parts = flat_model.Parts(trainable, parts.non_trainable)
    return Training(parts, slots, training.loss + total)

  def _accumulate(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: Training,
    plan: batching.BatchPlan,
  ) -> Training:
    """Adds the i-th batch's part to the gradient over all of the data."""
    gradients, parts, total, _ = self._gradients(
      trim_padding, i, training.parts, plan, summed=True
    )
    sums = [a + g for a, g in zip(training.slots, gradients, strict=True)]
    return Training(parts, sums, training.loss + total)

  def _descend(self, task: ClientInput, training: Training) -> Training:
    """FedSGD's step: w - α·g, with g of the mean loss over all of the data."""
    m = tf.cast(tf.reduce_sum(task.plan.counts), tf.float32)
    gradients = [g / tf.cast(m, g.dtype) for g in training.slots]
    slots = [tf.identity(slot) for slot in self._optimizer.initial]
    _, trainable = self._optimizer.apply(
      slots, gradients, training.parts.trainable
    )
    parts = flat_model.Parts(trainable, training.parts.non_trainable)
    return training._replace(parts=parts)

  def _gradients(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    parts: flat_model.Parts,
    plan: batching.BatchPlan,
    summed: bool,
  ) -> tuple[list[tf.Tensor], flat_model.Parts, tf.Tensor, tf.Tensor]:
    """Of the i-th batch: gradients, new statistics, total loss, examples."""
    inputs, labels, weights = self._batch(trim_padding, i, plan)
    with tf.GradientTape() as tape:
      tape.watch(parts.trainable)
      outputs, extra, non_trainable = self._model.apply(
        parts, inputs, training=True
      )
      total = tf.reduce_sum(self._loss(labels, outputs) * weights)
      count = tf.reduce_sum(weights)
      objective = total + extra * count if summed else total / count + extra
      objective *= self._loss_scale
    gradients = tape.gradient(
      objective,
      parts.trainable,
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    if self._loss_scale != 1:
      gradients = [g / self._loss_scale for g in gradients]
    new = flat_model.Parts(parts.trainable, non_trainable)
    return gradients, new, total, count

  def _begin_count(
    self, task: ClientInput
  ) -> tuple[flat_model.Parts, tf.Tensor]:
    """The global model's tensors, and none counted yet."""
    return self._model.unflatten(task.z_bar, task.seeds[2]), tf.zeros([2])

  def _count(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    correct: tf.Tensor,
    plan: batching.BatchPlan,
    *models: flat_model.Parts,
  ) -> tf.Tensor:
    """Adds how many of the i-th batch each model gets right."""
    inputs, labels, weights = self._batch(trim_padding, i, plan)
    found = []
    for parts in models:
      outputs, _, _ = self._model.apply(parts, inputs, training=False)
      right = tf.argmax(outputs, axis=1, output_type=tf.int32) == labels
      found.append(tf.reduce_sum(tf.cast(right, tf.float32) * weights))
    return correct + tf.stack(found)

  def _end(
    self,
    task: ClientInput,
    mixed: algorithm_lib.Mixed,
    training: Training,
    correct: tf.Tensor | None = None,
  ) -> ClientOutput:
    """The trained model, and whether it is sent."""
    seen = tf.reduce_sum(task.plan.counts)
    h_global = h_local = tf.constant(1.0)
    if correct is not None:
      m = tf.reduce_sum(task.measured.counts)
      h_global, h_local = tf.unstack(correct / tf.cast(m, tf.float32))
    decision = self._algorithm.gate.decide(
      task.seeds[1], task.clock, h_global, h_local
    )
    z = self._model.flatten(training.parts)
    return ClientOutput(
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
    self, trim_padding: bool, i: tf.Tensor, plan: batching.BatchPlan
  ) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Inputs, labels and weights of the i-th batch."""
    # Not plan.counts[i]: XLA would compile a step anew for every i.
    examples, count = tf.gather(plan.examples, i), tf.gather(plan.counts, i)
    if trim_padding:
      examples = examples[:count]
      weights = tf.ones([count], tf.float32)
    else:
      real = tf.range(self._config.batch_size) < count
      weights = tf.cast(real, tf.float32)
    inputs = tf.nest.map_structure(lambda a: tf.gather(a, examples), self._x)
    return inputs, tf.gather(self._y, examples), weights
