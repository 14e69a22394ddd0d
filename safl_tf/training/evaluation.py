"""Evaluates models: the loss, accuracies and metrics of Keras."""

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import (
  batching,
  client_trainer,
  flat_model,
  shared_function,
)
from safl_tf.core import process as process_lib
from safl_tf.data import examples as examples_lib
from safl_tf.training import keras_metrics
from safl_tf.training import scores as scores_lib

_BATCH = 250  # measured: with LeNet-5 on a CPU twice as fast as 1,000
_MAX_ELEMENTS = 2**22  # of outputs that are scored at a time


class Predictions(NamedTuple):
  """The outputs of a model [r, ...], and the mask of their positions."""

  outputs: np.ndarray
  mask: np.ndarray | None


class Predictor:
  """A compiled function (z, rows of x) -> predictions.

  Args:
    model: the model.
    x: the inputs.
    jit_compile: whether XLA compiles it.
    device: the TensorFlow device; TensorFlow's choice by default.
  """

  def __init__(
    self,
    model: flat_model.FlatModel,
    x: Any,
    jit_compile: bool,
    device: str | None = None,
  ):
    self._model = model
    self._device = device
    self._size = min(_BATCH, len(tf.nest.flatten(x)[0]))
    self._data = batching.put(x, device)
    self._x = batching.tensors(self._data)
    self._function = shared_function.SharedFunction(
      self._predict,
      [
        tf.TensorSpec([model.size], model.dtype),
        tf.TensorSpec([self._size], tf.int32),
        tf.nest.map_structure(tf.TensorSpec.from_tensor, self._x),
      ],
      jit_compile,
    )

  def __call__(self, z: np.ndarray, rows: np.ndarray) -> Predictions:
    """Predicts for rows, in batches of one size."""
    size = self._size
    batches = -(-len(rows) // size)
    padded = np.resize(rows, batches * size).astype(np.int32)
    with tf.device(self._device):
      parts = [
        self._function(z, batch, self._x) for batch in np.split(padded, batches)
      ]
    outputs, *mask = (
      np.concatenate([np.asarray(p) for p in part])[: len(rows)]
      for part in zip(*parts, strict=True)
    )
    return Predictions(outputs, mask[0] if mask else None)

  def trial(self, rows: np.ndarray) -> np.ndarray:
    """Returns the outputs of a model of zeros for rows, without compiling."""
    with tf.device(self._device):
      z = tf.zeros([self._model.size], self._model.dtype)
      return self._predict(z, rows.astype(np.int32), self._x)[0].numpy()

  def compile(self) -> futures.Future[Any]:
    """Compiles the function in a thread of its own, traced in this one."""
    with tf.device(self._device):
      self._function.trace()  # in a thread, an error may leave a lock behind
    z = np.zeros(self._model.size, self._model.dtype)
    thread = futures.ThreadPoolExecutor(1, thread_name_prefix='compile')
    try:
      return thread.submit(self, z, np.arange(1))
    finally:
      thread.shutdown(wait=False)

  def _predict(
    self, z: tf.Tensor, rows: tf.Tensor, x: Sequence[tf.Tensor]
  ) -> Any:
    inputs = batching.take(batching.with_tensors(self._data, x), rows)
    parts = self._model.unflatten(z, tf.zeros([2], tf.int32))
    outputs, mask, *_ = self._model.apply(parts, inputs, training=False)
    return [outputs] if mask is None else [outputs, mask]


class Evaluator:
  """Scores models of one architecture on examples.

  Attributes:
    names: of all numbers in the scores.
    lower_is_better: those of them of which lower values are better.

  Args:
    trainer: of the models.
    data: the examples.
  """

  def __init__(
    self, trainer: client_trainer.ClientTrainer, data: examples_lib.Examples
  ):
    self._task = trainer.task
    self._data = data
    self._metrics = keras_metrics.of_task(trainer.task)
    self._predict = Predictor(
      trainer.model, data.x, trainer.jit_compile, trainer.device
    )
    first = np.arange(min(2, len(data.y)))
    outputs = self._predict.trial(first)
    trainer.task.check_labels(data.y, outputs, 'test_data: y')
    self._rows = max(_BATCH, _MAX_ELEMENTS // outputs[0].size)
    errors_by_name = keras_metrics.lower_is_better(self._metrics)
    self.lower_is_better = frozenset({'loss', *errors_by_name})
    own = keras_metrics.check(self._metrics, data.y[first], outputs)
    scorer = scores_lib.Scorer(trainer.task)
    scorer.update(outputs, data.y[first])
    self.names = list(dict.fromkeys([*scorer.result().named(), *own]))
    self._compiled = self._predict.compile()  # meanwhile, a round is compiled

  def __call__(
    self, z: np.ndarray, rows: np.ndarray | None = None
  ) -> scores_lib.Scores:
    """Scores a model on all examples, or on some rows of them."""
    self._compiled.result()
    data = self._data
    if rows is None:
      rows = np.arange(len(data.y))
    scorer = scores_lib.Scorer(self._task, self._metrics)
    for start in range(0, len(rows), self._rows):
      part = rows[start : start + self._rows]
      outputs, mask = self._predict(z, part)
      weights = data.sample_weight
      weights = None if weights is None else weights[part]
      scorer.update(outputs, data.y[part], mask, weights)
    return scorer.result()


class StateEvaluator:
  """Evaluates states on the test data.

  If clients train alone, scores are the mean of those of all clients' models.

  Attributes:
    names: of all numbers in the scores; none without test data.

  Args:
    process: of the states.
    state: any of them.
    data: the test data, if there are any.
  """

  def __init__(
    self,
    process: process_lib.FederatedProcess,
    state: process_lib.FederatedState,
    data: examples_lib.Examples | None,
  ):
    self._process = process
    self.names: list[str] = []
    self._evaluator: Callable[..., Evaluator] | None = None
    if data is not None:
      # The shape of z̄ rarely changes.
      self._evaluator = functools.lru_cache(maxsize=2)(
        functools.partial(Evaluator, data=data)
      )
      self.names = self._evaluator(process.trainer_of(state)).names

  def __call__(
    self, state: process_lib.FederatedState
  ) -> scores_lib.Scores | None:
    """Returns the scores; None without test data."""
    if self._evaluator is None:
      return None
    process = self._process
    evaluator = self._evaluator(process.trainer_of(state))
    models: Iterable[Any] = [state.z_bar]
    if process.algorithm.alone:
      ids = range(process.clients.num_clients)
      models = (state.client_models[k] for k in ids)
    return scores_lib.mean(map(evaluator, models))
