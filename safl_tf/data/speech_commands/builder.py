"""Speech Commands v0.01 as a TFDS data set.

TFDS provides only v0.02, with twelve labels. Importing this module registers
`speech_commands_v001` with TFDS.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

from safl_tf.data.speech_commands import archive, features

URL = 'http://download.tensorflow.org/data/speech_commands_v0.01.tar.gz'

_DESCRIPTION = """
64,721 clips of one second or less, each with one of 30 short English words.
The words are those of Speech Commands v0.01, without its background noise.
The splits are those of its validation_list.txt and testing_list.txt.
"""
_CITATION = """
@article{speechcommands,
  title={Speech Commands: A public dataset for single-word speech recognition.},
  author={Warden, Pete},
  journal={Dataset available from
    http://download.tensorflow.org/data/speech_commands_v0.01.tar.gz},
  year={2017}
}
"""


class SpeechCommandsV001(tfds.core.GeneratorBasedBuilder):
  """Clips of 30 words, with their speakers.

  An example has `audio` (int16 [n], 16 kHz), `label` (the word), `speaker` and
  `file`, such as `yes/0a7c2a8d_nohash_0.wav`. Unreadable clips are skipped and
  logged.
  """

  VERSION = tfds.core.Version('0.0.1')
  RELEASE_NOTES = {'0.0.1': 'The archive of 3 August 2017.'}  # noqa: RUF012

  # Replaces the file checksums.tsv of TFDS.
  url_infos = {  # noqa: RUF012
    URL: checksums.UrlInfo(
      size=tfds.core.utils.Size(1_489_096_277),
      checksum=(
        '743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d'
      ),
      filename='speech_commands_v0.01.tar.gz',
    )
  }

  def __init__(
    self, *, speech_dir: str | os.PathLike[str] | None = None, **kwargs: Any
  ):
    """Creates a builder, which downloads the archive without `speech_dir`."""
    super().__init__(**kwargs)
    self._speech_dir = speech_dir
    self._original_state['speech_dir'] = speech_dir  # for pickling

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=_DESCRIPTION,
      features=tfds.features.FeaturesDict(
        {
          # Not `Audio`, which would store each sample as an int64.
          'audio': tfds.features.Tensor(
            shape=(None,),
            dtype=np.int16,
            encoding=tfds.features.Encoding.BYTES,
          ),
          'label': tfds.features.ClassLabel(names=archive.WORDS),
          'speaker': tfds.features.Text(),
          'file': tfds.features.Text(),
        }
      ),
      supervised_keys=('audio', 'label'),
      homepage='https://arxiv.org/abs/1804.03209',
      citation=_CITATION,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[str, dict[str, Any]]]]:
    folder = os.fspath(self._speech_dir or dl_manager.download_and_extract(URL))
    clips = archive.find(folder)
    return {
      split: self._generate_examples(
        folder, [clip.name for clip in clips if clip.split == split]
      )
      for split in archive.SPLITS
    }

  def _generate_examples(
    self, folder: str, names: list[str]
  ) -> Iterator[tuple[str, dict[str, Any]]]:
    skipped = []
    for name in names:
      try:
        audio = archive.read(folder, name)
      except features.ClipError as error:
        skipped.append(f'{name}: {error}')
        continue
      yield (
        name,
        {
          'audio': audio,
          'label': archive.word(name),
          'speaker': archive.speaker(name),
          'file': name,
        },
      )
    archive.log_skipped(skipped, len(names))
