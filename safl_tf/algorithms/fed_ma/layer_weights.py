"""Converts the vector z of a chain to layers' weights and back."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.algorithms.fed_ma import layer_chain


class Weights(NamedTuple):
  """A layer's weights.

  Attributes:
    kernel: [q, L_(l-1), L_l], see `layer_chain`.
    bias: [L_l] if there is one.
  """

  kernel: np.ndarray
  bias: np.ndarray | None


def split(chain: layer_chain.Chain, z: np.ndarray) -> list[Weights]:
  """Splits z into its layers, as views."""
  if z.shape != (chain.size,):
    raise ValueError(f'a model has shape {z.shape}, not ({chain.size},)')
  layers, start = [], 0
  for i, link in enumerate(chain.links):
    shape = chain.kernel_shape(i)
    stop = start + int(np.prod(shape))
    kernel = z[start:stop].reshape(shape)
    start = stop + shape[-1] * link.biased
    layers.append(Weights(kernel, z[stop:start] if link.biased else None))
  return layers


def join(layers: Sequence[Weights]) -> np.ndarray:
  """Joins layers to z."""
  return np.concatenate(
    [part.ravel() for layer in layers for part in layer if part is not None]
  )


def to_rows(layer: Weights) -> np.ndarray:
  """Returns a row for each unit: its weights, then its bias; float64."""
  kernel, bias = layer
  rows = kernel.reshape(-1, kernel.shape[-1]).T
  if bias is not None:
    rows = np.concatenate([rows, bias[:, None]], axis=1)
  return rows.astype(np.float64)


def from_rows(rows: np.ndarray, like: Weights) -> Weights:
  """Inverts `to_rows`, for any number of units.

  Args:
    rows: one for each unit.
    like: a layer with the same inputs and the same type.
  """
  positions, incoming, _ = like.kernel.shape
  values = rows.astype(like.kernel.dtype).T
  kernel = values[: positions * incoming].reshape(positions, incoming, -1)
  return Weights(kernel, None if like.bias is None else values[-1])


def place_inputs(layer: Weights, pi: np.ndarray, width: int) -> Weights:
  """Permutes a layer's inputs: K_new[:, π(i)] = K[:, i], else zero.

  Args:
    layer: with the client's order of inputs.
    pi: π, the client's unit below -> the global unit.
    width: the number of global units below.
  """
  positions, _, units = layer.kernel.shape
  kernel = np.zeros((positions, width, units), layer.kernel.dtype)
  kernel[:, pi] = layer.kernel
  return Weights(kernel, layer.bias)


def pick(
  chain: layer_chain.Chain, z: np.ndarray, chosen: Sequence[np.ndarray]
) -> np.ndarray:
  """Selects or reorders a model's hidden units.

  A permutation of each layer's units leaves the model's function unchanged.

  Args:
    chain: of z.
    z: the model.
    chosen: for each hidden layer, the units to take, in their new order.

  Returns:
    The new z.
  """
  first, last = (np.arange(chain.widths[i]) for i in (0, -1))
  units = [first, *chosen, last]
  return join(
    [
      Weights(
        kernel[:, units[i]][:, :, units[i + 1]],
        None if bias is None else bias[units[i + 1]],
      )
      for i, (kernel, bias) in enumerate(split(chain, z))
    ]
  )
