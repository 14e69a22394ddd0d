import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data.speech_commands import features
from safl_tf.util import errors
from tests.data.speech_commands import make_archive as speech

n = np.arange(16000, dtype=np.int64)
PSEUDO_NOISE = ((7919 * n**2 + 104729 * n) % 1000) / 500 - 1
SINE = 0.5 * np.sin(2 * np.pi * 1000 * n / 16000)


def one(function, waveform, power=2.0):
  """Applies a batch function to one clip."""
  [result] = function(waveform[np.newaxis].astype(np.float32), power).numpy()
  return result


def test_mel_matrix():
  matrix = features.mel_matrix().numpy()
  assert matrix.shape == (513, 80)
  filled = matrix != 0
  per_band = filled.sum(axis=0)
  assert per_band.min() == 3 and per_band.max() == 30
  bins = np.flatnonzero(filled.any(axis=1))
  assert bins[0] == 6 and bins[-1] == 486
  np.testing.assert_allclose(matrix.sum(dtype=np.float64), 472.824, atol=1e-2)
  np.testing.assert_allclose(
    matrix.sum(axis=0)[[0, -1]], [1.411003, 15.070432], atol=1e-4
  )
  assert (matrix >= 0).all() and matrix.max() <= 1


# fmt: off
NOISE_COEFFICIENTS = {
  2.0: (
    [77.2610, -7.3034, -0.0176, -1.6135, -0.8523, 1.3651, 0.0649, -0.3159,
     -0.3818, -0.8345, -0.3450, -1.4684, -1.6013],
    [78.5189, -7.0578, -0.3384, -1.2305],
  ),
  1.0: (
    [46.4413, -6.4976, -0.1619, -1.1364, -0.3615, 0.6859, 0.0396, -0.1686,
     -0.2218, -0.5020, -0.2836, -0.7597, -0.9211],
    [47.9178, -6.5052, -0.3119, -1.0013],
  ),
}
SINE_COEFFICIENTS = [
  -167.4309, 3.8234, -3.3263, -7.2883, -4.2832, 2.8001, 7.1850, 4.6982, -2.2535,
  -7.0148, -5.0616, 1.6956, 6.7811,
]
# fmt: on


@pytest.mark.parametrize('power', NOISE_COEFFICIENTS)
def test_pseudo_noise(power):
  first, last = NOISE_COEFFICIENTS[power]
  coefficients = one(features.mfcc, PSEUDO_NOISE, power)
  assert coefficients.shape == (59, 13)
  assert coefficients.dtype == np.float32
  np.testing.assert_allclose(coefficients[0], first, atol=1e-3)
  np.testing.assert_allclose(coefficients[58, :4], last, atol=1e-3)


def test_sine():
  mel = one(features.mel_spectrogram, SINE)
  assert mel.shape == (59, 80)
  assert (mel.argmax(axis=1) == 26).all()
  np.testing.assert_allclose(mel[:, 26], 16862.08, rtol=1e-5)
  coefficients = one(features.mfcc, SINE)
  np.testing.assert_allclose(
    coefficients, np.tile(SINE_COEFFICIENTS, (59, 1)), atol=1e-2, rtol=0
  )


@pytest.mark.parametrize('power', [1, 2])
def test_silence(power):
  coefficients = one(features.mfcc, np.zeros(16000), power)
  np.testing.assert_allclose(coefficients[:, 0], -174.7539, atol=1e-3)
  np.testing.assert_allclose(coefficients[:, 1:], 0, atol=1e-3)


def test_frames():
  """The last 128 samples are in no frame; the 128 before are in one."""
  assert one(features.mfcc, PSEUDO_NOISE).shape == (features.FRAMES, 13)
  changed = PSEUDO_NOISE.copy()
  changed[-128:] = 0
  np.testing.assert_array_equal(
    one(features.mfcc, changed), one(features.mfcc, PSEUDO_NOISE)
  )
  changed[-256:] = 0
  differs = one(features.mfcc, changed) != one(features.mfcc, PSEUDO_NOISE)
  assert np.flatnonzero(differs.any(axis=1)).tolist() == [58]


def test_clips_of_a_batch_do_not_mix():
  batch = np.stack([PSEUDO_NOISE, SINE, 0 * SINE]).astype(np.float32)
  for row, waveform in zip(features.mfcc(batch), batch, strict=True):
    np.testing.assert_allclose(row, one(features.mfcc, waveform), atol=1e-3)


@pytest.mark.parametrize('power', [1.0, 2.0])
def test_compiled(power):
  samples = np.stack([speech.noise(1), speech.noise(2)])
  compiled = features.compiled(power)
  assert compiled is features.compiled(power)
  np.testing.assert_allclose(
    compiled(samples),
    features.mfcc((samples / 32768).astype(np.float32), power),
    atol=1e-3,
  )


@pytest.mark.parametrize('power', [0, 3, -2, '2', None])
def test_power(power):
  with pytest.raises(errors.InputError, match=f'^power={power}: must be 2 '):
    features.mfcc(np.zeros((1, 16000), np.float32), power)


@pytest.mark.parametrize('length', [1, 7510, 16000, 16001, 20000])
def test_decode_and_fit(length):
  data = speech.wav(speech.noise(3, length))
  samples = features.decode(data)
  np.testing.assert_array_equal(samples, speech.noise(3, length))
  fitted = features.fit(samples)
  assert fitted.dtype == np.int16
  expected, _ = tf.audio.decode_wav(data, 1, 16000)
  np.testing.assert_array_equal(fitted / np.float32(32768), expected[:, 0])


def float_wav():
  data = bytearray(speech.wav(speech.noise(4, 100)))
  assert data[20] == 1  # PCM
  data[20] = 3  # floats
  return bytes(data)


@pytest.mark.parametrize(
  'data, reason',
  [
    (b'', 'the header is truncated'),
    (speech.wav([])[:30], 'the header is truncated'),
    (b'ID3 not a clip at all', 'file does not start with RIFF id'),
    (speech.wav([]), 'no samples'),
    (speech.wav(speech.noise(5, 8), rate=8000), '8000 instead of 16000 samp'),
    (speech.wav(speech.noise(5, 8), channels=2), '2 channels instead of 1'),
    (speech.wav([1, 2], width=1), '8 instead of 16 bits'),
    (float_wav(), 'unknown format: 3'),
    (speech.wav(speech.noise(5, 8))[:-4], '6 samples instead of 8'),
  ],
)
def test_unreadable_clips(data, reason):
  with pytest.raises(features.ClipError, match=reason):
    features.decode(data)


def test_damaged_files():
  """A damaged file yields samples or a `ClipError`."""
  whole = speech.wav(speech.noise(6, 50))
  rng = np.random.default_rng(1)
  unreadable = 0
  for _ in range(3000):
    data = bytearray(whole[: rng.integers(len(whole) + 1)])
    for place in rng.integers(0, 44, rng.integers(0, 4)):
      if place < len(data):
        data[place] = rng.integers(256)
    try:
      assert features.decode(bytes(data)).dtype == np.int16
    except features.ClipError:
      unreadable += 1
  assert 2000 < unreadable < 3000
