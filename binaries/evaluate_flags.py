"""Evaluates a model on a data set's test examples.

  safl-evaluate --model=runs/safl_mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model
  safl-evaluate --model=my_model.keras --dataset=mnist --data_dir=DIR

Prints loss, top-1 and top-5 accuracy and a table by class.
"""

from binaries import common
from safl_tf import names

FLAGS = common.Flags()

FLAGS.text(
  'model', None, 'A run, a SavedModel folder or a .keras file; required.'
)
FLAGS.choice(
  'dataset',
  None,
  names.DATASETS,
  "The data; the run's if the model is a run, else mnist_sample.",
)
FLAGS.folder(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
FLAGS.choice(
  'loss',
  None,
  names.LOSSES,
  "[H] The loss to report; the run's if the model is a run, else categorical.",
)
