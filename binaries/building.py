"""Flag values -> the objects they describe."""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from binaries import common, partitioning
from safl_tf import attacks
from safl_tf.algorithms import registry as algorithm_registry
from safl_tf.core import client_config, flat_model, process
from safl_tf.data import dataset as dataset_lib
from safl_tf.data import registry as data_registry
from safl_tf.data.files import spec
from safl_tf.models import lenet5, light_vgg
from safl_tf.training import export, run_directory
from safl_tf.util import errors, validation

_MODELS = {'lenet5': lenet5.lenet5, 'light_vgg': light_vgg.light_vgg}


def process_and_data(
  values: dict[str, Any], dataset: dataset_lib.Dataset | None = None
) -> tuple[process.FederatedProcess, dataset_lib.Dataset]:
  """The process that `safl-train`'s flags describe, and its data set.

  Args:
    values: of the flags.
    dataset: the one they name, if it is loaded already.
  """
  algorithm = algorithm_registry.build(values['algorithm'], **values)
  config = validation.call(client_config.LocalConfig, values)
  if dataset is None:
    dataset = load_data(values)
  clients, _ = partitioning.clients(values, dataset)
  try:
    trainer = process.FederatedProcess(
      _model(values, dataset),
      clients,
      algorithm,
      config,
      init=values['init'],
      executor=values['executor'],
      jit_compile=values['jit_compile'],
      device=values['device'],
      stack=values['stack'],
      client_store=values['client_store'],
      store_dir=pathlib.Path(values['output_dir']) / values['experiment'],
      attack=_attack(values),
    )
  except errors.InputError as error:
    if error.argument != 'model':
      raise
    # The flag's value says more than the model's name.
    raise errors.InputError('model', values['model'], error.hint) from error
  return trainer, dataset


def load_data(
  values: dict[str, Any], class_names: Sequence[str] | None = None
) -> dataset_lib.Dataset:
  """The data set that flags name.

  Args:
    values: of the flags.
    class_names: what a model's outputs stand for, if that is known; the labels
      of one's own data are understood by it.
  """
  options = spec.options(values, class_names)
  with common.only_errors():
    return data_registry.load(values['dataset'], values['data_dir'], options)


def _attack(values: dict[str, Any]) -> attacks.Attack | None:
  if values['attack'] == 'none':
    return None
  return attacks.Attack(
    values['attack'],
    values['attack_fraction'],
    values['attack_strength'],
    values['seed'],
  )


def _model(
  values: dict[str, Any], dataset: dataset_lib.Dataset
) -> keras.Model | flat_model.ModelFn:
  name, precision = values['model'], values['mixed_precision']
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
  if precision != 'none':
    keras.mixed_precision.set_global_policy(f'mixed_{precision}')
  options = {'input_dtype': str(dataset.x_train.dtype)}
  if values['activation'] is not None:
    options['activation'] = _activation(values['activation'])
  return functools.partial(
    _MODELS[name], dataset.input_shape, dataset.num_classes, **options
  )


def _activation(name: str) -> str:
  """A name that Keras knows."""
  helpers = ('deserialize', 'get', 'serialize')
  known = [
    n for n in dir(keras.activations) if n[0].islower() and n not in helpers
  ]
  return validation.choice('activation', name, known)


def load_keras(path: str) -> keras.Model:
  """A model from a .keras file."""
  try:
    return keras.models.load_model(path, compile=False)
  except Exception as error:
    raise errors.InputError(
      'model',
      path,
      f'is not a Keras model that loads here ({errors.reason(error)})',
    ) from error


class Predictor(NamedTuple):
  """A model that gives outputs for a batch of inputs.

  Attributes:
    call: inputs -> outputs [N, C].
    from_logits: whether outputs are logits; None if it isn't known.
    class_names: what outputs stand for; None if it isn't known.
  """

  call: Callable[[tf.Tensor], Any]
  from_logits: bool | None
  class_names: Sequence[str] | None


def load_predictor(path: str) -> Predictor:
  """The model of a run, a SavedModel or a .keras file."""
  folder = pathlib.Path(path)
  if run_directory.is_run(folder):
    loaded = run_directory.load(folder, 'model')
    return Predictor(
      loaded.model, loaded.from_logits, loaded.metadata['class_names']
    )
  if (folder / 'saved_model.pb').is_file():
    return Predictor(_load_signature(path), None, _class_names(folder))
  if folder.is_dir():
    raise errors.InputError(
      'model', path, 'is neither a run (no model.json) nor a SavedModel'
    )
  return Predictor(load_keras(path), None, _class_names(folder))


def _class_names(path: pathlib.Path) -> list[str] | None:
  """What `export` wrote of a model beside it, if it is one of its files."""
  try:
    about = json.loads((path.parent / export.METADATA).read_text())
    return about['class_names'] if path.name in about['files'] else None
  except (OSError, ValueError, KeyError):
    return None


def _load_signature(path: str) -> Callable[[tf.Tensor], Any]:
  """The serving signature of a SavedModel with one input and one output."""
  try:
    loaded = tf.saved_model.load(path)
    serve = loaded.signatures['serving_default']
    [name] = serve.structured_input_signature[1]
    [output] = serve.structured_outputs
  except Exception as error:
    raise errors.InputError(
      'model',
      path,
      'is not a SavedModel that loads here, with one input and one output '
      f'({errors.reason(error)})',
    ) from error

  def call(inputs: tf.Tensor, loaded: Any = loaded) -> Any:
    del loaded  # the signature lives as long as what it was loaded with
    return serve(**{name: inputs})[output]

  return call


def predict(
  path: str, model: Predictor, dataset: dataset_lib.Dataset
) -> tuple[np.ndarray, bool]:
  """A model's outputs [N, C] for the test examples; are they logits?"""
  x = dataset.x_test
  try:
    batches = [
      np.asarray(model.call(tf.constant(x[i : i + 500])), np.float32)
      for i in range(0, len(x), 500)
    ]
  except Exception as error:
    raise errors.InputError(
      'model',
      path,
      f'does not take images of shape {x.shape[1:]} ({errors.reason(error)})',
    ) from error
  outputs = np.concatenate(batches)
  if outputs.ndim != 2 or outputs.shape[1] < dataset.num_classes:
    raise errors.InputError(
      'model',
      path,
      f'gives outputs of shape {outputs.shape[1:]} for an image, but '
      f'{dataset.name} has {dataset.num_classes} classes',
    )
  from_logits = model.from_logits
  if from_logits is None:
    from_logits = not flat_model.are_probabilities(outputs)
  return outputs, from_logits
