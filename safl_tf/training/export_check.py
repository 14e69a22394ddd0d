"""Loads an export and compares its predictions with those of the model.

`safl_tf.training.export` calls `check` in its own process, or runs this file as
a script in another one. It must not import the package.
"""

import json
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

# A request as JSON, and the arrays of its batches
REQUEST = 'check.json'
ARRAYS = 'check.npz'

Batch = dict[str, Any]


class DifferenceError(Exception):
  """An export is not the model that was exported."""


def check(
  folder: pathlib.Path, request: dict[str, Any], batches: list[Batch]
) -> None:
  """Loads the files of an export and compares predictions.

  Args:
    folder: of the export.
    request: `files`: their names; `tolerance`: the largest difference, as a
      share of the largest output above 1; `inputs`: the structure of the
      inputs, of names; `output`: the name of the served output; `version`: of
      the SavedModel; `class_names`: a list or None; `batches`: their number.
    batches: the arrays 'inputs/NAME', 'outputs' of the model, and 'served'.

  Raises:
    DifferenceError: predictions or class names differ.
  """
  import numpy as np

  for name in request['files']:
    predict = _load(folder / name, request)
    wanted = 'outputs' if name.endswith('.keras') else 'served'
    for batch in batches:
      predicted, expected = predict(batch), batch[wanted]
      if predicted.shape != expected.shape:
        raise DifferenceError(
          f'{name}: predictions have shape {list(predicted.shape)}, not '
          f'{list(expected.shape)}'
        )
      largest = np.max(np.abs(predicted - expected))
      scale = max(1.0, np.max(np.abs(expected)))
      if not largest <= request['tolerance'] * scale:
        raise DifferenceError(f'{name}: predictions differ by {largest:.3g}')


def _load(
  path: pathlib.Path, request: dict[str, Any]
) -> Callable[[Batch], Any]:
  """Loads a file of an export; returns its predictions for a batch."""
  import keras
  import numpy as np
  import tensorflow as tf

  structure, output = request['inputs'], request['output']
  if path.suffix == '.keras':
    model = keras.models.load_model(path)

    def predict(batch: Batch) -> Any:
      inputs = keras.tree.map_structure(
        lambda name: tf.constant(batch[f'inputs/{name}']), structure
      )
      return np.asarray(model(inputs, training=False), np.float32)

    return predict
  convert = tf.constant
  if path.suffix == '.tflite':
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # a successor is announced
      interpreter = tf.lite.Interpreter(str(path))
    serve = interpreter.get_signature_runner('serving_default')
    convert = np.asarray
  else:
    loaded = tf.saved_model.load(str(path / request['version']))
    _check_classes(path.name, loaded.signatures, request['class_names'])
    serve = loaded.signatures['serving_default']
  names = keras.tree.flatten(structure)
  return lambda batch: np.asarray(
    serve(**{name: convert(batch[f'inputs/{name}']) for name in names})[output]
  )


def _check_classes(name: str, signatures: Any, class_names: Any) -> None:
  """Compares the class names in a SavedModel."""
  import tensorflow as tf

  if class_names:
    indices = tf.range(len(class_names))
    found = signatures['classes'](indices=indices)['class_names'].numpy()
    if [value.decode() for value in found] != class_names:
      raise DifferenceError(f'{name}: class names differ')


def main(folder: pathlib.Path) -> None:
  """Exits with a message if a model cannot be loaded or differs."""
  import numpy as np

  request = json.loads((folder / REQUEST).read_text())
  batches: list[Batch] = [{} for _ in range(request['batches'])]
  with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
    for key, array in arrays.items():
      number, _, name = key.partition('/')
      batches[int(number)][name] = array
  try:
    check(folder, request, batches)
  except DifferenceError as error:
    sys.exit(str(error))
  if any(module.split('.')[0] == 'safl_tf' for module in sys.modules):
    sys.exit('safl_tf was imported')


if __name__ == '__main__':
  # Keras would import these slow packages for wrappers that are not used here.
  sys.modules.update({'sklearn': None, 'pandas': None})  # type: ignore[dict-item]
  main(pathlib.Path(sys.argv[1]))
