"""Computes the features of many clips, on all cores."""

import concurrent.futures
import os
from typing import Any

import numpy as np
import tqdm

from safl_tf.data.speech_commands import archive, cache, features

_BATCH = 128  # clips whose features are computed together


def of_folder(
  speech_dir: str,
  clips: list[archive.Clip],
  power: float,
  progress: bool | None,
) -> cache.Computed:
  """Reads clips and computes their features, a batch in each thread.

  Args:
    speech_dir: the folder that the clips are in.
    clips: as `layout.find` gives them.
    power: of the spectrum; see `features`.
    progress: whether to show a bar; None means on a terminal only.

  Returns:
    What comes out of the clips that can be read.
  """
  coefficients = np.empty(
    (len(clips), features.FRAMES, features.COEFFICIENTS), np.float32
  )
  function = features.compiled(power)
  wrong: dict[int, str] = {}

  def put(start: int) -> int:
    """Puts a batch's features in their place; returns its size."""
    batch = clips[start : start + _BATCH]
    samples = np.zeros((len(batch), features.SAMPLES), np.int16)
    for i, clip in enumerate(batch):
      try:
        samples[i] = features.fit(archive.read(speech_dir, clip.name))
      except features.ClipError as error:
        wrong[start + i] = f'{clip.name}: {error}'
    coefficients[start : start + len(batch)] = function(samples)
    return len(batch)

  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  try:
    with _bar(len(clips), progress) as bar:
      for size in pool.map(put, range(0, len(clips), _BATCH)):
        bar.update(size)
  finally:
    pool.shutdown(cancel_futures=True)
  good = [i for i in range(len(clips)) if i not in wrong]
  return cache.Computed(
    coefficients[good],
    np.array([clips[i].name for i in good], np.str_),
    np.array([clips[i].split for i in good], np.str_),
    np.array([wrong[i] for i in sorted(wrong)], np.str_),
  )


def of_tfds(
  builder: Any, power: float, progress: bool | None
) -> cache.Computed:
  """Reads the prepared TFDS data set and computes its features.

  Args:
    builder: a `SpeechCommandsV001` that was prepared.
    power: of the spectrum; see `features`.
    progress: whether to show a bar; None means on a terminal only.

  Returns:
    What comes out, in the order of the files.
  """
  import tensorflow as tf

  function = features.compiled(power)
  parts, names, splits = [], [], []
  with _bar(builder.info.splits.total_num_examples, progress) as bar:
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
  return cache.Computed(
    np.concatenate(parts),
    np.array(names, np.str_),
    np.array(splits, np.str_),
    np.array([], np.str_),
  )


def _bar(clips: int, progress: bool | None) -> tqdm.tqdm:
  return tqdm.tqdm(
    total=clips,
    desc='speech features',
    unit='clip',
    disable=None if progress is None else not progress,
  )
