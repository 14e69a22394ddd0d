"""safl-theory: see `binaries.theory_flags`."""

import os
from typing import NamedTuple

from absl import logging

from binaries import common, theory_flags

FLAGS = theory_flags.FLAGS


class _Scale(NamedTuple):
  """What flags are if they are not given."""

  trials: int
  rounds: int
  executor: str


_SCALES = {
  'smoke': _Scale(50, 20, 'threads'),
  'full': _Scale(1000, 200, 'vectorized'),
}


def main() -> None:
  """Settings -> trials -> tables and pictures."""
  from safl_tf.util import errors

  folder = FLAGS.required('output_dir')
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise errors.InputError(
      'output_dir', folder, f'cannot be made: {error.strerror}'
    ) from error
  scale = _SCALES[FLAGS.scale]
  given = {name: FLAGS[name].value for name in _Scale._fields}
  scale = scale._replace(**{k: v for k, v in given.items() if v is not None})
  common.start_tensorflow()
  from safl_tf.experiments.theory import report, testbed, trials

  small = FLAGS.scale == 'smoke'
  settings = testbed.few_settings() if small else testbed.all_settings()
  numbers = iter(range(1, len(settings) + 1))

  def log(setting: testbed.Setting) -> None:
    position = (next(numbers), len(settings))
    logging.info('%d of %d: %s, %s', *position, setting.study, setting.name)

  frame = trials.run(
    settings, scale.trials, scale.rounds, FLAGS.seed, scale.executor, log
  )
  command = (
    f'`safl-theory --scale={FLAGS.scale} --trials={scale.trials} '
    f'--rounds={scale.rounds} --seed={FLAGS.seed} --executor={scale.executor}`'
  )
  print(report.write(folder, frame, command))
  print(f'report  {os.path.join(folder, "report.md")}')


def cli() -> None:
  """The console script."""
  common.run('safl-theory', theory_flags, main)


if __name__ == '__main__':
  cli()
