"""Trains with several algorithms and seeds and puts them in one table.

Runs of a seed have the same clients, data, initial models and selections. All
flags of safl-train but --algorithm and --seed are there and mean the same.

  safl-compare --algorithms=fedavg,safl --seeds=0,1,2 --rounds=50
  safl-compare --flagfile=binaries/presets/mnist_n80.flags --experiment=n80

Each run lies in OUTPUT_DIR/EXPERIMENT/ALGORITHM_seedSEED as safl-train leaves
it. Beside them are comparison.html, comparison.md, comparison.csv (a row for
each algorithm), runs.csv (a row for each run) and plots/, written anew after
each run: of the finished runs among those that the command names. The same
command again goes on where it stopped; one with more algorithms or seeds runs
only those that are new.
"""

import copy
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from binaries import common, training_flags
from safl_tf.util import choices, errors, validation

FLAGS = common.Flags()

_T = TypeVar('_T')
# What differs between the runs of a comparison.
_VARIED = ('algorithm', 'seed')
_SEEDS = {'low': 0, 'high': 2**63 - 1}


def _take_over() -> None:
  """Gives this program the flags of safl-train, but for those it varies."""
  module = training_flags.__name__
  for flag in training_flags.FLAGS.flags_by_module_dict()[module]:
    if flag.name not in _VARIED:
      mine = copy.deepcopy(flag)
      FLAGS[flag.name] = mine
      FLAGS.register_flag_by_module(module, mine)
      FLAGS.register_key_flag_for_module(__name__, mine)


_take_over()
FLAGS.set_default('export', 'none')
FLAGS['experiment'].help = "The comparison's name; compare_DATASET by default."

FLAGS.text(
  'algorithms',
  'fedavg,safl,extended_safl',
  'The federated algorithms, with commas between them. Any of '
  f'{", ".join(choices.ALGORITHMS)}.',
)
FLAGS.text('seeds', '0', 'Seeds of all random draws, with commas between them.')
FLAGS.text(
  'at_rounds',
  None,
  'Rounds whose accuracy is told, with commas between them; after a quarter, '
  'half and three quarters of the rounds if not given.',
)
FLAGS.real(
  'target_accuracy',
  0.9,
  'Test accuracy up to which rounds and megabytes are counted.',
  low=0,
  high=1,
  open_low=True,
)


class Plan(NamedTuple):
  """What was asked for.

  Attributes:
    common: values of safl-train's flags that all runs have in common.
    runs: (algorithm, seed) of each run, in the order to run them.
    at_rounds: rounds whose accuracy is told.
    target: the accuracy to reach.
  """

  common: dict[str, Any]
  runs: list[tuple[str, int]]
  at_rounds: list[int]
  target: float

  @property
  def path(self) -> pathlib.Path:
    """The comparison's folder."""
    return pathlib.Path(self.common['output_dir'])

  @property
  def algorithms(self) -> list[str]:
    """Those of the runs, each once."""
    return list(dict.fromkeys(algorithm for algorithm, _ in self.runs))

  @property
  def seeds(self) -> list[int]:
    """Those of the runs, each once."""
    return list(dict.fromkeys(seed for _, seed in self.runs))

  def values(self, algorithm: str, seed: int) -> dict[str, Any]:
    """The values of safl-train's flags for one run."""
    own = {'algorithm': algorithm, 'seed': seed}
    return {**self.common, **own, 'experiment': f'{algorithm}_seed{seed}'}


def plan() -> Plan:
  """The runs that the flags describe.

  Raises:
    InputError: flags that contradict each other, or name what isn't there.
  """
  from safl_tf.reporting import tables

  algorithms = _several('algorithms', FLAGS.algorithms, _algorithm)
  seeds = _several('seeds', FLAGS.seeds, _whole('seeds', **_SEEDS))
  given = {'algorithm': algorithms[0], 'seed': seeds[0]}
  found = training_flags.values(FLAGS, **given)
  name = found['experiment']
  if FLAGS.experiment is None:
    name = f'compare{name.removeprefix(algorithms[0])}'
  if FLAGS.at_rounds is None:
    at_rounds = tables.quarters(found['rounds'])
  else:
    check = _whole('at_rounds', low=1, high=found['rounds'])
    at_rounds = sorted(_several('at_rounds', FLAGS.at_rounds, check))
  shared = {
    k: v for k, v in found.items() if k not in (*_VARIED, 'experiment')
  } | {'output_dir': os.path.join(found['output_dir'], name)}
  runs = [(algorithm, seed) for seed in seeds for algorithm in algorithms]
  return Plan(shared, runs, at_rounds, FLAGS.target_accuracy)


def _several(name: str, text: str, check: Callable[[str], _T]) -> list[_T]:
  """What stands between commas, each checked and there only once."""
  found = [check(part.strip()) for part in text.split(',')]
  twice = next((value for value in found if found.count(value) > 1), None)
  if twice is not None:
    raise errors.InputError(name, text, f'{twice} must be there only once')
  return found


def _algorithm(text: str) -> str:
  return validation.choice('algorithms', text, choices.ALGORITHMS)


def _whole(name: str, **bounds: int) -> Callable[[str], int]:
  def check(text: str) -> int:
    try:
      number: int | str = int(text)
    except ValueError:
      number = text
    return validation.integer(name, number, **bounds)

  return check
