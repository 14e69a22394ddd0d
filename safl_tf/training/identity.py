"""The identity of a run: everything that its results depend on.

`safl_tf.train` and the programs use the same one. It is written to hparams.json
as names and JSON values; a run resumes only if all of them are equal. Large
values are represented by digests of all their bytes.
"""

import platform
from collections.abc import Mapping
from typing import Any

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import flat_model
from safl_tf.core import process as process_lib
from safl_tf.core import task as task_lib
from safl_tf.data import arrays, client_data
from safl_tf.data import examples as examples_lib
from safl_tf.util import atomic_io, describe, digests, readable, versions

_PACKAGES = ('safl_tf', 'tensorflow', 'keras', 'numpy')


def of_run(
  process: process_lib.FederatedProcess,
  state: process_lib.FederatedState,
  test_data: examples_lib.Examples | None,
  metadata: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the identity of a run as JSON values by name.

  Args:
    process: the process of the run.
    state: its state before the first round.
    test_data: checked examples, if any.
    metadata: of exported models, such as `class_names`.
  """
  attack = process.attack
  return {
    'seed': state.seed,
    **metadata,
    **_of_data(process.clients, test_data),
    **_of_model(process.model, state),
    **algorithm_lib.describe(process.algorithm),
    **_of_config(process.config),
    **_of_task(process.task),
    'attack': attack and {'type': type(attack).__name__, **attack.to_json()},
    **process.arithmetic,
    **_versions(),
  }


def settings(
  process: process_lib.FederatedProcess, seed: int, schedule: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the settings of a run, with the names of flags where they exist.

  Unlike the identity they are for readers: values, not digests.
  """
  algorithm, config = process.algorithm, vars(process.config)
  attack = process.attack.to_json() if process.attack else {}
  return {
    'algorithm': algorithm.name,
    **algorithm.settings,
    **{name: readable.plain(value) for name, value in config.items()},
    'loss': process.task.name,
    'attack': attack.get('kind'),
    'attack_fraction': attack.get('fraction'),
    'attack_strength': attack.get('strength'),
    'init': process.init,
    'num_clients': process.clients.num_clients,
    'parameters': process.model.size,
    'seed': seed,
    **schedule,
    **process.arithmetic,
  }


def _of_data(
  clients: client_data.ClientData, test_data: examples_lib.Examples | None
) -> dict[str, Any]:
  """Returns the part of the identity that depends on the data alone."""
  w = clients.sample_weight
  return {
    **of_inputs(clients.x, test_data),
    'labels': digests.of_array(clients.y),
    'sample_weight': None if w is None else digests.of_array(w),
    'num_classes': clients.num_classes,
    'num_clients': clients.num_clients,
    'partition': _digest_partition(clients),
  }


def of_examples(clients: client_data.ClientData) -> str:
  """Returns a digest of the examples of clients and of who has which."""
  w = clients.sample_weight
  parts = [
    _digest_inputs(clients.x),
    digests.of_array(clients.y),
    '' if w is None else digests.of_array(w),
    _digest_partition(clients),
  ]
  return digests.of_text('\n'.join(parts))


def _digest_partition(clients: client_data.ClientData) -> str:
  parts = [
    *map(digests.of_array, (clients.rows, clients.sizes)),
    *map(repr, clients.client_ids),
  ]
  return digests.of_text('\n'.join(parts))


def of_inputs(
  x: Any, test_data: examples_lib.Examples | None
) -> dict[str, Any]:
  """Returns the part that no partition, attack or algorithm changes."""
  if test_data is None:
    test = dict.fromkeys(('test_inputs', 'test_labels', 'test_weights'))
  else:
    w = test_data.sample_weight
    test = {
      'test_inputs': _digest_inputs(test_data.x),
      'test_labels': digests.of_array(test_data.y),
      'test_weights': None if w is None else digests.of_array(w),
    }
  return {'inputs': _digest_inputs(x), **test}


def _versions() -> dict[str, str]:
  """Returns the versions that results depend on."""
  known = versions.find()
  python = '.'.join(platform.python_version_tuple()[:2])
  return {'python': python, **{name: known[name] for name in _PACKAGES}}


def _digest_inputs(x: Any) -> str:
  leaves = arrays.named_leaves(x)
  parts = [f'{name} {digests.of_array(leaf)}' for name, leaf in leaves]
  return digests.of_text('\n'.join(parts))


def _of_model(
  model: flat_model.FlatModel, state: process_lib.FederatedState
) -> dict[str, Any]:
  """Describes the architecture, the user's layers and the initial weights."""
  template = model.template
  layers = {type(layer) for layer in template._flatten_layers()}
  try:
    config: Any = describe.without_names(flat_model.architecture(template))
  except NotImplementedError:
    config = describe.describe('model', type(template))
  code = sorted(describe.describe('model', layer) for layer in layers)
  shapes = [(t.shape, t.trainable) for t in model.layout.tensors]
  text = atomic_io.to_json([config, code, shapes])
  fixed = [
    digests.of_array(v.numpy())
    for v in template.non_trainable_variables
    if not flat_model.is_seed(v)
  ]
  weights = [digests.of_array(state.client_models[0]), *fixed]
  return {
    'model': f'{model.size} parameters, {digests.of_text(text)}',
    'initial_weights': digests.of_text('\n'.join(weights)),
  }


def _of_task(task: task_lib.Task) -> dict[str, Any]:
  """Describes the loss, the metrics, the score and the weights of classes."""
  options = task.options

  def text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
      return value
    return describe.describe(name, value)

  weights = options.class_weight
  return {
    'loss': text('loss', options.loss),
    'score': text('score', options.score),
    'metrics': [text('metrics', m) for m in options.metrics or ()],
    'weighted_metrics': [
      text('metrics', m) for m in options.weighted_metrics or ()
    ],
    'class_weight': weights and {str(k): weights[k] for k in sorted(weights)},
    'from_logits': options.from_logits,
  }


def _of_config(config: Any) -> dict[str, Any]:
  """Describes the local configuration, with the code of own optimizers."""
  fields = config.to_json()
  if not isinstance(config.optimizer, str):
    fields['optimizer'] = describe.describe('optimizer', config.optimizer)
  return fields
