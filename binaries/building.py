"""Flag values -> the objects they describe."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf import (
  algorithms,
  checks,
  errors,
  flat_model,
  local,
  names,
  process,
  run_folder,
)
from safl_tf.data import client_data, partition, sources
from safl_tf.models import lenet5, light_vgg

_MODELS = {'lenet5': lenet5.lenet5, 'light_vgg': light_vgg.light_vgg}
_PARTITIONS = {'labels': partition.by_labels, 'iid': partition.iid}


def process_and_data(
  values: dict[str, Any],
) -> tuple[process.FederatedProcess, sources.Dataset]:
  """The process that `safl-train`'s flags describe, and its data set."""
  algorithm = algorithms.build(values['algorithm'], **values)
  config = _from_fields(local.LocalConfig, values)
  dataset = sources.load(values['dataset'], values['data_dir'])
  clients = client_data.ClientData.from_arrays(
    dataset.x_train,
    dataset.y_train,
    _from_fields(_PARTITIONS[values['partition']], values),
    num_classes=dataset.num_classes,
  )
  trainer = process.FederatedProcess(
    _model(values, dataset),
    clients,
    algorithm,
    config,
    init=values['init'],
    executor=values['executor'],
    jit_compile=values['jit_compile'],
    device=values['device'],
  )
  return trainer, dataset


def _model(
  values: dict[str, Any], dataset: sources.Dataset
) -> keras.Model | flat_model.ModelFn:
  name, precision = values['model'], values['mixed_precision']
  if name.endswith('.keras'):
    if precision != 'none':
      raise errors.InputError(
        'mixed_precision',
        precision,
        'is for built-in models; a .keras file has its own',
      )
    return load_keras(name)
  checks.choice('model', name, names.MODELS)
  if precision != 'none':
    keras.mixed_precision.set_global_policy(f'mixed_{precision}')
  options = {'activation': values['activation']} if values['activation'] else {}
  return functools.partial(
    _MODELS[name], dataset.input_shape, dataset.num_classes, **options
  )


def load_keras(path: str) -> keras.Model:
  """A model from a .keras file."""
  if not pathlib.Path(path).is_file():
    raise errors.InputError('model', path, 'there is no such file')
  try:
    return keras.models.load_model(path, compile=False)
  except Exception as error:
    first_line = str(error).strip().split('\n')[0]
    raise errors.InputError(
      'model', path, f'is not a Keras model that loads here ({first_line})'
    ) from error


def load_outputs(path: str, x: Any) -> tuple[Any, bool]:
  """Outputs for x of a run, a SavedModel or a .keras file; are they logits?"""
  folder = pathlib.Path(path)
  if run_folder.is_run(folder):
    loaded = run_folder.load(folder, 'model')
    return _predict(path, loaded.model, x), loaded.from_logits
  if (folder / 'saved_model.pb').is_file():
    signatures = tf.saved_model.load(path).signatures
    serve = signatures['serving_default']
    return _predict(
      path, lambda batch: next(iter(serve(batch).values())), x
    ), False
  if folder.is_dir():
    raise errors.InputError(
      'model', path, 'is neither a run (no model.json) nor a SavedModel'
    )
  outputs = _predict(path, load_keras(path), x)
  return outputs, not flat_model.are_probabilities(outputs)


def _predict(path: str, model: Callable[[Any], Any], x: np.ndarray) -> Any:
  """Outputs [N, C], in batches."""
  try:
    batches = [
      np.asarray(model(tf.constant(x[i : i + 500])), np.float32)
      for i in range(0, len(x), 500)
    ]
  except Exception as error:
    first_line = str(error).strip().split('\n')[0]
    raise errors.InputError(
      'model',
      path,
      f'does not take images of shape {x.shape[1:]} ({first_line})',
    ) from error
  return np.concatenate(batches)


def _from_fields(function: Any, values: dict[str, Any]) -> Any:
  """Calls a function with the flags it has arguments for."""
  known = function.__annotations__
  return function(**{k: v for k, v in values.items() if k in known})
