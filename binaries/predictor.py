"""Predictions of runs, SavedModels and .keras files."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import flat_model
from safl_tf.data import dataset as dataset_lib
from safl_tf.training import export, run_directory
from safl_tf.util import errors

from . import factories


class Predictor(NamedTuple):
  """A model to evaluate."""

  call: Callable[[tf.Tensor], Any]  # inputs -> outputs [N, C]
  from_logits: bool | None  # None if unknown
  class_names: Sequence[str] | None  # of the outputs; None if unknown


def load(path: str) -> Predictor:
  """Loads the model of a run, a SavedModel or a .keras file."""
  folder = pathlib.Path(path)
  if run_directory.is_run(folder):
    run = run_directory.load(folder, 'model')
    return Predictor(run.model, run.from_logits, run.data['class_names'])
  if (folder / 'saved_model.pb').is_file():
    return Predictor(_load_signature(path), None, _class_names(folder))
  if folder.is_dir():
    raise errors.InputError(
      'model', path, 'is neither a run (no model.json) nor a SavedModel'
    )
  return Predictor(factories.load_keras(path), None, _class_names(folder))


def predict(
  path: str, model: Predictor, dataset: dataset_lib.Dataset
) -> tuple[np.ndarray, bool]:
  """Returns the outputs [N, C] for test examples; whether they are logits."""
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
      f'does not take inputs of shape {x.shape[1:]} ({errors.reason(error)})',
    ) from error
  outputs = np.concatenate(batches)
  if outputs.ndim != 2 or outputs.shape[1] < dataset.num_classes:
    raise errors.InputError(
      'model',
      path,
      f'has outputs of shape {outputs.shape[1:]}, but {dataset.name} has '
      f'{dataset.num_classes} classes',
    )
  if model.from_logits is None:
    return outputs, not flat_model.are_probabilities(outputs)
  return outputs, model.from_logits


def _class_names(path: pathlib.Path) -> list[str] | None:
  """Returns the class names that safl-export wrote beside a model, if any."""
  try:
    metadata = json.loads((path.parent / export.ABOUT).read_text())
    return metadata['class_names'] if path.name in metadata['files'] else None
  except (OSError, ValueError, KeyError):
    return None


def _load_signature(path: str) -> Callable[[tf.Tensor], Any]:
  """Loads the serving signature of a SavedModel; returns its first output."""
  try:
    layer = keras.layers.TFSMLayer(path, call_endpoint='serving_default')
  except Exception as error:
    raise errors.InputError(
      'model', path, f'cannot be loaded by Keras ({errors.reason(error)})'
    ) from error
  return lambda inputs: next(iter(layer(inputs).values()))
