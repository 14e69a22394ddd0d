"""The global model, taken away: a SavedModel and a .keras file.

An export counts only once a fresh process, without this package, has loaded it
and predicted the same.
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

from safl_tf.core import flat_model, losses
from safl_tf.util import atomic_io, choices, validation

SAVED_MODEL = 'saved_model'
KERAS_FILE = 'model.keras'
ABOUT = 'export.json'

_PARTS = {
  'both': [SAVED_MODEL, KERAS_FILE],
  'savedmodel': [SAVED_MODEL],
  'keras': [KERAS_FILE],
  'none': [],
}
_MOST_SECONDS = 600  # for the other process


class ExportError(RuntimeError):
  """A model can't be written, or what was written predicts something else."""


def export(
  model: keras.Model,
  folder: str | pathlib.Path,
  input_spec: Any,
  from_logits: bool,
  formats: str = 'both',
  about: Mapping[str, Any] | None = None,
) -> list[pathlib.Path]:
  """Writes a model so that others can use it, and checks that they can.

  `saved_model/` has one serving signature: inputs as the model takes them, with
  a free batch size, to class probabilities. `model.keras` is the Keras model as
  it is (built-in models give logits).

  Args:
    model: a plain Keras model.
    folder: where to write; what was there is replaced only by what was checked.
    input_spec: `flat_model.FlatModel.input_spec`.
    from_logits: whether the model's outputs are logits.
    formats: 'both', 'savedmodel', 'keras' or 'none'.
    about: what to say of the model in `export.json`, such as the names of its
      classes; JSON values.

  Returns:
    The paths written, without `export.json`.

  Raises:
    ExportError: if it could not be written, or a fresh process could not load
      it or predicted otherwise.
  """
  parts = _PARTS[validation.choice('export', formats, choices.EXPORTS)]
  if not parts:
    return []
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder, prefix='.new-') as scratch:
    new = pathlib.Path(scratch)
    try:
      if SAVED_MODEL in parts:
        _write_saved_model(model, new / SAVED_MODEL, input_spec, from_logits)
      if KERAS_FILE in parts:
        model.save(new / KERAS_FILE)
    except Exception as error:  # whatever a user's layers may do
      raise ExportError(f'the model could not be written: {error}') from error
    _check(model, new, parts, input_spec, from_logits)
    (folder / ABOUT).unlink(missing_ok=True)  # until all of it is new
    for name in parts:
      _move(new / name, folder / name)
  atomic_io.write_json(folder / ABOUT, {**(about or {}), 'files': parts})
  return [folder / name for name in parts]


def is_current(
  folder: str | pathlib.Path, formats: str, about: Mapping[str, Any]
) -> bool:
  """Whether `export` has already written all this."""
  folder = pathlib.Path(folder)
  try:
    described = json.loads((folder / ABOUT).read_text())
  except (OSError, ValueError):
    return False
  written = described.pop('files', [])
  return described == about and all(
    name in written and (folder / name).exists() for name in _PARTS[formats]
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
  parts: list[str],
  input_spec: Any,
  from_logits: bool,
) -> None:
  """Loads what was written in another process and compares predictions."""
  half = '16' in str(model.dtype_policy.compute_dtype)
  request: dict[str, Any] = {
    'names': parts,
    'tolerance': 1e-2 if half else 1e-5,
    'batches': [],
  }
  arrays = {}
  for b, size in enumerate((1, 7)):
    inputs = flat_model.map_spec(
      functools.partial(_random_inputs, batch=size), input_spec
    )
    outputs = tf.cast(model(inputs, training=False), tf.float32)
    leaves = keras.tree.flatten(inputs)
    for i, leaf in enumerate(leaves):
      arrays[f'{b}/input/{i}'] = leaf
    arrays[f'{b}/outputs'] = outputs.numpy()
    probabilities = losses.probabilities(outputs, from_logits)
    arrays[f'{b}/probabilities'] = probabilities.numpy()
    structure = list(inputs) if isinstance(inputs, dict) else len(leaves)
    request['batches'].append(structure)
  np.savez(folder / 'check.npz', **arrays)
  (folder / 'check.json').write_text(json.dumps(request))
  script = pathlib.Path(__file__).with_name('check_export.py')
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
  try:
    done = subprocess.run(
      [sys.executable, '-P', str(script), str(folder)],
      capture_output=True,
      text=True,
      env=environment,
      check=False,
      timeout=_MOST_SECONDS,
    )
  except subprocess.TimeoutExpired as error:
    raise ExportError(
      f'the exported model was not verified: no answer in {_MOST_SECONDS} s'
    ) from error
  if done.returncode != 0:
    lines = (done.stderr.strip() or f'exit {done.returncode}').splitlines()
    raise ExportError(f'the exported model was not verified: {lines[-1]}')


def _random_inputs(spec: dict[str, Any], batch: int) -> np.ndarray:
  rng = np.random.Generator(np.random.Philox(key=batch))
  shape = (batch, *spec['shape'])
  dtype = np.dtype(spec['dtype'])
  if dtype == np.uint8:
    return rng.integers(0, 256, shape, dtype)
  if dtype.kind in 'iu':
    return rng.integers(0, 2, shape, dtype)
  return rng.standard_normal(shape).astype(dtype)


def _move(source: pathlib.Path, target: pathlib.Path) -> None:
  """Puts a file or folder in place of another."""
  if target.is_dir():
    old = target.with_name(f'.old-{target.name}')
    shutil.rmtree(old, ignore_errors=True)
    os.replace(target, old)
    os.replace(source, target)
    shutil.rmtree(old)
  else:
    os.replace(source, target)
