"""Workloads that training methods are timed on."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from safl_tf.core import client_config
from safl_tf.data import client_data
from safl_tf.models import lenet5, light_vgg


class Workload(NamedTuple):
  """Clients of equal size that all train in every round.

  Attributes:
    name: the workload's name.
    model_fn: builds the model.
    input_shape: shape of an image.
    num_clients: number of clients.
    examples: images per client.
    config: epochs, batch size and learning rate.
    flop_per_image: twice the multiply-adds, forward and backward.
  """

  name: str
  model_fn: Callable[[], keras.Model]
  input_shape: tuple[int, ...]
  num_clients: int
  examples: int
  config: client_config.LocalConfig
  flop_per_image: float

  @property
  def title(self) -> str:
    """The name and size, as a heading."""
    return (
      f'{self.name}: {self.num_clients} clients × {self.examples} images, '
      f'{self.config.local_epochs} epochs, batches of {self.config.batch_size}'
    )

  @property
  def images_per_round(self) -> int:
    """Training images processed in a round."""
    return self.num_clients * self.examples * self.config.local_epochs

  def clients(self) -> client_data.ClientData:
    """Returns random images, as their content does not affect the time."""
    rng = np.random.default_rng(0)
    total = self.num_clients * self.examples
    x = rng.integers(0, 256, (total, *self.input_shape), np.uint8)
    y = rng.integers(0, 10, total)
    parts = np.split(np.arange(total), self.num_clients)
    return client_data.ClientData.from_arrays(x, y, parts, num_classes=10)


def get(name: str, quick: bool = False) -> Workload:
  """Returns a workload by name; `quick` has a tenth of the clients."""
  return {'lenet': _lenet_80, 'vgg': _vgg_16}[name](quick)


def _lenet_80(quick: bool) -> Workload:
  # conv1 24²·25·6, conv2 8²·150·16, dense 256·120 + 120·84 + 84·10 multiply-
  # adds; the backward pass twice that, less the first layer's input gradient.
  first = 24 * 24 * 25 * 6
  rest = 8 * 8 * 150 * 16 + 256 * 120 + 120 * 84 + 84 * 10
  return Workload(
    name='MNIST-LeNet-80',
    model_fn=lenet5.lenet5,
    input_shape=(28, 28, 1),
    num_clients=8 if quick else 80,
    examples=600,
    config=client_config.LocalConfig(),
    flop_per_image=2 * (2 * first + 3 * rest),
  )


def _vgg_16(quick: bool) -> Workload:
  first = 32 * 32 * 27 * 64
  rest = 32 * 32 * 576 * 128 + (16**2 + 8**2 + 4**2) * 1152 * 128 + 128 * 10
  return Workload(
    name='VGG-16dev',
    model_fn=functools.partial(light_vgg.light_vgg, (32, 32, 3), 10),
    input_shape=(32, 32, 3),
    num_clients=2 if quick else 16,
    examples=128 if quick else 256,
    config=client_config.LocalConfig(local_epochs=1),
    flop_per_image=2 * (2 * first + 3 * rest),
  )
