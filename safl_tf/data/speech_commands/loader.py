"""Speech Commands v0.01 as arrays to train on."""

import hashlib
import os
from collections.abc import Collection
from typing import Any

import numpy as np

from safl_tf.data import dataset, tfds
from safl_tf.data.speech_commands import archive, cache, extract, features
from safl_tf.util import choices, errors, validation

NAME = 'speech_commands'


def load(
  speech_dir: str | None = None,
  data_dir: str | None = None,
  cache_dir: str | None = None,
  power: float = 2.0,
  words: str = 'all',
  include_validation: bool = False,
  progress: bool | None = None,
) -> dataset.Dataset:
  """Loads the clips' features, always in the same order, which is shuffled.

  An example is [59, 13, 1]: 59 frames of 13 mel-frequency cepstral
  coefficients; see `features`. With μ_k and σ_k the mean and the standard
  deviation of coefficient k over all frames of the training examples, what is
  returned is (c[t, k] - μ_k) / σ_k.

  Clips are for training, validation or testing as the data set's
  `validation_list.txt` and `testing_list.txt` say. In a folder without them
  the speaker decides, by the hash that the lists were made with: see
  `layout.hashed_split`.

  Features are computed once, on all cores, and kept in `cache_dir`: a file for
  each `power` and each state of the clips' files, of 200 MB for all clips.
  Clips shorter than a second are filled up with zeros, longer ones cut off.
  Clips that cannot be read (no 16-bit PCM, not mono, not 16 kHz, cut off or
  empty) are skipped; the log says how many and names the first.

  Args:
    speech_dir: the folder of the unpacked archive, to read the clips from. None
      means to read the TFDS data set `speech_commands_v001`.
    data_dir: an existing folder of prepared TFDS data sets; None means the
      environment's TFDS_DATA_DIR, or else ~/tensorflow_datasets. What is not
      there yet is downloaded into it.
    cache_dir: where to keep features; None means `safl_tf` in XDG_CACHE_HOME,
      or else in ~/.cache.
    power: 2 for features of the power spectrum, 1 for those of its root.
    words: 'all' 30, or 'commands' for the clips of ten of them: yes, no, up,
      down, left, right, on, off, stop and go.
    include_validation: whether to train on the validation split too.
    progress: whether to show a bar; None means on a terminal only.

  Returns:
    A `Dataset` with the training examples' speakers as `client`.

  Raises:
    InputError: a wrong argument, a folder that holds no such data set, or
      clips of which none can be read.
  """
  power = features.check_power(power)
  validation.choice('words', words, choices.SPEECH_WORDS)
  if cache_dir is None:
    cache_dir = cache.default_folder()
  cache_dir = os.path.expanduser(cache_dir)
  if speech_dir is not None:
    folder = os.path.expanduser(speech_dir)
    place = 'speech_dir', folder
    computed = _from_folder(folder, cache_dir, power, progress)
  else:
    folder = tfds.tfds_folder(data_dir)
    place = 'data_dir', folder
    computed = _from_tfds(folder, cache_dir, power, progress)
  total = len(computed.names) + len(computed.skipped)
  archive.tell_skipped(computed.skipped.tolist(), total)
  class_names = archive.COMMANDS if words == 'commands' else archive.WORDS
  train_splits = [archive.TRAIN]
  if include_validation:
    train_splits.append(archive.VALIDATION)
  return _dataset(computed, class_names, train_splits, place)


def _from_folder(
  speech_dir: str, cache_dir: str, power: float, progress: bool | None
) -> cache.Computed:
  """The features of an unpacked archive's clips."""
  clips = archive.find(speech_dir)
  return cache.fetch(
    cache_dir,
    [features.FRONT_END, power, clips],
    lambda: extract.of_folder(speech_dir, clips, power, progress),
  )


def _from_tfds(
  folder: str, cache_dir: str, power: float, progress: bool | None
) -> cache.Computed:
  """The features of the TFDS data set, prepared in `folder` if need be."""
  from safl_tf.data.speech_commands import builder as builder_module

  name = builder_module.SpeechCommandsV001.name
  try:
    builder = builder_module.SpeechCommandsV001(data_dir=folder)
    there = builder.data_path.exists()
  except Exception as error:
    path = os.path.join(folder, name)
    raise tfds.unreadable(NAME, path, error) from error
  if not there:
    _prepare(builder, folder)
  path = str(builder.data_path)
  try:
    files = sorted(
      (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
      for entry in os.scandir(path)
    )
    return cache.fetch(
      cache_dir,
      [features.FRONT_END, power, files],
      lambda: extract.of_tfds(builder, power, progress),
    )
  except Exception as error:
    raise tfds.unreadable(NAME, path, error) from error


def _prepare(builder: Any, folder: str) -> None:
  """Downloads and prepares, or tells what else there is to do."""
  try:
    tfds.download(builder, folder)
  except Exception as error:
    kind = type(builder)
    raise errors.InputError(
      'dataset',
      NAME,
      f'not prepared in {folder} and cannot be downloaded '
      f'({tfds.one_line(error)}); set --speech_dir to the folder of the '
      'unpacked archive, or where there is a network run python -c '
      f'"from {kind.__module__} import {kind.__name__}; '
      f'{kind.__name__}(data_dir={folder!r}).download_and_prepare()", or set '
      '--data_dir or TFDS_DATA_DIR to a folder that holds it',
    ) from error


def _dataset(
  computed: cache.Computed,
  class_names: tuple[str, ...],
  train_splits: Collection[str],
  place: tuple[str, str],
) -> dataset.Dataset:
  """The examples of some words, standardised.

  They are in the order of their names' SHA-1, which is the same wherever they
  come from and has all words in any part of it.

  Args:
    computed: all clips' features.
    class_names: the words.
    train_splits: the splits to train on.
    place: the argument that says where the clips are, and its value.
  """
  label = {word: i for i, word in enumerate(class_names)}
  train, test = [], []
  clips = computed.names.tolist()
  for i in sorted(range(len(clips)), key=lambda i: _shuffled(clips[i])):
    if archive.word(clips[i]) in label:
      if computed.splits[i] in train_splits:
        train.append(i)
      elif computed.splits[i] == archive.TEST:
        test.append(i)
  for rows, purpose in ((train, 'train on'), (test, 'test on')):
    if not rows:
      raise errors.InputError(
        *place,
        f'has no clips to {purpose}: {len(clips)} can be read and '
        f'{len(computed.skipped)} cannot',
      )
  x_train, x_test = computed.coefficients[train], computed.coefficients[test]
  moments = _standardise(x_train, x_test)
  y_train, y_test = (
    np.array([label[archive.word(clips[i])] for i in rows], np.int32)
    for rows in (train, test)
  )
  return dataset.Dataset(
    NAME,
    x_train[..., np.newaxis],
    y_train,
    x_test[..., np.newaxis],
    y_test,
    len(class_names),
    class_names,
    client=np.array([archive.speaker(clips[i]) for i in train]),
    standardised=moments,
  )


def _shuffled(name: str) -> bytes:
  return hashlib.sha1(os.fsencode(name)).digest()


def _standardise(train: np.ndarray, test: np.ndarray) -> dict[str, list[float]]:
  """Changes [n, 59, 13] so that train's 13 means are 0 and deviations 1.

  Returns:
    The `mean` and `deviation` there were.
  """
  mean = train.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
  train -= mean
  test -= mean
  squares = np.einsum('ntk,ntk->k', train, train, dtype=np.float64)
  deviation = np.sqrt(squares / (train.size // train.shape[-1]))
  deviation[deviation == 0] = 1  # a coefficient that is always the same
  train /= deviation
  test /= deviation
  return {'mean': mean.tolist(), 'deviation': deviation.tolist()}
