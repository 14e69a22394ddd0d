"""Measures SAFL's error where the theory applies, beside the paper's bounds.

  safl-theory --output_dir=runs/theory
  safl-theory --output_dir=theory_smoke --scale=smoke

Clients have functions that meet the paper's assumptions, and run through the
same process as real models, many trials at a time. Writes theory.csv (every
setting, bound and t), report.md (what holds and what does not) and pictures.
"""

from binaries import common
from safl_tf.util import choices

FLAGS = common.Flags()

FLAGS.text('output_dir', 'runs/theory', 'Where to write.')
FLAGS.choice(
  'scale',
  'full',
  ('smoke', 'full'),
  'All settings, in minutes, or one of each study, in seconds.',
)
FLAGS.integer(
  'trials',
  None,
  'Independent trials of each setting; 1000, or 50 at smoke scale.',
  low=2,
)
FLAGS.integer(
  'rounds',
  None,
  'Communication rounds of settings with one local step in each; others take '
  'as many steps. 200, or 20 at smoke scale.',
  low=1,
)
FLAGS.integer('seed', 0, 'Of all random draws.', low=0, high=2**63 - 1)
FLAGS.choice(
  'executor',
  None,
  choices.EXECUTORS,
  'How clients are run; vectorized, or threads at smoke scale.',
)
