"""The features of clips, computed once and kept in a file."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from safl_tf.data.speech_commands import features
from safl_tf.util import atomic_io, errors


@dataclasses.dataclass(frozen=True, eq=False)
class Computed:
  """What came out of some clips.

  Attributes:
    coefficients: float32 [n, 59, 13], not standardised.
    names: the clips' names [n].
    splits: their splits [n].
    skipped: clips that could not be read, and what is wrong with them.
  """

  coefficients: np.ndarray
  names: np.ndarray
  splits: np.ndarray
  skipped: np.ndarray


def default_folder() -> str:
  """`safl_tf` in the user's cache: XDG_CACHE_HOME, or else ~/.cache."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(home, 'safl_tf')


def fetch(folder: str, key: Any, compute: Callable[[], Computed]) -> Computed:
  """What is in the cache, or else what `compute` gives, which is kept there.

  A file that is broken is made anew. A cache that cannot be written to is no
  more than a line in the log.

  Args:
    folder: of the cache; it is made if it isn't there.
    key: all that the outcome depends on; anything that JSON can write.
    compute: makes the outcome.

  Returns:
    The outcome.
  """
  digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
  path = os.path.join(folder, f'speech_commands-{digest[:16]}.npz')
  if os.path.exists(path):
    try:
      return _read(path)
    except Exception as error:
      logging.warning(
        '%s is broken and made anew: %s', path, errors.reason(error)
      )
  outcome = compute()
  try:
    os.makedirs(folder, exist_ok=True)
    with atomic_io.replacing(path) as file:
      np.savez(file, **vars(outcome))
  except OSError as error:
    logging.warning('the features are not kept: %s', error)
  return outcome


def _read(path: str) -> Computed:
  """The outcome in a file, with its checksums and shapes verified."""
  with np.load(path, allow_pickle=False) as stored:
    outcome = Computed(**stored)
  length = len(outcome.names)
  shape = (length, features.FRAMES, features.COEFFICIENTS)
  if outcome.coefficients.shape != shape or len(outcome.splits) != length:
    raise ValueError('its arrays do not fit together')
  return outcome
