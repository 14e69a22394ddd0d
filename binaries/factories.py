"""Builds the federated process that the flags of a run describe."""

import functools
from typing import Any

import keras

from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import client_config, flat_model, process
from safl_tf.data import dataset as dataset_lib
from safl_tf.models import lenet5, light_vgg
from safl_tf.util import errors, validation

from .flags.run_config import RunConfig

_MODELS = {'lenet5': lenet5.lenet5, 'light_vgg': light_vgg.light_vgg}


def build_process(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> process.FederatedProcess:
  """Builds the process of a run on its data set."""
  values = config.to_dict()
  attack = None
  if config.attack != 'none':
    attack = attacks.Attack(
      config.attack,
      config.attack_fraction,
      config.attack_strength,
      config.seed,
    )
  algorithm = registry.build(config.algorithm, **values)
  local = validation.call(client_config.LocalConfig, values)
  clients, _ = config.clients(dataset, config.seed)
  try:
    return process.FederatedProcess(
      _model(config, dataset),
      clients,
      algorithm,
      local,
      init=config.init,
      executor=config.executor,
      jit_compile=config.jit_compile,
      device=config.device,
      stack=config.stack,
      client_store=config.client_store,
      store_dir=config.path,
      attack=attack,
    )
  except errors.InputError as error:
    if error.argument != 'model':
      raise
    raise errors.InputError('model', config.model, error.hint) from error


def load_keras(path: str) -> keras.Model:
  """Loads a model from a .keras file."""
  try:
    return keras.models.load_model(path, compile=False)
  except Exception as error:
    raise errors.InputError(
      'model', path, f'cannot be loaded by Keras ({errors.reason(error)})'
    ) from error


def _model(
  config: RunConfig, dataset: dataset_lib.Dataset
) -> keras.Model | flat_model.ModelFn:
  name = config.model
  if name.endswith('.keras'):
    return load_keras(name)
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
    validation.choice('activation', config.activation, known)
    options['activation'] = config.activation
  return functools.partial(
    _MODELS[name], dataset.input_shape, dataset.num_classes, **options
  )
