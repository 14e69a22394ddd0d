"""Loads an export in a process without safl_tf and compares predictions.

Run as a script by `safl_tf.training.export`; must not import the package.
"""

import json
import pathlib
import sys

# [names, [[inputs, outputs, probabilities], ...], tolerance], with the keys of
# arrays in place of arrays
REQUEST = 'check.json'
ARRAYS = 'check.npz'


def main(folder: pathlib.Path) -> None:
  """Exits with a message if a model cannot be loaded or differs."""
  import keras
  import numpy as np
  import tensorflow as tf

  names, keys, tolerance = json.loads((folder / REQUEST).read_text())
  with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
    batches = keras.tree.map_structure(arrays.__getitem__, keys)
  for name in names:
    is_keras = name.endswith('.keras')
    if is_keras:
      model = keras.models.load_model(folder / name)
    else:
      loaded = tf.saved_model.load(str(folder / name))
      model = loaded.signatures['serving_default']
    for inputs, outputs, probabilities in batches:
      if is_keras:
        predicted = np.asarray(model(inputs, training=False), np.float32)
        difference = predicted - outputs
      else:
        arguments = sorted(model.structured_input_signature[1])
        tensors = map(tf.constant, keras.tree.flatten(inputs))
        results = model(**dict(zip(arguments, tensors, strict=True)))
        difference = next(iter(results.values())).numpy() - probabilities
      largest = np.max(np.abs(difference))
      if not largest <= tolerance:
        sys.exit(f'{name}: predictions differ by {largest:.3g}')
  if any(module.split('.')[0] == 'safl_tf' for module in sys.modules):
    sys.exit('safl_tf was imported')


if __name__ == '__main__':
  # Keras would import these slow packages for wrappers that are not used here.
  sys.modules.update({'sklearn': None, 'pandas': None})  # type: ignore[dict-item]
  main(pathlib.Path(sys.argv[1]))
