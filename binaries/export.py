"""safl-export: see `binaries.export_flags`."""

import pathlib
import sys

from absl import flags

from binaries import common, export_flags


def main() -> None:
  """A run's newest global model -> files that others can load."""
  run = common.required('run')
  common.start_tensorflow()
  from safl_tf import export, run_folder

  loaded = run_folder.load(run)
  output = flags.FLAGS.output or pathlib.Path(run) / 'export'
  try:
    with common.only_errors():
      paths = export.export(
        loaded.model,
        output,
        loaded.input_spec,
        loaded.from_logits,
        flags.FLAGS.format,
      )
  except export.ExportError as error:
    sys.exit(f'safl-export: {error}')
  print(f'global model of round {loaded.round_number}, verified:')
  for path in paths:
    print(f'  {path}')


def cli() -> None:
  """The console script."""
  common.run('safl-export', export_flags, main)


if __name__ == '__main__':
  cli()
