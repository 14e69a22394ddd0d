"""Partitions a data set into clients and reports their heterogeneity.

  safl-partition --partition=dirichlet --dirichlet_alpha=0.1
  safl-partition --dataset=mnist --partition=shards --output_dir=two_shards
  safl-train --dataset=mnist --partition=manifest:two_shards/manifest.json

Writes manifest.json (the examples of each client), heterogeneity.json and
partition.png, replacing older ones. safl-train with the same flags partitions
the data in the same way, with or without the manifest.
"""

import dataclasses
import functools
import os
import pathlib

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import atomic_io, choices, hardware, output_folder

from . import program
from .flags import group, presets
from .flags.data import Data
from .flags.partition import Partition


@dataclasses.dataclass(frozen=True)
class _Run(group.Group, topic='run'):
  seed: int = group.seed()
  output_dir: str | None = group.text(
    None, 'Folder to write to; partitions/DATASET_PARTITION if not given.'
  )


def main(flags: absl_flags.FlagValues) -> None:
  """Writes the manifest, the report and the plot of a partition."""
  from safl_tf.data import heterogeneity, partition
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
  with output_folder.opened(folder, 'partition', 'output_dir'):
    atomic_io.write_text(folder / 'manifest.json', manifest)
    path = folder / 'heterogeneity.json'
    atomic_io.write_json(path, dataclasses.asdict(report))
    title = f'{used_flags.get("partition", "manifest")} on {dataset.name}'
    picture = folder / 'partition.png'
    plots.partition(counts, names, picture, title)
  print(report)
  print(f'files            {folder}')


def _folder(given: str | None, dataset: str, partition: str) -> pathlib.Path:
  """Returns the output folder; refuses one that others own."""
  if given is None:
    name = f'{spec.short_name(dataset)}_{partition.partition(":")[0]}'
    given = os.path.join('partitions', name)
  folder = pathlib.Path(os.path.expanduser(given))
  output_folder.check(folder, 'partition', 'output_dir')
  return folder


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-partition."""
  Data.define(flags)
  Partition.define(flags)
  presets.define(flags)
  _Run.define(flags)


cli = functools.partial(program.run, 'safl-partition', __doc__, define, main)

if __name__ == '__main__':
  cli()
