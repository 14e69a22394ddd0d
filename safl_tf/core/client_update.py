"""One client's round: mix, train E epochs, decide whether to upload.

The code is written for a single client, in pieces that are pure functions; an
executor compiles the pieces, runs their loops and adds the client axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import batching, client_config, flat_model, losses, optimizer


class ClientInput(NamedTuple):
  """The inputs of a client's round.

  Attributes:
    z_bar: the global model [P]; any values if there is none yet.
    has_global: whether there is a global model.
    z: the client's own model [P].
    seeds: for mix, gate and the model's seed generators, int32 [3, 2].
    clock: the t that `mix` and `gate` receive.
    plan: the batches to train on.
    measured: the batches to measure h on; none if the gate does not need h.
    frozen: the number of trainable tensors, counted from the input, to freeze.
    iteration: the initial value of the optimizer's step counter.
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
  """The results of a client's round.

  Attributes:
    z: the trained model [P], which the client keeps and uploads.
    finite: whether all elements of z are finite.
    sent: whether the client uploads.
    q: the upload probability.
    delta: Δ, the gap between the global and the client's own accuracy.
    p: the probability that an element was kept local.
    kept_local: the share of elements that were kept local.
    train_loss: the mean training loss over the round's examples.
  """

  z: tf.Tensor
  finite: tf.Tensor
  sent: tf.Tensor
  q: tf.Tensor
  delta: tf.Tensor
  p: tf.Tensor
  kept_local: tf.Tensor
  train_loss: tf.Tensor


class TrainState(NamedTuple):
  """The carry of a client's training loop.

  Attributes:
    parts: the model's tensors.
    slots: the optimizer's variables.
    loss: the loss summed over the examples trained on so far.
  """

  parts: flat_model.Parts
  slots: list[tf.Tensor]
  loss: tf.Tensor


class Constraints(NamedTuple):
  """Constraints on a client's steps: FedProx's pull and frozen layers.

  Attributes:
    anchor: the trainable tensors of z̄; empty without a proximal term.
    strength: μ, or zero without a global model.
    frozen: the number of trainable tensors to freeze.
  """

  anchor: list[tf.Tensor]
  strength: tf.Tensor
  frozen: tf.Tensor


class StepRunner:
  """Runs the pieces of a round, here as a graph for one client.

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
  """A client's round as a function: ClientInput -> ClientOutput.

  Args:
    model: the Keras model as functions of a vector.
    algorithm: has the rules `mix` and `gate`.
    config: how a client trains.
    x: the inputs of all clients, one array or a structure of arrays.
    y: the labels of all clients.
    device: the TensorFlow device that holds x and y and runs the round.
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
    """Returns the TensorSpecs of an input, the same for clients of all sizes.

    Args:
      max_steps: the number of rows of training plans, if known.
      max_measured: the number of rows of plans for h, if known.
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

  def __call__(self, inputs: ClientInput, runner: StepRunner) -> ClientOutput:
    """Runs a client's round, the client part of Algorithms 1 and 2."""
    call, loop, plan = runner.call, runner.loop, inputs.plan
    mixed, training = call(self._begin, inputs)
    if self._algorithm.one_step:
      training = loop(plan.num_steps, self._accumulate, training, plan)
      training = call(self._descend, inputs, training)
    elif self._algorithm.freezes or self._config.proximal_mu:
      constraints = call(self._constrain, inputs)
      training = loop(plan.num_steps, self._step, training, plan, constraints)
    else:
      training = loop(plan.num_steps, self._step, training, plan)
    if not self._algorithm.gate.needs_accuracy:
      return call(self._end, inputs, mixed, training)
    z_bar, correct = call(self._begin_count, inputs)
    plan = inputs.measured
    correct = loop(
      plan.num_steps, self._count, correct, plan, z_bar, training.parts
    )
    return call(self._end, inputs, mixed, training, correct)

  def _begin(
    self, inputs: ClientInput
  ) -> tuple[algorithm_lib.Mixed, TrainState]:
    """Mixes z̄ and z; without a global model a client starts from z."""
    mixed = self._algorithm.mix(
      inputs.seeds[0], inputs.clock, inputs.z_bar, inputs.z
    )
    mixed = algorithm_lib.Mixed(
      w=tf.where(inputs.has_global, mixed.w, inputs.z),
      p=mixed.p,
      kept_local=tf.where(inputs.has_global, mixed.kept_local, 1.0),
    )
    parts = self._model.unflatten(mixed.w, inputs.seeds[2])
    if self._algorithm.one_step:  # slots hold the sum of gradients
      slots = [tf.zeros_like(value) for value in parts.trainable]
    else:
      initial = self._optimizer.initial
      if self._config.optimizer_clock == 'run':
        initial = self._optimizer.starting_at(inputs.iteration)
      slots = [tf.identity(slot) for slot in initial]
    return mixed, TrainState(parts, slots, tf.constant(0.0))

  def _constrain(self, inputs: ClientInput) -> Constraints:
    """Returns the constraints of this round."""
    anchor = []
    if self._config.proximal_mu:
      anchor = self._model.unflatten(inputs.z_bar, inputs.seeds[2]).trainable
    mu = tf.constant(self._config.proximal_mu, tf.float32)
    strength = tf.where(inputs.has_global, mu, 0.0)
    return Constraints(anchor, strength, inputs.frozen)

  def _step(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: TrainState,
    plan: batching.BatchPlan,
    constraints: Constraints | None = None,
  ) -> TrainState:
    """Takes the optimizer step of the i-th batch, equation (2)."""
    summed = self._config.loss_reduction == 'sum'
    gradients, parts, total, count = self._gradients(
      trim_padding, i, training.parts, plan, summed
    )
    old = parts.trainable
    if constraints is not None and constraints.anchor:
      pull = constraints.strength * count if summed else constraints.strength
      gradients = [
        g + tf.cast(pull, g.dtype) * (w - a)
        for g, w, a in zip(gradients, old, constraints.anchor, strict=True)
      ]
    slots, trainable = self._optimizer.apply(training.slots, gradients, old)
    if constraints is not None:
      trainable = [
        tf.where(n < constraints.frozen, before, after)
        for n, (before, after) in enumerate(zip(old, trainable, strict=True))
      ]
    parts = flat_model.Parts(trainable, parts.non_trainable)
    return TrainState(parts, slots, training.loss + total)

  def _accumulate(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: TrainState,
    plan: batching.BatchPlan,
  ) -> TrainState:
    """Adds the i-th batch's gradient to the gradient over all data."""
    gradients, parts, total, _ = self._gradients(
      trim_padding, i, training.parts, plan, summed=True
    )
    sums = [a + g for a, g in zip(training.slots, gradients, strict=True)]
    return TrainState(parts, sums, training.loss + total)

  def _descend(self, inputs: ClientInput, training: TrainState) -> TrainState:
    """Takes one step w - α·g, with g of the mean loss over all data."""
    m = tf.cast(tf.reduce_sum(inputs.plan.counts), tf.float32)
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
    """Returns the i-th batch's gradients, new parts, total loss and size."""
    x, labels, weights = self._batch(trim_padding, i, plan)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(parts.trainable)
      outputs, extra, non_trainable = self._model.apply(parts, x, training=True)
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
    self, inputs: ClientInput
  ) -> tuple[flat_model.Parts, tf.Tensor]:
    """Returns the global model's tensors and zero counts."""
    return self._model.unflatten(inputs.z_bar, inputs.seeds[2]), tf.zeros([2])

  def _count(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    correct: tf.Tensor,
    plan: batching.BatchPlan,
    *models: flat_model.Parts,
  ) -> tf.Tensor:
    """Adds each model's number of correct predictions on the i-th batch."""
    x, labels, weights = self._batch(trim_padding, i, plan)
    counts = []
    for parts in models:
      outputs, _, _ = self._model.apply(parts, x, training=False)
      right = tf.argmax(outputs, axis=1, output_type=tf.int32) == labels
      counts.append(tf.reduce_sum(tf.cast(right, tf.float32) * weights))
    return correct + tf.stack(counts)

  def _end(
    self,
    inputs: ClientInput,
    mixed: algorithm_lib.Mixed,
    training: TrainState,
    correct: tf.Tensor | None = None,
  ) -> ClientOutput:
    """Flattens the trained model and applies the gate."""
    count = tf.reduce_sum(inputs.plan.counts)
    h_global = h_local = tf.constant(1.0)
    if correct is not None:
      m = tf.reduce_sum(inputs.measured.counts)
      h_global, h_local = tf.unstack(correct / tf.cast(m, tf.float32))
    decision = self._algorithm.gate.decide(
      inputs.seeds[1], inputs.clock, h_global, h_local
    )
    z = self._model.flatten(training.parts)
    return ClientOutput(
      z=z,
      finite=tf.reduce_all(tf.math.is_finite(z)),
      sent=decision.sent | ~inputs.has_global,
      q=tf.where(inputs.has_global, decision.q, 1.0),
      delta=tf.where(inputs.has_global, decision.delta, 0.0),
      p=mixed.p,
      kept_local=mixed.kept_local,
      train_loss=training.loss / tf.cast(count, tf.float32),
    )

  def _batch(
    self, trim_padding: bool, i: tf.Tensor, plan: batching.BatchPlan
  ) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Returns inputs, labels and weights of the i-th batch."""
    # Not plan.counts[i]: XLA would compile a step again for every i.
    examples, count = tf.gather(plan.examples, i), tf.gather(plan.counts, i)
    if trim_padding:
      # Convolutions need an example, even if no one uses the result.
      count = tf.maximum(count, 1)
      examples = examples[:count]
      weights = tf.ones([count], tf.float32)
    else:
      real = tf.range(self._config.batch_size) < count
      weights = tf.cast(real, tf.float32)
    x = tf.nest.map_structure(lambda a: tf.gather(a, examples), self._x)
    return x, tf.gather(self._y, examples), weights
