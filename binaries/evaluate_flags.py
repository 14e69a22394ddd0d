"""Evaluates a model on a data set's test examples.

  safl-evaluate --model=runs/safl_mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model
  safl-evaluate --model=my_model.keras --dataset=mnist --data_dir=DIR
  safl-evaluate --model=runs/safl_a --dataset=csv:b.csv --test_fraction=1

Prints loss, top-1 and top-5 accuracy and a table by class.
"""

from typing import Any

from binaries import common, data_flags
from safl_tf.data.files import spec
from safl_tf.util import choices, errors

FLAGS = common.Flags()

FLAGS.text(
  'model', None, 'A run, a SavedModel folder or a .keras file; required.'
)
FLAGS.text(
  'dataset',
  None,
  f"{spec.HELP['dataset']} By default the run's if the model is a run, "
  'else mnist_sample.',
)
FLAGS.folder(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
data_flags.define(FLAGS, 1, '; 1 takes all.')
FLAGS.choice(
  'loss',
  None,
  choices.LOSSES,
  "[H] The loss to report; the run's if the model is a run, else categorical.",
)


def data_values(trained: dict[str, Any]) -> dict[str, Any]:
  """The flags that say which data, with defaults from a run's flags.

  Args:
    trained: the run's flags; empty if the model isn't a run.

  Raises:
    InputError: flags that contradict each other, or name what isn't there.
  """
  given = FLAGS.dataset
  before = trained.get('dataset', 'mnist_sample')
  name = spec.check(before if given is None else given)
  form, plain = spec.split(name)
  found = {
    'dataset': name,
    'data_dir': FLAGS.data_dir or trained.get('data_dir'),
  }
  for option, forms in spec.OPTIONS.items():
    found[option] = FLAGS[option].value
    if found[option] is None and (form or plain) in forms:
      found[option] = trained.get(option)
  options = spec.options(found)
  if spec.is_user_data(name):
    from safl_tf.data.files import loader

    digest = loader.inspect(name, options)
    if given is None and digest != trained.get('data_sha256'):
      raise errors.InputError(
        'dataset',
        name,
        'is not as it was in the run; --dataset takes it as it is now',
      )
  return found
