"""The data set's folder: its words, speakers and splits.

A clip is `<word>/<speaker>_nohash_<number>.wav`. The files
`validation_list.txt` and `testing_list.txt` name the clips of two splits; the
others are for training.
"""

import hashlib
import os
import posixpath
import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from absl import logging

from safl_tf.data.speech_commands import features
from safl_tf.util import errors

# fmt: off
WORDS = (
  'bed', 'bird', 'cat', 'dog', 'down', 'eight', 'five', 'four', 'go', 'happy',
  'house', 'left', 'marvin', 'nine', 'no', 'off', 'on', 'one', 'right', 'seven',
  'sheila', 'six', 'stop', 'three', 'tree', 'two', 'up', 'wow', 'yes', 'zero',
)
COMMANDS = (
  'down', 'go', 'left', 'no', 'off', 'on', 'right', 'stop', 'up', 'yes',
)
# fmt: on
TRAIN, VALIDATION, TEST = SPLITS = ('train', 'validation', 'test')

_LISTS = {VALIDATION: 'validation_list.txt', TEST: 'testing_list.txt'}
_BUCKETS = 2**27  # of the hash that assigns a speaker to a split
_NAMED = 5  # clips that are skipped and named in the log


class Clip(NamedTuple):
  """A clip's file.

  Attributes:
    name: `<word>/<file>`, with a slash on any system.
    split: one of `SPLITS`.
    size: in bytes.
    mtime_ns: when it was last written.
  """

  name: str
  split: str
  size: int
  mtime_ns: int


def find(speech_dir: str) -> list[Clip]:
  """The clips of the 30 words in a folder, in the order of their names.

  Without both lists, each clip's split is that of its speaker: `hashed_split`.
  That is how the lists were made.

  Args:
    speech_dir: the folder, as unpacked from the archive.

  Returns:
    At least one clip.

  Raises:
    InputError: there is no such folder, or there are no clips in it.
  """
  if not os.path.isdir(speech_dir):
    raise errors.InputError(
      'speech_dir', speech_dir, 'must be an existing folder'
    )
  try:
    found = [
      (f'{word}/{entry.name}', entry.stat())
      for word in WORDS
      if os.path.isdir(os.path.join(speech_dir, word))
      for entry in os.scandir(os.path.join(speech_dir, word))
      if _is_clip(entry)
    ]
    listed = _read_lists(speech_dir)
  except OSError as error:
    raise errors.InputError(
      'speech_dir', speech_dir, f'cannot be read: {error}'
    ) from error
  if not found:
    raise errors.InputError(
      'speech_dir',
      speech_dir,
      'must hold a folder of .wav files for each word, such as '
      'yes/0a7c2a8d_nohash_0.wav',
    )
  return sorted(
    Clip(
      name,
      hashed_split(name) if listed is None else listed.get(name, TRAIN),
      stat.st_size,
      stat.st_mtime_ns,
    )
    for name, stat in found
  )


def read(speech_dir: str, name: str) -> np.ndarray:
  """A clip's samples, int16 [n].

  Raises:
    ClipError: it cannot be read.
  """
  try:
    with open(os.path.join(speech_dir, name), 'rb') as file:
      return features.decode(file.read())
  except OSError as error:
    raise features.ClipError(error.strerror) from error


def word(name: str) -> str:
  """What is said in a clip."""
  return posixpath.dirname(name)


def speaker(name: str) -> str:
  """Who says it: the file's name before `_nohash_`."""
  return re.sub(r'(_nohash_.*)?\.wav$', '', posixpath.basename(name))


def hashed_split(name: str) -> str:
  """The split that the data set's authors give to all of a speaker's clips.

  With h the SHA-1 of the file's name before `_nohash_`, as a number, and
  p = 100 (h mod 2^27) / (2^27 - 1): p < 10 is for validation, 10 <= p < 20 for
  testing and the rest for training.
  """
  who = re.sub(r'_nohash_.*$', '', posixpath.basename(name))
  number = int(hashlib.sha1(os.fsencode(who)).hexdigest(), 16) % _BUCKETS
  percent = number * (100.0 / (_BUCKETS - 1))
  if percent < 10:
    return VALIDATION
  return TEST if percent < 20 else TRAIN


def tell_skipped(skipped: Collection[str], total: int) -> None:
  """Logs which clips could not be read: a line for each of the first few.

  Args:
    skipped: clips and what is wrong with them.
    total: the number of clips there were.
  """
  if skipped:
    logging.warning('skipped %d of %d clips:', len(skipped), total)
    for line in list(skipped)[:_NAMED]:
      logging.warning('  %s', line)
    if len(skipped) > _NAMED:
      logging.warning('  and %d more', len(skipped) - _NAMED)


def _is_clip(entry: os.DirEntry[str]) -> bool:
  hidden = entry.name.startswith('.')
  return entry.name.endswith('.wav') and not hidden and entry.is_file()


def _read_lists(speech_dir: str) -> dict[str, str] | None:
  """Clip -> split, for validation and testing; None without both lists."""
  splits: dict[str, str] = {}
  for split, file in _LISTS.items():
    try:
      with open(
        os.path.join(speech_dir, file), encoding='utf-8', errors='replace'
      ) as lines:
        splits |= {line.strip(): split for line in lines}
    except FileNotFoundError:
      logging.info(
        "%s has no %s: the clips' splits follow from their speakers",
        speech_dir,
        file,
      )
      return None
  return splits
