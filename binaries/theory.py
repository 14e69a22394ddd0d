"""Measures the error of SAFL in the setting of the theory, with its bounds.

  safl-theory --output_dir=runs/theory
  safl-theory --output_dir=theory_smoke --scale=smoke

Clients have functions that satisfy the paper's assumptions, and run through the
same process as Keras models, many trials at a time. Writes theory.csv (every
setting, bound and t), report.html and report.md (which bounds hold) and plots.
"""

import dataclasses
import functools
import os
from typing import Any

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import choices, hardware, output_folder

from . import program
from .flags import group

# Defaults of flags that depend on --scale.
_SCALES: dict[str, dict[str, Any]] = {
  'smoke': {'trials': 50, 'rounds': 20, 'executor': 'threads'},
  'full': {'trials': 1000, 'rounds': 200, 'executor': 'vectorized'},
}


@dataclasses.dataclass(frozen=True)
class _Flags(group.Group, topic='theory'):
  output_dir: str = group.text('runs/theory', 'Folder to write to.')
  scale: str = group.choice(
    'full',
    list(_SCALES),
    'All settings, in minutes, or one per study, in seconds.',
  )
  trials: int | None = group.integer(
    None, 'Independent trials per setting; 1000, or 50 for smoke.'
  )
  rounds: int | None = group.integer(
    None,
    '[T] Communication rounds of settings with one local step per round; '
    'others take as many steps. 200, or 20 for smoke.',
  )
  seed: int = group.seed()
  executor: str | None = group.choice(
    None,
    [name for name in choices.EXECUTORS if name != 'ray'],
    'Execution of the clients; vectorized, or threads for smoke.',
  )


def main(flags: absl_flags.FlagValues) -> None:
  """Runs all trials and writes the report."""
  folder = group.required(flags, 'output_dir')
  target = (folder, 'theory report', 'output_dir')
  output_folder.check(*target)
  options: dict[str, Any] = {}
  for name in ('trials', 'rounds', 'seed', 'executor'):
    given = flags[name].value
    options[name] = _SCALES[flags.scale][name] if given is None else given
  hardware.start_tensorflow()
  from safl_tf.experiments.theory import report, testbed, trials

  smoke = flags.scale == 'smoke'
  settings = testbed.few_settings() if smoke else testbed.all_settings()
  numbers = iter(range(1, len(settings) + 1))

  def log(setting: testbed.Setting) -> None:
    position = f'{next(numbers)} of {len(settings)}'
    logging.info('%s: %s, %s', position, setting.study, setting.name)

  used = {'scale': flags.scale, **options}.items()
  command = ' '.join(f'--{name}={value}' for name, value in used)
  with output_folder.opened(*target):
    frame = trials.run(settings, **options, on_start=log)
    print(report.write(folder, frame, f'`safl-theory {command}`'))
  print(f'page  {os.path.join(folder, "report.html")}')


cli = functools.partial(
  program.run, 'safl-theory', __doc__, _Flags.define, main
)

if __name__ == '__main__':
  cli()
