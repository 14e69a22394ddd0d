"""Evaluates a model on the test examples of a data set.

  safl-evaluate --model=runs/safl_mnist_sample
  safl-evaluate --model=runs/safl_mnist_sample/export/saved_model
  safl-evaluate --model=my_model.keras --dataset=mnist --data_dir=DIR
  safl-evaluate --model=runs/safl_a --dataset=csv:b.csv --test_fraction=1

Prints loss, top-1 and top-5 accuracy and the accuracy per class. Data flags
that are not given are those of the run, if the model is a run.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import choices, errors

from . import program
from .flags import group, training
from .flags.data import Data

if TYPE_CHECKING:
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


def main(flags: absl_flags.FlagValues) -> None:
  """Prints the scores of a model on a data set."""
  from safl_tf.training import metrics_log

  path = group.required(flags, 'model')
  if not os.path.isdir(path):
    training.check_keras_file(path)
  trained = (metrics_log.read_hparams(path, 'model') or {}).get('flags', {})
  data = _data(flags, trained)
  loss = flags.loss or trained.get('loss', 'categorical')
  program.start_tensorflow()
  from safl_tf.training import evaluation

  model = _load(path)
  dataset = data.load(model.class_names)
  outputs, from_logits = _predict(path, model, dataset)
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


def _data(flags: absl_flags.FlagValues, trained: dict[str, Any]) -> Data:
  """Returns the data flags, with those of a run as defaults.

  Args:
    flags: of this program.
    trained: the flags of the run; empty if the model is not a run.

  Raises:
    InputError: flags contradict each other or name missing files.
  """
  default = trained.get('dataset', 'mnist_sample')
  name = spec.check(default if flags.dataset is None else flags.dataset)
  data = Data.get(flags, dataset=name)
  form, plain = spec.split(name)
  fitting = [o for o, forms in spec.OPTIONS.items() if (form or plain) in forms]
  values: dict[str, Any] = {
    option: trained.get(option)
    for option in ('data_dir', *fitting)
    if getattr(data, option) is None
  }
  data = dataclasses.replace(data, **values)
  options = data.options()
  if spec.is_user_data(name):
    from safl_tf.data.files import loader

    digest = loader.inspect(name, options)
    if flags.dataset is None and digest != trained.get('data_sha256'):
      raise errors.InputError(
        'dataset',
        name,
        'has changed since the run; give --dataset to use it nevertheless',
      )
  return data


class _Predictor(NamedTuple):
  """A model; what is unknown of it is None.

  Attributes:
    call: maps a batch of inputs to outputs [N, C].
    from_logits: whether outputs are logits.
    class_names: the meaning of the outputs.
  """

  call: Callable[[Any], Any]
  from_logits: bool | None
  class_names: list[str] | None


def _load(path: str) -> _Predictor:
  """Loads the model of a run, a SavedModel or a .keras file."""
  from safl_tf.training import run_directory

  from . import factories

  folder = pathlib.Path(path)
  if run_directory.is_run(folder):
    run = run_directory.load(folder, 'model')
    return _Predictor(run.model, run.from_logits, run.metadata['class_names'])
  if (folder / 'saved_model.pb').is_file():
    return _Predictor(_load_signature(path), None, _class_names(folder))
  if folder.is_dir():
    raise errors.InputError(
      'model', path, 'is neither a run (no model.json) nor a SavedModel'
    )
  return _Predictor(factories.load_keras(path), None, _class_names(folder))


def _load_signature(path: str) -> Callable[[Any], Any]:
  """Loads the serving signature of a SavedModel."""
  import keras

  try:
    layer = keras.layers.TFSMLayer(path, call_endpoint='serving_default')
  except Exception as error:
    raise errors.InputError(
      'model', path, f'is not a SavedModel ({errors.reason(error)})'
    ) from error

  def call(inputs: Any) -> Any:
    [outputs] = layer(inputs).values()
    return outputs

  return call


def _class_names(path: pathlib.Path) -> list[str] | None:
  """Returns the class names that safl-export wrote beside a model, if any."""
  from safl_tf.training import export

  try:
    metadata = json.loads((path.parent / export.METADATA).read_text())
    return metadata['class_names'] if path.name in metadata['files'] else None
  except (OSError, ValueError, KeyError):
    return None


def _predict(
  path: str, model: _Predictor, dataset: 'dataset_lib.Dataset'
) -> tuple['np.ndarray', bool]:
  """Returns the outputs [N, C] for test examples; whether they are logits."""
  import numpy as np
  import tensorflow as tf

  from safl_tf.core import flat_model

  x = dataset.x_test
  try:
    batches = [
      np.asarray(model.call(tf.constant(x[i : i + 500])), np.float32)
      for i in range(0, len(x), 500)
    ]
  except Exception as error:
    raise errors.InputError(
      'model',
      path,
      f'does not take inputs of shape {x.shape[1:]} ({errors.reason(error)})',
    ) from error
  outputs = np.concatenate(batches)
  if outputs.ndim != 2 or outputs.shape[1] < dataset.num_classes:
    raise errors.InputError(
      'model',
      path,
      f'has outputs of shape {outputs.shape[1:]}, but {dataset.name} has '
      f'{dataset.num_classes} classes',
    )
  if model.from_logits is None:
    return outputs, not flat_model.are_probabilities(outputs)
  return outputs, model.from_logits


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-evaluate."""
  _Model.define(flags)
  Data.define(flags)
  flags.set_default('dataset', None)
  flags['dataset'].help += ' That of the run, else mnist_sample, if not given.'


def cli() -> None:
  """Runs safl-evaluate."""
  program.run('safl-evaluate', __doc__, define, main)


if __name__ == '__main__':
  cli()
