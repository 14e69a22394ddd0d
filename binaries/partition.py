"""Partitions a data set into clients and reports their heterogeneity.

  safl-partition --partition=dirichlet --dirichlet_alpha=0.1
  safl-partition --dataset=mnist --partition=shards --output_dir=two_shards
  safl-train --dataset=mnist --partition=manifest:two_shards/manifest.json

Writes manifest.json (the examples of each client), heterogeneity.json and
partition.png, replacing older ones. safl-train with the same flags partitions
the data in the same way, with or without the manifest.

  safl-partition --partition=labels --export_clients=clients

also writes one file with the data of each client, for its own machine, and
server.npz with the test examples.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import atomic_io, choices, errors, hardware, output_folder

from . import program
from .flags import group, presets
from .flags.data import Data
from .flags.partition import Partition

if TYPE_CHECKING:
  from safl_tf.data import client_data
  from safl_tf.data import dataset as dataset_lib


@dataclasses.dataclass(frozen=True)
class _Run(group.Group, topic='run'):
  seed: int = group.seed()
  output_dir: str | None = group.text(
    None, 'Folder to write to; partitions/DATASET_PARTITION if not given.'
  )
  export_clients: str | None = group.text(
    None,
    'Folder for the data of each client, client_0.npz and so on, and the test '
    'examples, server.npz. Files of an earlier export there are replaced or '
    'removed.',
  )


def main(flags: absl_flags.FlagValues) -> None:
  """Writes the manifest, the report and the plot of a partition."""
  from safl_tf.data import heterogeneity, partition
  from safl_tf.reporting import names as names_lib
  from safl_tf.reporting import plots

  data, config = Data.get(flags), Partition.get(flags)
  data = dataclasses.replace(data, dataset=spec.check(data.dataset))
  name = config.partition or data.default_partition
  config = dataclasses.replace(config, partition=name)
  data.check_effects(flags)
  config.check_effects(flags)
  data = data.resolve_data()
  config = config.without_unused().resolve_partition(data.dataset)
  folder = _folder(flags.output_dir, data.dataset, config.partition)
  exported = _export_folder(flags.export_clients, folder)
  if data.dataset not in choices.BUNDLED_DATASETS:
    hardware.start_tensorflow()
  dataset = data.load()
  clients, used_flags = config.clients(dataset, flags.seed)
  manifest = partition.to_manifest(clients, dataset.name, used_flags)
  counts, names = heterogeneity.table(clients, dataset.class_names)
  if clients.num_classes is None:
    report = heterogeneity.Sizes.of(clients.sizes)
  else:
    report = heterogeneity.report(counts, flags.seed)
  with contextlib.ExitStack() as stack:
    stack.enter_context(output_folder.opened(folder, 'partition', 'output_dir'))
    if exported is not None:
      stack.enter_context(
        output_folder.opened(exported, 'clients', 'export_clients')
      )
    atomic_io.write_text(folder / 'manifest.json', manifest)
    path = folder / 'heterogeneity.json'
    atomic_io.write_json(path, dataclasses.asdict(report))
    data_name = names_lib.value('dataset', dataset.name)
    kind = used_flags.get('partition', 'manifest')
    settings = f'{data_name}, {kind}, n = {clients.num_clients}'
    picture = folder / 'partition.png'
    plots.partition(counts, names, picture, settings)
    if exported is not None:
      _export(exported, dataset, clients)
  print(report)
  print(f'files            {folder}')
  if exported is not None:
    print(f"clients' files   {exported}")


def _folder(given: str | None, dataset: str, partition: str) -> pathlib.Path:
  """Returns the output folder; refuses one that others own."""
  if given is None:
    name = f'{spec.short_name(dataset)}_{partition.partition(":")[0]}'
    given = os.path.join('partitions', name)
  folder = pathlib.Path(os.path.expanduser(given))
  output_folder.check(folder, 'partition', 'output_dir')
  return folder


def _export_folder(
  given: str | None, folder: pathlib.Path
) -> pathlib.Path | None:
  """Returns the folder for clients' data; refuses one that others own."""
  if given is None:
    return None
  exported = pathlib.Path(os.path.expanduser(given))
  output_folder.check(exported, 'clients', 'export_clients')
  inside = folder.resolve()
  if exported.resolve() in (inside, *inside.parents):
    hint = f'must not be, or contain, the other output folder, {folder}'
    raise errors.InputError('export_clients', given, hint)
  return exported


def _export(
  folder: pathlib.Path,
  dataset: 'dataset_lib.Dataset',
  clients: 'client_data.ClientData',
) -> None:
  from safl_tf.data import client_file, examples

  facts = client_file.Facts.of(
    dataset.name, dataset.task, clients, clients.num_classes, dataset.metadata
  )
  test = examples.read_test(dataset.test_data, clients)
  client_file.export(folder, clients, facts, test)


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-partition."""
  Data.define(flags)
  Partition.define(flags)
  presets.define(flags)
  _Run.define(flags)


cli = functools.partial(program.run, 'safl-partition', __doc__, define, main)

if __name__ == '__main__':
  cli()
