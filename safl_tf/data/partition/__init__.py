"""Partitions: which examples each client holds.

A partition is a function from labels to one list of example indices per client.
These functions check their arguments and return a partition:

| function | clients hold |
|---|---|
| `by_labels` | a few labels each, as in the paper |
| `biased` | several labels, or a single one |
| `dirichlet` | label proportions of their own |
| `iid` | draws from all the data |
| `shards` | pieces of the data sorted by label |
| `quantity` | parts of very different sizes |
| `by_client` | the examples with their id: the natural partition |
| `from_manifest` | what a file says, whose text `to_manifest` returns |

All but the last two take `num_clients`, n, and `seed`, the run's seed. The
first four draw the number of examples of client k as

    m_k = max(floor(N(mean_examples, variance_examples)), 1),     k = 0..n-1

with a generator keyed by (seed, k); without `mean_examples`, the mean is N / n
for N examples in total. Clients may share examples. `shards` and `quantity`
give each example to one client, unless there are too few. Every client holds at
least one example, none twice, and in random order if drawn.
"""

from safl_tf.data.partition.base import Partition
from safl_tf.data.partition.disjoint import iid, quantity, shards
from safl_tf.data.partition.labels import biased, by_labels, dirichlet
from safl_tf.data.partition.manifest import Manifest, from_manifest, to_manifest
from safl_tf.data.partition.natural import by_client

__all__ = [
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
