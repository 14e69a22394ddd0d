"""model.json and fixed_weights.npz: the model of a run without its checkpoints.

model.json has what Keras needs to rebuild the model. Weights that training does
not change, such as those of frozen layers, are not in checkpoints: they are
written once to fixed_weights.npz, if there are any, and model.json has the
checksums.
"""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from safl_tf.training import checkpoint_io
from safl_tf.training import hparams as hparams_lib
from safl_tf.util import atomic_io, errors

if TYPE_CHECKING:
  from safl_tf.core import flat_model
  from safl_tf.core import task as task_lib

_MODEL, _FIXED = 'model.json', 'fixed_weights.npz'
_FIELDS = {
  'model': dict,
  'task': dict,
  'inputs': object,
  'class_names': list,
}


def write(
  folder: pathlib.Path,
  model: 'flat_model.FlatModel',
  task: 'task_lib.Task',
  metadata: Mapping[str, Any],
) -> None:
  """Writes the files, or none for a model that Keras cannot rebuild.

  That is a model of a user class without `get_config`: its run can be resumed,
  but not exported by a program without that class.
  """
  from safl_tf.core import flat_model, task_resolution

  try:
    config = flat_model.architecture(model.template)
  except NotImplementedError:
    logging.info('%s has no get_config: no model.json', model.template.name)
    return
  description = {
    'model': config,
    'task': task_resolution.to_json(task),
    'inputs': model.input_spec,
    **metadata,
  }
  fixed = {str(i): value for i, value in model.fixed.items()}
  if fixed:
    path = str(folder / _FIXED)
    file, entries, _ = checkpoint_io.write(path, fixed, {}, {})
    description['fixed'] = {'file': file, 'arrays': entries}
  atomic_io.write_json(folder / _MODEL, description)


def read(
  folder: pathlib.Path, argument: str
) -> tuple[dict[str, Any], dict[int, Any]]:
  """Returns the contents of model.json, and `FlatModel.fixed`.

  Both are empty if there is no model.json. Errors name `argument`.
  """
  content = hparams_lib.read_json(folder, _MODEL, _FIELDS, argument) or {}
  written = content.pop('fixed', None)
  if written is None:
    return content, {}
  try:
    file, entries = written['file'], written['arrays']
    checkpoint_io.verify(str(folder), file)
    arrays = checkpoint_io.read_arrays(str(folder), file, entries)
    return content, {int(name): array for name, array in arrays.items()}
  except checkpoint_io.CorruptError as error:
    raise errors.InputError(argument, folder, str(error)) from error
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    hint = f'{_MODEL} has no valid field fixed'
    raise errors.InputError(argument, folder, hint) from error
