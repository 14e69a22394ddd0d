"""Which TFDS data sets one can train on: images of one size, with one label."""

import difflib
from typing import Any

import numpy as np

from safl_tf.util import errors


def check(name: str, info: Any) -> None:
  """Refuses a data set that does not fit, before it is downloaded.

  Args:
    name: what it was asked for by.
    info: a `tfds.core.DatasetInfo`.
  """
  told = _misfit(info)
  if told is not None:
    raise errors.InputError('dataset', name, told)


def _misfit(info: Any) -> str | None:
  import tensorflow_datasets as tfds

  keys = info.supervised_keys
  is_pair = isinstance(keys, tuple) and len(keys) == 2
  if not is_pair or not all(isinstance(key, str) for key in keys):
    return 'TFDS names no pair of an input and a label in it'
  image, label = (info.features[key] for key in keys)
  if not isinstance(image, tfds.features.Image):
    return f'its input {keys[0]} is not an image'
  if not isinstance(label, tfds.features.ClassLabel) or not label.num_classes:
    return f'its label {keys[1]} is not a class'
  if None in image.shape:
    return 'its images are not all of one size'
  if image.np_dtype != np.uint8:
    return f'its images are {np.dtype(image.np_dtype).name}, not uint8'
  return None


def unknown(name: str, folder: str) -> errors.InputError:
  """What to raise for a name that TFDS does not know."""
  import tensorflow_datasets as tfds

  known = tfds.list_builders(with_community_datasets=False)
  near = difflib.get_close_matches(name, known)
  hint = f'; did you mean tfds:{" or tfds:".join(near)}?' if near else ''
  return errors.InputError(
    'dataset',
    f'tfds:{name}',
    f'is neither known to TFDS nor prepared in {folder}{hint}',
  )
