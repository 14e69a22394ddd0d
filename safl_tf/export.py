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
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf import checks, flat_model, losses, names

SAVED_MODEL = 'saved_model'
KERAS_FILE = 'model.keras'


class ExportError(RuntimeError):
  """What was written can't be loaded, or predicts something else."""


def export(
  model: keras.Model,
  folder: str | pathlib.Path,
  input_spec: Any,
  from_logits: bool,
  formats: str = 'both',
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

  Returns:
    The paths written.

  Raises:
    ExportError: if a fresh process could not load it or predicted otherwise.
  """
  checks.choice('export', formats, names.EXPORTS)
  if formats == 'none':
    return []
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  parts = {'savedmodel': [SAVED_MODEL], 'keras': [KERAS_FILE]}.get(
    formats, [SAVED_MODEL, KERAS_FILE]
  )
  with tempfile.TemporaryDirectory(dir=folder, prefix='.new-') as scratch:
    new = pathlib.Path(scratch)
    if SAVED_MODEL in parts:
      _write_saved_model(model, new / SAVED_MODEL, input_spec, from_logits)
    if KERAS_FILE in parts:
      model.save(new / KERAS_FILE)
    _check(model, new, parts, input_spec, from_logits)
    for name in parts:
      _move(new / name, folder / name)
  return [folder / name for name in parts]


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
  done = subprocess.run(
    [sys.executable, '-P', str(script), str(folder)],
    capture_output=True,
    text=True,
    env=environment,
    check=False,
  )
  if done.returncode != 0:
    lines = (done.stderr.strip() or 'no message').splitlines()
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
