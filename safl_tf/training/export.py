"""Exports the global model as a SavedModel, a .keras file or a LiteRT file.

An export is loaded and must reproduce the predictions before it replaces an
earlier one.
"""

import contextlib
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from safl_tf.core import initial_draw
from safl_tf.training import export_check, export_files, export_formats
from safl_tf.training.export_formats import ExportError
from safl_tf.util import choices, errors, hardware, output_folder, validation

_TIMEOUT_SECONDS = 600
_BATCH_SIZES = (1, 7)
# Largest differences, as shares of the largest output above 1.
_TOLERANCE, _HALF_TOLERANCE = 1e-5, 1e-2


def export(
  model: keras.Model,
  folder: str | pathlib.Path,
  input_spec: Any,
  activation: str | None,
  formats: str = 'both',
  metadata: Mapping[str, Any] | None = None,
  argument: str = 'folder',
  replace_current: bool = True,
  new_process: bool = False,
) -> list[pathlib.Path]:
  """Writes and verifies an export of a model.

  The serving signature of `saved_model/1/` and `model.tflite` map the model's
  inputs, of any batch size, to `probabilities`, or to `outputs` if there is
  neither an activation nor a name of a class. `model.keras` is the unchanged
  Keras model; the built-in models output logits. `export.json` says under
  `outputs` which is which.

  Args:
    model: a plain Keras model.
    folder: the directory: new, empty or of earlier exports. Only a verified
      export replaces an earlier one, and no other files are replaced.
    input_spec: `flat_model.FlatModel.input_spec`.
    activation: the function that is applied to the model's outputs when it is
      served: 'softmax', 'sigmoid' or None.
    formats: 'both' (savedmodel and keras), 'savedmodel', 'keras', 'tflite',
      'all' or 'none'.
    metadata: JSON values for `export.json`. Names under `class_names` are also
      in the SavedModel: its signature `classes` maps class numbers to names.
    argument: the argument or flag that gave the folder, for errors.
    replace_current: whether to replace an export with the same metadata too.
    new_process: whether to load the export in a process of its own, which does
      not import this package: slower, and shows that nothing else is needed.

  Returns:
    The paths of the export, without `export.json`.

  Raises:
    ExportError: the model could not be written, or the export could not be
      loaded or predicted something else.
    errors.RunError: files that are not of an earlier export are in the way.
  """
  validation.choice('export', formats, choices.EXPORTS)
  names = export_formats.FILES[formats]
  if not names:
    return []
  folder = pathlib.Path(folder)
  metadata = {} if metadata is None else metadata
  class_names = metadata.get('class_names')
  serving = export_formats.Serving(model, input_spec, activation, class_names)
  outputs = {name: serving.outputs[name] for name in names}
  check = _check_in_new_process if new_process else _check
  with output_folder.opened(folder, 'export', argument):
    export_files.recover(folder)
    current = export_files.is_current(folder, outputs, metadata)
    if replace_current or not current:
      export_files.check_own(folder, names)
      new = pathlib.Path(tempfile.mkdtemp(dir=folder, prefix=export_files.NEW))
      try:
        with _undisturbed(names):
          export_formats.write(serving, new, names)
          check(new, *_request(serving, names))
        export_files.write(new, folder, outputs, metadata)
      except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
      export_files.install(new, folder)
  return [folder / name for name in names]


@contextlib.contextmanager
def _undisturbed(names: list[str]) -> Iterator[None]:
  """Restores the random states that new layers use; hides LiteRT's messages."""
  with contextlib.ExitStack() as stack:
    stack.enter_context(initial_draw.seeded(0))
    if export_files.TFLITE_FILE in names:
      stack.enter_context(hardware.quiet())
    yield


def _request(
  serving: export_formats.Serving, names: list[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Returns what `export_check.check` compares an export with."""
  request = {
    'files': names,
    'tolerance': _HALF_TOLERANCE if serving.is_half else _TOLERANCE,
    'inputs': keras.tree.map_structure(lambda s: s.name, serving.signature),
    'output': serving.output,
    'version': export_files.VERSION,
    'class_names': serving.class_names and list(serving.class_names),
    'batches': len(_BATCH_SIZES),
  }
  batches = [_batch(serving, size) for size in _BATCH_SIZES]
  return request, batches


def _batch(serving: export_formats.Serving, size: int) -> dict[str, Any]:
  """Returns random inputs and what the model makes of them."""
  specs = keras.tree.flatten(serving.signature)
  inputs = [_random_inputs(spec, size) for spec in specs]
  structure = keras.tree.pack_sequence_as(
    serving.signature, [tf.constant(array) for array in inputs]
  )
  outputs, served = serving.call(structure)
  by_name = zip(specs, inputs, strict=True)
  return {
    'outputs': outputs.numpy(),
    'served': served.numpy(),
    **{f'inputs/{spec.name}': array for spec, array in by_name},
  }


def _random_inputs(spec: tf.TensorSpec, size: int) -> np.ndarray:
  rng = np.random.Generator(np.random.Philox(key=size))
  shape = (size, *spec.shape[1:])
  if spec.dtype == tf.string:
    return rng.integers(0, 1000, shape).astype(np.bytes_)
  dtype = np.dtype(spec.dtype.as_numpy_dtype)
  if dtype.kind in 'iu':
    return rng.integers(0, 256 if dtype == np.uint8 else 2, shape, dtype)
  return rng.standard_normal(shape).astype(dtype)


def _check(
  folder: pathlib.Path, request: dict[str, Any], batches: list[dict[str, Any]]
) -> None:
  """Loads an export in this process and compares predictions."""
  try:
    export_check.check(folder, request, batches)
  except Exception as error:  # user layers may raise anything
    raise ExportError(
      f'the exported model was not verified: {errors.reason(error)}'
    ) from error
  finally:
    gc.collect()  # loaded models are reference cycles


def _check_in_new_process(
  folder: pathlib.Path, request: dict[str, Any], batches: list[dict[str, Any]]
) -> None:
  """Loads an export in another process and compares predictions."""
  arrays = {
    f'{number}/{name}': array
    for number, batch in enumerate(batches)
    for name, array in batch.items()
  }
  (folder / export_check.REQUEST).write_text(json.dumps(request))
  np.savez(folder / export_check.ARRAYS, **arrays)
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
