"""Spreads a data set over clients and tells how different they are.

  safl-partition --partition=dirichlet --dirichlet_alpha=0.1
  safl-partition --dataset=mnist --partition=shards --output_dir=two_shards
  safl-train --dataset=mnist --partition=manifest:two_shards/manifest.json

Writes manifest.json (who holds what, a client per line), heterogeneity.json and
partition.png, in place of those that are there. The same flags give the clients
of safl-train the same data, with or without the manifest.
"""

import copy
import os
from typing import Any

from binaries import common, partitioning, training_flags
from safl_tf.data.files import spec

FLAGS = common.Flags()

# Which data, as in safl-train.
for _name in (
  'dataset',
  'data_dir',
  'label_column',
  'client_column',
  'image_size',
  'test_fraction',
  'speech_dir',
  'speech_words',
  'seed',
):
  FLAGS[_name] = copy.deepcopy(training_flags.FLAGS[_name])
  FLAGS.register_flag_by_module(training_flags.__name__, FLAGS[_name])
  FLAGS.register_key_flag_for_module(__name__, FLAGS[_name])
partitioning.define(FLAGS)
FLAGS.text(
  'output_dir', None, 'Where to write; partitions/DATASET_PARTITION by default.'
)


def values() -> dict[str, Any]:
  """The flags of a training that would have these clients.

  Raises:
    InputError: flags that contradict each other, or name what isn't there.
  """
  of_training = training_flags.FLAGS.flags_by_module_dict()
  given = {f.name: f.default for f in of_training[training_flags.__name__]}
  mine = {name: FLAGS[name].value for name in given if name in FLAGS}
  found = training_flags.values(FLAGS, **given | mine | {'output_dir': ''})
  output = FLAGS.output_dir
  if output is None:
    data = spec.short_name(found['dataset'])
    name = found['partition'].partition(':')[0]
    output = os.path.join('partitions', f'{data}_{name}')
  return found | {'output_dir': os.path.expanduser(output)}
