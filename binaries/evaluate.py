"""Evaluates a model on the test examples of a data set.

  safl-evaluate --model=runs/safl_mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model
  safl-evaluate --model=my_model.keras --dataset=mnist --data_dir=DIR
  safl-evaluate --model=runs/safl_a --dataset=csv:b.csv --test_fraction=1

Prints loss, top-1 and top-5 accuracy and the accuracy per class. Data flags
that are not given are those of the run, if the model is a run.
"""

import dataclasses
import functools
import os
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import choices, errors, hardware

from . import program
from .flags import group, training
from .flags.data import Data

if TYPE_CHECKING:
  import keras
  import numpy as np

  from safl_tf.data import dataset as dataset_lib


@dataclasses.dataclass(frozen=True)
class _Model(group.Group, topic='model'):
  model: str | None = group.text(
    None, 'Folder of a run, folder of a SavedModel or .keras file; required.'
  )
  loss: str | None = group.choice(
    None,
    choices.LOSSES,
    '[H] Loss to report; that of the run, else categorical, if not given.',
  )
  trust: bool = group.boolean(
    False,
    'Load a SavedModel that safl-export did not write, or that was changed '
    'since. A SavedModel can run code of its author.',
  )
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
  loss = flags.loss or trained.get('loss', 'categorical')
  hardware.start_tensorflow()
  from safl_tf.training import evaluation

  model, metadata, from_logits = _load(path, flags.from_logits)
  dataset = data.load(metadata)
  if dataset.num_classes is None:
    hint = f'must have classes, but its task is {dataset.task}'
    raise errors.InputError('dataset', data.dataset, hint)
  outputs = _predict(path, model, dataset)
  scores = evaluation.score(outputs, dataset.y_test, loss, from_logits)
  print(f'model    {path}')
  print(f'data     {dataset.name}, {len(dataset.y_test)} test examples')
  print(f'loss     {scores.loss:.6f}')
  print(f'top-1    {scores.accuracy:.2%}')
  print(f'top-5    {scores.top5_accuracy:.2%}')
  width = max(len('class'), *map(len, dataset.class_names))
  print(f'\n{"class":<{width}}  examples  accuracy')
  for name, count, accuracy in zip(
    dataset.class_names,
    scores.class_counts,
    scores.class_accuracy,
    strict=False,  # a model may have more outputs than classes
  ):
    print(f'{name:<{width}}  {count:8d}  {accuracy:8.2%}')


def _check_trust(path: pathlib.Path, trust: bool) -> None:
  """Refuses folders that are no model, and foreign SavedModels."""
  from safl_tf.training import export_files, run_directory

  is_run = run_directory.is_run(path)
  if path.is_dir() and not is_run and not (path / 'saved_model.pb').is_file():
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
  path: str, from_logits: bool | None
) -> tuple['keras.Layer', dict[str, Any] | None, bool]:
  """Loads the model of a run, a SavedModel or a .keras file.

  Args:
    path: of the model.
    from_logits: the flag.

  Returns:
    The model, its metadata if known, and whether its outputs are logits.
  """
  from safl_tf.core import losses
  from safl_tf.training import run_directory

  from . import factories

  folder = pathlib.Path(path)
  if run_directory.is_run(folder):
    run = run_directory.load(folder, 'model')
    _check_known(from_logits, run.from_logits)
    return run.model, run.metadata, run.from_logits
  model, metadata = factories.load_model(path), _metadata(folder)
  if not folder.is_dir():
    compiled = losses.compiled_from_logits(model)
    try:
      known = losses.are_logits(model, from_logits, compiled)
    except errors.InputError as error:
      if error.argument != 'model':
        raise
      raise errors.InputError('model', path, error.hint) from error
    return model, metadata, known
  if metadata is not None:  # of an export, which gives probabilities
    _check_known(from_logits, False)
    return model, metadata, False
  if from_logits is None:
    hint = 'does not say whether outputs are logits; give --[no]from_logits'
    raise errors.InputError('model', path, hint)
  return model, metadata, from_logits


def _check_known(given: bool | None, known: bool) -> None:
  """Refuses a flag that contradicts what is known of the model."""
  if given is not None and given != known:
    hint = f'is {known} for this model; leave it out'
    raise errors.InputError('from_logits', given, hint)


def _metadata(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the metadata that safl-export wrote beside a model, if any."""
  from safl_tf.training import export_files

  metadata = export_files.read(path.resolve().parent)
  is_listed = path.resolve().name in metadata['files']
  return metadata if is_listed and 'class_names' in metadata else None


def _predict(
  path: str, model: 'keras.Layer', dataset: 'dataset_lib.Dataset'
) -> 'np.ndarray':
  """Returns the outputs [N, C] for the test examples."""
  import numpy as np
  import tensorflow as tf

  x, batches = dataset.x_test, []
  try:
    for i in range(0, len(x), 500):
      outputs = model(tf.constant(x[i : i + 500]))
      if isinstance(outputs, dict):  # of a SavedModel
        [outputs] = outputs.values()
      batches.append(np.asarray(outputs, np.float32))
  except Exception as error:
    reason = errors.reason(error)
    hint = f'does not take inputs of shape {x.shape[1:]} ({reason})'
    raise errors.InputError('model', path, hint) from error
  result = np.concatenate(batches)
  if result.ndim != 2 or result.shape[1] < dataset.num_classes:
    raise errors.InputError(
      'model',
      path,
      f'has outputs of shape {result.shape[1:]}, but {dataset.name} has '
      f'{dataset.num_classes} classes',
    )
  return result


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-evaluate."""
  _Model.define(flags)
  Data.define(flags)
  flags.set_default('dataset', None)
  flags['dataset'].help += ' That of the run, else mnist_sample, if not given.'


cli = functools.partial(program.run, 'safl-evaluate', __doc__, define, main)

if __name__ == '__main__':
  cli()
