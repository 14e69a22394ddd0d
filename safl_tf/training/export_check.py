"""Loads an export in a process without safl_tf and compares predictions.

Run as a script by `safl_tf.training.export`; must not import the package.
"""

import json
import pathlib
import sys
from typing import Any


def main(folder: pathlib.Path) -> None:
  """Exits with a message if a model cannot be loaded or differs."""
  import keras
  import numpy as np
  import tensorflow as tf

  request = json.loads((folder / 'check.json').read_text())
  arrays = np.load(folder / 'check.npz')
  for name in request['names']:
    is_keras = name.endswith('.keras')
    if is_keras:
      model = keras.models.load_model(folder / name)
    else:
      loaded = tf.saved_model.load(str(folder / name))
      model = loaded.signatures['serving_default']
    for b, structure in enumerate(request['batches']):
      is_dict = not isinstance(structure, int)
      count = len(structure) if is_dict else structure
      inputs: Any = [arrays[f'{b}/input/{i}'] for i in range(count)]
      if is_keras:
        if is_dict:
          inputs = dict(zip(sorted(structure), inputs, strict=True))
        elif count == 1:
          inputs = inputs[0]
        outputs = np.asarray(model(inputs, training=False), np.float32)
        expected = arrays[f'{b}/outputs']
      else:
        keys = sorted(model.structured_input_signature[1])
        tensors = map(tf.constant, inputs)
        results = model(**dict(zip(keys, tensors, strict=True)))
        outputs = next(iter(results.values())).numpy()
        expected = arrays[f'{b}/probabilities']
      difference = np.max(np.abs(outputs - expected))
      if not difference <= request['tolerance']:
        sys.exit(f'{name}: predictions differ by {difference:.3g}')
  if any(module.split('.')[0] == 'safl_tf' for module in sys.modules):
    sys.exit('safl_tf was imported')


if __name__ == '__main__':
  # Keras would import these slow packages for wrappers that are not used here.
  sys.modules.update({'sklearn': None, 'pandas': None})  # type: ignore[dict-item]
  main(pathlib.Path(sys.argv[1]))
