"""Which examples each device holds.

A partition is a function from labels to one list of example indices per
device. Factories here check their arguments at once and return such a function:

  by_labels      few labels per device, as in the paper
  biased         a group of devices with several labels, one with a single label
  dirichlet      each device's own proportions of the labels
  iid            every device draws from all the data
  shards         data sorted by label and dealt out in pieces
  quantity       data dealt out in parts of very different sizes
  by_client      who the examples come from
  from_manifest  as a file says, which `to_manifest` has the text for

The first four take a device's number of examples from

  m_k = max(floor(N(mean_examples, variance_examples)), 1),     k = 0..n-1

and each device draws with its own generator, keyed by (seed, k); devices may
hold the same example. The next two deal the data out: every example has one
device, unless there are too few to go round. No device is without examples or
holds one twice, and those that are drawn or dealt are in random order.
"""

from safl_tf.data.partition.base import Partition
from safl_tf.data.partition.client import ByClient, by_client
from safl_tf.data.partition.dealt import iid, quantity, shards
from safl_tf.data.partition.labels import biased, by_labels, dirichlet
from safl_tf.data.partition.manifest import (
  Manifest,
  from_manifest,
  to_manifest,
)

__all__ = [
  'ByClient',
  'Manifest',
  'Partition',
  'biased',
  'by_client',
  'by_labels',
  'dirichlet',
  'from_manifest',
  'iid',
  'quantity',
  'shards',
  'to_manifest',
]
