"""Compiled training on a worker."""

from typing import Any

import numpy as np
import tensorflow as tf

from safl_tf.core import client_config, client_trainer, cohort
from safl_tf.core.executors.ray import messages


class Job:
  """Trains chunks of clients with one model.

  Args:
    trainer: of the model.
    settings: those of Keras, to build other models of the run with.
  """

  def __init__(
    self,
    trainer: client_trainer.ClientTrainer,
    settings: messages.KerasSettings,
  ):
    self._trainer = trainer
    self._settings = settings
    self._trainer.compile()
    self.stack = trainer.arithmetic['stack']

  def with_model(self, model: messages.Model) -> 'Job':
    """Returns the job of another model; it shares the data."""
    self._settings.apply()
    portable = messages.unpack('model', model.portable)
    return Job(self._trainer.with_model(portable), self._settings)

  def train(self, chunk: messages.Chunk) -> cohort.ClientOutput:
    """Returns the stacked outputs of a chunk's clients."""
    zeros, _ = self._trainer.zero_arrays
    positions = {k: i for i, k in enumerate(chunk.ids)}

    def arrays(k: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
      i = positions[k]
      kept = {name: array[i] for name, array in chunk.kept.items()}
      received = {name: array[i] for name, array in chunk.received.items()}
      return {**zeros, **kept}, {**received, **chunk.shared}

    ids = np.array(chunk.ids)
    outputs = list(self._trainer.outputs(chunk.seed, chunk.t, ids, arrays))
    return tf.nest.map_structure(lambda *rows: np.stack(rows), *outputs)


def create(
  run: messages.Run, leaves: list[Any], model: messages.Model, threads: int
) -> Job:
  """Builds and compiles the training of a run's first model.

  Args:
    run: what its models share.
    leaves: the arrays of its data.
    model: the model.
    threads: clients that are trained at a time.
  """
  run.keras.apply()
  config: client_config.LocalConfig = messages.unpack('config', run.config)
  algorithm = messages.unpack('algorithm', run.algorithm)
  trainer = client_trainer.ClientTrainer(
    messages.unpack('model', model.portable),
    messages.join_data(run.clients, leaves),
    algorithm,
    config,
    run.executor,
    run.jit_compile,
    run.device,
    run.stack,
    options=messages.unpack('loss', model.task),
    threads=threads,
  )
  if run.steps is not None:
    trainer = trainer.personalizer(run.steps, algorithm)
  return Job(trainer, run.keras)
