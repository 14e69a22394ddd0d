"""The extracted archive of Speech Commands: clips, speakers and splits.

A clip is `<word>/<speaker>_nohash_<number>.wav`. The files
`validation_list.txt` and `testing_list.txt` list the clips of two splits; all
others are for training.
"""

import hashlib
import os
import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from safl_tf.data.speech_commands import features
from safl_tf.util import bounded_io, errors

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
_MAX_LOGGED = 5  # skipped clips
_MAX_BYTES = 10**7  # of a clip, which has 32 kB in the archive


class Clip(NamedTuple):
  """The file of a clip: `<word>/<file>`, its split, and its state.

  The last number changes with the file, whatever is done to the others.
  """

  name: str
  split: str
  size: int
  mtime_ns: int
  ctime_ns: int


def find(speech_dir: str) -> list[Clip]:
  """Lists the clips of the 30 words in a folder, sorted by name.

  Without both lists in the folder, `hashed_split` assigns the splits, as it
  did when the lists were made. A folder without clips is an error.
  """
  if not os.path.isdir(speech_dir):
    raise errors.InputError(
      'speech_dir', speech_dir, 'must be an existing folder'
    )
  try:
    files = [
      (f'{word}/{entry.name}', _state(entry))
      for word in WORDS
      if os.path.lexists(os.path.join(speech_dir, word))
      for entry in os.scandir(os.path.join(speech_dir, word))
      if entry.name.endswith('.wav') and not entry.name.startswith('.')
    ]
    listed = _read_lists(speech_dir)
  except OSError as error:
    raise errors.InputError(
      'speech_dir', speech_dir, f'cannot be read: {error}'
    ) from error
  if not files:
    raise errors.InputError(
      'speech_dir',
      speech_dir,
      'must have a folder of .wav files for each word, such as '
      'yes/0a7c2a8d_nohash_0.wav',
    )
  clips = []
  for name, stat in files:
    split = hashed_split(name) if listed is None else listed.get(name, TRAIN)
    state = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    clips.append(Clip(name, split, *state))
  return sorted(clips)


def read(speech_dir: str, name: str) -> np.ndarray:
  """Returns the samples of a clip, int16 [n], or raises a `ClipError`."""
  try:
    with bounded_io.open_regular(os.path.join(speech_dir, name)) as file:
      size = os.fstat(file.fileno()).st_size
      if size > _MAX_BYTES:
        raise features.ClipError(f'{size} bytes, more than {_MAX_BYTES}')
      return features.decode(file.read())
  except OSError as error:
    raise features.ClipError(error.strerror) from error


def word(name: str) -> str:
  """Returns the word of a clip."""
  return posixpath.dirname(name)


def speaker(name: str) -> str:
  """Returns the speaker of a clip: its file name before `_nohash_`."""
  return re.sub(r'(_nohash_.*)?\.wav$', '', posixpath.basename(name))


def hashed_split(name: str) -> str:
  """Returns the split that the authors assign to all clips of a speaker.

  With h the SHA-1 of the file name before `_nohash_`, as a number, and
  p = 100 (h mod 2^27) / (2^27 - 1): validation if p < 10, test if
  10 <= p < 20, and train otherwise.
  """
  key = re.sub(r'_nohash_.*$', '', posixpath.basename(name))
  number = int(hashlib.sha1(os.fsencode(key)).hexdigest(), 16) % _BUCKETS
  percent = number * (100.0 / (_BUCKETS - 1))
  if percent < 10:
    return VALIDATION
  return TEST if percent < 20 else TRAIN


def log_skipped(skipped: Sequence[str], total: int) -> None:
  """Logs the number of unreadable clips of `total` and the first reasons."""
  if skipped:
    logging.warning('skipped %d of %d clips:', len(skipped), total)
    for line in skipped[:_MAX_LOGGED]:
      logging.warning('  %s', line)
    if len(skipped) > _MAX_LOGGED:
      logging.warning('  and %d more', len(skipped) - _MAX_LOGGED)


def _state(entry: os.DirEntry[str]) -> os.stat_result:
  """Returns the state of a file, or of a link that leads nowhere."""
  try:
    return entry.stat()
  except FileNotFoundError:
    return entry.stat(follow_symlinks=False)


def _read_lists(speech_dir: str) -> dict[str, str] | None:
  """Returns the splits of listed clips; None if a list is missing."""
  splits: dict[str, str] = {}
  for split, file in _LISTS.items():
    path = os.path.join(speech_dir, file)
    try:
      with open(path, encoding='utf-8', errors='replace') as lines:
        splits |= {line.strip(): split for line in lines}
    except FileNotFoundError:
      logging.info('no %s; splits follow from the speakers', path)
      return None
  return splits
