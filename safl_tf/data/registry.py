"""Loads data sets by name."""

from safl_tf.data import bundled, dataset, tfds
from safl_tf.data.files import loader, spec
from safl_tf.data.speech_commands import loader as speech


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
      `diabetes`, `synthetic_multi_label`, `python_docs`: numbers, several
        labels or tokens to predict, see `bundled`;
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
  if name in bundled.LOADERS:
    return bundled.LOADERS[name]()
  if name == speech.NAME:
    words = options.speech_words or 'all'
    return speech.load(options.speech_dir, data_dir, words=words)
  if spec.is_user_data(name):
    return loader.load(name, options)
  return tfds.load(name, data_dir)
