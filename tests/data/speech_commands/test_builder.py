import functools
import hashlib
import http.server
import os
import pickle
import tarfile
import threading
import unittest

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

from safl_tf.data import tfds as tfds_lib
from safl_tf.data.speech_commands import archive as archive_lib
from safl_tf.data.speech_commands import builder
from safl_tf.util import errors
from tests.data.speech_commands import make_archive as speech


def test_with_tfds_test_case(tmp_path):
  pytest.importorskip('dill', reason="TFDS's helper for tests needs dill")

  class Case(tfds.testing.DatasetBuilderTestCase):
    DATASET_CLASS = builder.SpeechCommandsV001
    EXAMPLE_DIR = speech.write_folder(tmp_path / 'clips')
    SPLITS = {'train': 12, 'validation': 9, 'test': 9}  # noqa: RUF012

  result = unittest.TestResult()
  unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
  assert result.errors + result.failures == []
  assert result.testsRun > len(result.skipped)


def prepare(data_dir, speech_dir):
  prepared = builder.SpeechCommandsV001(
    data_dir=str(data_dir), speech_dir=str(speech_dir)
  )
  prepared.download_and_prepare()
  return prepared


def read(prepared, split):
  """File -> example."""
  examples = tfds.as_numpy(prepared.as_dataset(split=split))
  return {example['file'].decode(): example for example in examples}


def check_examples(prepared):
  """The examples are what `write_folder` wrote."""
  for split, speakers in (
    ('train', speech.TRAIN_SPEAKERS),
    ('validation', speech.VALIDATION_SPEAKERS),
    ('test', speech.TEST_SPEAKERS),
  ):
    examples = read(prepared, split)
    assert set(examples) == set(speech.names(speakers))
    for name, example in examples.items():
      word, file = name.split('/')
      assert archive_lib.WORDS[example['label']] == word
      assert example['speaker'].decode() == file[:8]
      assert example['audio'].dtype == np.int16
  audio = read(prepared, 'train')['no/122c5aa7_nohash_1.wav']['audio']
  np.testing.assert_array_equal(audio, speech.noise(102, 15000))


def test_words():
  assert len(archive_lib.WORDS) == 30
  assert list(archive_lib.WORDS) == sorted(set(archive_lib.WORDS))
  assert len(archive_lib.COMMANDS) == 10
  assert list(archive_lib.COMMANDS) == sorted(set(archive_lib.COMMANDS))
  assert set(archive_lib.COMMANDS) < set(archive_lib.WORDS)


def test_from_a_folder(tmp_path):
  clips = speech.write_folder(tmp_path / 'clips')
  prepared = prepare(tmp_path, clips)
  assert prepared.info.full_name == 'speech_commands_v001/0.0.1'
  assert tuple(prepared.info.features['label'].names) == archive_lib.WORDS
  check_examples(prepared)
  again = pickle.loads(pickle.dumps(prepared))
  assert again.data_path == prepared.data_path
  again.data_path.rmtree()
  again.download_and_prepare()  # from the folder, once more
  check_examples(again)


def test_unreadable_clips_are_skipped(tmp_path, caplog):
  clips = speech.write_folder(tmp_path / 'clips')
  (clips / 'bed' / '012c8314_nohash_0.wav').write_bytes(b'RIFF')
  with caplog.at_level('WARNING', logger='absl'):
    prepared = prepare(tmp_path, clips)
  assert 'bed/012c8314_nohash_0.wav' not in read(prepared, 'train')
  assert prepared.info.splits['train'].num_examples == 11
  assert 'skipped 1 of 12 clips:' in caplog.text
  assert 'bed/012c8314_nohash_0.wav: the header is truncated' in caplog.text


@pytest.fixture
def archive(tmp_path, monkeypatch):
  """A small archive behind the URL, served on this machine."""
  clips = speech.write_folder(tmp_path / 'clips')
  (tmp_path / 'served').mkdir()
  path = tmp_path / 'served' / 'speech_commands_v0.01.tar.gz'
  with tarfile.open(path, 'w:gz') as tar:
    tar.add(clips, arcname='.')
  handler = functools.partial(
    http.server.SimpleHTTPRequestHandler, directory=str(path.parent)
  )
  monkeypatch.setattr(handler.func, 'log_message', lambda *arguments: None)
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    url = f'http://127.0.0.1:{server.server_port}/{path.name}'
    monkeypatch.setattr(builder, 'URL', url)
    info = checksums.UrlInfo(
      size=tfds.core.utils.Size(path.stat().st_size),
      checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
      filename=path.name,
    )
    monkeypatch.setattr(builder.SpeechCommandsV001, 'url_infos', {url: info})
    yield info
    server.shutdown()


def test_download(tmp_path, archive):
  home = tmp_path / 'prepared'
  prepared = builder.SpeechCommandsV001(data_dir=str(home))
  tfds_lib.prepare('speech_commands', prepared, str(home), '')
  check_examples(prepared)
  assert os.listdir(home) == ['speech_commands_v001']


def test_download_with_another_checksum(tmp_path, archive):
  archive.checksum = hashlib.sha256(b'').hexdigest()
  home = tmp_path / 'prepared'
  prepared = builder.SpeechCommandsV001(data_dir=str(home))
  with pytest.raises(errors.InputError, match='Checksum'):
    tfds_lib.prepare('speech_commands', prepared, str(home), '')
  assert not home.exists()
