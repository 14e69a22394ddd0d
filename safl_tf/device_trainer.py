"""Trains devices' models of one architecture, many at a time."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from safl_tf import (
  algorithms,
  devices,
  errors,
  executors,
  flat_model,
  local,
  local_update,
)
from safl_tf.data import client_data
from safl_tf.models import lowering


class DeviceTrainer:
  """A model, and how it is trained on the devices of a round.

  Attributes:
    model: the Keras model as functions of a vector.
    device: the TensorFlow device; the first of several.
    max_steps: local steps of the largest device.
    max_measured: batches that it measures h on.
    jit_compile: whether XLA compiles training.

  Args:
    model: a function that returns a new Keras model, or a Keras model.
    clients: the devices' data.
    algorithm: whose rules are used on the devices.
    config: how a device trains.
    executor: a name of `names.EXECUTORS`.
    jit_compile: 'auto', 'true' or 'false'.
    device: 'auto', 'cpu', 'gpu' or one such as 'gpu:1'.
    stack: how many devices 'vectorized' stacks; by memory if None.
  """

  def __init__(
    self,
    model: keras.Model | flat_model.ModelFn,
    clients: client_data.ClientData,
    algorithm: algorithms.Algorithm,
    config: local.LocalConfig,
    executor: str = 'auto',
    jit_compile: str = 'auto',
    device: str = 'auto',
    stack: int | None = None,
  ):
    self._places = devices.find(device)
    self.device = self._places[0]
    on_gpu = 'GPU' in self.device
    self._executor_name = executors.resolve(executor, on_gpu)
    self._clients = clients
    self._algorithm = algorithm
    self._config = config
    largest = int(clients.sizes.max())
    held_out = config.num_held_out(largest)
    self.max_steps = int(config.steps(largest - held_out))
    self.max_measured = 0
    if algorithm.gate.needs_accuracy:
      measured = held_out or largest
      self.max_measured = -(-measured // config.batch_size)
    self._setting = executors.Setting(
      jit_compile=False,  # until the model is known
      per_example=False,
      max_steps=self.max_steps,
      max_measured=self.max_measured,
      cohort=len(algorithm.select(0, 1, clients.num_devices)),
      on_gpu=on_gpu,
      stack=stack,
    )
    self._jit_choice = jit_compile
    self._data = [_put(clients, place) for place in self._places]
    self._build(model)

  def with_model(
    self, model: keras.Model | flat_model.ModelFn
  ) -> 'DeviceTrainer':
    """The same for models of another shape; the data are held only once."""
    other = copy.copy(self)
    other._build(model)
    return other

  def __call__(
    self, make_task: Callable[[int], local.Task], ids: Sequence[int]
  ) -> list[local.Update]:
    """The devices' rounds, in the order of ids."""
    return list(self._executor(make_task, ids))

  @property
  def num_traces(self) -> int:
    """How often a device's round, or a piece of it, was traced."""
    return self._executor.num_traces

  def _build(self, model: keras.Model | flat_model.ModelFn) -> None:
    name, setting = self._executor_name, self._setting
    with tf.device(self.device):
      self.model = _flat_model(model, self._clients)
      lowered = lowering.lower(
        self.model.template,
        self._jit_choice,
        setting.on_gpu,
        name == 'vectorized',
      )
    self.model.lower(lowered.model)
    self.jit_compile = lowered.jit_compile
    updates = [
      local_update.LocalUpdate(
        self.model, self._algorithm, self._config, x, y, place
      )
      for place, (x, y) in zip(self._places, self._data, strict=True)
    ]
    self._executor = executors.EXECUTORS[name](
      updates,
      setting._replace(
        jit_compile=lowered.jit_compile, per_example=lowered.per_example
      ),
    )


def _put(clients: client_data.ClientData, place: str) -> tuple[Any, tf.Tensor]:
  """All inputs and labels, on a TensorFlow device."""
  with tf.device(place):
    x = tf.nest.map_structure(tf.convert_to_tensor, clients.x)
    return x, tf.convert_to_tensor(clients.y, tf.int32)


def _flat_model(
  model: keras.Model | flat_model.ModelFn, clients: client_data.ClientData
) -> flat_model.FlatModel:
  """The model, checked to take the data and to fit the labels."""
  example = tf.nest.map_structure(lambda a: a[:2], clients.x)
  try:
    flat = flat_model.FlatModel(model, example)
    outputs = flat.template(example)
  except errors.InputError:
    raise
  except Exception as error:
    shapes = tf.nest.map_structure(lambda a: tuple(a.shape[1:]), example)
    raise errors.InputError(
      'model',
      getattr(model, 'name', getattr(model, '__name__', 'given')),
      f'does not take inputs of shape {shapes} ({errors.reason(error)})',
    ) from error
  shape = getattr(outputs, 'shape', None)
  if shape is None or len(shape) != 2 or shape[1] < clients.num_classes:
    raise errors.InputError(
      'model',
      flat.template.name,
      f'its outputs have shape {shape}, but {clients.num_classes} classes need'
      f' (batch, {clients.num_classes})',
    )
  return flat
