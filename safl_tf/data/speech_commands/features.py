"""The speech front end: 59 × 13 coefficients of a clip of one second.

A clip x[0..15999] is cut into 59 frames of 1024 samples (64 ms) with a step of
256 samples (75 % overlap); 1 + ⌊(16000 - 1024) / 256⌋ = 59.

    X[t, f] = Σ_n x[256 t + n] · w[n] · exp(-2πi f n / 1024),   f = 0..512
    w[n] = 0.5 - 0.5 cos(2π n / 1024)                           (Hann)
    m[t, b] = Σ_f |X[t, f]|^power · W[f, b],                    b = 0..79
    c[t, k] = √(2 / 80) Σ_b ln(m[t, b] + 1e-6) cos(π k (b + ½) / 80)

W has 80 triangles between 80 and 7600 Hz, evenly spaced and linear in
mel = 1127 ln(1 + hertz / 700), each with peak 1. The features are the first 13
coefficients c.
"""

import functools
import io
import wave
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from safl_tf.util import errors

if TYPE_CHECKING:
  import tensorflow as tf

SAMPLE_RATE = 16_000
SAMPLES = 16_000  # of a clip: one second
FRAMES = 59
COEFFICIENTS = 13
FRONT_END = 1  # version; increase it whenever the features change

_FRAME, _STEP = 1024, 256
_BANDS = 80
_MIN_HERTZ, _MAX_HERTZ = 80.0, 7600.0
_FLOOR = 1e-6  # keeps the logarithm of silence finite


class ClipError(ValueError):
  """The reason why a clip is unreadable."""


def decode(data: bytes) -> np.ndarray:
  """Returns the samples of a .wav file, int16 [n] with n >= 1.

  Raises:
    ClipError: the file is not 16-bit PCM, mono, 16 kHz, or truncated or empty.
  """
  try:
    with wave.open(io.BytesIO(data)) as clip:
      channels, width, rate, length, _, _ = clip.getparams()
      if rate != SAMPLE_RATE:
        raise ClipError(f'{rate} instead of {SAMPLE_RATE} samples per second')
      if channels != 1:
        raise ClipError(f'{channels} channels instead of 1')
      if width != 2:
        raise ClipError(f'{8 * width} instead of 16 bits per sample')
      if not length:
        raise ClipError('no samples')
      frames = clip.readframes(length)
  except EOFError as error:
    raise ClipError('the header is truncated') from error
  except (RuntimeError, wave.Error) as error:  # either, for a damaged header
    raise ClipError(str(error) or 'the header is damaged') from error
  if len(frames) != 2 * length:
    raise ClipError(f'{len(frames) // 2} samples instead of {length}')
  return np.frombuffer(frames, '<i2')


def fit(samples: np.ndarray) -> np.ndarray:
  """Pads with zeros, or truncates, to 16,000 samples."""
  fitted = np.zeros(SAMPLES, samples.dtype)
  fitted[: len(samples)] = samples[:SAMPLES]
  return fitted


def mel_matrix() -> 'tf.Tensor':
  """Returns W [513, 80], the weight of each frequency in each band."""
  import tensorflow as tf

  return tf.signal.linear_to_mel_weight_matrix(
    _BANDS, _FRAME // 2 + 1, SAMPLE_RATE, _MIN_HERTZ, _MAX_HERTZ
  )


def mel_spectrogram(
  waveforms: 'np.ndarray | tf.Tensor', power: float = 2.0
) -> 'tf.Tensor':
  """Returns m, float32 [N, 59, 80].

  Args:
    waveforms: float32 [N, 16000], in [-1, 1].
    power: 2 for the power spectrum |X|², 1 for the magnitudes |X|.
  """
  import tensorflow as tf

  spectrum = tf.signal.stft(waveforms, _FRAME, _STEP, fft_length=_FRAME)
  return tf.abs(spectrum) ** check_power(power) @ mel_matrix()


def mfcc(
  waveforms: 'np.ndarray | tf.Tensor', power: float = 2.0
) -> 'tf.Tensor':
  """Returns the mel-frequency cepstral coefficients, float32 [N, 59, 13].

  The arguments are those of `mel_spectrogram`.
  """
  import tensorflow as tf

  log_mel = tf.math.log(mel_spectrogram(waveforms, power) + _FLOOR)
  coefficients = tf.signal.mfccs_from_log_mel_spectrograms(log_mel)
  return coefficients[..., :COEFFICIENTS]


@functools.cache
def compiled(power: float) -> 'Callable[[np.ndarray | tf.Tensor], tf.Tensor]':
  """Returns `mfcc` of int16 samples [N, 16000], compiled for the CPU."""
  import tensorflow as tf

  @tf.function(input_signature=[tf.TensorSpec([None, SAMPLES], tf.int16)])
  def coefficients(samples: 'tf.Tensor') -> 'tf.Tensor':
    with tf.device('/CPU:0'):
      return mfcc(tf.cast(samples, tf.float32) / 32768.0, power)

  return coefficients


def check_power(power: float) -> float:
  """Returns 1.0 or 2.0; refuses other values."""
  if power not in (1, 2):
    raise errors.InputError(
      'power', power, 'must be 2 (power spectrum) or 1 (magnitudes)'
    )
  return float(power)
