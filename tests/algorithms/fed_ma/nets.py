"""Small networks that FedMA can match, and permuted copies of them."""

import functools

import keras
import numpy as np

from safl_tf.algorithms.fed_ma import layer_chain, layer_weights
from safl_tf.core import flat_model
from safl_tf.models import lenet5, light_vgg
from tests import tiny

layers = keras.layers
IMAGE = (8, 8, 2)


def mlp():
  """8 -> 6 -> 5 -> 3."""
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      layers.Dense(6, activation='tanh'),
      layers.Dense(5, activation='relu'),
      layers.Dense(tiny.CLASSES),
    ]
  )


def conv_net():
  """A functional chain with layers of many kinds; some have no bias."""
  entry = keras.Input(IMAGE)
  x = layers.Rescaling([0.5, 2.0])(entry)
  x = layers.Conv2D(4, 3, use_bias=False, activation='relu')(x)
  x = layers.MaxPooling2D(2)(x)
  x = layers.ZeroPadding2D(1)(x)
  x = layers.Conv2D(5, (2, 3), strides=2, padding='same', name='second')(x)
  x = layers.LeakyReLU()(x)
  x = layers.Dropout(0.1)(x)
  x = layers.Flatten()(x)
  x = layers.Dense(7, use_bias=False)(x)
  x = layers.Activation('tanh')(x)
  x = layers.Dense(3)(x)
  return keras.Model(entry, x, name='conv_net')


def small_vgg():
  """Light VGG with few filters."""
  conv = lambda filters: layers.Conv2D(
    filters, 3, padding='same', activation='relu'
  )
  return keras.Sequential(
    [
      keras.Input(IMAGE),
      conv(4),
      conv(6),
      layers.MaxPooling2D(2, padding='same'),
      conv(6),
      layers.GlobalAveragePooling2D(keepdims=True),
      layers.Conv2D(3, 1),
      layers.Flatten(),
    ],
    name='small_vgg',
  )


def reshaped():
  """Reshapes instead of Flatten, and a dense layer on images."""
  return keras.Sequential(
    [
      keras.Input(IMAGE),
      layers.Dense(4, activation='relu'),
      layers.AveragePooling2D(4),
      layers.Reshape((4, 4)),
      layers.Dense(5),
      layers.Reshape((20,)),
      layers.ReLU(),
      layers.Dense(6),
      layers.Reshape((1, 1, -1)),
      layers.Conv2D(3, 1),
      layers.GlobalMaxPooling2D(),
      layers.Softmax(),
    ],
    name='reshaped',
  )


def pooled():
  """Global pooling to a vector."""
  return keras.Sequential(
    [
      keras.Input(IMAGE),
      layers.Conv2D(5, 3, activation='tanh'),
      layers.GlobalAveragePooling2D(),
      layers.Dense(4, activation='relu'),
      layers.Dense(3),
    ]
  )


def deferred():
  """Without an input layer."""
  return keras.Sequential(
    [layers.Flatten(), layers.Dense(4, activation='relu'), layers.Dense(3)]
  )


def small_light_vgg():
  return light_vgg.light_vgg((16, 16, 3))


# name -> (function, shape of inputs, (q, biased) of layers, widths)
NETS = {
  'mlp': (mlp, (8,), [(1, 1), (1, 1), (1, 1)], (8, 6, 5, 3)),
  'conv_net': (
    conv_net,
    IMAGE,
    [(9, 0), (6, 1), (9, 0), (1, 1)],
    (2, 4, 5, 7, 3),
  ),
  'small_vgg': (
    small_vgg,
    IMAGE,
    [(9, 1), (9, 1), (9, 1), (1, 1)],
    (2, 4, 6, 6, 3),
  ),
  'reshaped': (
    reshaped,
    IMAGE,
    [(1, 1), (1, 1), (4, 1), (1, 1)],
    (2, 4, 5, 6, 3),
  ),
  'pooled': (pooled, IMAGE, [(9, 1), (1, 1), (1, 1)], (2, 5, 4, 3)),
  'deferred': (deferred, IMAGE, [(1, 1), (1, 1)], (128, 4, 3)),
  'lenet5': (
    lenet5.lenet5,
    (28, 28, 1),
    [(25, 1), (25, 1), (16, 1), (1, 1), (1, 1)],
    (1, 6, 16, 120, 84, 10),
  ),
  'light_vgg': (
    small_light_vgg,
    (16, 16, 3),
    [(9, 1)] * 5 + [(1, 1)],
    (3, 64, 128, 128, 128, 128, 10),
  ),
}


def inputs(shape, count=20, seed=0):
  """Noise: in [0, 1), or pixels for the built-in models."""
  rng = np.random.default_rng(seed)
  if shape[0] > 8:
    return rng.integers(0, 256, (count, *shape), np.uint8)
  return rng.random((count, *shape), np.float32)


@functools.cache
def flat(model, shape):
  return flat_model.FlatModel(model, inputs(shape, 2))


def noise(size, scale=0.3, seed=0):
  """A model with no zeros in it, not even biases."""
  rng = np.random.default_rng(seed)
  return (scale * rng.normal(size=size)).astype(np.float32)


def outputs(model, z, x):
  return np.asarray(model.to_model(z)(x, training=False))


def permuted(chain, z, seed):
  """A copy that computes the same, and how it was permuted."""
  rng = np.random.default_rng(seed)
  orders = [rng.permutation(width) for width in chain.hidden]
  return layer_weights.pick(chain, z, orders), orders


def chain_of(model):
  return layer_chain.find(model.template)
