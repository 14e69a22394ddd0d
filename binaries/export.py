"""Exports the global model of a run as a SavedModel, .keras and .tflite file.

  safl-export --run=runs/safl_mnist_sample
  safl-export --run=runs/safl_mnist_sample --format=all

The SavedModel, saved_model/1/, and the LiteRT file, model.tflite, map raw
inputs (uint8 images) to class probabilities; model.keras is the plain Keras
model, whose outputs may be logits: export.json says it. A process without
safl_tf loads all files and compares their predictions before the export
replaces an older one. Files that are not of an earlier export are never
replaced.
"""

import dataclasses
import functools
import os

from absl import flags as absl_flags

from safl_tf.util import choices, console, errors, hardware, output_folder

from . import program
from .flags import group

_FORMATS = [name for name in choices.EXPORTS if name != 'none']


@dataclasses.dataclass(frozen=True)
class _Flags(group.Group, topic='export'):
  run: str | None = group.text(None, 'Folder of a run; required.')
  output: str | None = group.text(
    None, 'Folder to write to; export/ in the folder of the run if not given.'
  )
  format: str = group.choice(
    'both', _FORMATS, 'Formats to write; both is savedmodel and keras.'
  )


def main(flags: absl_flags.FlagValues) -> None:
  """Exports the newest global model of a run."""
  from safl_tf.training import run_directory

  run = group.required(flags, 'run')
  run_directory.check_is_run(run)
  output = os.path.expanduser(flags.output or os.path.join(run, 'export'))
  argument = 'output' if flags.output else 'run'
  output_folder.check(output, 'export', argument)
  hardware.start_tensorflow()
  from safl_tf.training import export

  loaded = run_directory.load(run)
  try:
    with console.only_errors():
      paths = export.export(
        loaded.model,
        output,
        loaded.input_spec,
        loaded.task['activation'],
        flags.format,
        loaded.metadata,
        argument,
        new_process=True,
      )
  except export.ExportError as error:
    raise errors.RunError(f'--run={run}: {error}') from error
  print(f'global model of round {loaded.round_number}, verified:')
  for path in paths:
    print(f'  {path}')


cli = functools.partial(
  program.run, 'safl-export', __doc__, _Flags.define, main
)

if __name__ == '__main__':
  cli()
