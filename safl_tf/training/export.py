"""Exports the global model as a SavedModel and a .keras file.

A new process without this package must load an export and reproduce the
predictions before the export replaces an earlier one.
"""

import functools
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import flat_model, losses
from safl_tf.training import export_check
from safl_tf.util import atomic_io, choices, validation

SAVED_MODEL = 'saved_model'
KERAS_FILE = 'model.keras'
METADATA = 'export.json'

_FILES = {
  'both': [SAVED_MODEL, KERAS_FILE],
  'savedmodel': [SAVED_MODEL],
  'keras': [KERAS_FILE],
  'none': [],
}
_TIMEOUT_SECONDS = 600


class ExportError(RuntimeError):
  """A model cannot be written, or the export predicts something else."""


def export(
  model: keras.Model,
  folder: str | pathlib.Path,
  input_spec: Any,
  from_logits: bool,
  formats: str = 'both',
  metadata: Mapping[str, Any] | None = None,
) -> list[pathlib.Path]:
  """Writes and verifies an export of a model.

  The serving signature of `saved_model/` maps the model's inputs, of any batch
  size, to class probabilities. `model.keras` is the unchanged Keras model; the
  built-in models output logits.

  Args:
    model: a plain Keras model.
    folder: the directory; only a verified export replaces an earlier one.
    input_spec: `flat_model.FlatModel.input_spec`.
    from_logits: whether the model's outputs are logits.
    formats: 'both', 'savedmodel', 'keras' or 'none'.
    metadata: JSON values for `export.json`, such as the names of the classes.

  Returns:
    The paths written, without `export.json`.

  Raises:
    ExportError: the model could not be written, or a new process could not load
      it or predicted something else.
  """
  names = _FILES[validation.choice('export', formats, choices.EXPORTS)]
  if not names:
    return []
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder, prefix='.new-') as scratch:
    new = pathlib.Path(scratch)
    try:
      if SAVED_MODEL in names:
        _write_saved_model(model, new / SAVED_MODEL, input_spec, from_logits)
      if KERAS_FILE in names:
        model.save(new / KERAS_FILE)
    except Exception as error:  # user layers may raise anything
      raise ExportError(f'the model could not be written: {error}') from error
    _check(model, new, names, input_spec, from_logits)
    (folder / METADATA).unlink(missing_ok=True)  # until the export is complete
    for name in names:
      _replace(new / name, folder / name)
  atomic_io.write_json(folder / METADATA, {**(metadata or {}), 'files': names})
  return [folder / name for name in names]


def is_current(
  folder: str | pathlib.Path, formats: str, metadata: Mapping[str, Any]
) -> bool:
  """Returns whether the directory has an export with the same metadata."""
  folder = pathlib.Path(folder)
  try:
    written = json.loads((folder / METADATA).read_text())
  except (OSError, ValueError):
    return False
  files = written.pop('files', [])
  return written == metadata and all(
    name in files and (folder / name).exists() for name in _FILES[formats]
  )


def _write_saved_model(
  model: keras.Model, path: pathlib.Path, input_spec: Any, from_logits: bool
) -> None:
  signature = flat_model.map_spec(
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
  batches = []
  for size in (1, 7):
    inputs = flat_model.map_spec(
      functools.partial(_random_inputs, batch=size), input_spec
    )
    outputs = tf.cast(model(inputs, training=False), tf.float32)
    probabilities = losses.probabilities(outputs, from_logits)
    batches.append((inputs, outputs.numpy(), probabilities.numpy()))
  half = '16' in str(model.dtype_policy.compute_dtype)
  request = (names, batches, 1e-2 if half else 1e-5)
  (folder / export_check.REQUEST).write_bytes(pickle.dumps(request))
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


def _replace(source: pathlib.Path, target: pathlib.Path) -> None:
  """Moves a file or directory, replacing the target if it exists."""
  old = target.with_name(f'.old-{target.name}')
  if target.is_dir():
    shutil.rmtree(old, ignore_errors=True)
    os.replace(target, old)
  os.replace(source, target)
  shutil.rmtree(old, ignore_errors=True)
