"""One layer of several devices' models, matched or averaged."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.fedma import vectors
from safl_tf.rules import match as match_rules


class MatchedLayer(NamedTuple):
  """A hidden layer of the global model.

  Attributes:
    weights: of the layer, with L units.
    maps: π_k [L_k] of each device: its unit -> the global one.
    counts: how many devices' units each global one is made of [L].
  """

  weights: vectors.Weights
  maps: list[np.ndarray]
  counts: np.ndarray


def match(
  settings: match_rules.Match,
  layers: Sequence[vectors.Weights],
  sizes: np.ndarray,
  rng: np.random.Generator,
  reference: vectors.Weights | None = None,
) -> MatchedLayer:
  """Matches the units of a hidden layer.

  Args:
    settings: how.
    layers: each device's, with inputs in the global order.
    sizes: of the devices' data.
    rng: for what the matching draws.
    reference: the layer of the last global model of the same width, if any.
  """
  rows = [vectors.to_rows(layer) for layer in layers]
  prior = np.zeros(rows[0].shape[1])
  if layers[0].bias is not None:
    prior[-1] = match_rules.BIAS_PRIOR
  old = None if reference is None else vectors.to_rows(reference)
  found = match_rules.match_units(settings, rows, sizes, prior, rng, old)
  weights = vectors.from_rows(found.rows, layers[0])
  return MatchedLayer(weights, found.maps, found.counts)


def average_classifier(
  layers: Sequence[vectors.Weights], counts: np.ndarray
) -> vectors.Weights:
  """The global last layer, whose units are classes and so need no matching.

  Args:
    layers: each device's, with inputs in the global order.
    counts: how many examples of each class the devices have [J, classes]; the
      layer may have more units than there are classes.
  """
  spare = layers[0].kernel.shape[-1] - counts.shape[1]
  padded = np.pad(counts, ((0, 0), (0, spare)))
  kernels, biases = zip(*layers, strict=True)
  dtype = kernels[0].dtype
  kernel = match_rules.average_classes(kernels, padded).astype(dtype)
  if biases[0] is None:
    return vectors.Weights(kernel, None)
  bias = match_rules.average_classes(biases, padded).astype(dtype)
  return vectors.Weights(kernel, bias)
