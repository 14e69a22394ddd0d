"""Matches units across clients and averages the matched units."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from safl_tf.algorithms.fed_ma.matching import averages, bbp, config, hungarian

MatchConfig = config.MatchConfig
average_classes = averages.average_classes

BIAS_PRIOR = 0.1  # the prior mean of a bias; a weight's is 0


class Matched(NamedTuple):
  """A layer's units, matched across clients.

  Attributes:
    rows: the global units, float64 [L, D].
    maps: π_k [L_k] of each client: its unit -> the global unit.
    counts: the number of client units in each global unit [L].
  """

  rows: np.ndarray
  maps: list[np.ndarray]
  counts: np.ndarray


def match_units(
  match: MatchConfig,
  rows: Sequence[np.ndarray],
  sizes: np.ndarray,
  prior: np.ndarray,
  rng: np.random.Generator,
  reference: np.ndarray | None = None,
) -> Matched:
  """Matches a layer's units across clients and averages matched units.

  A single client keeps its units unchanged.

  Args:
    match: the settings.
    rows: each client's units, one in a row, float64 [L_k, D], with inputs in
      the same order on all clients.
    sizes: m_k, the clients' numbers of examples [J].
    prior: μ₀, the prior mean of a row [D].
    rng: for 'bbp'.
    reference: the first reference of 'hungarian' [L, D], the global units; by
      default the units of the client with the most data.
  """
  if len(rows) == 1:
    width = len(rows[0])
    return Matched(rows[0], [np.arange(width)], np.ones(width, np.int64))
  weights = sizes / sizes.mean() if match.by_size else np.ones(len(rows))
  if match.matching == 'bbp':
    maps = bbp.match_all(rows, prior, match.gamma, match.sweeps, rng)
  else:
    start = rows[int(np.argmax(sizes))] if reference is None else reference
    maps = hungarian.match_all(rows, start, weights, match.sweeps)
  shrunken = prior if match.average == 'map' else None
  return Matched(
    rows=averages.average_units(rows, maps, weights, shrunken),
    maps=maps,
    counts=np.bincount(np.concatenate(maps)),
  )
