"""Evaluates a model on the test examples of a data set.

  safl-evaluate --model=runs/safl_mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model
  safl-evaluate --model=my_model.keras --dataset=mnist --data_dir=DIR
  safl-evaluate --model=runs/safl_a --dataset=csv:b.csv --test_fraction=1

Prints the loss and, for classes, top-1 and top-5 accuracy and the accuracy per
class. Data flags that are not given are those of the run, if the model is one.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import errors, hardware

from . import program
from .flags import group, training
from .flags.data import Data

if TYPE_CHECKING:
  import keras

  from safl_tf.core import task as task_lib
  from safl_tf.data import dataset as dataset_lib
  from safl_tf.training import scores as scores_lib

_BATCH = 500


@dataclasses.dataclass(frozen=True)
class _Model(group.Group, topic='model'):
  model: str | None = group.text(
    None,
    'Folder of a run, folder of a SavedModel or of its numbered versions, or '
    '.keras file; required.',
  )
  loss: str | None = group.text(
    None,
    '[H] Loss to report: categorical, paper or one of Keras; that of the run '
    'or of a compiled .keras file, else the one for the data, if not given.',
  )
  metrics: str | None = group.text(
    None,
    'Metrics of Keras to report, separated by commas; those of the run or of a '
    'compiled .keras file if not given.',
  )
  trust: bool = group.boolean(
    False,
    'Load a SavedModel that safl-export did not write, or that was changed '
    'since. A SavedModel can run code of its author.',
  )
  custom_objects: str | None = training.custom_objects('a model')
  from_logits: bool | None = group.boolean(
    None,
    'Whether the outputs of the model are logits; needed only where neither '
    'the file nor its last layer says it, as in most SavedModels.',
  )


def main(flags: absl_flags.FlagValues) -> None:
  """Prints the scores of a model on a data set."""
  from safl_tf.training import hparams as hparams_lib

  path = group.required(flags, 'model')
  if not os.path.isdir(path):
    training.check_keras_file(path)
  trained = (hparams_lib.read(path, 'model') or {}).get('flags') or {}
  data = _data(flags, trained)
  _check_trust(pathlib.Path(path), flags.trust)
  hardware.start_tensorflow()
  from . import factories

  factories.import_objects(flags.custom_objects)
  own_loss = flags.loss is None
  model, metadata, options = _load(path, flags.from_logits, own_loss)
  if flags.loss is not None:
    options = options._replace(loss=flags.loss)
  if flags.metrics is not None:
    names = group.parse_list('metrics', flags.metrics, str)
    options = options._replace(metrics=names)
  dataset = data.load(metadata)
  scores = _score(path, model, options, dataset)
  print(f'model    {path}')
  print(f'data     {dataset.name}, {len(dataset.y_test)} test examples')
  _print_scores(scores, dataset.class_names)


def _print_scores(
  scores: 'scores_lib.Scores', class_names: Sequence[str]
) -> None:
  """Prints the numbers that there are."""
  rows = {'loss': f'{scores.loss:.6f}'}
  if scores.accuracy is not None:
    rows['top-1'] = f'{scores.accuracy:.2%}'
  if scores.top5_accuracy is not None:
    rows['top-5'] = f'{scores.top5_accuracy:.2%}'
  rows |= {name: f'{value:.6g}' for name, value in scores.metrics.items()}
  width = max(7, *map(len, rows))
  for name, value in rows.items():
    print(f'{name:<{width}}  {value}')
  if scores.class_accuracy is None or scores.class_counts is None:
    return
  width = max(len('class'), *map(len, class_names))
  print(f'\n{"class":<{width}}  examples  accuracy')
  for name, count, accuracy in zip(
    class_names,
    scores.class_counts,
    scores.class_accuracy,
    strict=False,  # a model may have more outputs than classes
  ):
    print(f'{name:<{width}}  {count:8d}  {accuracy:8.2%}')


def _check_trust(path: pathlib.Path, trust: bool) -> None:
  """Refuses folders that are no model, and foreign SavedModels."""
  from safl_tf.training import export_files, run_directory

  is_run = run_directory.is_run(path)
  is_model = is_run or export_files.find_saved_model(path) is not None
  if path.is_dir() and not is_model:
    hint = 'is neither a run (no model.json) nor a SavedModel'
    raise errors.InputError('model', path, hint)
  if is_run or not path.is_dir():
    if trust:
      hint = f'is only for a SavedModel, and {path} is none'
      raise errors.InputError('trust', True, hint)
  elif not trust and not export_files.is_own(path):
    raise errors.InputError(
      'model',
      path,
      'is a SavedModel that safl-export did not write, or that was changed '
      'since, and loading it can run code of its author; give --trust if you '
      'trust them',
    )


def _data(flags: absl_flags.FlagValues, trained: dict[str, Any]) -> Data:
  """Returns the data flags; `trained` are the flags of the run, if any."""
  default = trained.get('dataset', 'mnist_sample')
  name = spec.check(default if flags.dataset is None else flags.dataset)
  form, plain = spec.split(name)
  fitting = [o for o, forms in spec.OPTIONS.items() if (form or plain) in forms]
  values = {
    option: trained.get(option)
    for option in ('data_dir', *fitting)
    if flags[option].value is None
  }
  data = Data.get(flags, dataset=name, **values)
  data.check_effects(flags)
  data = data.without_unused().inspect(flags.test_fraction)
  if flags.dataset is None and data.data_sha256 != trained.get('data_sha256'):
    hint = 'has changed since the run; give --dataset to use it nevertheless'
    raise errors.InputError('dataset', name, hint)
  return data


def _load(
  path: str, from_logits: bool | None, own_loss: bool
) -> tuple['keras.Layer', dict[str, Any] | None, 'task_lib.Options']:
  """Loads the model of a run, a SavedModel or a .keras file.

  Args:
    path: of the model.
    from_logits: the flag.
    own_loss: whether the loss of a .keras file counts.

  Returns:
    The model, its metadata if known, and what is known of its loss.
  """
  from safl_tf.core import task as task_lib
  from safl_tf.core import task_resolution
  from safl_tf.training import run_directory

  from . import factories

  folder = pathlib.Path(path)
  if run_directory.is_run(folder):
    run = run_directory.load(folder, 'model')
    options = task_resolution.from_json(run.task)
    _check_known(from_logits, options.from_logits)
    return run.model, run.metadata, options
  metadata, known = _exported(folder)
  model = factories.load_model(path, own_loss)
  if folder.is_dir():
    if known is not None:
      _check_known(from_logits, known)
    elif from_logits is None and metadata is None:
      hint = 'does not say whether outputs are logits; give --[no]from_logits'
      raise errors.InputError('model', path, hint)
  given = known if from_logits is None else from_logits
  return model, metadata, task_lib.Options(from_logits=given)


def _check_known(given: bool | None, known: bool | None) -> None:
  """Refuses a flag that contradicts what is known of the model."""
  if given is not None and given != known:
    hint = f'is {known} for this model; leave it out'
    raise errors.InputError('from_logits', given, hint)


def _exported(
  path: pathlib.Path,
) -> tuple[dict[str, Any] | None, bool | None]:
  """Reads the export.json of a model, if it lists the model.

  Returns:
    The metadata, and whether outputs are logits; None if not known.
  """
  from safl_tf.training import export_files

  path = export_files.exported_path(path)
  info = export_files.read(path.parent)
  if path.name not in info['files']:
    return None, None
  known = {'logits': True, 'probabilities': False}
  metadata = info if 'class_names' in info else None
  return metadata, known.get(info['outputs'].get(path.name))


def _score(
  path: str,
  model: 'keras.Layer',
  options: 'task_lib.Options',
  dataset: 'dataset_lib.Dataset',
) -> 'scores_lib.Scores':
  """Scores a model on the test examples."""
  import keras

  from safl_tf.core import task as task_lib
  from safl_tf.core import task_resolution
  from safl_tf.training import keras_metrics
  from safl_tf.training import scores as scores_lib

  from . import factories

  first = _predict(path, model, dataset.x_test[:2])
  is_model = isinstance(model, keras.Model)
  compiled = task_lib.of_compiled(model) if is_model else task_lib.Options()
  if options.loss is None and compiled.loss is None:
    options = options._replace(loss=factories.LOSSES.get(dataset.task))
  y, num_classes = dataset.y_test, dataset.num_classes
  try:
    task = task_resolution.resolve(
      options, compiled, model, first, y, num_classes
    )
  except errors.InputError as error:
    if error.argument != 'model':
      raise
    raise errors.InputError('model', path, error.hint) from error
  metrics = keras_metrics.of_task(task)
  keras_metrics.check(metrics, y[:2], first.numpy())
  scorer = scores_lib.Scorer(task, metrics)
  for i in range(0, len(y), _BATCH):
    part = slice(i, i + _BATCH)
    outputs = _predict(path, model, dataset.x_test[part])
    mask = task_lib.keras_mask(outputs)
    weights = None if dataset.w_test is None else dataset.w_test[part]
    scorer.update(outputs.numpy(), y[part], mask, weights)
  return scorer.result()


def _predict(path: str, model: 'keras.Layer', x: Any) -> Any:
  """Returns the outputs for some examples, with their mask if they have one."""
  import tensorflow as tf

  from safl_tf.core import task as task_lib

  try:
    outputs = model(tf.constant(x))
    if isinstance(outputs, dict):  # of a SavedModel
      [outputs] = outputs.values()
    mask = task_lib.keras_mask(outputs)
    outputs = tf.cast(outputs, tf.float32)
    outputs._keras_mask = mask
    return outputs
  except Exception as error:
    reason = errors.reason(error)
    hint = f'does not take inputs of shape {x.shape[1:]} ({reason})'
    raise errors.InputError('model', path, hint) from error


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-evaluate."""
  _Model.define(flags)
  Data.define(flags)
  flags.set_default('dataset', None)
  flags['dataset'].help += ' That of the run, else mnist_sample, if not given.'


cli = functools.partial(program.run, 'safl-evaluate', __doc__, define, main)

if __name__ == '__main__':
  cli()
