"""The identity of a run: everything that its results depend on.

`safl_tf.train` and the programs use the same one. It is written to hparams.json
as names and JSON values; a run resumes only if all of them are equal. Large
values are represented by digests of all their bytes.
"""

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import flat_model
from safl_tf.core import process as process_lib
from safl_tf.data import arrays, client_data
from safl_tf.util import atomic_io, describe, digests, readable, versions

_PACKAGES = ('safl_tf', 'tensorflow', 'keras', 'numpy')


def of_run(
  process: process_lib.FederatedProcess,
  state: process_lib.FederatedState,
  test_data: tuple[Any, np.ndarray] | None,
  eval_every: int,
  metadata: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the identity of a run as JSON values by name.

  Args:
    process: the process of the run.
    state: its state before the first round.
    test_data: checked inputs and labels, if any.
    eval_every: rounds between evaluations.
    metadata: of exported models, such as `class_names`.
  """
  attack = process.attack
  return {
    'seed': state.seed,
    'eval_every': eval_every,
    **metadata,
    **_of_data(process.clients, test_data),
    **_of_model(process.model, state),
    **algorithm_lib.describe(process.algorithm),
    **_of_config(process.config),
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
  clients: client_data.ClientData, test_data: tuple[Any, np.ndarray] | None
) -> dict[str, Any]:
  """Returns the part of the identity that depends on the data alone."""
  partition = [
    *map(digests.of_array, (clients.rows, clients.sizes)),
    *map(repr, clients.client_ids),
  ]
  return {
    **of_inputs(clients.x, test_data),
    'labels': digests.of_array(clients.y),
    'num_classes': clients.num_classes,
    'num_clients': clients.num_clients,
    'partition': digests.of_text('\n'.join(partition)),
  }


def of_inputs(
  x: Any, test_data: tuple[Any, np.ndarray] | None
) -> dict[str, Any]:
  """Returns the part that no partition, attack or algorithm changes."""
  test_x, test_y = test_data or (None, None)
  return {
    'inputs': _digest_inputs(x),
    'test_inputs': None if test_x is None else _digest_inputs(test_x),
    'test_labels': None if test_y is None else digests.of_array(test_y),
  }


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
    'from_logits': model.from_logits,
    'initial_weights': digests.of_text('\n'.join(weights)),
  }


def _of_config(config: Any) -> dict[str, Any]:
  """Describes the local configuration, with the code of own optimizers."""
  fields = config.to_json()
  if not isinstance(config.optimizer, str):
    fields['optimizer'] = describe.describe('optimizer', config.optimizer)
  return fields
