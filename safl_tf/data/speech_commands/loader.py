"""Loads Speech Commands v0.01 as arrays."""

import hashlib
import os
from collections.abc import Collection

import numpy as np

from safl_tf.data import dataset, tfds
from safl_tf.data.speech_commands import archive, extract, features
from safl_tf.util import choices, errors, validation

NAME = 'speech_commands'


def load(
  speech_dir: str | None = None,
  data_dir: str | None = None,
  cache_dir: str | None = None,
  power: float = 2.0,
  words: str = 'all',
  include_validation: bool = False,
) -> dataset.Dataset:
  """Loads the standardised features of the clips, always in the same order.

  An example is [59, 13, 1]: 59 frames of 13 mel-frequency cepstral
  coefficients c[t, k], see `features`. With μ_k and σ_k the mean and standard
  deviation of coefficient k over all frames of the training examples, the
  inputs are (c[t, k] - μ_k) / σ_k.

  The splits are those of `validation_list.txt` and `testing_list.txt`, or of
  `archive.hashed_split` in a folder without them.

  Features are computed once, on all cores, and cached: one file for each
  `power` and each state of the clips, 200 MB for all clips. Short clips are
  padded with zeros, long ones truncated, unreadable ones skipped and logged.

  Args:
    speech_dir: the folder of the extracted archive; None means the TFDS data
      set `speech_commands_v001`.
    data_dir: see `tfds.data_folder`. The data set is downloaded if missing.
    cache_dir: the folder for features; None means `safl_tf` in XDG_CACHE_HOME,
      or else in ~/.cache.
    power: 2 for features of the power spectrum, 1 for those of its root.
    words: 'all' 30, or ten 'commands': yes, no, up, down, left, right, on, off,
      stop and go.
    include_validation: whether to train on the validation split as well.

  Returns:
    A `Dataset` whose client ids are the speakers.
  """
  power = features.check_power(power)
  validation.choice('words', words, choices.SPEECH_WORDS)
  if cache_dir is None:
    home = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
    cache_dir = os.path.join(home, 'safl_tf')
  cache_dir = os.path.expanduser(cache_dir)
  if speech_dir is not None:
    folder = os.path.expanduser(speech_dir)
    source = 'speech_dir', folder
    clips = archive.find(folder)
    computed = extract.cached(
      cache_dir,
      [features.FRONT_END, power, clips],
      lambda: extract.from_folder(folder, clips, power),
    )
  else:
    folder = tfds.data_folder(data_dir)
    source = 'data_dir', folder
    computed = _from_tfds(folder, cache_dir, power)
  total = len(computed.names) + len(computed.skipped)
  archive.log_skipped(computed.skipped.tolist(), total)
  class_names = archive.COMMANDS if words == 'commands' else archive.WORDS
  train_splits = [archive.TRAIN]
  if include_validation:
    train_splits.append(archive.VALIDATION)
  return _dataset(computed, class_names, train_splits, source)


def _from_tfds(
  folder: str, cache_dir: str, power: float
) -> extract.ClipFeatures:
  """Returns the features of the TFDS data set; prepares it if missing."""
  from safl_tf.data.speech_commands import builder as builder_lib

  kind = builder_lib.SpeechCommandsV001
  try:
    builder = kind(data_dir=folder)
  except Exception as error:
    path = os.path.join(folder, kind.name)
    raise tfds.unreadable(NAME, path, error) from error
  remedy = (
    'set --speech_dir to the folder of the extracted archive, or run python -c '
    f'"from {kind.__module__} import {kind.__name__}; '
    f'{kind.__name__}(data_dir={folder!r}).download_and_prepare()" on a '
    'machine with a network'
  )
  tfds.prepare(NAME, builder, folder, remedy)
  path = str(builder.data_path)
  try:
    states = ((entry.name, entry.stat()) for entry in os.scandir(path))
    files = sorted(
      (file, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
      for file, stat in states
    )
    return extract.cached(
      cache_dir,
      [features.FRONT_END, power, files],
      lambda: extract.from_tfds(builder, power),
    )
  except Exception as error:
    raise tfds.unreadable(NAME, path, error) from error


def _dataset(
  computed: extract.ClipFeatures,
  class_names: tuple[str, ...],
  train_splits: Collection[str],
  source: tuple[str, str],
) -> dataset.Dataset:
  """Selects the clips of some words and standardises their features.

  Clips are sorted by the SHA-1 of their names, which does not depend on their
  source and mixes the words. `source` is the argument that locates the clips,
  and its value.
  """
  label = {word: i for i, word in enumerate(class_names)}
  names, splits = computed.names.tolist(), computed.splits.tolist()
  digest = lambda i: hashlib.sha1(os.fsencode(names[i])).digest()
  rows = [
    i
    for i in sorted(range(len(names)), key=digest)
    if archive.word(names[i]) in label
  ]
  train = [i for i in rows if splits[i] in train_splits]
  test = [i for i in rows if splits[i] == archive.TEST]
  for part, purpose in ((train, 'train'), (test, 'test')):
    if not part:
      raise errors.InputError(
        *source,
        f'has no clips to {purpose} on: {len(names)} clips are readable and '
        f'{len(computed.skipped)} are not',
      )
  x_train, x_test = computed.coefficients[train], computed.coefficients[test]
  standardised = _standardise(x_train, x_test)
  y_train, y_test = (
    np.array([label[archive.word(names[i])] for i in part], np.int32)
    for part in (train, test)
  )
  return dataset.Dataset(
    NAME,
    x_train[..., np.newaxis],
    y_train,
    x_test[..., np.newaxis],
    y_test,
    len(class_names),
    class_names,
    client_ids=np.array([archive.speaker(names[i]) for i in train]),
    standardised=standardised,
  )


def _standardise(train: np.ndarray, test: np.ndarray) -> dict[str, list[float]]:
  """Standardises [n, 59, 13] in place with the moments of `train`."""
  mean = train.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
  train -= mean
  test -= mean
  squares = np.einsum('ntk,ntk->k', train, train, dtype=np.float64)
  deviation = np.sqrt(squares / (train.size // train.shape[-1]))
  deviation[deviation == 0] = 1  # a constant coefficient
  train /= deviation
  test /= deviation
  return {'mean': mean.tolist(), 'deviation': deviation.tolist()}
