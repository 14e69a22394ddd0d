"""Loads an export in a process without safl_tf and compares predictions.

Run as a script by `safl_tf.training.export`; it must not import the package.
"""

import json
import pathlib
import sys
from typing import Any


def main(folder: pathlib.Path) -> None:
  """Exits with a message if anything can't be loaded or differs."""
  # Keras would import them, slowly, for wrappers that are not needed here.
  sys.modules.update({'sklearn': None, 'pandas': None})  # type: ignore[dict-item]
  import keras
  import numpy as np
  import tensorflow as tf

  request = json.loads((folder / 'check.json').read_text())
  arrays = np.load(folder / 'check.npz')
  for name in request['names']:
    if name.endswith('.keras'):
      model = keras.models.load_model(folder / name)
      wanted = 'outputs'
    else:
      model = tf.saved_model.load(str(folder / name)).signatures[
        'serving_default'
      ]
      wanted = 'probabilities'
    for b, structure in enumerate(request['batches']):
      count = structure if isinstance(structure, int) else len(structure)
      given: Any
      inputs = [arrays[f'{b}/input/{i}'] for i in range(count)]
      if name.endswith('.keras'):
        given = inputs[0] if count == 1 else inputs
        if not isinstance(structure, int):
          given = dict(zip(sorted(structure), inputs, strict=True))
        outputs = np.asarray(model(given, training=False), np.float32)
      else:
        keys = sorted(model.structured_input_signature[1])
        tensors = map(tf.constant, inputs)
        answer = model(**dict(zip(keys, tensors, strict=True)))
        outputs = next(iter(answer.values())).numpy()
      gap = np.max(np.abs(outputs - arrays[f'{b}/{wanted}']))
      if not gap <= request['tolerance']:
        sys.exit(f'{name}: predictions differ by {gap:.3g}')
  if any(module.split('.')[0] == 'safl_tf' for module in sys.modules):
    sys.exit('safl_tf was imported')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
