"""Writes small folders in the layout of Speech Commands."""

import io
import wave

import numpy as np

# The splits of these speakers, in the data set's lists and by its hash.
TRAIN_SPEAKERS = ('012c8314', '102192fd', '122c5aa7', '129c7d8d')
VALIDATION_SPEAKERS = ('c099668c', 'd197e3ae', 'eee9b9e2')
TEST_SPEAKERS = ('1b4c9b89', '3f2b358d', '4c4d2526')
LISTS = {
  'validation_list.txt': VALIDATION_SPEAKERS,
  'testing_list.txt': TEST_SPEAKERS,
}
WORDS = ('bed', 'no', 'yes')


def wav(samples, rate=16000, channels=1, width=2):
  """Returns the bytes of a .wav file."""
  file = io.BytesIO()
  with wave.open(file, 'wb') as clip:
    clip.setnchannels(channels)
    clip.setsampwidth(width)
    clip.setframerate(rate)
    clip.writeframes(np.asarray(samples).tobytes())
  return file.getvalue()


def noise(seed, length=16000):
  """Returns samples that differ for each seed."""
  rng = np.random.default_rng(seed)
  return rng.integers(-3000, 3000, length).astype('<i2')


def names(speakers):
  """Returns the names of the clips of some speakers."""
  return [
    f'{word}/{speaker}_nohash_{i}.wav'
    for i, word in enumerate(WORDS)
    for speaker in speakers
  ]


def write_folder(folder, lists=True):
  """Writes each word once per speaker: splits of 12, 9 and 9 clips."""
  speakers = TRAIN_SPEAKERS + VALIDATION_SPEAKERS + TEST_SPEAKERS
  for number, name in enumerate(names(speakers)):
    i, j = divmod(number, len(speakers))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    data = wav(noise(100 * i + j, 17000 - 1000 * (j % 3)))
    (folder / name).write_bytes(data)
  (folder / '_background_noise_').mkdir()
  hum = wav(noise(999, 20000))
  (folder / '_background_noise_' / 'hum.wav').write_bytes(hum)
  (folder / 'README.md').write_text('Speech Commands')
  for name, listed in LISTS.items() if lists else ():
    (folder / name).write_text('\n'.join([*names(listed), '']))
  return folder
