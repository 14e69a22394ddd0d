"""A zoo of models that users bring, each with clients to train it."""

from collections.abc import Callable
from typing import NamedTuple

import keras

from benchmarks import workloads
from safl_tf.core import client_config
from safl_tf.models import lenet5, light_vgg

layers = keras.layers
STEPS = (5, 36)  # local steps of a client


class Kind(NamedTuple):
  """A kind of model and its inputs, bytes of any meaning.

  Attributes:
    model_fn: builds the model; it has ten outputs.
    input_shape: of an example.
    num_clients: of a round.
    batch_size: of a step.
  """

  model_fn: Callable[[], keras.Model]
  input_shape: tuple[int, ...]
  num_clients: int = 10
  batch_size: int = 50

  def workload(self, name: str, steps: int) -> workloads.Workload:
    """Returns clients that take so many steps, in up to three epochs."""
    epochs = 3 if steps % 3 == 0 else 1
    return workloads.Workload(
      name=name,
      model_fn=self.model_fn,
      input_shape=self.input_shape,
      num_clients=self.num_clients,
      examples=steps // epochs * self.batch_size,
      config=client_config.LocalConfig(
        local_epochs=epochs, batch_size=self.batch_size
      ),
      flop_per_image=0.0,
    )


def _images(*shape: int) -> list[keras.Layer]:
  return [keras.Input(shape, dtype='uint8'), layers.Rescaling(1 / 255)]


def logistic() -> keras.Model:
  """Logistic regression: 7,850 parameters."""
  return keras.Sequential([*_images(784), layers.Dense(10)])


def dense(*units: int) -> Callable[[], keras.Model]:
  """Returns a function that builds a dense network with ReLU."""

  def model_fn() -> keras.Model:
    hidden = [layers.Dense(n, activation='relu') for n in units]
    return keras.Sequential([*_images(784), *hidden, layers.Dense(10)])

  return model_fn


def dropout_cnn() -> keras.Model:
  """A convolutional network of Keras's tutorials: 0.2M parameters."""
  return keras.Sequential(
    [
      *_images(28, 28, 1),
      layers.Conv2D(32, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dropout(0.5),
      layers.Dense(10),
    ]
  )


def batch_norm_cnn() -> keras.Model:
  """A convolutional network with batch normalization."""
  blocks: list[keras.Layer] = []
  for filters in (16, 32, 64):
    blocks += [
      layers.Conv2D(filters, 3, padding='same', use_bias=False),
      layers.BatchNormalization(),
      layers.ReLU(),
      layers.MaxPooling2D(2),
    ]
  return keras.Sequential(
    [
      *_images(28, 28, 1),
      *blocks,
      layers.GlobalAveragePooling2D(),
      layers.Dense(10),
    ]
  )


def residual() -> keras.Model:
  """A small residual network for 32×32×3 images: 0.1M parameters."""
  x = inputs = keras.Input((32, 32, 3), dtype='uint8')
  x = layers.Rescaling(1 / 255)(x)
  x = layers.Conv2D(16, 3, padding='same', activation='relu')(x)
  for filters, stride in ((16, 1), (32, 2), (64, 2)):
    y = layers.Conv2D(filters, 3, stride, padding='same', activation='relu')(x)
    y = layers.Conv2D(filters, 3, padding='same')(y)
    if stride != 1:
      x = layers.Conv2D(filters, 1, stride)(x)
    x = layers.ReLU()(layers.Add()([x, y]))
  x = layers.GlobalAveragePooling2D()(x)
  return keras.Model(inputs, layers.Dense(10)(x))


def gru() -> keras.Model:
  """A GRU that reads the rows of an image."""
  return keras.Sequential([*_images(28, 28), layers.GRU(64), layers.Dense(10)])


def lstm() -> keras.Model:
  """An LSTM that reads 40 characters."""
  return keras.Sequential(
    [
      keras.Input((40,), dtype='uint8'),
      layers.Embedding(256, 16),
      layers.LSTM(64),
      layers.Dense(10),
    ]
  )


def text() -> keras.Model:
  """A classifier of the mean of 100 embedded words."""
  return keras.Sequential(
    [
      keras.Input((100,), dtype='uint8'),
      layers.Embedding(20_000, 32),
      layers.GlobalAveragePooling1D(),
      layers.Dense(32, activation='relu'),
      layers.Dense(10),
    ]
  )


def frozen_base() -> keras.Model:
  """MobileNetV2 with a frozen base, of which a dense layer is trained."""
  base = keras.applications.MobileNetV2(
    (96, 96, 3), alpha=0.35, include_top=False, weights=None, pooling='avg'
  )
  base.trainable = False
  return keras.Sequential([*_images(96, 96, 3), base, layers.Dense(10)])


KINDS = {
  'logistic regression': Kind(logistic, (784,)),
  'dense, 0.1M': Kind(dense(128, 64), (784,)),
  'dense, 1M': Kind(dense(784, 512), (784,)),
  'dense, 5M': Kind(dense(2048, 1536), (784,)),
  'LeNet-5': Kind(lenet5.lenet5, (28, 28, 1)),
  'CNN, dropout': Kind(dropout_cnn, (28, 28, 1), 4),
  'CNN, BatchNorm': Kind(batch_norm_cnn, (28, 28, 1), 4),
  'Light VGG': Kind(light_vgg.light_vgg, (32, 32, 3), 2, 16),
  'residual': Kind(residual, (32, 32, 3), 4, 32),
  'GRU': Kind(gru, (28, 28)),
  'LSTM, characters': Kind(lstm, (40,)),
  'embedding, text': Kind(text, (100,)),
  'MobileNetV2, frozen': Kind(frozen_base, (96, 96, 3), 2, 16),
}
