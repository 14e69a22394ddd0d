"""Flags of the data set."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from safl_tf.data.files import spec
from safl_tf.util import choices, validation

from .. import program
from .group import Group, choice, folder, positive, text

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_MAX_TEST_FRACTION = 0.9  # leaves examples to train on


@dataclasses.dataclass(frozen=True)
class Data(Group, topic='data'):
  """The data set."""

  dataset: str = text(
    'mnist_sample',
    'mnist_sample (bundled), mnist, fashion_mnist, cifar10, speech_commands, '
    'tfds:NAME for another image classification data set of TFDS, or a data '
    'file: npz:FILE (arrays x and y; optionally x_test, y_test, client), '
    'csv:FILE (a label and numbers per line) or folder:FOLDER (a folder of '
    'images per class, optionally in train/ and test/).',
  )
  data_dir: str | None = folder(
    'Folder of TFDS; TFDS_DATA_DIR or ~/tensorflow_datasets if not given.'
  )
  speech_dir: str | None = folder(
    'speech_commands: folder of the extracted archive.'
  )
  speech_words: str | None = choice(
    None,
    choices.SPEECH_WORDS,
    'speech_commands: all 30 words (the default) or the ten commands yes, no, '
    'up, down, left, right, on, off, stop and go.',
  )
  label_column: str | None = text(
    None,
    'csv: name of the label column, or its number in a file without a header; '
    'label, y, target or else the last column if not given.',
  )
  client_column: str | None = text(
    None, 'csv: column of client names; client, if present, if not given.'
  )
  image_size: str | None = text(
    None,
    'H,W. folder: size that images are resized to; csv and npz: size of the '
    'images whose pixels the rows contain.',
  )
  test_fraction: float | None = positive(
    None,
    'npz, csv and folder without test examples: fraction of each class held '
    f'out for testing, {spec.TEST_FRACTION} if not given.',
    1,
  )
  data_sha256: str | None = None

  def resolve_data(self) -> Self:
    """Checks the data set to train on; adds the digest of data files.

    Raises:
      InputError: the data set does not exist or an option does not fit it.
    """
    data = dataclasses.replace(self, dataset=spec.check(self.dataset))
    options = data.options()
    if not spec.is_user_data(data.dataset):
      return data
    from safl_tf.data.files import loader

    fraction = options.test_fraction
    validation.real('test_fraction', fraction, 0, _MAX_TEST_FRACTION, True)
    digest = loader.inspect(data.dataset, options)
    return dataclasses.replace(data, test_fraction=fraction, data_sha256=digest)

  def options(self, class_names: Sequence[str] | None = None) -> spec.Options:
    """Returns the options for reading the data set.

    Args:
      class_names: the meaning of labels 0, 1, ..., if known.
    """
    return spec.options(dataclasses.asdict(self), class_names)

  def load(
    self, class_names: Sequence[str] | None = None
  ) -> 'dataset_lib.Dataset':
    """Loads the data set; see `options`."""
    from safl_tf.data import registry

    with program.only_errors():
      return registry.load(
        self.dataset, self.data_dir, self.options(class_names)
      )
