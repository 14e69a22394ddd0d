"""Builds the federated process that the flags of a run describe."""

import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, client_trainer, flat_model, process
from safl_tf.core import task as task_lib
from safl_tf.data import client_data, client_file
from safl_tf.data import dataset as dataset_lib
from safl_tf.models import char_gru, lenet5, light_vgg, mlp
from safl_tf.training import export_files
from safl_tf.util import errors, validation

from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.core.executors import base
  from safl_tf.core.executors.ray import config as ray_config

_MODELS: dict[str, Callable[..., keras.Model]] = {
  'lenet5': lenet5.lenet5,
  'light_vgg': light_vgg.light_vgg,
  'mlp': mlp.mlp,
  'char_gru': char_gru.char_gru,
}
_FOR_IMAGES = ('lenet5', 'light_vgg')
# Task of the data -> the loss, if neither the user nor the model says another.
LOSSES = {'regression': 'mse', 'multi_label': 'binary_crossentropy'}


def build_process(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> process.FederatedProcess:
  """Builds the process of a run on its data set."""
  values = config.to_dict()
  clients, _ = split_clients(config, dataset)
  model = _model(config, dataset)
  attack = None
  if config.attack != 'none':
    strength = config.attack_strength
    attack = attacks.Attack(
      config.attack, config.attack_fraction, strength, config.seed
    )
  with _model_errors(config):
    return process.FederatedProcess(
      model,
      clients,
      _algorithm(config),
      validation.call(client_config.LocalConfig, values),
      init=config.init,
      executor=_executor(config),
      jit_compile=config.jit_compile,
      device=config.device,
      stack=config.stack,
      client_store=config.client_store,
      store_dir=config.path,
      attack=attack,
      from_logits=config.from_logits,
      **_task(config, dataset, model),
    )


@contextlib.contextmanager
def _model_errors(config: RunConfig) -> Iterator[None]:
  """Names the flag in errors about the model."""
  try:
    yield
  except errors.InputError as error:
    if error.argument != 'model':
      raise
    raise errors.InputError('model', config.model, error.hint) from error


def build_remote_process(
  config: RunConfig,
  dataset: dataset_lib.Dataset,
  clients: client_data.ClientData,
  server: 'base.Remote',
) -> process.FederatedProcess:
  """Builds the process of a run that real clients train."""
  model = _model(config, dataset)
  with _model_errors(config):
    return process.FederatedProcess(
      model,
      clients,
      _algorithm(config),
      validation.call(client_config.LocalConfig, config.to_dict()),
      init=config.init,
      executor=server,
      jit_compile=config.jit_compile,
      from_logits=config.from_logits,
      **_task(config, dataset, model),
    )


def build_trainer(
  config: RunConfig,
  dataset: dataset_lib.Dataset,
  clients: client_data.ClientData,
) -> client_trainer.ClientTrainer:
  """Builds what trains a real client."""
  from safl_tf.core import checked

  model = _model(config, dataset)
  algorithm = _algorithm(config)
  local = validation.call(client_config.LocalConfig, config.to_dict())
  task = _task(config, dataset, model)
  with _model_errors(config):
    return client_trainer.ClientTrainer(
      model,
      clients,
      checked.rules(algorithm),
      checked.config(algorithm, local),
      'serial',
      config.jit_compile,
      config.device,
      options=process.task_options(**task, from_logits=config.from_logits),
    )


def dataset_of(facts: client_file.Facts, x: Any, y: Any) -> dataset_lib.Dataset:
  """Returns the examples of a client as a data set without test examples."""
  return dataset_lib.Dataset(
    facts.name,
    x,
    y,
    x,
    y,
    facts.num_classes,
    facts.class_names,
    task=facts.task,
  )


def resolve_model(config: RunConfig, dataset: dataset_lib.Dataset) -> RunConfig:
  """Returns the configuration with the model for the data, if it is auto."""
  is_image = isinstance(dataset.x_train, np.ndarray) and (
    len(dataset.input_shape) == 3
  )
  return config.resolve_model(dataset.name, is_image)


def split_clients(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> tuple[client_data.ClientData, client_data.ClientData | None]:
  """Returns what clients train on, and what they are tested on, if anything."""
  clients, _ = config.clients(dataset, config.seed)
  if config.client_test_fraction is None:
    return clients, None
  fraction = config.client_test_fraction
  try:
    return clients.split(fraction, config.seed)
  except errors.InputError as error:
    raise errors.InputError(
      'client_test_fraction', fraction, error.hint
    ) from error


def _task(
  config: RunConfig, dataset: dataset_lib.Dataset, model: Any
) -> dict[str, Any]:
  """Returns the loss and the metrics; by default those for the data."""
  options = config.task_options()
  own = isinstance(model, keras.Model) and task_lib.of_compiled(model).loss
  if options['loss'] is None and not own:
    options['loss'] = LOSSES.get(dataset.task)
  return options


def _executor(config: RunConfig) -> 'str | ray_config.RayConfig':
  return config.ray_executor() if config.executor == 'ray' else config.executor


def _algorithm(config: RunConfig) -> algorithm_lib.Algorithm:
  values = config.to_dict()
  chosen = (config.algorithm, config.aggregator, config.server_optimizer)
  options = registry.arguments(*chosen)
  return registry.build(
    config.algorithm,
    aggregator=config.aggregator,
    server_optimizer=config.server_optimizer,
    **{name: values[name] for name in options if name in values},
  )


def load_model(path: str, own_loss: bool = True) -> keras.Layer:
  """Loads a .keras file, or the serving signature of a SavedModel.

  Args:
    path: of the file or folder; that of a SavedModel may be a folder of
      numbered versions.
    own_loss: whether the loss counts that a .keras file was compiled with.
  """
  try:
    if os.path.isdir(path):
      folder = export_files.find_saved_model(pathlib.Path(path))
      return keras.layers.TFSMLayer(
        str(folder), call_endpoint='serving_default'
      )
    model = keras.models.load_model(path, compile=False)
  except Exception as error:
    hint = f'cannot be loaded by Keras ({errors.reason(error)})'
    own = _own_classes(path)
    if own:
      hint = f'has {own} of its own: --custom_objects=FILE.py must register it'
    raise errors.InputError('model', path, hint) from error
  _compile(path, model, own_loss)
  return model


def import_objects(path: str | None) -> None:
  """Imports a file of Python code as the module of its name, once."""
  if path is not None:
    _import(os.path.abspath(os.path.expanduser(path)))


@functools.cache
def _import(path: str) -> None:
  name = pathlib.Path(path).stem
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except Exception as error:
    hint = f'cannot be imported ({type(error).__name__}: {error})'
    raise errors.InputError(
      'custom_objects', path, errors.one_line(hint)
    ) from error


def _own_classes(path: str) -> str:
  """Returns the names of classes in a .keras file that are not of Keras."""
  try:
    with zipfile.ZipFile(path) as archive:
      config = json.loads(archive.read('config.json'))
  except (OSError, KeyError, ValueError, zipfile.BadZipFile):
    return ''
  names, parts = [], [config]
  while parts:
    part = parts.pop()
    if isinstance(part, dict):
      name, module = part.get('class_name'), part.get('module')
      if name and module and not str(module).startswith('keras'):
        names.append(str(name))
      part = list(part.values())
    if isinstance(part, list):
      parts += part
  return ', '.join(sorted(set(names)))


def _compile(path: str, model: keras.Model, own_loss: bool) -> None:
  """Compiles a model with the loss and the metrics that it was saved with."""
  with zipfile.ZipFile(path) as archive:
    saved = json.loads(archive.read('config.json')).get('compile_config') or {}
  options = {}
  for name in ('loss', 'metrics', 'weighted_metrics', 'loss_weights'):
    if saved.get(name) is None or ('loss' in name and not own_loss):
      continue
    try:
      options[name] = keras.saving.deserialize_keras_object(saved[name])
    except Exception as error:
      hint = f'was compiled with {name} of its own that cannot be loaded'
      remedy = 'give --loss' if name == 'loss' else f'save it without {name}'
      hint = f'{hint} ({errors.reason(error)}); {remedy}'
      raise errors.InputError('model', path, hint) from error
  if options:
    model.compile(**options)


def _model(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> keras.Model | flat_model.ModelFn:
  name = config.model
  if name.endswith('.keras'):
    import_objects(config.custom_objects)
    return load_model(name, own_loss=config.loss is None)
  rank = 3 if name in _FOR_IMAGES else 1
  tokens = dataset.task == 'tokens'
  if len(dataset.input_shape) != rank or (name == 'char_gru') != tokens:
    takes = {
      'mlp': 'tables, [features]',
      'char_gru': 'characters, [T], and predicts the next ones',
    }.get(name, 'images, [height, width, channels]')
    raise errors.InputError(
      'model',
      name,
      f'takes {takes}, but the rows of {dataset.name} are '
      f'{list(dataset.input_shape)}, for {dataset.task}; give another model or '
      'a .keras file, or --image_size=H,W if rows are images',
    )
  if config.mixed_precision != 'none':
    policy = f'mixed_{config.mixed_precision}'
    keras.mixed_precision.set_global_policy(policy)
  options: dict[str, Any] = {'input_dtype': str(dataset.x_train.dtype)}
  if config.activation is not None:
    names = set(dir(keras.activations)) - {'deserialize', 'get', 'serialize'}
    known = sorted(n for n in names if n[0].islower())
    options['activation'] = validation.choice(
      'activation', config.activation, known
    )
  shape, num_outputs = dataset.input_shape, dataset.num_outputs
  return functools.partial(_MODELS[name], shape, num_outputs, **options)
