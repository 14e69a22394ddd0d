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
  from safl_tf.util import atomic_io, errors

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
  from safl_tf.experiments.theory import comparisons, configs, plots, report

  small = FLAGS.scale == 'smoke'
  cases = configs.few_cases() if small else configs.all_cases()
  numbers = iter(range(1, len(cases) + 1))

  def tell(case: configs.Case) -> None:
    told = (next(numbers), len(cases), case.study, case.name)
    logging.info('%d of %d: %s, %s', *told)

  found = comparisons.run(
    cases, scale.trials, scale.rounds, FLAGS.seed, scale.executor, tell
  )
  command = (
    f'`safl-theory --scale={FLAGS.scale} --trials={scale.trials} '
    f'--rounds={scale.rounds} --seed={FLAGS.seed} --executor={scale.executor}`'
  )
  pictures = plots.write_all(folder, found)
  for name, text in {
    'theory.csv': report.to_csv(found),
    'report.md': report.to_markdown(found, command, pictures),
  }.items():
    atomic_io.write_text(os.path.join(folder, name), text)
  print(report.to_text(report.summary(found)))
  print('\n'.join(['', *report.counts(found)]))
  print(f'report  {os.path.join(folder, "report.md")}')


def cli() -> None:
  """The console script."""
  common.run('safl-theory', theory_flags, main)


if __name__ == '__main__':
  cli()
