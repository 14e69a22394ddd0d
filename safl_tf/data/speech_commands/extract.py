"""Computes the features of many clips on all cores, and caches them."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from safl_tf.data.speech_commands import archive, features
from safl_tf.util import atomic_io, console, errors

_BATCH = 128  # clips per call of the feature function


@dataclasses.dataclass(frozen=True, eq=False)
class ClipFeatures:
  """The features of clips.

  Attributes:
    coefficients: float32 [n, 59, 13], not standardised.
    names: the names of the clips [n].
    splits: their splits [n].
    skipped: names of unreadable clips with the reasons.
  """

  coefficients: np.ndarray
  names: np.ndarray
  splits: np.ndarray
  skipped: np.ndarray


def cached(
  folder: str, key: Any, compute: Callable[[], ClipFeatures]
) -> ClipFeatures:
  """Returns features from the cache, or computes and caches them.

  A damaged file is replaced. A cache that cannot be written is only logged.

  Args:
    folder: the cache; created if missing.
    key: a JSON value of all that the features depend on.
    compute: computes the features.
  """
  digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
  path = os.path.join(folder, f'speech_commands-{digest[:16]}.npz')
  if os.path.exists(path):
    try:
      return _read(path)
    except Exception as error:
      logging.warning(
        '%s is damaged and computed again: %s', path, errors.reason(error)
      )
  computed = compute()
  try:
    os.makedirs(folder, exist_ok=True)
    with atomic_io.replacing(path) as file:
      np.savez(file, **vars(computed))
  except OSError as error:
    logging.warning('cannot cache the features: %s', error)
  return computed


def from_folder(
  speech_dir: str, clips: list[archive.Clip], power: float
) -> ClipFeatures:
  """Computes the features of clips in a folder, one batch per thread."""
  coefficients = np.empty(
    (len(clips), features.FRAMES, features.COEFFICIENTS), np.float32
  )
  function = features.compiled(power)
  failures: dict[int, str] = {}

  def compute_batch(start: int) -> int:
    """Fills in the coefficients of a batch; returns its size."""
    batch = clips[start : start + _BATCH]
    samples = np.zeros((len(batch), features.SAMPLES), np.int16)
    for i, clip in enumerate(batch):
      try:
        samples[i] = features.fit(archive.read(speech_dir, clip.name))
      except features.ClipError as error:
        failures[start + i] = f'{clip.name}: {error}'
    coefficients[start : start + len(batch)] = function(samples)
    return len(batch)

  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  try:
    with _progress_bar(len(clips)) as bar:
      for size in pool.map(compute_batch, range(0, len(clips), _BATCH)):
        bar.update(size)
  finally:
    pool.shutdown(cancel_futures=True)
  kept = [i for i in range(len(clips)) if i not in failures]
  return ClipFeatures(
    coefficients[kept],
    np.array([clips[i].name for i in kept], np.str_),
    np.array([clips[i].split for i in kept], np.str_),
    np.array([failures[i] for i in sorted(failures)], np.str_),
  )


def from_tfds(builder: Any, power: float) -> ClipFeatures:
  """Computes the features of a prepared `SpeechCommandsV001`."""
  import tensorflow as tf

  function = features.compiled(power)
  parts, names, splits = [], [], []
  with _progress_bar(builder.info.splits.total_num_examples) as bar:
    for split in archive.SPLITS:
      batches = (
        builder.as_dataset(split=split, shuffle_files=False)
        .map(lambda clip: (clip['audio'][: features.SAMPLES], clip['file']))
        .padded_batch(_BATCH, ([features.SAMPLES], []))
        .map(
          lambda audio, file: (function(audio), file),
          num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
      )
      for coefficients, files in batches.as_numpy_iterator():
        parts.append(coefficients)
        names += [file.decode() for file in files]
        splits += [split] * len(files)
        bar.update(len(files))
  return ClipFeatures(
    np.concatenate(parts),
    np.array(names, np.str_),
    np.array(splits, np.str_),
    np.array([], np.str_),
  )


def _read(path: str) -> ClipFeatures:
  """Reads a cached file; NumPy verifies its checksums."""
  with np.load(path, allow_pickle=False) as stored:
    outcome = ClipFeatures(**stored)
  length = len(outcome.names)
  shape = (length, features.FRAMES, features.COEFFICIENTS)
  if outcome.coefficients.shape != shape or len(outcome.splits) != length:
    raise ValueError('its arrays do not fit together')
  return outcome


def _progress_bar(clips: int) -> Any:
  return console.progress_bar(total=clips, desc='speech features', unit='clip')
