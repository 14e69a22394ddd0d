"""One client's round: mix, train E epochs, decide whether to upload.

The code is written for a single client, in pieces that are pure functions; an
executor compiles the pieces, runs their loops and adds the client axis.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  batching,
  client_config,
  cohort,
  flat_model,
  optimizer,
)
from safl_tf.core import task as task_lib

if TYPE_CHECKING:
  from safl_tf.core.executors import base


# What `ClientWork.gradient` and `project` use: a list has a part for each
# trainable tensor.
Values = dict[str, tf.Tensor | list[tf.Tensor]]


class TrainState(NamedTuple):
  """The carry of a client's training loop.

  Attributes:
    parts: the model's tensors.
    slots: the optimizer's variables.
    loss: the loss summed over the examples trained on so far, or over the
      positions of sequences.
    count: their number.
  """

  parts: flat_model.Parts
  slots: list[tf.Tensor]
  loss: tf.Tensor
  count: tf.Tensor


class Batch(NamedTuple):
  """The examples of a step.

  Attributes:
    x: inputs.
    y: labels.
    real: 1.0 for examples, 0.0 for padding [B].
    weights: of the examples' losses [B] or [B, T]; None for equal ones.
  """

  x: Any
  y: tf.Tensor
  real: tf.Tensor
  weights: tf.Tensor | None


class ClientUpdate:
  """A client's round as a function: ClientInput -> ClientOutput.

  Attributes:
    device: the TensorFlow device that holds the data and runs the round.
    shared: the names of the arrays that a client both keeps and uploads.
    uploads: zeros in place of the arrays that it uploads, by name.
    metrics: the names of the metrics of its outputs.
    keeps_model: whether a client keeps its trained model.

  Args:
    model: the Keras model as functions of a vector.
    task: the loss, and the score of the gate.
    algorithm: has the rules `mix`, `client_work` and `gate`.
    config: how a client trains.
    data: of all clients: inputs, one array or a structure of arrays; labels;
      and weights or None.
    device: the TensorFlow device.
    micro_batch: the number of examples to compute at a time; None for whole
      batches. For models that process each example independently.
  """

  def __init__(
    self,
    model: flat_model.FlatModel,
    task: task_lib.Task,
    algorithm: algorithm_lib.Algorithm,
    config: client_config.LocalConfig,
    data: tuple[Any, Any, Any],
    device: str = '/CPU:0',
    micro_batch: int | None = None,
  ):
    self._model = model
    self._task = task
    self._algorithm = algorithm
    self._work = algorithm.client_work
    self._config = config
    self._micro_batch = micro_batch
    self.device = device
    self._data = batching.put(data, device)
    self._optimizer = optimizer.PureOptimizer(
      optimizer.get(config.optimizer, config.learning_rate),
      model.template.trainable_variables,
    )
    # Half-precision gradients of small losses would vanish.
    half = model.template.dtype_policy.compute_dtype == 'float16'
    self._loss_scale = 1024.0 if half else 1.0
    self.shared = self._find_shared()

  @property
  def data(self) -> list[tf.Tensor]:
    """The arrays of all clients' data."""
    return batching.tensors(self._data)

  def with_data(self, data: Sequence[tf.Tensor]) -> 'ClientUpdate':
    """Returns the same round on other arrays like those of `data`."""
    other = copy.copy(self)
    other._data = batching.with_tensors(self._data, data)
    return other

  def signature(
    self, max_steps: int | None = None, max_measured: int | None = None
  ) -> cohort.ClientInput:
    """Returns the TensorSpecs of an input, the same for clients of all sizes.

    Args:
      max_steps: the number of rows of training plans, if known.
      max_measured: the number of rows of plans for metrics, if known.
    """

    def plan(rows: int | None) -> batching.BatchPlan:
      return batching.BatchPlan(
        examples=tf.TensorSpec([rows, self._config.batch_size], tf.int32),
        counts=tf.TensorSpec([rows], tf.int32),
        num_steps=tf.TensorSpec([], tf.int32),
      )

    def named(arrays: algorithm_lib.Arrays) -> dict[str, tf.TensorSpec]:
      specs = {n: tf.TensorSpec(a.shape, a.dtype) for n, a in arrays.items()}
      return {
        'z': tf.TensorSpec([self._model.size], self._model.dtype),
        **specs,
      }

    layout = self._model.layout
    return cohort.ClientInput(
      received=named(self._work.receives(layout)),
      has_global=tf.TensorSpec([], tf.bool),
      kept=named(self._work.init(layout)),
      seeds=tf.TensorSpec([3, 2], tf.int32),
      clock=tf.TensorSpec([], tf.float32),
      plan=plan(max_steps),
      measured=plan(max_measured),
      iteration=tf.TensorSpec([], tf.int64),
    )

  def __call__(
    self, inputs: cohort.ClientInput, runner: 'base.StepRunner'
  ) -> cohort.ClientOutput:
    """Runs a client's round, the client part of Algorithms 1 and 2."""
    call, loop, plan = runner.call, runner.loop, inputs.plan
    mixed, training, values = call(self._begin, inputs)
    if self._work.full_batch:
      training = loop(self._accumulate, training, plan)
      training = call(self._descend, training, values)
    else:
      training = loop(self._step, training, plan, values)
    if not self._algorithm.measures:
      return call(self._end, inputs, mixed, training)
    z_bar, totals = call(self._begin_measuring, inputs)
    totals = loop(self._measure, totals, inputs.measured, z_bar, training.parts)
    return call(self._end, inputs, mixed, training, totals)

  def _begin(
    self, inputs: cohort.ClientInput
  ) -> tuple[algorithm_lib.Mixed, TrainState, Values]:
    """Mixes z̄ and z; without a global model a client starts from z."""
    z = inputs.kept['z']
    mixed = self._algorithm.mix(
      inputs.seeds[0], inputs.clock, inputs.received['z'], z
    )
    mixed = algorithm_lib.Mixed(
      w=tf.where(inputs.has_global, mixed.w, z),
      p=mixed.p,
      kept_local=tf.where(inputs.has_global, mixed.kept_local, 1.0),
    )
    parts = self._model.unflatten(mixed.w, inputs.seeds[2])
    if self._work.full_batch:  # slots hold the sum of gradients
      slots = [tf.zeros_like(value) for value in parts.trainable]
    else:
      initial = self._optimizer.initial
      if self._config.optimizer_clock == 'run':
        initial = self._optimizer.starting_at(inputs.iteration)
      slots = [tf.identity(slot) for slot in initial]
    values: Values = {}
    if self._work.start is not None:
      values = {
        name: self._model.split_trainable(value) if value.shape.rank else value
        for name, value in self._work.start(
          self._round(inputs, mixed.w)
        ).items()
      }
    zero = tf.constant(0.0)
    return mixed, TrainState(parts, slots, zero, zero), values

  def _step(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: TrainState,
    plan: batching.BatchPlan,
    values: Values,
  ) -> TrainState:
    """Takes the optimizer step of the i-th batch, equation (2)."""
    reduction = self._config.loss_reduction
    gradients, parts, total, count, examples = self._gradients(
      trim_padding, i, training.parts, plan, reduction
    )
    weight = examples if reduction == 'sum' else tf.constant(1.0)
    slots, parts = self._descended(
      training.slots, gradients, parts, values, weight
    )
    return TrainState(
      parts, slots, training.loss + total, training.count + count
    )

  def _accumulate(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    training: TrainState,
    plan: batching.BatchPlan,
  ) -> TrainState:
    """Adds the i-th batch's gradient to the gradient over all data."""
    gradients, parts, total, count, _ = self._gradients(
      trim_padding, i, training.parts, plan, 'total'
    )
    sums = [a + g for a, g in zip(training.slots, gradients, strict=True)]
    return TrainState(
      parts, sums, training.loss + total, training.count + count
    )

  def _descend(self, training: TrainState, values: Values) -> TrainState:
    """Takes one step w - α·g, with g of the mean loss over all data."""
    m = training.count
    gradients = [g / tf.cast(m, g.dtype) for g in training.slots]
    slots = [tf.identity(slot) for slot in self._optimizer.initial]
    _, parts = self._descended(
      slots, gradients, training.parts, values, tf.constant(1.0)
    )
    return training._replace(parts=parts)

  def _descended(
    self,
    slots: list[tf.Tensor],
    gradients: list[tf.Tensor],
    parts: flat_model.Parts,
    values: Values,
    weight: tf.Tensor,
  ) -> tuple[list[tf.Tensor], flat_model.Parts]:
    """Returns the slots and the model after an optimizer step.

    The client work sees the gradients before it, and the tensors after it.
    """
    old, work = parts.trainable, self._work
    own = [
      {n: v[i] if isinstance(v, list) else v for n, v in values.items()}
      for i in range(len(old))
    ]
    if work.gradient is not None:
      rows = zip(gradients, old, own, strict=True)
      gradients = [work.gradient(*row, weight) for row in rows]
    slots, new = self._optimizer.apply(slots, gradients, old)
    if work.project is not None:
      new = [work.project(*row) for row in zip(new, old, own, strict=True)]
    return slots, flat_model.Parts(new, parts.non_trainable)

  def _gradients(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    parts: flat_model.Parts,
    plan: batching.BatchPlan,
    reduction: str,
  ) -> tuple[
    list[tf.Tensor], flat_model.Parts, tf.Tensor, tf.Tensor, tf.Tensor
  ]:
    """Returns the i-th batch's gradients, new parts and loss.

    Args:
      trim_padding: see `_batch`.
      i: the step.
      parts: the model.
      plan: the batches.
      reduction: of the loss: its 'mean', with Keras over all positions of
        sequences; its 'sum' over examples, the mean times their number; or its
        'total' over examples and positions.

    Returns:
      The gradients, the new parts, the total loss, the number of its terms and
      the number of examples.
    """
    if self._micro_batch is None:
      batch = self._batch(trim_padding, i, plan)
      return self._gradients_of(batch, parts, reduction)

    def gradients_of(batch: Batch) -> tuple[Any, tf.Tensor, tf.Tensor]:
      gradients, _, total, count, _ = self._gradients_of(batch, parts, 'total')
      return gradients, total, count

    zeros = ([tf.zeros_like(w) for w in parts.trainable], 0.0, 0.0)
    gradients, total, count = self._sum(
      trim_padding, i, plan, gradients_of, zeros
    )
    if reduction == 'mean':
      gradients = [g / tf.cast(count, g.dtype) for g in gradients]
    return gradients, parts, total, count, count

  def _gradients_of(
    self, batch: Batch, parts: flat_model.Parts, reduction: str
  ) -> tuple[
    list[tf.Tensor], flat_model.Parts, tf.Tensor, tf.Tensor, tf.Tensor
  ]:
    """Returns what `_gradients` does, of a batch computed at once."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(parts.trainable)
      outputs, mask, extra, non_trainable = self._model.apply(
        parts, batch.x, training=True
      )
      total, count = self._total_loss(batch, outputs, mask)
      examples = count
      if self._task.positions:
        examples = tf.reduce_sum(batch.real)
      if reduction == 'mean':
        objective = _divide(total, count, self._task.positions) + extra
      elif reduction == 'sum' and self._task.positions:
        objective = (_divide(total, count, True) + extra) * examples
      else:
        objective = total + extra * count
      objective *= self._loss_scale
    gradients = tape.gradient(
      objective,
      parts.trainable,
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    if self._loss_scale != 1:
      gradients = [g / self._loss_scale for g in gradients]
    new = flat_model.Parts(parts.trainable, non_trainable)
    return gradients, new, total, count, examples

  def _total_loss(
    self, batch: Batch, outputs: tf.Tensor, mask: tf.Tensor | None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of a batch's losses, and the number of its terms."""
    losses = self._task.loss(batch.y, outputs)
    counted = self._counted(batch, losses, mask)
    if batch.weights is not None:
      losses *= _expand_rank(batch.weights, losses)
    return tf.reduce_sum(losses * counted), tf.reduce_sum(counted)

  def _counted(
    self, batch: Batch, values: tf.Tensor, mask: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns 1.0 for the values of examples that count, else 0.0."""
    if not self._task.positions:
      return batch.real
    valid = self._task.valid(batch.y, mask)
    valid = tf.ones_like(values) if valid is None else valid
    return valid * _expand_rank(batch.real, values)

  def _begin_measuring(
    self, inputs: cohort.ClientInput
  ) -> tuple[flat_model.Parts, dict[str, tf.Tensor]]:
    """Returns the global model's tensors, and zero totals for both models."""
    kinds = ('accuracy', 'loss')
    needs = self._algorithm.needs
    needed = [n for n in kinds if not needs.isdisjoint((n, f'global_{n}'))]
    needed += ['count'] * self._task.positions
    z_bar = self._model.unflatten(inputs.received['z'], inputs.seeds[2])
    return z_bar, {name: tf.zeros([2]) for name in needed}

  def _measure(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    totals: dict[str, tf.Tensor],
    plan: batching.BatchPlan,
    *models: flat_model.Parts,
  ) -> dict[str, tf.Tensor]:
    """Adds each model's scores and losses on the i-th batch."""

    def measure(batch: Batch) -> dict[str, tf.Tensor]:
      added: dict[str, list[tf.Tensor]] = {name: [] for name in totals}
      for parts in models:
        outputs, mask, *_ = self._model.apply(parts, batch.x, training=False)
        if 'accuracy' in totals:
          assert self._task.score is not None
          scores = self._task.score(batch.y, outputs)
          counted = self._counted(batch, scores, mask)
          added['accuracy'].append(tf.reduce_sum(scores * counted))
        if 'loss' in totals:
          total, counted = self._total_loss(batch, outputs, mask)
          added['loss'].append(total)
        if 'count' in totals:
          added['count'].append(tf.reduce_sum(counted))
      return {name: tf.stack(new) for name, new in added.items()}

    zeros = tf.nest.map_structure(tf.zeros_like, totals)
    added = self._sum(trim_padding, i, plan, measure, zeros)
    return {name: totals[name] + new for name, new in added.items()}

  def _end(
    self,
    inputs: cohort.ClientInput,
    mixed: algorithm_lib.Mixed,
    training: TrainState,
    totals: dict[str, tf.Tensor] | None = None,
  ) -> cohort.ClientOutput:
    """Applies the end of the client work, then the gate."""
    count = tf.reduce_sum(inputs.plan.counts)
    z = self._model.flatten(training.parts)
    steps = inputs.plan.num_steps
    if self._config.loss_reduction == 'sum':
      steps = count
    if self._work.full_batch:
      steps = tf.constant(1)
    trained = self._finish(
      self._round(inputs, mixed.w), z, tf.cast(steps, tf.float32)
    )
    train_loss = tf.math.divide_no_nan(training.loss, training.count)
    metrics = {'train_loss': train_loss, **trained.metrics}
    totals = dict(totals or {})
    m = tf.cast(tf.reduce_sum(inputs.measured.counts), tf.float32)
    m = totals.pop('count', m)
    for name, total in totals.items():
      means = tf.unstack(_divide(total, m, self._task.positions))
      metrics[f'global_{name}'], metrics[name] = means
    algorithm = self._algorithm
    if 'distance' in algorithm.needs:
      distance = tf.norm(tf.cast(z - inputs.received['z'], tf.float32))
      metrics['distance'] = tf.where(inputs.has_global, distance, 0.0)
    decision = algorithm.gate.decide(
      inputs.seeds[1],
      inputs.clock,
      {name: metrics[name] for name in algorithm.gate.needs},
    )
    upload = {n: v for n, v in trained.upload.items() if n not in self.shared}
    arrays = [*trained.kept.values(), *upload.values()]
    finite = [
      tf.reduce_all(tf.math.is_finite(array))
      for array in arrays
      if array.dtype.is_floating
    ]
    return cohort.ClientOutput(
      kept=dict(trained.kept),
      upload=upload,
      finite=tf.reduce_all(tf.stack(finite)),
      sent=decision.sent | ~inputs.has_global,
      q=tf.where(inputs.has_global, decision.q, 1.0),
      delta=tf.where(inputs.has_global, decision.delta, 0.0),
      p=mixed.p,
      kept_local=mixed.kept_local,
      train_loss=train_loss,
      metrics={name: metrics[name] for name in sorted(self.metrics)},
    )

  def _round(
    self, inputs: cohort.ClientInput, w: tf.Tensor
  ) -> algorithm_lib.ClientRound:
    """Returns what the client work may look at."""
    named = isinstance(self._config.optimizer, str)
    return algorithm_lib.ClientRound(
      t=inputs.clock,
      received=inputs.received,
      has_global=inputs.has_global,
      kept=inputs.kept,
      w=w,
      learning_rate=self._config.learning_rate if named else None,
    )

  def _finish(
    self, start: algorithm_lib.ClientRound, z: tf.Tensor, steps: tf.Tensor
  ) -> algorithm_lib.Trained:
    """Returns what the client keeps and uploads: its model, by default."""
    trained = algorithm_lib.Trained(z, steps, {'z': z}, {'z': z}, {})
    return trained if self._work.end is None else self._work.end(start, trained)

  def _find_shared(self) -> frozenset[str]:
    """Returns the names of the arrays that a client both keeps and uploads.

    Refuses rules that need metrics that clients do not have.
    """
    from safl_tf.core import checked

    with tf.Graph().as_default():
      inputs = tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
        self.signature(),
      )
      z = tf.identity(inputs.kept['z'])
      trained = self._finish(self._round(inputs, z), z, tf.constant(1.0))
    checked.check_needs(self._algorithm, trained.metrics)
    kept, upload = trained.kept, trained.upload
    self.keeps_model = 'z' in kept
    self.metrics = self._algorithm.needs | trained.metrics.keys()
    self.uploads = {
      name: np.zeros(value.shape, value.dtype.as_numpy_dtype)
      for name, value in upload.items()
    }
    return frozenset(n for n in upload if upload[n] is kept.get(n))

  @property
  def reads_text(self) -> bool:
    """Whether any input of the model is text."""
    return any(a.dtype == tf.string for a in tf.nest.flatten(self._data[0]))

  def zero_arrays(self) -> tuple[algorithm_lib.Arrays, algorithm_lib.Arrays]:
    """Returns zeros for what a client keeps and for what it receives."""

    def zeros(specs: dict[str, Any]) -> algorithm_lib.Arrays:
      return {
        name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
        for name, spec in specs.items()
      }

    signature = self.signature()
    return zeros(signature.kept), zeros(signature.received)

  def reads(self) -> frozenset[str]:
    """Returns which of the arrays that a client keeps its next round reads.

    This is once there is a global model; without one, a client needs all.
    """
    read: set[str] = set()

    def look(inputs: Any, z: tf.Tensor) -> None:
      mixed, training, values = self._begin(inputs)
      trained = self._finish(self._round(inputs, mixed.w), z, tf.constant(1.0))
      used = tf.nest.flatten([mixed, training, values, trained])
      sources = _sources(used, inputs.has_global)
      kept = inputs.kept.items()
      read.update(name for name, value in kept if value.op in sources)

    signature = self.signature()
    tf.function(look, autograph=False).get_concrete_function(
      signature, signature.kept['z']
    )
    return frozenset(read)

  def _sum(
    self,
    trim_padding: bool,
    i: tf.Tensor,
    plan: batching.BatchPlan,
    piece: Callable[[Batch], Any],
    zeros: Any,
  ) -> Any:
    """Sums piece(micro-batch) over the micro-batches of the i-th batch."""
    if self._micro_batch is None:
      return piece(self._batch(trim_padding, i, plan))
    B = self._config.batch_size
    pieces = -(-B // self._micro_batch)
    size = -(-B // pieces)
    examples, count = tf.gather(plan.examples, i), tf.gather(plan.counts, i)
    examples = tf.pad(examples, [[0, pieces * size - B]])
    rows = tf.reshape(examples, [pieces, size])

    def add(j: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
      real = tf.range(size) < count - j * size
      batch = self._take(tf.gather(rows, j), tf.cast(real, tf.float32))
      return j + 1, tf.nest.map_structure(tf.add, sums, piece(batch))

    _, sums = tf.while_loop(
      lambda j, _: j * size < count, add, (0, zeros), parallel_iterations=1
    )
    return sums

  def _batch(
    self, trim_padding: bool, i: tf.Tensor, plan: batching.BatchPlan
  ) -> Batch:
    """Returns the i-th batch, without padding if it is trimmed."""
    # Not plan.counts[i]: XLA would compile a step again for every i.
    examples, count = tf.gather(plan.examples, i), tf.gather(plan.counts, i)
    if trim_padding:
      # Convolutions need an example, even if no one uses the result.
      count = tf.maximum(count, 1)
      examples = examples[:count]
      real = tf.ones([count], tf.float32)
    else:
      real = tf.range(self._config.batch_size) < count
      real = tf.cast(real, tf.float32)
    return self._take(examples, real)

  def _take(self, examples: tf.Tensor, real: tf.Tensor) -> Batch:
    """Returns a batch of examples."""
    x, y, weights = batching.take(self._data, examples)
    return Batch(x, y, real, weights)


def _divide(total: tf.Tensor, count: tf.Tensor, may_be_0: bool) -> tf.Tensor:
  """Returns a mean; 0 if nothing counts."""
  return tf.math.divide_no_nan(total, count) if may_be_0 else total / count


def _expand_rank(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
  """Reshapes [B] to [B, 1, ..., 1], to the values' rank."""
  for _ in range(len(values.shape) - len(weights.shape)):
    weights = weights[..., tf.newaxis]
  return weights


def _sources(
  tensors: Iterable[tf.Tensor], has_global: tf.Tensor
) -> set[tf.Operation]:
  """Returns the operations that tensors depend on if `has_global` is true."""
  found: set[tf.Operation] = set()
  rest = [tensor.op for tensor in tensors]
  while rest:
    op = rest.pop()
    if op in found:
      continue
    found.add(op)
    inputs = [tensor.op for tensor in op.inputs]
    if op.type == 'SelectV2' and inputs[0] is has_global.op:
      inputs = inputs[:2]
    rest += [*inputs, *op.control_inputs]
  return found
