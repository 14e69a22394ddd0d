import hashlib
import io
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds

from safl_tf.data import registry
from safl_tf.data.files import spec
from safl_tf.data.speech_commands import (
  archive,
  builder,
  extract,
  features,
  loader,
)
from safl_tf.util import errors
from tests.data.speech_commands import make_archive as speech

REAL = os.environ.get('SPEECH_COMMANDS_DIR', '')


def refuse(*args, **kwargs):
  raise AssertionError('not here')


@pytest.fixture
def clips(tmp_path):
  return speech.write_folder(tmp_path / 'clips')


@pytest.fixture
def load(tmp_path):
  """`loader.load` with a temporary cache."""

  def load(*args, **kwargs):
    folders = [str(arg) for arg in args]
    return loader.load(*folders, cache_dir=str(tmp_path / 'cache'), **kwargs)

  return load


def names_of(speakers):
  """Clips of some speakers, in the order in which they are loaded."""
  digest = lambda name: hashlib.sha1(name.encode()).digest()
  return sorted(speech.names(speakers), key=digest)


def test_load(clips, load, capfd):
  data = load(clips)
  assert data.name == 'speech_commands'
  assert data.x_train.shape == (12, 59, 13, 1)
  assert data.x_test.shape == (9, 59, 13, 1)
  assert data.x_train.dtype == data.x_test.dtype == np.float32
  assert data.y_train.dtype == data.y_test.dtype == np.int32
  assert data.num_classes == 30
  assert data.class_names == archive.WORDS
  for y, speakers in (
    (data.y_train, speech.TRAIN_SPEAKERS),
    (data.y_test, speech.TEST_SPEAKERS),
  ):
    words = [data.class_names[label] for label in y]
    assert words == [archive.word(name) for name in names_of(speakers)]
  speakers = [archive.speaker(name) for name in names_of(speech.TRAIN_SPEAKERS)]
  assert data.client_ids.tolist() == speakers
  assert set(speakers) == set(speech.TRAIN_SPEAKERS)
  printed = capfd.readouterr()
  assert printed.out == '' and 'clip' not in printed.err


def test_values(clips, load):
  """The training clips standardise the features of all clips."""
  train, test = (
    np.array(
      [
        features.fit(features.decode((clips / name).read_bytes()))
        for name in names_of(speakers)
      ]
    )
    for speakers in (speech.TRAIN_SPEAKERS, speech.TEST_SPEAKERS)
  )
  train, test = (
    features.mfcc((samples / 32768).astype(np.float32)).numpy()
    for samples in (train, test)
  )
  mean, deviation = train.mean((0, 1)), train.std((0, 1))
  data = load(clips)
  np.testing.assert_allclose(
    data.x_train[..., 0], (train - mean) / deviation, atol=1e-3
  )
  np.testing.assert_allclose(
    data.x_test[..., 0], (test - mean) / deviation, atol=1e-3
  )
  # The metadata suffice to standardise other clips.
  moments = json.loads(json.dumps(data.metadata))['standardised']
  again = (test - np.array(moments['mean'])) / np.array(moments['deviation'])
  np.testing.assert_allclose(data.x_test[..., 0], again, atol=1e-5)


def test_validation(clips, load):
  data = load(clips, include_validation=True)
  both = speech.TRAIN_SPEAKERS + speech.VALIDATION_SPEAKERS
  assert len(data.x_train) == len(data.y_train) == 21
  assert data.client_ids.tolist() == list(map(archive.speaker, names_of(both)))
  np.testing.assert_allclose(data.x_train.mean((0, 1)), 0, atol=1e-4)
  np.testing.assert_allclose(data.x_train.std((0, 1)), 1, atol=1e-3)
  assert len(data.x_test) == 9


@pytest.mark.parametrize(
  'option, words',
  [
    (None, archive.WORDS),
    ('all', archive.WORDS),
    ('commands', archive.COMMANDS),
  ],
)
def test_words_option(option, words, clips, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  options = spec.Options(speech_dir=str(clips), speech_words=option)
  assert registry.load('speech_commands', options=options).class_names == words


def test_commands(clips, load):
  data = load(clips, words='commands')
  assert data.class_names == archive.COMMANDS
  assert data.num_classes == 10
  words = {data.class_names[label] for label in data.y_train}
  assert words == {'no', 'yes'}
  assert len(data.x_train) == 8 and len(data.x_test) == 6
  np.testing.assert_allclose(data.x_train.std((0, 1)), 1, atol=1e-3)


def test_power(clips, load):
  assert not np.allclose(
    load(clips, power=1).x_train, load(clips, power=2).x_train, atol=0.1
  )


def test_constant_features(tmp_path, load):
  """Silence has no deviation to divide by."""
  clips = speech.write_folder(tmp_path / 'clips')
  for path in clips.glob('*/*.wav'):
    path.write_bytes(speech.wav(np.zeros(16000, '<i2')))
  np.testing.assert_allclose(load(clips).x_train, 0, atol=1e-3)


def test_without_lists(tmp_path, clips, load):
  """The hash of the speakers reproduces the lists."""
  other = speech.write_folder(tmp_path / 'other', lists=False)
  data = load(other)
  assert data.client_ids.tolist() == load(clips).client_ids.tolist()
  assert len(data.x_test) == 9


@pytest.mark.parametrize(
  'speaker, percent, split',
  [
    ('1942abd7', 0.05, 'validation'),
    ('3bdf05d3', 9.91, 'validation'),
    ('ffb86d3c', 10.06, 'test'),
    ('5f449e17', 19.999, 'test'),
    ('3824c00e', 20.18, 'train'),
    ('17c94b23', 99.96, 'train'),
  ],
)
def test_hashed_split(speaker, percent, split):
  """The splits of speakers near the limits agree with the lists."""
  number = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % 2**27
  assert number / 2**27 == pytest.approx(percent / 100, abs=1e-4)
  assert archive.hashed_split(f'yes/{speaker}_nohash_1.wav') == split


def test_lists_take_precedence(clips, load):
  clip = 'yes/012c8314_nohash_2.wav'
  with open(clips / 'testing_list.txt', 'a') as file:
    file.write(f'\r\n{clip}\r\nyes/of_nobody_nohash_0.wav\n')
  data = load(clips)
  assert len(data.x_train) == 11 and len(data.x_test) == 10


@pytest.mark.parametrize('name', ['yes/bob_nohash_0.wav', 'no/bob.wav'])
def test_speaker(name):
  assert archive.speaker(name) == 'bob'


def test_same_from_tfds(tmp_path, clips, load, monkeypatch):
  prepared = builder.SpeechCommandsV001(
    data_dir=str(tmp_path), speech_dir=str(clips)
  )
  prepared.download_and_prepare()
  monkeypatch.setattr(requests, 'head', refuse)
  for words in ('all', 'commands'):
    folder = load(clips, words=words)
    data = load(data_dir=str(tmp_path), words=words)
    for field in ('y_train', 'y_test', 'client_ids'):
      np.testing.assert_array_equal(
        getattr(data, field), getattr(folder, field)
      )
    for field in ('x_train', 'x_test'):
      np.testing.assert_allclose(
        getattr(data, field), getattr(folder, field), atol=1e-3
      )
    assert data.class_names == folder.class_names
  monkeypatch.setattr(extract, 'from_tfds', refuse)
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  np.testing.assert_array_equal(load(words=words).x_train, data.x_train)
  [records] = prepared.data_path.glob('*train*')
  records.write_bytes(records.read_bytes()[:-10])
  with pytest.raises(
    errors.InputError,
    match=rf'^dataset=speech_commands: {prepared.data_path} cannot be ',
  ):
    load()


def test_no_network(tmp_path, load, monkeypatch, capfd):
  def unreachable(*args, **kwargs):
    raise requests.ConnectionError('Max retries exceeded')

  monkeypatch.setattr(requests, 'head', unreachable)
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', refuse)
  with pytest.raises(errors.InputError) as caught:
    load(data_dir=str(tmp_path))
  message = str(caught.value)
  assert message.startswith(
    f'dataset=speech_commands: not prepared in {tmp_path} and cannot be '
    'downloaded (ConnectionError: no connection to download.tensorflow.org); '
    'set --speech_dir to '
  )
  assert '\n' not in message
  command = re.search('python -c "(.*)"', message)[1]
  with pytest.raises(AssertionError, match='not here'):  # it is real Python
    exec(command, {})
  assert os.listdir(tmp_path) == []
  assert capfd.readouterr() == ('', '')


def test_cache(clips, load, tmp_path, monkeypatch):
  first = load(clips)
  [cached] = (tmp_path / 'cache').iterdir()
  with monkeypatch.context() as patched:
    patched.setattr(extract, 'from_folder', refuse)
    again = load(clips)
    load(clips, words='commands', include_validation=True)
    for changes in ({'power': 1}, {'power': 2, 'cache_dir': 'other'}):
      with pytest.raises(AssertionError):
        loader.load(str(clips), **{'cache_dir': str(cached.parent)} | changes)
  np.testing.assert_array_equal(first.x_train, again.x_train)
  np.testing.assert_array_equal(first.client_ids, again.client_ids)
  louder = clips / 'yes' / '012c8314_nohash_2.wav'
  times = louder.stat().st_atime_ns, louder.stat().st_mtime_ns + 1
  louder.write_bytes(speech.wav(2 * speech.noise(200)))
  os.utime(louder, ns=times)
  changed = load(clips)
  assert (changed.x_train != first.x_train).any()
  assert len(list(cached.parent.iterdir())) == 2


def damages(whole):
  yield b''
  yield whole[:-100]
  yield b'PK' + whole[2:1000]
  middle = len(whole) // 3
  yield whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
  with np.load(io.BytesIO(whole)) as stored:
    arrays = dict(stored)
  arrays['coefficients'] = arrays['coefficients'][1:]
  file = io.BytesIO()
  np.savez(file, **arrays)
  yield file.getvalue()


def test_damaged_cache(clips, load, tmp_path, caplog):
  first = load(clips)
  [cached] = (tmp_path / 'cache').iterdir()
  whole = cached.read_bytes()
  for damaged in damages(whole):
    cached.write_bytes(damaged)
    caplog.clear()
    with caplog.at_level('WARNING', logger='absl'):
      again = load(clips)
    assert f'{cached} is damaged and computed again' in caplog.text
    np.testing.assert_allclose(again.x_train, first.x_train, atol=1e-4)
    assert len(cached.read_bytes()) == len(whole)
  assert 'do not fit together' in caplog.text
  assert list(cached.parent.iterdir()) == [cached]


def test_unwritable_cache(clips, tmp_path, caplog):
  (tmp_path / 'file').write_text('')
  with caplog.at_level('WARNING', logger='absl'):
    data = loader.load(str(clips), cache_dir=str(tmp_path / 'file' / 'cache'))
  assert len(data.x_train) == 12
  assert 'cannot cache the features' in caplog.text


@pytest.mark.parametrize('variable', ['XDG_CACHE_HOME', 'HOME'])
def test_default_cache(clips, tmp_path, monkeypatch, variable):
  monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
  monkeypatch.setenv(variable, str(tmp_path))
  loader.load(str(clips))
  home = tmp_path if variable == 'XDG_CACHE_HOME' else tmp_path / '.cache'
  [cached] = (home / 'safl_tf').iterdir()
  assert cached.name.startswith('speech_commands-')


def test_unreadable_clips(clips, load, caplog):
  whole = (clips / 'bed' / '012c8314_nohash_0.wav').read_bytes()
  (clips / 'bed' / '012c8314_nohash_0.wav').write_bytes(whole[:20])
  (clips / 'bed' / '012c8314_nohash_9.wav').write_bytes(b'')
  (clips / 'no' / 'eve_nohash_0.wav').write_bytes(b'not a clip at all')
  (clips / 'no' / 'eve_nohash_1.wav').write_bytes(speech.wav([]))
  both = speech.wav(speech.noise(7), channels=2)
  (clips / 'yes' / 'eve_nohash_0.wav').write_bytes(both)
  slow = speech.wav(speech.noise(7), rate=8000)
  (clips / 'yes' / 'eve_nohash_1.wav').write_bytes(slow)
  (clips / 'yes' / '._eve_nohash_2.wav').write_bytes(b'')  # hidden
  (clips / 'yes' / 'eve_nohash_3.wav').mkdir()
  (clips / 'yes' / 'notes.txt').write_text('yes')
  for _ in ('computed', 'cached'):
    caplog.clear()
    with caplog.at_level('WARNING', logger='absl'):
      data = load(clips)
    assert len(data.x_train) == 11 and len(data.x_test) == 9
    assert caplog.messages == [
      'skipped 7 of 36 clips:',
      '  bed/012c8314_nohash_0.wav: the header is truncated',
      '  bed/012c8314_nohash_9.wav: the header is truncated',
      '  no/eve_nohash_0.wav: file does not start with RIFF id',
      '  no/eve_nohash_1.wav: no samples',
      '  yes/eve_nohash_0.wav: 2 channels instead of 1',
      '  and 2 more',
    ]
  assert len(load(clips, include_validation=True).x_train) == 20


def test_no_readable_clips(clips, load):
  for path in clips.glob('*/*.wav'):
    path.write_bytes(b'')
  with pytest.raises(errors.InputError) as caught:
    load(clips)
  assert str(caught.value) == (
    f'speech_dir={clips}: has no clips to train on: 0 clips are readable and '
    '30 are not'
  )


def test_no_test_clips(clips, load):
  for speaker in speech.TEST_SPEAKERS:
    for path in clips.glob(f'*/{speaker}*'):
      path.unlink()
  with pytest.raises(errors.InputError, match='has no clips to test on: 21 '):
    load(clips)


def test_folder_without_clips(tmp_path, clips, load):
  shutil.rmtree(clips / 'bed')
  shutil.rmtree(clips / 'yes')
  (clips / 'no').rename(clips / 'nein')
  (tmp_path / 'file').write_text('')
  no_folder = 'must be an existing folder'
  no_clips = 'must have a folder of .wav files for each word'
  for folder, hint in (
    (tmp_path / 'none', no_folder),
    (tmp_path / 'file', no_folder),
    ('', no_folder),
    (tmp_path, no_clips),
    (clips, no_clips),
  ):
    with pytest.raises(
      errors.InputError, match=f'^speech_dir={folder}: {hint}'
    ):
      load(folder)


@pytest.mark.parametrize(
  'argument, value', [('words', 'digits'), ('power', 3), ('data_dir', '/none')]
)
def test_invalid_arguments(load, argument, value):
  with pytest.raises(errors.InputError, match=f'^{argument}={value}: '):
    load(**{argument: value})


def test_progress(clips, load, capfd, monkeypatch):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
  load(clips)
  assert 'speech features: 100%' in capfd.readouterr().err


@pytest.mark.real_data
@pytest.mark.skipif(
  not os.path.isdir(os.path.join(REAL, 'yes')),
  reason='SPEECH_COMMANDS_DIR holds no Speech Commands',
)
def test_real_clips(load):
  for clip in archive.find(REAL):
    assert clip.split == archive.hashed_split(clip.name)
  data = load(REAL)
  assert len(np.unique(data.y_train)) == len(np.unique(data.y_test)) == 30
  assert np.isfinite(data.x_train).all() and np.isfinite(data.x_test).all()
  # The nearest of the words' means is right far more often than by chance.
  means = np.stack(
    [data.x_train[data.y_train == label].mean(axis=0) for label in range(30)]
  )
  distance = ((data.x_test[:, np.newaxis] - means) ** 2).sum(axis=(2, 3, 4))
  assert (distance.argmin(axis=1) == data.y_test).mean() > 3 / 30
