"""How the server makes its model z̄ of what it received."""

from safl_tf.rules.fuse.base import (
  Fuse,
  Fused,
  Layout,
  Memory,
  Updates,
  by_size,
  weighted_mean,
)

__all__ = [
  'Fuse',
  'Fused',
  'Layout',
  'Memory',
  'Updates',
  'by_size',
  'weighted_mean',
]
