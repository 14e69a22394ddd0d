"""Builds the federated process that the flags of a run describe."""

import contextlib
import functools
import json
import os
import pathlib
import zipfile
from typing import TYPE_CHECKING, Any

import keras

from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_config, flat_model, process
from safl_tf.data import dataset as dataset_lib
from safl_tf.models import lenet5, light_vgg
from safl_tf.training import export_files
from safl_tf.util import errors, validation

from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.core.executors.ray import config as ray_config

_MODELS = {'lenet5': lenet5.lenet5, 'light_vgg': light_vgg.light_vgg}


def build_process(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> process.FederatedProcess:
  """Builds the process of a run on its data set."""
  values = config.to_dict()
  clients, _ = config.clients(dataset, config.seed)
  attack = None
  if config.attack != 'none':
    strength = config.attack_strength
    attack = attacks.Attack(
      config.attack, config.attack_fraction, strength, config.seed
    )
  try:
    return process.FederatedProcess(
      _model(config, dataset),
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
    )
  except errors.InputError as error:
    if error.argument != 'model':
      raise
    raise errors.InputError('model', config.model, error.hint) from error


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


def load_model(path: str) -> keras.Layer:
  """Loads a .keras file, or the serving signature of a SavedModel.

  The path of a SavedModel may be a folder of numbered versions.
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
    raise errors.InputError('model', path, hint) from error
  with contextlib.suppress(Exception):  # a loss of the user's, or none at all
    with zipfile.ZipFile(path) as archive:
      config = json.loads(archive.read('config.json'))
    model.compile(loss=keras.losses.get(config['compile_config']['loss']))
  return model


def _model(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> keras.Model | flat_model.ModelFn:
  name = config.model
  if name.endswith('.keras'):
    return load_model(name)
  if dataset.num_classes is None:
    hint = f'is for classes; give a .keras file that predicts {dataset.task}'
    raise errors.InputError('model', name, hint)
  if len(dataset.input_shape) != 3:
    raise errors.InputError(
      'model',
      name,
      'takes images, [height, width, channels], but the rows of '
      f'{dataset.name} are {list(dataset.input_shape)}; give a .keras file '
      'that takes them, or --image_size=H,W if they are images',
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
  shape, num_classes = dataset.input_shape, dataset.num_classes
  return functools.partial(_MODELS[name], shape, num_classes, **options)
