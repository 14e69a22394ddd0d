"""Flags of the data of one client, on its own machine."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from safl_tf.data.files import spec
from safl_tf.util import choices, console, errors

from .conditions import When
from .data import form
from .group import Group, choice, integer, parse_list, text

if TYPE_CHECKING:
  from safl_tf.data import client_file

# The name of data that clients have themselves: those of files differ.
OWN_DATA = 'own_data'

_OWN_FORMS = ('npz:FILE', 'csv:FILE', 'folder:FOLDER')
_OWN_CLASSES = When(data=_OWN_FORMS, task=('classification',))


@dataclasses.dataclass(frozen=True)
class ClientExamples(Group, topic='data'):
  """The data of one client, or the test data of the server."""

  data: str | None = text(
    None,
    'Examples: FILE of safl-partition --export_clients, or own data: npz:FILE '
    '(arrays x and y), csv:FILE (a label, numbers and categories per line) or '
    'folder:FOLDER (a folder of images per class). All are used; none are held '
    'out.',
  )
  label_column: str | None = text(
    None,
    'Name of the label column, or its number in a file without a header; '
    'label, y, target or else the last column if not given.',
    form('label_column', 'data'),
  )
  weight_column: str | None = text(
    None,
    'Column of the weights of examples; all are equal if not given.',
    form('weight_column', 'data'),
  )
  categorical: str | None = text(
    None,
    'Columns of categories, comma-separated, besides those in which every cell '
    'starts with a letter. All clients must have the same categories.',
    form('categorical', 'data'),
  )
  task: str = choice(
    'classification',
    choices.TASKS,
    'What the labels of own data are: classes, several labels of 0 or 1 per '
    'example, or numbers to predict. The last two take several label columns, '
    'as --label_column=a,b.',
    form('task', 'data'),
  )
  image_size: str | None = text(
    None,
    'H,W. folder: size that images are resized to; csv and npz: size of the '
    'images whose pixels the rows contain.',
    form('image_size', 'data'),
  )
  class_names: str | None = text(
    None,
    'The labels of all clients, comma-separated, in the order of their '
    'numbers, as cat,dog. Required for classes that are not numbers.',
    _OWN_CLASSES,
  )
  num_classes: int | None = integer(
    None,
    'The number of classes, if labels are whole numbers 0, 1, ...',
    When(data=_OWN_FORMS, task=('classification',), class_names=(None,)),
  )

  @property
  def is_own(self) -> bool:
    """Whether the data are not a file of safl-partition."""
    return spec.is_user_data(self.data or '')

  def check(self) -> None:
    """Refuses what is wrong as far as flags and names of files say it."""
    if not self.data:
      raise errors.InputError('data', '', 'is required; see --help')
    if self.is_own:
      self._options()
      with _as_flag(self.data):
        spec.check(self.data)
      return
    path = os.path.expanduser(self.data)
    suffix = os.path.splitext(path)[1].lower().removeprefix('.')
    near = 'folder' if os.path.isdir(path) else suffix
    if near in ('csv', 'folder'):
      hint = f'did you mean {near}:{self.data}?'
      raise errors.InputError('data', self.data, hint)
    if not os.path.isfile(path):
      hint = 'cannot be read (No such file or directory)'
      raise errors.InputError('data', self.data, hint)

  def load(self) -> 'client_file.ClientFile':
    """Reads the data; images need TensorFlow."""
    from safl_tf.data import client_file

    self.check()
    assert self.data is not None
    if not self.is_own:
      return client_file.read(os.path.expanduser(self.data), 'data')
    from safl_tf.data import examples, registry

    options = self._options()
    with _as_flag(self.data), console.only_errors():
      name = spec.check(self.data)
      dataset = registry.load(name, None, options)
    ids = dataset.client_ids
    if ids is not None and (ids != ids[0]).any():
      hint = 'has a column of clients, and several of them; give those of one'
      raise errors.InputError('data', self.data, hint)
    if len(dataset.y_test):
      hint = 'has test examples, which are not used; give data without them'
      raise errors.InputError('data', self.data, hint)
    metadata = dataset.metadata
    if name.startswith('csv:'):
      metadata['columns'] = _columns(name, options)
    own = examples.Examples(
      dataset.x_train,
      dataset.y_train,
      dataset.w_train,
      list(dataset.class_names) or None,
    )
    facts = client_file.Facts.of(
      OWN_DATA, dataset.task, own, dataset.num_classes, metadata
    )
    return client_file.ClientFile(facts, own)

  def _options(self) -> spec.Options:
    """Returns how to read own data."""
    is_classes = self.task == 'classification'
    flags: dict[str, Any] = {
      'dataset': self.data,
      'label_column': self.label_column,
      'weight_column': self.weight_column,
      'categorical': self.categorical,
      'task': None if is_classes else self.task,
      'image_size': self.image_size,
    }
    names: tuple[str, ...] | None = None
    if self.class_names is not None:
      names = parse_list('class_names', self.class_names, str)
      if len(names) < 2 or '' in names:
        hint = 'must be the names of at least two classes, as cat,dog'
        raise errors.InputError('class_names', self.class_names, hint)
    elif self.num_classes is not None:
      names = tuple(map(str, range(self.num_classes)))
    elif is_classes:
      hint = (
        'is required for own data, or else --num_classes: the classes of all '
        'clients, since one may not have examples of each'
      )
      raise errors.InputError('class_names', '', hint)
    options = spec.options(flags, {'class_names': names})
    return dataclasses.replace(options, test_fraction=None)


def _columns(name: str, options: spec.Options) -> dict[str, list[str]]:
  """Returns the columns of a table, which must be those of all clients."""
  from safl_tf.data.files import csv

  layout = csv.read_layout(spec.split(name)[1], options)
  labels = [layout.names[i] for i in layout.labels]
  return {'features': layout.features, 'labels': labels}


@contextlib.contextmanager
def _as_flag(value: str) -> Iterator[None]:
  """Turns errors about a data set into errors about --data."""
  try:
    yield
  except errors.InputError as error:
    if error.argument != 'dataset':
      raise
    raise errors.InputError('data', value, error.hint) from error
