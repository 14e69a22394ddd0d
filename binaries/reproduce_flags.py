"""Runs experiments of the paper and puts their numbers beside the paper's.

The paper is "Gradual Federated Learning with Simulated Annealing".

  safl-reproduce --list
  safl-reproduce --experiment=early_accuracy --scale=cpu --data_dir=DIR
  safl-reproduce --experiment=all --scale=smoke

All is in OUTPUT_DIR/EXPERIMENT_SCALE: report.html, report.md, figures/ with
the numbers behind them, values.csv (the paper's numbers and ours), claims.csv
(the paper's claims, ours and a verdict), and for each part a run's folder
PART_seedSEED as safl-train leaves it. The report is written anew after each
part. The same command again goes on where it stopped. A run that another
experiment in OUTPUT_DIR has made already is not made again.
"""

import copy
import os
import pathlib
from typing import Any, NamedTuple

from binaries import common, training_flags
from safl_tf.experiments.paper import experiments
from safl_tf.experiments.paper import plans as plans_lib
from safl_tf.util import errors, validation

FLAGS = common.Flags()

FLAGS.choice(
  'experiment', None, [*experiments.EXPERIMENTS, 'all'], 'What to run.'
)
FLAGS.choice(
  'scale',
  'cpu',
  plans_lib.SCALES,
  "Of the paper's size; what two CPU cores do in half an hour for each "
  'experiment; or what takes seconds and only shows that everything works.',
)
FLAGS.text(
  'seeds',
  None,
  'Seeds of all random draws, with commas between them; at the scale paper '
  '0,1,2 (0 to 99 for uploads), else 0.',
)
FLAGS.text(
  'parts',
  None,
  'Only these parts of an experiment, with commas between them, such as '
  'fedavg_n80,safl_n80; all if not given.',
)
FLAGS.text('output_dir', 'runs', 'Where experiments are kept.')
FLAGS.folder(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
FLAGS.folder(
  'speech_dir', None, 'The folder of the extracted archive of Speech Commands.'
)
FLAGS.boolean(
  'list', False, 'Only list the experiments, and about how long they take.'
)


class Job(NamedTuple):
  """An experiment that was asked for.

  Attributes:
    plan: what to run.
    seeds: of its runs.
    path: its folder.
    places: flags of safl-train that say where data are.
    wanted: the names of the parts to run.
  """

  plan: plans_lib.Plan
  seeds: tuple[int, ...]
  path: pathlib.Path
  places: dict[str, str]
  wanted: frozenset[str]

  @property
  def runs(self) -> list[tuple[plans_lib.Part, int]]:
    """Parts and seeds, in the order to run them."""
    return self.plan.runs(self.seeds)

  def values(self, part: plans_lib.Part, seed: int) -> dict[str, Any]:
    """The values of safl-train's flags for one run."""
    flags = _training_flags()
    given = {**part.flags, 'export': 'none'} | {
      name: place
      for name, place in self.places.items()
      if name != 'speech_dir' or part.flags['dataset'] == 'speech_commands'
    }
    flags(['safl-train', *(f'--{k}={v}' for k, v in given.items())])
    return training_flags.values(
      flags,
      seed=seed,
      output_dir=str(self.path),
      experiment=f'{part.name}_seed{seed}',
    )


def jobs() -> list[Job]:
  """What the flags ask for.

  Raises:
    InputError: no experiment, or seeds or parts that are none.
  """
  name = FLAGS.required('experiment')
  seeds = None if FLAGS.seeds is None else _seeds(FLAGS.seeds)
  folder = pathlib.Path(os.path.expanduser(FLAGS.output_dir))
  places = {
    key: FLAGS[key].value
    for key in ('data_dir', 'speech_dir')
    if FLAGS[key].value is not None
  }
  chosen = experiments.EXPERIMENTS if name == 'all' else [name]
  plans = [experiments.EXPERIMENTS[key].plan(FLAGS.scale) for key in chosen]
  return [
    Job(
      plan,
      plan.seeds if seeds is None else seeds,
      folder / f'{plan.experiment}_{plan.scale}',
      places,
      _parts(plan, name == 'all'),
    )
    for plan in plans
  ]


def _parts(plan: plans_lib.Plan, among_all: bool) -> frozenset[str]:
  known = [part.name for part in plan.parts]
  if FLAGS.parts is None:
    return frozenset(known)
  if among_all:
    raise errors.InputError(
      'parts', FLAGS.parts, 'needs one experiment, not --experiment=all'
    )
  wanted = [part.strip() for part in FLAGS.parts.split(',')]
  for name in wanted:
    validation.choice('parts', name, known)
  return frozenset(wanted)


def _seeds(text: str) -> tuple[int, ...]:
  found = []
  for part in map(str.strip, text.split(',')):
    number = int(part) if part.isdecimal() else part
    found.append(validation.integer('seeds', number, low=0, high=2**63 - 1))
  if len(set(found)) < len(found):
    raise errors.InputError('seeds', text, 'each must be there only once')
  return tuple(found)


def _training_flags() -> common.Flags:
  """Flags like safl-train's, with their defaults."""
  made, module = common.Flags(), training_flags.__name__
  for flag in training_flags.FLAGS.flags_by_module_dict()[module]:
    mine = copy.deepcopy(flag)
    mine.unparse()
    made[flag.name] = mine
    made.register_flag_by_module(module, mine)
  return made
