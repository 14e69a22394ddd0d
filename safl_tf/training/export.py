"""Exports the global model as a SavedModel and a .keras file.

A new process without this package must load an export and reproduce the
predictions before the export replaces an earlier one.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import losses
from safl_tf.data import arrays
from safl_tf.training import export_check, export_files
from safl_tf.training.export_files import KERAS_FILE, SAVED_MODEL
from safl_tf.util import choices, errors, output_folder, validation

_FILES = {
  'both': [SAVED_MODEL, KERAS_FILE],
  'savedmodel': [SAVED_MODEL],
  'keras': [KERAS_FILE],
  'none': [],
}
_TIMEOUT_SECONDS = 600


class ExportError(errors.RunError):
  """A model cannot be written, or the export predicts something else."""


def export(
  model: keras.Model,
  folder: str | pathlib.Path,
  input_spec: Any,
  from_logits: bool,
  formats: str = 'both',
  metadata: Mapping[str, Any] | None = None,
  argument: str = 'folder',
  replace_current: bool = True,
) -> list[pathlib.Path]:
  """Writes and verifies an export of a model.

  The serving signature of `saved_model/` maps the model's inputs, of any batch
  size, to class probabilities. `model.keras` is the unchanged Keras model; the
  built-in models output logits.

  Args:
    model: a plain Keras model.
    folder: the directory: new, empty or of earlier exports. Only a verified
      export replaces an earlier one, and no other files are replaced.
    input_spec: `flat_model.FlatModel.input_spec`.
    from_logits: whether the model's outputs are logits.
    formats: 'both', 'savedmodel', 'keras' or 'none'.
    metadata: JSON values for `export.json`, such as the names of the classes.
    argument: the argument or flag that gave the folder, for errors.
    replace_current: whether to replace an export with the same metadata too.

  Returns:
    The paths of the export, without `export.json`.

  Raises:
    ExportError: the model could not be written, or a new process could not load
      it or predicted something else.
    errors.RunError: files that are not of an earlier export are in the way.
  """
  names = _FILES[validation.choice('export', formats, choices.EXPORTS)]
  if not names:
    return []
  folder = pathlib.Path(folder)
  metadata = {} if metadata is None else metadata
  with output_folder.opened(folder, 'export', argument):
    export_files.recover(folder)
    current = export_files.is_current(folder, names, metadata)
    if replace_current or not current:
      export_files.check_own(folder, names)
      new = pathlib.Path(tempfile.mkdtemp(dir=folder, prefix=export_files.NEW))
      try:
        _write(model, new, names, input_spec, from_logits)
        _check(model, new, names, input_spec, from_logits)
        export_files.write(new, folder, names, metadata)
      except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
      export_files.install(new, folder)
  return [folder / name for name in names]


def _write(
  model: keras.Model,
  folder: pathlib.Path,
  names: list[str],
  input_spec: Any,
  from_logits: bool,
) -> None:
  """Writes the files of an export."""
  try:
    if SAVED_MODEL in names:
      _write_saved_model(model, folder / SAVED_MODEL, input_spec, from_logits)
    if KERAS_FILE in names:
      model.save(folder / KERAS_FILE)
  except Exception as error:  # user layers may raise anything
    raise ExportError(f'the model could not be written: {error}') from error


def _write_saved_model(
  model: keras.Model, path: pathlib.Path, input_spec: Any, from_logits: bool
) -> None:
  signature = arrays.map_spec(
    lambda spec: tf.TensorSpec([None, *spec['shape']], spec['dtype']),
    input_spec,
  )

  def serve(inputs: Any) -> tf.Tensor:
    outputs = tf.cast(model(inputs, training=False), tf.float32)
    return losses.probabilities(outputs, from_logits)

  archive = keras.export.ExportArchive()
  archive.track(model)
  archive.add_endpoint('serve', serve, input_signature=[signature])
  archive.write_out(str(path), verbose=False)


def _check(
  model: keras.Model,
  folder: pathlib.Path,
  names: list[str],
  input_spec: Any,
  from_logits: bool,
) -> None:
  """Loads an export in another process and compares predictions."""
  stored: dict[str, Any] = {}

  def store(spec: dict[str, Any], batch: int) -> str:
    key = f'inputs_{len(stored)}'
    stored[key] = _random_inputs(spec, batch)
    return key

  batches = []
  for size in (1, 7):
    keys = arrays.map_spec(functools.partial(store, batch=size), input_spec)
    inputs = keras.tree.map_structure(stored.__getitem__, keys)
    outputs = tf.cast(model(inputs, training=False), tf.float32)
    probabilities = losses.probabilities(outputs, from_logits)
    stored[f'outputs_{size}'] = outputs.numpy()
    stored[f'probabilities_{size}'] = probabilities.numpy()
    batches.append((keys, f'outputs_{size}', f'probabilities_{size}'))
  half = '16' in str(model.dtype_policy.compute_dtype)
  request = (names, batches, 1e-2 if half else 1e-5)
  (folder / export_check.REQUEST).write_text(json.dumps(request))
  np.savez(folder / export_check.ARRAYS, **stored)
  try:
    done = subprocess.run(
      [sys.executable, '-P', export_check.__file__, str(folder)],
      capture_output=True,
      text=True,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
      check=False,
      timeout=_TIMEOUT_SECONDS,
    )
  except subprocess.TimeoutExpired as error:
    raise ExportError(
      f'the exported model was not verified: no answer in {_TIMEOUT_SECONDS} s'
    ) from error
  if done.returncode != 0:
    lines = (done.stderr.strip() or f'exit {done.returncode}').splitlines()
    raise ExportError(f'the exported model was not verified: {lines[-1]}')


def _random_inputs(spec: dict[str, Any], batch: int) -> np.ndarray:
  rng = np.random.Generator(np.random.Philox(key=batch))
  shape = (batch, *spec['shape'])
  dtype = np.dtype(spec['dtype'])
  if dtype.kind in 'iu':
    return rng.integers(0, 256 if dtype == np.uint8 else 2, shape, dtype)
  return rng.standard_normal(shape).astype(dtype)
