"""The training loop: rounds, evaluation, metrics, checkpoints, progress."""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from absl import logging

from safl_tf import attacks
from safl_tf.algorithms import safl
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, flat_model
from safl_tf.core import process as process_lib
from safl_tf.data import client_data
from safl_tf.training import callbacks as callbacks_lib
from safl_tf.training import evaluators as evaluators_lib
from safl_tf.training import identity, run_directory
from safl_tf.training import outputs as outputs_lib
from safl_tf.training import result as result_lib
from safl_tf.training import row as row_lib
from safl_tf.training import schedule as schedule_lib
from safl_tf.training import scores as scores_lib
from safl_tf.util import errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors import base
  from safl_tf.core.executors.ray import config as ray_config

Result = result_lib.Result
Schedule = schedule_lib.Schedule
Row = dict[str, Any]


def train(
  model: keras.Model | flat_model.ModelFn,
  clients: client_data.ClientData,
  algorithm: algorithm_lib.Algorithm | None = None,
  *,
  test_data: Any = None,
  rounds: int = 30,
  seed: int = 0,
  config: client_config.LocalConfig | None = None,
  init: str = 'auto',
  executor: 'str | ray_config.RayConfig | base.Remote' = 'auto',
  jit_compile: str = 'auto',
  device: str = 'auto',
  stack: int | None = None,
  client_store: str = 'ram',
  attack: attacks.Attack | None = None,
  loss: Any = None,
  metrics: Sequence[Any] | None = None,
  score: Any = None,
  class_weight: Mapping[int, float] | None = None,
  from_logits: bool | None = None,
  test_clients: client_data.ClientData | None = None,
  eval_clients_every: int = 1,
  personalize_steps: int = 0,
  eval_every: int = 1,
  checkpoint_every: int = 5,
  keep_checkpoints: int = 2,
  stop_at_accuracy: float | None = None,
  output_dir: str | pathlib.Path | None = None,
  export: str = 'both',
  client_table: bool = False,
  callbacks: callbacks_lib.Given = (),
  progress: bool | None = None,
) -> Result:
  """Trains a Keras model on the clients' data.

  Args:
    model: a function that returns a new Keras model, or a model.
    clients: the clients' data.
    algorithm: the algorithm; SAFL by default.
    test_data: (x, y) to evaluate the global model on, or a finite
      `tf.data.Dataset` of such, as in `ClientData.from_clients`.
    rounds: T, the number of rounds.
    seed: seed of all random numbers; the same seed gives the same bits.
    config: the clients' training settings; the paper's by default.
    init: 'auto', 'per_client' or 'shared'; by default a model starts from its
      weights, and a function draws an initial model for each client; see
      `FederatedProcess`.
    executor: 'auto', 'serial', 'threads', 'vectorized' or 'ray'; a `RayConfig`
      for the workers of a Ray cluster.
    jit_compile: 'auto', 'true' or 'false': whether XLA compiles local training.
    device: 'auto', 'cpu', 'gpu', 'gpu:1', ...
    stack: number of clients that 'vectorized' stacks; by memory if None.
    client_store: 'ram' or 'mmap', see `FederatedProcess`.
    attack: the attack of malicious clients; none by default.
    loss: what clients minimise: the name of a loss of Keras, a `keras.Loss` or
      a function (y, outputs) -> losses of examples; or 'paper' for equation
      (27). By default that of a compiled model, or else cross-entropy if labels
      are classes.
    metrics: names of metrics of Keras, `keras.Metric`s or functions, for the
      test data; by default those of a compiled model.
    score: h in [0, 1] of each example, for algorithms that compare models, such
      as Extended SAFL: a function (y, outputs) -> scores, or the name of a
      metric. The accuracy by default, if the task has one.
    class_weight: class number -> weight of its examples in training.
    from_logits: whether the model's outputs are logits; by default the loss
      says it, or else the activation of the last layer.
    test_clients: the clients' own test examples, as from `ClientData.split`: to
      evaluate the global model and each client's own model on.
    eval_clients_every: rounds between these evaluations.
    personalize_steps: if not 0, they also test the global model after so many
      local steps on each client's training examples.
    eval_every: rounds between evaluations.
    checkpoint_every: rounds between checkpoints, if there is an output_dir.
    keep_checkpoints: number of checkpoints to keep.
    stop_at_accuracy: test accuracy at which to stop early.
    output_dir: directory for the files of the run, those of `safl-train`; see
      `load_run`. A call with the same arguments resumes from the newest
      checkpoint.
    export: formats to export the global model in, if there is an output_dir:
      'both', 'savedmodel', 'keras', 'tflite', 'all' or 'none'. A failure is
      logged, and `Result.failure` says it.
    client_table: whether to write clients.csv, with the accuracies of each
      client.
    callbacks: a list of `Callback`s, or of functions that take the row of each
      round.
    progress: whether to show a progress bar; by default only on a terminal and
      in a notebook.

  Returns:
    The model, the history and the final state.

  Raises:
    InputError: an argument is invalid, has no effect with the others, or is not
      that of the run in `output_dir`.
    RunError: training diverged, or a file cannot be written.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_safl(temperature=10),
      test_data=(x_test, y_test), rounds=5, seed=0,
      config=safl_tf.LocalConfig(local_epochs=3, batch_size=20))
    result.frame['test_accuracy']
    result.model.predict(x_test)  # logits
    ```
  """
  schedule = Schedule(
    rounds,
    eval_every,
    checkpoint_every,
    stop_at_accuracy,
    eval_clients_every,
    personalize_steps,
  )
  outputs = outputs_lib.Outputs(export, client_table)
  callbacks_lib.Callbacks(callbacks)
  _check_types(output_dir, progress)
  validation.integer('seed', seed, low=0)
  validation.integer('keep_checkpoints', keep_checkpoints, low=1)
  if output_dir is None:
    _refuse('checkpoint_every', checkpoint_every, 5, 'output_dir')
    _refuse('keep_checkpoints', keep_checkpoints, 2, 'output_dir')
    _refuse('client_table', client_table, False, 'output_dir')
    if export != 'none':
      _refuse('export', export, 'both', 'output_dir')
  if test_data is None:
    _refuse('eval_every', eval_every, 1, 'test_data')
    _refuse('stop_at_accuracy', stop_at_accuracy, None, 'test_data')
  if test_clients is None:
    _refuse('eval_clients_every', eval_clients_every, 1, 'test_clients')
    _refuse('personalize_steps', personalize_steps, 0, 'test_clients')
    if test_data is None and not client_table:
      _refuse('metrics', metrics, None, 'test_data or test_clients')
  process = process_lib.FederatedProcess(
    model,
    clients,
    safl.build_safl() if algorithm is None else algorithm,
    config,
    init=init,
    executor=executor,
    jit_compile=jit_compile,
    device=device,
    stack=stack,
    client_store=client_store,
    store_dir=output_dir,
    attack=attack,
    from_logits=from_logits,
    loss=loss,
    metrics=metrics,
    score=score,
    class_weight=class_weight,
  )
  directory = None
  if output_dir is not None:
    directory = run_directory.RunDirectory(
      output_dir, keep_checkpoints=keep_checkpoints
    )
  with contextlib.closing(process):
    result = run(
      process,
      schedule,
      seed,
      test_data,
      directory,
      test_clients=test_clients,
      outputs=outputs,
      callbacks=callbacks,
      progress=progress,
    )
  if result.failure:
    logging.warning('%s', result.failure)
  return result


def run(
  process: process_lib.FederatedProcess,
  schedule: Schedule,
  seed: int = 0,
  test_data: Any = None,
  directory: run_directory.RunDirectory | None = None,
  metadata: Mapping[str, Any] | None = None,
  test_clients: client_data.ClientData | None = None,
  outputs: outputs_lib.Outputs | None = None,
  callbacks: callbacks_lib.Given = (),
  progress: bool | None = None,
) -> Result:
  """Runs a process to the end of its schedule; resumes from its directory.

  `metadata` is that of exported models, with `class_names`; by default the
  numbers of the classes. `outputs` are written to the directory after the last
  round. For the other arguments see `train`.
  """
  followers = callbacks_lib.Callbacks(callbacks)
  if schedule.rounds < process.rounds_per_pass:
    raise errors.InputError(
      'rounds',
      schedule.rounds,
      f'must be at least {process.rounds_per_pass}, one for each layer that '
      'FedMA matches',
    )
  state = process.initialize(seed)
  evaluators = evaluators_lib.Evaluators(
    process, state, schedule, test_data, test_clients
  )
  settings = identity.settings(process, seed, dataclasses.asdict(schedule))
  history: list[Row] = []
  with contextlib.ExitStack() as stack:
    if directory is not None:
      if metadata is None:
        names = process.clients.class_names
        classes = range(process.clients.num_classes or 0)
        metadata = {'class_names': names or [str(c) for c in classes]}
      definition = {
        **identity.of_run(process, state, evaluators.test_data, metadata),
        **evaluators.identity(),
      }
      stack.enter_context(directory.opened())
      directory.begin(definition, schedule.rounds, settings)
      directory.describe(process, metadata)
      state, history = directory.restore(state, evaluators.columns)
      if state.t:
        logging.info('resuming %s after round %d', directory.path, state.t)
    report = stack.enter_context(
      row_lib.reporter(schedule.rounds, state.t, progress)
    )
    path, stop = None if directory is None else directory.path, False
    followers.begin(settings, history, schedule.rounds, path, process)
    while not (stop or schedule.done(state.t, history)):
      start = time.perf_counter()
      try:
        state, metrics = process.next(state)
      except errors.RunError:  # keeps the last finite model
        if directory is not None:
          directory.save(state, history)
        raise
      seconds = time.perf_counter() - start
      scores, statistics = evaluators(state)
      _check_alive(process, metrics, scores)
      row = row_lib.create(metrics, scores, statistics, history, seconds)
      history.append({**row, **{c: row.get(c) for c in evaluators.columns}})
      if directory is not None:
        directory.append(history[-1])
        last = schedule.done(state.t, history)
        if last or state.t % schedule.checkpoint_every == 0:
          directory.save(state, history)
      report(history[-1])
      try:
        stop = followers.end_round(history[-1], state)
      except BaseException:
        stop = True
        raise
      finally:
        if stop and directory is not None:
          directory.save(state, history)
    model, of_clients = (
      process.get_model(state),
      evaluators.client_scores(state),
    )
    result = Result(model, history, state, process, of_clients)
    if directory is not None and metadata is not None and outputs is not None:
      failure = outputs_lib.write(outputs, directory, result, metadata)
      result = dataclasses.replace(result, failure=failure)
  followers.end(result)
  return result


def _check_types(output_dir: Any, progress: Any) -> None:
  """Says what the arguments of `train` take that only the loop reads."""
  check = validation.instance
  takes = 'the path of a folder or None'
  check('output_dir', output_dir, (str, os.PathLike), takes, optional=True)
  check('progress', progress, bool, 'True, False or None', optional=True)


def _check_alive(
  process: process_lib.FederatedProcess,
  metrics: process_lib.RoundMetrics,
  scores: scores_lib.Scores | None,
) -> None:
  """Ends a run whose global model has finite weights but no finite outputs."""
  if scores is None or process.algorithm.alone or np.isfinite(scores.loss):
    return
  raise errors.RunError(
    f'round {metrics.t}: the test loss of the global model is {scores.loss}; '
    f'{process.remedy("server_learning_rate or learning_rate")}'
  )


def _refuse(name: str, value: Any, default: Any, needed: str) -> None:
  """Refuses an argument that has no effect without another one."""
  if value != default:
    raise errors.InputError(name, value, f'has no effect without {needed}')
