"""Flags of the data set."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from safl_tf.data.files import spec
from safl_tf.util import choices, console, errors, validation

from .conditions import When
from .group import Group, choice, folder, real, text

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_MAX_TEST_FRACTION = 0.9  # leaves examples to train on
_TFDS = (*choices.TFDS_DATASETS, 'tfds:NAME')


def form(option: str, flag: str = 'dataset') -> When:
  """The data that an option of `spec.OPTIONS` is for; `flag` gives them."""
  forms = {form.partition(':')[0]: form for form in choices.DATASET_FORMS}
  return When(**{flag: [forms.get(f, f) for f in spec.OPTIONS[option]]})


@dataclasses.dataclass(frozen=True)
class Data(Group, topic='data'):
  """The data set."""

  dataset: str = text(
    'mnist_sample',
    'mnist_sample (bundled), mnist, fashion_mnist, cifar10, speech_commands, '
    'diabetes (regression, bundled), synthetic_multi_label (several labels, '
    'bundled), python_docs (next characters, bundled), '
    'tfds:NAME for another image classification data set of TFDS, or a data '
    'file: npz:FILE (arrays x and y; optionally x_test, y_test, client), '
    'csv:FILE (a label, numbers and categories per line) or folder:FOLDER (a '
    'folder of images per class, optionally in train/ and test/).',
  )
  data_dir: str | None = folder(
    'Folder of TFDS; TFDS_DATA_DIR or ~/tensorflow_datasets if not given.',
    When(dataset=_TFDS)
    | When(dataset=('speech_commands',), speech_dir=(None,)),
  )
  speech_dir: str | None = folder(
    'Folder of the extracted archive.', form('speech_dir')
  )
  speech_words: str | None = choice(
    None,
    choices.SPEECH_WORDS,
    'All 30 words (the default) or the ten commands yes, no, up, down, left, '
    'right, on, off, stop and go.',
    form('speech_words'),
  )
  label_column: str | None = text(
    None,
    'Name of the label column, or its number in a file without a header; '
    'label, y, target or else the last column if not given.',
    form('label_column'),
  )
  client_column: str | None = text(
    None,
    'Column of client names; client, if present, if not given.',
    form('client_column'),
  )
  weight_column: str | None = text(
    None,
    'Column of the weights of examples; all are equal if not given.',
    form('weight_column'),
  )
  categorical: str | None = text(
    None,
    'Columns of categories, comma-separated, besides those in which every cell '
    'starts with a letter. Each category becomes a feature of 0 or 1.',
    form('categorical'),
  )
  task: str | None = choice(
    None,
    choices.TASKS,
    'What the labels are: classes (the default), several labels of 0 or 1 per '
    'example, or numbers to predict. The last two take several label columns, '
    'as --label_column=a,b.',
    form('task'),
  )
  image_size: str | None = text(
    None,
    'H,W. folder: size that images are resized to; csv and npz: size of the '
    'images whose pixels the rows contain.',
    form('image_size'),
  )
  test_fraction: float | None = real(
    None,
    'Fraction of each class held out for testing from data without test '
    f'examples; {spec.TEST_FRACTION} if not given.',
    form('test_fraction'),
  )
  data_sha256: str | None = None

  def resolve_data(self) -> Self:
    """Checks the data set to train on; adds the digest of data files."""
    data = dataclasses.replace(self, dataset=spec.check(self.dataset))
    data = data.without_unused(Data)
    data = data.inspect(data.test_fraction)
    fraction = data.test_fraction
    if fraction is not None:
      validation.real('test_fraction', fraction, 0, _MAX_TEST_FRACTION, True)
    return data

  def inspect(self, given: float | None) -> Self:
    """Adds the digest of data files and the fraction to hold out, if any.

    `given` is the fraction that the user gave, which must have an effect.
    """
    options = self.options()
    if not spec.is_user_data(self.dataset):
      return self
    from safl_tf.data.files import loader

    digest, has_test = loader.inspect(self.dataset, options)
    if has_test and given is not None:
      hint = f'has no effect: {self.dataset} has test examples of its own'
      raise errors.InputError('test_fraction', given, hint)
    fraction = None if has_test else options.test_fraction
    return dataclasses.replace(self, test_fraction=fraction, data_sha256=digest)

  @property
  def default_partition(self) -> str:
    """The partition for the kind of data."""
    if self.dataset in choices.BUNDLED_DATASETS:
      return 'labels' if self.dataset == 'mnist_sample' else 'client'
    return 'labels' if self.task in (None, 'classification') else 'iid'

  @property
  def has_images(self) -> bool:
    """Whether the inputs are images, as far as flags say it."""
    if self.dataset in choices.BUNDLED_DATASETS:
      return self.dataset == 'mnist_sample'
    form, _ = spec.split(self.dataset)
    return form != 'csv' or self.image_size is not None

  def options(self, metadata: Mapping[str, Any] | None = None) -> spec.Options:
    """Returns the reading options; `metadata` is that of a trained model."""
    return spec.options(dataclasses.asdict(self), metadata)

  def load(
    self, metadata: Mapping[str, Any] | None = None
  ) -> 'dataset_lib.Dataset':
    """Loads the data set; see `options`."""
    from safl_tf.data import registry

    with console.only_errors():
      return registry.load(self.dataset, self.data_dir, self.options(metadata))
