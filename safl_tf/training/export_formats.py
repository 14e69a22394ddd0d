"""Writes a model as a SavedModel, a .keras file or a LiteRT file."""

import pathlib
import re
import shutil
from typing import Any

import keras
import tensorflow as tf

from safl_tf.data import arrays
from safl_tf.training.export_files import (
  KERAS_FILE,
  SAVED_MODEL,
  TFLITE_FILE,
  VERSION,
)
from safl_tf.util import errors

FILES = {
  'both': [SAVED_MODEL, KERAS_FILE],
  'savedmodel': [SAVED_MODEL],
  'keras': [KERAS_FILE],
  'tflite': [TFLITE_FILE],
  'all': [SAVED_MODEL, KERAS_FILE, TFLITE_FILE],
  'none': [],
}
_ACTIVATIONS = {
  'softmax': tf.nn.softmax,
  'sigmoid': tf.nn.sigmoid,
  None: tf.identity,
}


class ExportError(errors.RunError):
  """A model cannot be written, or the export predicts something else."""


class Serving:
  """A model as it is served: named inputs to one named output.

  Attributes:
    model: the Keras model.
    signature: the structure of the inputs, of named specs.
    output: 'probabilities', or 'outputs' of a model without classes.
    outputs: what each file of an export outputs: 'logits' or `output`.
    class_names: of classes 0, 1, ..., if there are any.
  """

  def __init__(
    self,
    model: keras.Model,
    input_spec: Any,
    activation: str | None,
    class_names: list[str] | None,
  ):
    self.model = model
    self.class_names = class_names
    self.signature = _signature(input_spec)
    self._activation = _ACTIVATIONS[activation]
    is_known = activation is not None or class_names
    self.output = 'probabilities' if is_known else 'outputs'
    of_model = self.output if activation is None else 'logits'
    self.outputs = {
      SAVED_MODEL: self.output,
      KERAS_FILE: of_model,
      TFLITE_FILE: self.output,
    }

  @property
  def is_half(self) -> bool:
    """Whether the model computes in half precision."""
    return '16' in str(self.model.dtype_policy.compute_dtype)

  def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the outputs of the model, and those that are served."""
    outputs = tf.cast(self.model(inputs, training=False), tf.float32)
    return outputs, self._activation(outputs)

  def serve(self, inputs: Any) -> dict[str, tf.Tensor]:
    """Returns the served output by name."""
    return {self.output: self.call(inputs)[1]}


def write(serving: Serving, folder: pathlib.Path, names: list[str]) -> None:
  """Writes the files of an export."""
  saved_model = folder / SAVED_MODEL
  try:
    if SAVED_MODEL in names or TFLITE_FILE in names:
      write_saved_model(serving, saved_model / VERSION)
    if KERAS_FILE in names:
      serving.model.save(folder / KERAS_FILE)
  except Exception as error:  # user layers may raise anything
    raise ExportError(f'the model could not be written: {error}') from error
  if TFLITE_FILE in names:
    content = _convert(serving, saved_model / VERSION)
    (folder / TFLITE_FILE).write_bytes(content)
    if SAVED_MODEL not in names:
      shutil.rmtree(saved_model)


def write_saved_model(serving: Serving, path: pathlib.Path) -> None:
  """Writes a SavedModel with the class names in a signature of its own.

  That signature takes class numbers because the REST interface of TensorFlow
  Serving refuses signatures without inputs.
  """
  archive = keras.export.ExportArchive()
  archive.track(serving.model)
  signature = [serving.signature]
  archive.add_endpoint('serve', serving.serve, input_signature=signature)
  if serving.class_names:
    archive.add_endpoint(
      'classes',
      lambda indices: {'class_names': tf.gather(serving.class_names, indices)},
      input_signature=[tf.TensorSpec([None], tf.int32, 'indices')],
    )
  archive.write_out(str(path), verbose=False)


def _convert(serving: Serving, saved_model: pathlib.Path) -> bytes:
  """Converts a SavedModel to LiteRT's operations."""
  other = 'export it as savedmodel or keras'
  if serving.is_half:
    raise ExportError(
      f'tflite: LiteRT has no operations in half precision; {other}'
    )
  converter = tf.lite.TFLiteConverter.from_saved_model(
    str(saved_model), signature_keys=['serving_default']
  )
  try:
    return bytes(converter.convert())
  except Exception as error:  # of the converter's own classes
    missing = re.findall(r"'tf\.(\w+)' op", str(error))
    if not missing:
      raise ExportError(
        f'tflite: the model cannot be converted ({errors.reason(error)})'
      ) from error
    raise ExportError(
      'tflite: the model needs operations of TensorFlow that LiteRT does not '
      f'have ({", ".join(sorted(set(missing)))}); {other}'
    ) from error


def _signature(input_spec: Any) -> Any:
  """Returns specs with names: keys, 'inputs', or 'inputs_0', 'inputs_1', ..."""
  specs = arrays.map_spec(
    lambda spec: tf.TensorSpec([None, *spec['shape']], spec['dtype']),
    input_spec,
  )

  def named(path: tuple[Any, ...], spec: tf.TensorSpec) -> tf.TensorSpec:
    parts = path if path and isinstance(path[0], str) else ('inputs', *path)
    name = re.sub(r'\W', '_', '_'.join(map(str, parts)))
    return tf.TensorSpec(spec.shape, spec.dtype, name)

  leaves = [named(*leaf) for leaf in keras.tree.flatten_with_path(specs)]
  return keras.tree.pack_sequence_as(specs, leaves)
