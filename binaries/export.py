"""safl-export: see `binaries.export_flags`."""

import os

from binaries import common, export_flags

FLAGS = export_flags.FLAGS


def main() -> None:
  """A run's newest global model -> files that others can load."""
  from safl_tf.training import run_directory
  from safl_tf.util import errors

  run = FLAGS.required('run')
  run_directory.check_is_run(run)
  output = os.path.expanduser(FLAGS.output or os.path.join(run, 'export'))
  if os.path.exists(output) and not os.path.isdir(output):
    raise errors.InputError('output', output, 'must be a folder')
  common.start_tensorflow()
  from safl_tf.training import export

  loaded = run_directory.load(run)
  try:
    with common.only_errors():
      paths = export.export(
        loaded.model,
        output,
        loaded.input_spec,
        loaded.from_logits,
        FLAGS.format,
        loaded.metadata,
      )
  except export.ExportError as error:
    raise common.ExitError(f'--run={run}: {error}') from error
  except OSError as error:
    raise errors.InputError('output', output, f'{error.strerror}') from error
  print(f'global model of round {loaded.round_number}, verified:')
  for path in paths:
    print(f'  {path}')


def cli() -> None:
  """The console script."""
  common.run('safl-export', export_flags, main)


if __name__ == '__main__':
  cli()
