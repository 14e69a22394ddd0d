"""A whole training: rounds, evaluation, records, checkpoints, progress."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

from safl_tf import attacks
from safl_tf.algorithms import safl
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  client_config,
  client_trainer,
  flat_model,
)
from safl_tf.core import (
  process as process_lib,
)
from safl_tf.data import arrays, client_data
from safl_tf.training import evaluation, metrics_log, run_directory
from safl_tf.util import errors, validation

Row = dict[str, Any]
Evaluate = Callable[[process_lib.FederatedState], evaluation.Scores | None]


@dataclasses.dataclass(frozen=True)
class Schedule:
  """How long a run goes on and what is done on the way.

  Attributes:
    rounds: T.
    eval_every: rounds between evaluations; the last round always is one.
    checkpoint_every: rounds between checkpoints; so is the last.
    stop_at_accuracy: stop at the first evaluation that reaches it, in [0, 1].
  """

  rounds: int = 30
  eval_every: int = 1
  checkpoint_every: int = 5
  stop_at_accuracy: float | None = None

  def __post_init__(self) -> None:
    validation.integer('rounds', self.rounds, low=1)
    validation.integer('eval_every', self.eval_every, low=1)
    validation.integer('checkpoint_every', self.checkpoint_every, low=1)
    if self.stop_at_accuracy is not None:
      validation.real('stop_at_accuracy', self.stop_at_accuracy, 0, 1)

  def evaluates(self, t: int) -> bool:
    """Whether round t is evaluated."""
    return t % self.eval_every == 0 or t == self.rounds

  def done(self, t: int, history: list[Row]) -> bool:
    """Whether a run ends after round t."""
    if t >= self.rounds:
      return True
    if self.stop_at_accuracy is None:
      return False
    reached = [row['test_accuracy'] for row in history]
    return any(a is not None and a >= self.stop_at_accuracy for a in reached)


@dataclasses.dataclass(frozen=True)
class Result:
  """What a training gave.

  Attributes:
    model: a plain Keras model with the global weights.
    history: the rows of metrics.csv.
    state: the final state, from which `process.next` would go on.
    process: the process that made it.
  """

  model: keras.Model
  history: list[Row]
  state: process_lib.FederatedState
  process: process_lib.FederatedProcess


def train(
  model: keras.Model | flat_model.ModelFn,
  clients: client_data.ClientData,
  algorithm: algorithm_lib.Algorithm | None = None,
  *,
  test_data: tuple[Any, Any] | None = None,
  rounds: int = 30,
  seed: int = 0,
  config: client_config.LocalConfig | None = None,
  init: str = 'per_client',
  executor: str = 'auto',
  jit_compile: str = 'auto',
  device: str = 'auto',
  stack: int | None = None,
  client_store: str = 'ram',
  attack: attacks.Attack | None = None,
  eval_every: int = 1,
  checkpoint_every: int = 5,
  keep_checkpoints: int = 2,
  stop_at_accuracy: float | None = None,
  output_dir: str | pathlib.Path | None = None,
  progress: bool | None = None,
) -> Result:
  """Trains a Keras model over the clients' data.

  Args:
    model: a function that returns a new Keras classification model, or a model.
    clients: the clients' data.
    algorithm: SAFL by default.
    test_data: (x, y) to evaluate the global model on.
    rounds: T.
    seed: of all draws; the same seed gives the same bits.
    config: how a client trains; the paper's settings by default.
    init: 'per_client' or 'shared', see `process.FederatedProcess`.
    executor: 'auto', 'serial', 'threads' or 'vectorized'.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu', 'gpu:1', ...
    stack: how many clients 'vectorized' stacks; by memory if None.
    client_store: 'ram' or 'mmap', see `process.FederatedProcess`.
    attack: what malicious clients do, if there are any; see `attacks`.
    eval_every: rounds between evaluations.
    checkpoint_every: rounds between checkpoints, if there is an output_dir.
    keep_checkpoints: how many checkpoints to keep.
    stop_at_accuracy: stop when the test accuracy reaches it.
    output_dir: a folder for metrics, logs and checkpoints. Calling again with
      the same arguments goes on from the newest checkpoint.
    progress: whether to show a progress bar; by default if on a terminal.

  Returns:
    The model, the history and the final state.
  """
  schedule = Schedule(rounds, eval_every, checkpoint_every, stop_at_accuracy)
  trainer = process_lib.FederatedProcess(
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
  )
  folder = None
  if output_dir is not None:
    flags = {
      'seed': seed,
      'init': init,
      'eval_every': eval_every,
      'num_clients': clients.num_clients,
      'data': clients.digest(),
      'parameters': trainer.model.size,
      **algorithm_lib.describe(trainer.algorithm),
      **trainer.config.to_json(),
      'attack': attack and attack.to_json(),
    }
    folder = run_directory.RunDirectory(output_dir, flags, keep_checkpoints)
  return run(trainer, schedule, seed, test_data, folder, progress=progress)


def run(
  trainer: process_lib.FederatedProcess,
  schedule: Schedule,
  seed: int = 0,
  test_data: tuple[Any, Any] | None = None,
  folder: run_directory.RunDirectory | None = None,
  about_data: Mapping[str, Any] | None = None,
  progress: bool | None = None,
) -> Result:
  """Runs a process to its end, from where its folder says it stopped.

  Args:
    trainer: the process.
    schedule: how long to go on.
    seed: of all draws.
    test_data: (x, y) to evaluate the global model on.
    folder: where to write, if anywhere.
    about_data: what exported models shall tell, `class_names` among it; by
      default the classes' numbers.
    progress: whether to show a progress bar; by default if on a terminal.
  """
  if schedule.rounds < trainer.rounds_per_pass:
    raise errors.InputError(
      'rounds',
      schedule.rounds,
      f'must be at least {trainer.rounds_per_pass}, one for each layer that '
      'FedMA matches',
    )
  evaluate = _build_evaluate(trainer, test_data)
  state = trainer.initialize(seed)
  history: list[Row] = []
  if folder is None:
    state, history = _loop(
      trainer, schedule, evaluate, state, history, None, progress
    )
  else:
    classes = [str(c) for c in range(trainer.clients.num_classes)]
    with folder.opened():
      run_directory.write_model(
        folder.path, trainer.model, about_data or {'class_names': classes}
      )
      run_directory.write_attack(folder.path, trainer)
      state, history = folder.restore(state)
      if state.t:
        logging.info('resuming %s after round %d', folder.path, state.t)
      state, history = _loop(
        trainer, schedule, evaluate, state, history, folder, progress
      )
  return Result(trainer.get_model(state), history, state, trainer)


def _loop(
  trainer: process_lib.FederatedProcess,
  schedule: Schedule,
  evaluate: Evaluate,
  state: process_lib.FederatedState,
  history: list[Row],
  folder: run_directory.RunDirectory | None,
  progress: bool | None,
) -> tuple[process_lib.FederatedState, list[Row]]:
  with _bar(schedule.rounds, state.t, progress) as bar:
    while not schedule.done(state.t, history):
      start = time.perf_counter()
      state, metrics = trainer.next(state)
      seconds = time.perf_counter() - start
      scores = None
      if schedule.evaluates(state.t) and state.z_bar is not None:
        scores = evaluate(state)
      row = _row(metrics, scores, history, seconds)
      history.append(row)
      if folder is not None:
        folder.append(row)
        last = schedule.done(state.t, history)
        if last or state.t % schedule.checkpoint_every == 0:
          folder.save(state, history)
      bar(row)
  return state, history


def client_table(
  trainer: process_lib.FederatedProcess, state: process_lib.FederatedState
) -> list[Row]:
  """For every client, how good its own and the global model are on its data.

  Own models are left out where clients keep none, as in FedSGD.
  """
  clients = trainer.clients
  predict = _build_predict(trainer.trainer_of(state), clients.x)
  table = []
  malicious = set() if trainer.algorithm.pooled else set(trainer.malicious)
  for k, name in enumerate(clients.client_ids):
    rows = clients.indices(k)
    accuracies = {
      column: evaluation.score(
        predict(z, rows), clients.y[rows], from_logits=trainer.model.from_logits
      ).accuracy
      for column, z in (
        (
          'own_accuracy',
          state.client_models[k] if len(state.client_models) else None,
        ),
        ('global_accuracy', state.z_bar),
      )
      if z is not None
    }
    row = {
      'client': name,
      'examples': len(rows),
      'labels': len(np.unique(clients.y[rows])),
      'malicious': int(k in malicious),
    }
    table.append(row | accuracies)
  return table


def _build_predict(
  trainer: client_trainer.ClientTrainer, x: Any
) -> evaluation.Predict:
  with tf.device(trainer.device):
    predict = evaluation.build_predict(trainer.model, x, trainer.jit_compile)

  def on_device(z: np.ndarray, rows: np.ndarray) -> np.ndarray:
    with tf.device(trainer.device):
      return predict(z, rows)

  return on_device


def _build_evaluate(
  trainer: process_lib.FederatedProcess, test_data: tuple[Any, Any] | None
) -> Evaluate:
  """State -> scores of z̄ on the test data.

  Where clients are alone, the mean of the scores of all clients' own models.
  """
  if test_data is None:
    return lambda state: None
  x, y = arrays.examples(*test_data)
  arrays.num_classes(y, trainer.clients.num_classes)
  rows = np.arange(len(y))

  @functools.lru_cache(maxsize=2)  # z̄'s shape seldom changes
  def predictor(shaped: client_trainer.ClientTrainer) -> evaluation.Predict:
    return _build_predict(shaped, x)

  def evaluate(state: process_lib.FederatedState) -> evaluation.Scores:
    shaped = trainer.trainer_of(state)
    models: Iterable[Any] = [state.z_bar]
    if trainer.algorithm.alone:
      models = (
        state.client_models[k] for k in range(trainer.clients.num_clients)
      )
    return evaluation.mean(
      evaluation.score(
        predictor(shaped)(z, rows),
        y,
        trainer.config.loss,
        shaped.model.from_logits,
      )
      for z in models
    )

  return evaluate


def _row(
  metrics: process_lib.RoundMetrics,
  scores: evaluation.Scores | None,
  history: list[Row],
  seconds: float,
) -> Row:
  """A line of metrics.csv."""
  before = history[-1] if history else {}
  gated = bool((metrics.q < 1).any())
  total = {
    name: before.get(f'total_{name}', 0) + getattr(metrics, name)
    for name in ('bytes_up', 'bytes_down')
  }
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
    'total_bytes_up': total['bytes_up'],
    'total_bytes_down': total['bytes_down'],
    'delta_p50': float(np.percentile(metrics.delta, 50)) if gated else None,
    'delta_p90': float(np.percentile(metrics.delta, 90)) if gated else None,
    'q_p10': float(np.percentile(metrics.q, 10)) if gated else None,
    'q_p50': float(np.percentile(metrics.q, 50)) if gated else None,
    'seconds': seconds,
    'rss_mb': metrics_log.rss_mb(),
  }


@contextlib.contextmanager
def _bar(
  rounds: int, done: int, progress: bool | None
) -> Iterator[Callable[[Row], None]]:
  """A progress bar on a terminal; elsewhere about ten lines in the log."""
  disable = None if progress is None else not progress
  every = max(1, rounds // 10)
  with tqdm.tqdm(
    total=rounds, initial=done, unit='round', disable=disable
  ) as bar:

    def advance(row: Row) -> None:
      told = {
        'accuracy': _told(row['test_accuracy'], '.1%'),
        'loss': _told(row['test_loss'], '.3f'),
        'p': _told(row['p'], '.3f'),
        'uploads': f'{row["uploaded"]}/{row["selected"]}',
      }
      bar.set_postfix(told, refresh=False)
      bar.update()
      if bar.disable and progress is None and row['round'] % every == 0:
        words = ', '.join(f'{name} {value}' for name, value in told.items())
        logging.info('round %d of %d: %s', row['round'], rounds, words)

    yield advance


def _told(value: float | None, form: str) -> str:
  return '-' if value is None else format(value, form)
