"""Flags of the partition of a data set into clients."""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from safl_tf.util import choices, errors, validation

from .conditions import When
from .group import Group, integer, real, text

if TYPE_CHECKING:
  from safl_tf.data import client_data
  from safl_tf.data import dataset as dataset_lib
  from safl_tf.data import partition as partition_lib

_MANIFEST = 'manifest:'
_MAX_LABELS = 7  # the paper's
_SIZES: dict[str, dict[str, Any]] = {
  **{name: {'num_clients': 20} for name in choices.BUNDLED_DATASETS},
  'mnist_sample': {'num_clients': 20, 'mean_examples': 200.0},
}
_PAPER_SIZES = {'num_clients': 80, 'mean_examples': 600.0}
# Arguments of partitions whose flags have longer names.
_FLAG_NAMES = {'alpha': 'dirichlet_alpha', 'sigma': 'quantity_sigma'}
_SIZES_DRAWN = When(partition=('labels', 'iid', 'dirichlet', 'biased'))
_BIASED = When(partition=('biased',))


@dataclasses.dataclass(frozen=True)
class Partition(Group, topic='partition'):
  """The partition of the training examples into clients."""

  partition: str = text(
    None,
    "labels (few labels per client, the paper's), iid, dirichlet (label "
    'proportions drawn per client), shards (pieces of the data sorted by '
    'label), quantity (iid with unequal sizes), client (by the source of each '
    'example), biased (some clients with a single label) or manifest:FILE '
    '(written by safl-partition). If not given: labels for classes, client for '
    'other bundled data, else iid.',
  )
  num_clients: int | None = integer(
    None,
    '[n] Number of clients; 20 for bundled data, else 80. client and manifest '
    'determine it themselves and refuse another number.',
  )
  mean_examples: float | None = real(
    None,
    '[m] Mean number of examples per client; 200 for mnist_sample, 600 for '
    'data that are not bundled; else, the examples are divided by n.',
    _SIZES_DRAWN,
  )
  variance_examples: float = real(
    100.0,
    '[sigma^2] Variance of the number of examples per client.',
    _SIZES_DRAWN,
  )
  max_labels: int | None = integer(
    None,
    f'Maximum number of labels per client; {_MAX_LABELS}, or all labels of '
    'data files with fewer.',
    When(partition=('labels', 'biased')),
  )
  dirichlet_alpha: float = real(
    0.5,
    'Concentration; a small value gives each client few labels.',
    When(partition=('dirichlet',)),
  )
  shards_per_client: int = integer(
    2, 'Pieces per client.', When(partition=('shards',))
  )
  quantity_sigma: float = real(
    1.0,
    'Standard deviation of the logarithms of sizes.',
    When(partition=('quantity',)),
  )
  biased_fraction: float = real(
    0.5, 'Fraction of clients with a single label.', _BIASED
  )
  biased_label: int | None = integer(
    None, 'That label; drawn per client if not given.', _BIASED
  )
  min_examples: int = integer(
    1,
    'Minimum number of examples; smaller clients are left out.',
    When(partition=('client',)),
  )
  partition_sha256: str | None = None

  def resolve_partition(self, dataset: str) -> Self:
    """Fills in sizes that depend on --dataset and the digest of a manifest.

    `num_clients` stays None if only the data determine it.
    """
    sizes = _SIZES.get(dataset, _PAPER_SIZES)
    values: dict[str, Any] = {
      name: size for name, size in sizes.items() if getattr(self, name) is None
    }
    if self.max_labels is None and dataset in choices.DATASETS:
      values['max_labels'] = _MAX_LABELS
    if self.partition.startswith(_MANIFEST):
      path = os.path.expanduser(self.partition.removeprefix(_MANIFEST))
      manifest, name = _read(path), _MANIFEST + path
      named = {manifest.dataset, dataset} <= set(choices.DATASETS)
      if named and manifest.dataset != dataset:
        hint = f'is a partition of --dataset={manifest.dataset}, not {dataset}'
        raise errors.InputError('partition', name, hint)
      number = len(manifest.client_ids)
      self._check_num_clients(number)
      values |= {'partition': name, 'num_clients': number}
      values['partition_sha256'] = manifest.sha256
    else:
      names = [*choices.PARTITIONS, f'{_MANIFEST}FILE']
      validation.choice('partition', self.partition, names)
      if self.partition == 'client':
        values.pop('num_clients', None)
    return dataclasses.replace(self, **values)

  def clients(
    self, dataset: 'dataset_lib.Dataset', seed: int
  ) -> tuple['client_data.ClientData', dict[str, Any]]:
    """Partitions a data set: the clients and the flags that determine them."""
    from safl_tf.data import client_data

    function, used_flags = self._build(dataset, seed)
    with _as_flag(self.partition):
      clients = client_data.ClientData.from_arrays(
        dataset.x_train,
        dataset.y_train,
        function,
        sample_weight=dataset.w_train,
        class_names=dataset.class_names or None,
      )
    self._check_num_clients(clients.num_clients)
    return clients, used_flags

  def _build(
    self, dataset: 'dataset_lib.Dataset', seed: int
  ) -> tuple['partition_lib.Partition', dict[str, Any]]:
    from safl_tf.data import partition as partition_lib

    name = self.partition
    if name.startswith(_MANIFEST):
      manifest = _read(name.removeprefix(_MANIFEST))
      if manifest.sha256 != self.partition_sha256:
        raise errors.InputError('partition', name, 'has changed meanwhile')
      return manifest, dict(manifest.settings)
    if name == 'client':
      if dataset.client_ids is None:
        hint = f'{dataset.name} has no client names; choose another partition'
        raise errors.InputError('partition', name, hint)
      function = partition_lib.by_client(dataset.client_ids, self.min_examples)
      return function, {'partition': name, 'min_examples': self.min_examples}
    values = {**dataclasses.asdict(self), 'seed': seed}
    if self.max_labels is None:
      values['max_labels'] = min(_MAX_LABELS, dataset.num_classes or 1)
    factory = getattr(partition_lib, 'by_labels' if name == 'labels' else name)
    flags = {
      argument: _FLAG_NAMES.get(argument, argument)
      for argument in inspect.signature(factory).parameters
    }
    function = factory(**{a: values[flag] for a, flag in flags.items()})
    used_flags = {flag: values[flag] for flag in flags.values()}
    return function, {'partition': name, **used_flags}

  def _check_num_clients(self, number: int) -> None:
    if self.num_clients not in (None, number):
      raise errors.InputError(
        'num_clients',
        self.num_clients,
        f'must be {number} or omitted: --partition={self.partition} has '
        f'{number} clients',
      )


def _read(path: str) -> 'partition_lib.Manifest':
  from safl_tf.data import partition as partition_lib

  with _as_flag(_MANIFEST + path):
    return partition_lib.from_manifest(path)


@contextlib.contextmanager
def _as_flag(value: str) -> Iterator[None]:
  """Turns errors about a manifest's path into errors about --partition."""
  try:
    yield
  except errors.InputError as error:
    if error.argument != 'path':
      raise
    raise errors.InputError('partition', value, error.hint) from error
