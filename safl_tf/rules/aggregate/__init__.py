"""Aggregators: rules that compute z̄ from the uploads of a round."""

from safl_tf.rules.aggregate.base import (
  Aggregated,
  Aggregator,
  Layout,
  Memory,
  Updates,
  by_size,
  weighted_mean,
)
from safl_tf.rules.aggregate.inverse_distance import (
  inverse_distance,
  inverse_distance_weights,
)
from safl_tf.rules.aggregate.robust import (
  coordinate_median,
  geometric_median,
  krum,
  multi_krum,
  trimmed_mean,
)
from safl_tf.rules.aggregate.server_optimizer import (
  OPTIMIZER_ARGUMENTS,
  server_optimizer,
)
from safl_tf.rules.aggregate.temporal import temporal, temporal_weights

__all__ = [
  'OPTIMIZER_ARGUMENTS',
  'Aggregated',
  'Aggregator',
  'Layout',
  'Memory',
  'Updates',
  'by_size',
  'coordinate_median',
  'geometric_median',
  'inverse_distance',
  'inverse_distance_weights',
  'krum',
  'multi_krum',
  'server_optimizer',
  'temporal',
  'temporal_weights',
  'trimmed_mean',
  'weighted_mean',
]
