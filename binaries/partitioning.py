"""How clients get their data: flags that programs share, and what they mean."""

import contextlib
import inspect
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from binaries import common
from safl_tf.util import choices, errors, validation

if TYPE_CHECKING:
  from safl_tf.data import client_data, partition
  from safl_tf.data import dataset as dataset_lib

# Flags defined by the function below belong to the module that calls it.
absl_flags.disclaim_key_flags()

_MANIFEST = 'manifest:'
_MAX_LABELS = 7  # the paper's
# Sizes that follow the data set: the sample's, and the paper's for all others.
_SAMPLE_SIZES = {'num_clients': 20, 'mean_examples': 200.0}
_PAPER_SIZES = {'num_clients': 80, 'mean_examples': 600.0}
# Flags whose names say which partition an argument belongs to.
_FLAGS = {'alpha': 'dirichlet_alpha', 'sigma': 'quantity_sigma'}


def define(flags: common.Flags) -> None:
  """Gives a program the flags of partitions."""
  flags.text(
    'partition',
    'labels',
    "How clients get data. labels: few labels each, the paper's. iid: all "
    'alike. dirichlet: each its own shares of the labels. shards: pieces of '
    'the data sorted by label. quantity: alike, of very different sizes. '
    'client: by who the examples come from. biased: some with several labels, '
    'some with one. manifest:FILE: as safl-partition wrote it.',
  )
  flags.integer(
    'num_clients',
    None,
    '[n] Clients; 20 for mnist_sample, else 80. With client and manifest there '
    'are as many as the data or the file has, and another number is refused.',
    low=1,
  )
  flags.real(
    'mean_examples',
    None,
    "[m] Of labels, iid, dirichlet and biased: mean size of the clients' data; "
    '200 for mnist_sample, else 600.',
    low=0,
    open_low=True,
  )
  flags.real(
    'variance_examples',
    100.0,
    '[sigma^2] Of the same: variance of the sizes.',
    low=0,
  )
  flags.integer(
    'max_labels',
    _MAX_LABELS,
    'Of labels and biased: most labels on a client.',
    low=1,
  )
  flags.real(
    'dirichlet_alpha',
    0.5,
    'Of dirichlet: how alike clients are; a small one gives each few labels.',
    low=1e-9,
    high=1e9,
  )
  flags.integer('shards_per_client', 2, 'Of shards: pieces on a client.', low=1)
  flags.real(
    'quantity_sigma',
    1.0,
    "Of quantity: standard deviation of the sizes' logarithms.",
    low=0,
    high=100,
  )
  flags.real(
    'biased_fraction',
    0.5,
    'Of biased: share of clients with a single label.',
    low=0,
    high=1,
  )
  flags.integer(
    'biased_label',
    None,
    "Of biased: that label; each client's own choice if not given.",
    low=0,
  )
  flags.integer(
    'min_examples',
    1,
    'Of client: clients with fewer examples are left out.',
    low=1,
  )


def complete(found: dict[str, Any]) -> dict[str, Any]:
  """Checks the flags of a partition and fills in what follows from others.

  Args:
    found: values of the flags and `dataset`; what wasn't given is None.

  Returns:
    New values: `num_clients` (None if only the data can tell),
    `mean_examples`, and for a manifest also `partition` with ~ expanded and
    `partition_sha256`, which tells the file from another of the same name.
  """
  name, given = found['partition'], found['num_clients']
  sizes = _SAMPLE_SIZES if found['dataset'] == 'mnist_sample' else _PAPER_SIZES
  new = {k: v if found[k] is None else found[k] for k, v in sizes.items()}
  if name.startswith(_MANIFEST):
    path = os.path.expanduser(name.removeprefix(_MANIFEST))
    manifest = _read(path)
    if {manifest.dataset, found['dataset']} <= set(choices.DATASETS):
      _check_dataset(manifest, found['dataset'])
    number = len(manifest.client_ids)
    _check_number(given, number, name)
    return {
      **new,
      'partition': _MANIFEST + path,
      'num_clients': number,
      'partition_sha256': manifest.sha256,
    }
  validation.choice(
    'partition', name, [*choices.PARTITIONS, f'{_MANIFEST}FILE']
  )
  return new | ({'num_clients': given} if name == 'client' else {})


def clients(
  values: dict[str, Any], dataset: 'dataset_lib.Dataset'
) -> tuple['client_data.ClientData', dict[str, Any]]:
  """Spreads a data set over clients as the flags say.

  Args:
    values: of the flags, see `complete`.
    dataset: the data.

  Returns:
    Who holds what; the flags that it follows from.
  """
  from safl_tf.data import client_data

  function, settings = _partition(values, dataset)
  with _about(values['partition']):
    made = client_data.ClientData.from_arrays(
      dataset.x_train,
      dataset.y_train,
      function,
      num_classes=dataset.num_classes,
    )
  _check_number(values['num_clients'], made.num_clients, values['partition'])
  return made, settings


def _partition(
  values: dict[str, Any], dataset: 'dataset_lib.Dataset'
) -> tuple['partition.Partition', dict[str, Any]]:
  """The partition, and the flags that made it."""
  from safl_tf.data import partition

  name = values['partition']
  if name.startswith(_MANIFEST):
    manifest = _read(name.removeprefix(_MANIFEST))
    if manifest.sha256 != values['partition_sha256']:
      raise errors.InputError('partition', name, 'was changed meanwhile')
    return manifest, dict(manifest.settings)
  if name == 'client':
    if dataset.client_ids is None:
      raise errors.InputError(
        'partition',
        name,
        f'{dataset.name} does not tell who its examples come from; must be '
        'another one',
      )
    least = values['min_examples']
    settings = {'partition': name, 'min_examples': least}
    return partition.by_client(dataset.client_ids, least), settings
  if values['max_labels'] is None:
    most = min(_MAX_LABELS, dataset.num_classes)
    values = values | {'max_labels': most}
  factory = getattr(partition, 'by_labels' if name == 'labels' else name)
  arguments = inspect.signature(factory).parameters
  flags = {argument: _FLAGS.get(argument, argument) for argument in arguments}
  made = factory(**{a: values[flag] for a, flag in flags.items()})
  settings = {flag: values[flag] for flag in flags.values()}
  return made, {'partition': name, **settings}


def _read(path: str) -> 'partition.Manifest':
  from safl_tf.data import partition

  with _about(_MANIFEST + path):
    return partition.from_manifest(path)


@contextlib.contextmanager
def _about(name: str) -> Iterator[None]:
  """Tells errors about a manifest's path as errors about the flag."""
  try:
    yield
  except errors.InputError as error:
    if error.argument != 'path':
      raise
    raise errors.InputError('partition', name, error.hint) from error


def _check_dataset(manifest: 'partition.Manifest', dataset: str) -> None:
  if manifest.dataset != dataset:
    raise errors.InputError(
      'partition',
      _MANIFEST + manifest.path,
      f'is made for --dataset={manifest.dataset}, not {dataset}',
    )


def _check_number(given: int | None, number: int, name: str) -> None:
  """Refuses a number of clients that isn't the one there is."""
  if given not in (None, number):
    raise errors.InputError(
      'num_clients',
      given,
      f'must be {number} or left out: --partition={name} has so many clients',
    )
