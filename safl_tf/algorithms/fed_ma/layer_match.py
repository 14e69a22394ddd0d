"""Matches or averages one layer of several clients' models."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.algorithms.fed_ma import layer_weights
from safl_tf.algorithms.fed_ma import matching as matching_rules


class MatchedLayer(NamedTuple):
  """A hidden layer of the global model.

  Attributes:
    weights: of the layer, with L units.
    maps: π_k [L_k] of each client: its unit -> the global unit.
    counts: the number of client units in each global unit [L].
  """

  weights: layer_weights.Weights
  maps: list[np.ndarray]
  counts: np.ndarray


def match(
  settings: matching_rules.MatchConfig,
  layers: Sequence[layer_weights.Weights],
  sizes: np.ndarray,
  rng: np.random.Generator,
  reference: layer_weights.Weights | None = None,
) -> MatchedLayer:
  """Matches the units of a hidden layer.

  Args:
    settings: how to match.
    layers: each client's layer, with inputs in the global order.
    sizes: the clients' numbers of examples.
    rng: for the matching.
    reference: the same layer of the last global model, if any.
  """
  rows = [layer_weights.to_rows(layer) for layer in layers]
  prior = np.zeros(rows[0].shape[1])
  if layers[0].bias is not None:
    prior[-1] = matching_rules.BIAS_PRIOR
  old = None if reference is None else layer_weights.to_rows(reference)
  matched = matching_rules.match_units(settings, rows, sizes, prior, rng, old)
  weights = layer_weights.from_rows(matched.rows, layers[0])
  return MatchedLayer(weights, matched.maps, matched.counts)


def average_classifier(
  layers: Sequence[layer_weights.Weights], counts: np.ndarray
) -> layer_weights.Weights:
  """Averages the last layer, whose units are classes and need no matching.

  Args:
    layers: each client's layer, with inputs in the global order.
    counts: the clients' numbers of examples of each class [J, classes]; the
      layer may have more units than classes.
  """
  unused = layers[0].kernel.shape[-1] - counts.shape[1]
  padded = np.pad(counts, ((0, 0), (0, unused)))
  kernels, biases = zip(*layers, strict=True)
  dtype = kernels[0].dtype
  kernel = matching_rules.average_classes(kernels, padded).astype(dtype)
  if biases[0] is None:
    return layer_weights.Weights(kernel, None)
  bias = matching_rules.average_classes(biases, padded).astype(dtype)
  return layer_weights.Weights(kernel, bias)
