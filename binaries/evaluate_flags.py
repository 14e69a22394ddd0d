"""Evaluates a model on a data set's test examples.

  safl-evaluate --model=runs/safl_mnist_sample --dataset=mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model

Prints loss, top-1 and top-5 accuracy and a table by class.
"""

from absl import flags

from binaries import common
from safl_tf import names

flags.DEFINE_string(
  'model', None, 'A run, a SavedModel folder or a .keras file. Required.'
)
common.choice('dataset', 'mnist_sample', names.DATASETS, 'The data.')
flags.DEFINE_string(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
common.choice('loss', 'categorical', names.LOSSES, '[H] The loss to report.')
