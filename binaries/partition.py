"""safl-partition: see `binaries.partition_flags`."""

import dataclasses
import os
import pathlib

from binaries import common, partition_flags, partitioning


def main() -> None:
  """A data set and a partition -> a manifest, a picture and a report."""
  from safl_tf.data import heterogeneity, partition, registry
  from safl_tf.data.files import spec
  from safl_tf.reporting import plots
  from safl_tf.util import atomic_io, errors

  values = partition_flags.values()
  folder = pathlib.Path(values['output_dir'])
  _check_folder(folder)
  name = values['dataset']
  if name != registry.SAMPLE:
    common.start_tensorflow()
  with common.only_errors():
    dataset = registry.load(name, values['data_dir'], spec.options(values))
  clients, settings = partitioning.clients(values, dataset)
  manifest = partition.to_manifest(clients, dataset.name, settings)
  counts = clients.label_counts()
  report = heterogeneity.report(counts, values['seed'])
  try:
    folder.mkdir(parents=True, exist_ok=True)
    atomic_io.write_text(folder / 'manifest.json', manifest)
    atomic_io.write_json(
      folder / 'heterogeneity.json', dataclasses.asdict(report)
    )
    plots.partition(
      counts,
      dataset.class_names,
      folder / 'partition.png',
      f'{settings.get("partition", "manifest")} on {dataset.name}',
    )
  except OSError as error:
    raise errors.InputError(
      'output_dir', folder, f'{error.strerror}'
    ) from error
  print(report)
  print(f'files            {folder}')


def _check_folder(folder: pathlib.Path) -> None:
  """Refuses a folder that can't be written to, before there is any work."""
  from safl_tf.util import errors

  existing = next(p for p in (folder, *folder.parents) if os.path.exists(p))
  if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
    raise errors.InputError(
      'output_dir', folder, f'{existing} is not a folder one can write to'
    )


def cli() -> None:
  """The console script."""
  common.run('safl-partition', partition_flags, main)


if __name__ == '__main__':
  cli()
