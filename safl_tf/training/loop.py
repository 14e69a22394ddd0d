"""The training loop: rounds, evaluation, metrics, checkpoints, progress."""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from absl import logging

from safl_tf import attacks
from safl_tf.algorithms import safl
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, flat_model
from safl_tf.core import process as process_lib
from safl_tf.data import client_data, examples
from safl_tf.training import callbacks as callbacks_lib
from safl_tf.training import evaluation, identity, metrics_log, run_directory
from safl_tf.training import outputs as outputs_lib
from safl_tf.training import result as result_lib
from safl_tf.util import console, errors, validation

if TYPE_CHECKING:
  from safl_tf.core.executors.ray import config as ray_config

Result = result_lib.Result
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When to evaluate, save and stop.

  Attributes:
    rounds: number of rounds T.
    eval_every: rounds between evaluations; the last round is evaluated too.
    checkpoint_every: rounds between checkpoints; the last round is saved too.
    stop_at_accuracy: test accuracy in [0, 1] at which to stop early.
  """

  rounds: int = 30
  eval_every: int = 1
  checkpoint_every: int = 5
  stop_at_accuracy: float | None = None

  def __post_init__(self) -> None:
    for name in ('rounds', 'eval_every', 'checkpoint_every'):
      validation.limited(name, getattr(self, name))
    if self.stop_at_accuracy is not None:
      validation.limited('stop_at_accuracy', self.stop_at_accuracy)

  def evaluates(self, t: int) -> bool:
    """Returns whether round t is evaluated."""
    return t % self.eval_every == 0 or t == self.rounds

  def done(self, t: int, history: list[Row]) -> bool:
    """Returns whether the run ends after round t."""
    goal = self.stop_at_accuracy
    if t >= self.rounds or goal is None:
      return t >= self.rounds
    accuracies = (row['test_accuracy'] for row in history)
    return any(a is not None and a >= goal for a in accuracies)


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
  executor: 'str | ray_config.RayConfig' = 'auto',
  jit_compile: str = 'auto',
  device: str = 'auto',
  stack: int | None = None,
  client_store: str = 'ram',
  attack: attacks.Attack | None = None,
  from_logits: bool | None = None,
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
    model: a function that returns a new Keras classification model, or a model.
    clients: the clients' data.
    algorithm: the algorithm; SAFL by default.
    test_data: (x, y) to evaluate the global model on, or a finite
      `tf.data.Dataset` of such, as in `ClientData.from_clients`.
    rounds: number of rounds T.
    seed: seed of all random numbers; the same seed gives the same bits.
    config: the clients' training settings; the paper's by default.
    init: 'auto', 'per_client' or 'shared'; by default a model starts from its
      weights, and a function draws an initial model for each client; see
      `process.FederatedProcess`.
    executor: 'auto', 'serial', 'threads', 'vectorized' or 'ray'; a `RayConfig`
      for the workers of a Ray cluster.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu', 'gpu:1', ...
    stack: number of clients that 'vectorized' stacks; by memory if None.
    client_store: 'ram' or 'mmap', see `process.FederatedProcess`.
    attack: the attack of malicious clients, see `attacks`; none by default.
    from_logits: whether the model's outputs are logits; by default a compiled
      loss says it, or else the activation of the last layer.
    eval_every: rounds between evaluations.
    checkpoint_every: rounds between checkpoints, if there is an output_dir.
    keep_checkpoints: number of checkpoints to keep.
    stop_at_accuracy: test accuracy at which to stop early.
    output_dir: directory for the files of the run, those of `safl-train`; see
      `load_run`. A call with the same arguments resumes from the newest
      checkpoint.
    export: formats to export the global model in, if there is an output_dir:
      'both', 'savedmodel', 'keras' or 'none'. A failure is logged.
    client_table: whether to write clients.csv, with the accuracies of each
      client.
    callbacks: a list of `Callback`s, or of functions that take the row of each
      round.
    progress: whether to show a progress bar; by default only on a terminal and
      in a notebook.

  Returns:
    The model, the history and the final state.
  """
  schedule = Schedule(rounds, eval_every, checkpoint_every, stop_at_accuracy)
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
  if test_data is not None:
    found = examples.read_test(test_data, process.clients)
    if found.sample_weight is not None:
      hint = 'must be omitted: tests weigh all examples equally'
      raise errors.InputError('test_data: sample_weight', 'given', hint)
    test_data = found.x, found.y
  evaluate = evaluation.build_evaluate(process, test_data)
  state = process.initialize(seed)
  settings = identity.settings(process, seed, dataclasses.asdict(schedule))
  history: list[Row] = []
  with contextlib.ExitStack() as stack:
    if directory is not None:
      if metadata is None:
        names = process.clients.class_names
        classes = range(process.clients.num_classes or 0)
        metadata = {'class_names': names or [str(c) for c in classes]}
      definition = identity.of_run(
        process, state, test_data, schedule.eval_every, metadata
      )
      stack.enter_context(directory.opened())
      directory.begin(definition, schedule.rounds, settings)
      directory.describe(process, metadata)
      state, history = directory.restore(state)
      if state.t:
        logging.info('resuming %s after round %d', directory.path, state.t)
    report = stack.enter_context(_progress(schedule.rounds, state.t, progress))
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
      evaluated = state.z_bar is not None and schedule.evaluates(state.t)
      scores = evaluate(state) if evaluated else None
      _check_alive(process, metrics, scores)
      history.append(_row(metrics, scores, history, seconds))
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
    result = Result(process.get_model(state), history, state, process)
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
  scores: evaluation.Scores | None,
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


def _row(
  metrics: process_lib.RoundMetrics,
  scores: evaluation.Scores | None,
  history: list[Row],
  seconds: float,
) -> Row:
  """Returns a round's row of metrics.csv."""
  gated, workers = (metrics.q < 1).any(), metrics.workers

  def percentile(values: np.ndarray, q: int) -> float | None:
    return float(np.percentile(values, q)) if gated else None

  def total(column: str) -> int:
    before = history[-1][f'total_{column}'] if history else 0
    return before + getattr(metrics, column)

  return {
    'round': metrics.t,
    'test_accuracy': scores and scores.accuracy,
    'test_top5_accuracy': scores and scores.top5_accuracy,
    'test_loss': scores and scores.loss,
    'train_loss': metrics.train_loss,
    'p': metrics.p,
    'kept_local': metrics.kept_local,
    'selected': len(metrics.ids),
    'uploaded': int(metrics.sent.sum()),
    'dropped': len(metrics.dropped),
    'malicious': metrics.malicious,
    'bytes_up': metrics.bytes_up,
    'bytes_down': metrics.bytes_down,
    'total_bytes_up': total('bytes_up'),
    'total_bytes_down': total('bytes_down'),
    'delta_p50': percentile(metrics.delta, 50),
    'delta_p90': percentile(metrics.delta, 90),
    'q_p10': percentile(metrics.q, 10),
    'q_p50': percentile(metrics.q, 50),
    'seconds': seconds,
    'rss_mb': metrics_log.rss_mb(),
    'workers': workers and workers.alive,
    'workers_lost': workers and workers.lost,
    'bytes_to_workers': workers and workers.bytes_sent,
    'bytes_from_workers': workers and workers.bytes_received,
  }


@contextlib.contextmanager
def _progress(
  rounds: int, done: int, progress: bool | None
) -> Iterator[Callable[[Row], None]]:
  """Shows a progress bar where users see it; else logs about ten lines."""
  options = {'total': rounds, 'initial': done, 'unit': 'round'}
  every = max(1, rounds // 10)
  with console.progress_bar(progress, **options) as bar:

    def report(row: Row) -> None:
      summary = {
        'accuracy': _format(row['test_accuracy'], '.1%'),
        'loss': _format(row['test_loss'], '.3f'),
        'p': _format(row['p'], '.3f'),
        'uploads': f'{row["uploaded"]}/{row["selected"]}',
      }
      if row['workers'] is not None:
        lost = f' ({row["workers_lost"]} lost)' if row['workers_lost'] else ''
        summary['workers'] = f'{row["workers"]}{lost}'
      bar.set_postfix(summary, refresh=False)
      bar.update()
      if bar.disable and progress is None and row['round'] % every == 0:
        text = ', '.join(f'{name} {value}' for name, value in summary.items())
        logging.info('round %d of %d: %s', row['round'], rounds, text)

    yield report


def _format(value: float | None, spec: str) -> str:
  return '-' if value is None else format(value, spec)
