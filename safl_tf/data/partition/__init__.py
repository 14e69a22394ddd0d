"""Which examples each client holds.

A partition is a function from labels to one list of example indices per
client. Factories here check their arguments at once and return such a function:

  by_labels      few labels per client, as in the paper
  biased         a group of clients with several labels, one with a single label
  dirichlet      each client's own proportions of the labels
  iid            every client draws from all the data
  shards         data sorted by label and dealt out in pieces
  quantity       data dealt out in parts of very different sizes
  by_client      who the examples come from
  from_manifest  as a file says, which `to_manifest` has the text for

The first four take a client's number of examples from

  m_k = max(floor(N(mean_examples, variance_examples)), 1),     k = 0..n-1

and each client draws with its own generator, keyed by (seed, k); clients may
hold the same example. The next two deal the data out: every example has one
client, unless there are too few to go round. No client is without examples or
holds one twice, and those that are drawn or dealt are in random order.
"""

from safl_tf.data.partition.base import Partition
from safl_tf.data.partition.disjoint import iid, quantity, shards
from safl_tf.data.partition.labels import biased, by_labels, dirichlet
from safl_tf.data.partition.manifest import Manifest, from_manifest, to_manifest
from safl_tf.data.partition.natural import ByClient, by_client

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
