"""Plans: the runs that make up an experiment, and their estimated duration.

A part of a plan is a run of safl-train apart from its seed. It stands for a
cell of the paper's table or a curve of its figure, also where it is smaller
than the paper's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SCALES = ('paper', 'cpu', 'smoke')

# Numbers of training and test examples.
_EXAMPLES = {
  'mnist_sample': (4_000, 1_000),
  'mnist': (60_000, 10_000),
  'fashion_mnist': (60_000, 10_000),
  'cifar10': (50_000, 10_000),
  'speech_commands': (51_088, 6_835),
}
# Microseconds per example and epoch on two cores. LeNet-5 on digits and Light
# VGG on CIFAR-10: from docs/benchmarks.md. The others are scaled by the number
# of multiplications.
_LENET5_DIGITS = 23.6
_MICROSECONDS = {
  'lenet5': {'cifar10': 52.0},
  'light_vgg': {
    'fashion_mnist': 5_250.0,
    'cifar10': 6_860.0,
    'speech_commands': 5_350.0,
  },
}
_FORWARD = 1 / 3  # share of the forward pass in the work of training
_GATE = 1.24  # Extended SAFL relative to SAFL, with three local epochs
_ONE_CORE = 2.5  # centralised LeNet-5 is one client and so uses one thread
_OVERHEAD = 6.0  # seconds per run for compilation, plots and files

_SMOKE = (
  'Tests the program only: a few clients with 20 digits each of the bundled '
  'sample in place of every data set, one local epoch and a few rounds. The '
  'numbers have no meaning.'
)


class Part(NamedTuple):
  """A run of safl-train apart from its seed.

  Attributes:
    name: name of its folder, before the seed.
    cell: what it stands for in the paper, such as `algorithm` and `n`.
    flags: flags of safl-train; all others have their defaults.
    paper_rounds: round of the paper that the last round stands for. None for a
      run of the paper's size, whose values are comparable with the paper's and
      whose rounds are the paper's; it may have fewer of them.
  """

  name: str
  cell: Mapping[str, Any]
  flags: Mapping[str, Any]
  paper_rounds: int | None = None

  @property
  def full_size(self) -> bool:
    """Whether it has the paper's size, except perhaps for the rounds."""
    return self.paper_rounds is None

  @property
  def rounds(self) -> int:
    """The number of rounds T."""
    return self.flags['rounds']

  @property
  def num_classes(self) -> int:
    """The number of labels of the data set."""
    speech = self.flags['dataset'] == 'speech_commands'
    return 30 if speech and self.flags.get('speech_words') != 'commands' else 10

  def round_for(self, t: int) -> int:
    """Returns the round that stands for the paper's round t."""
    if self.paper_rounds is None:
      return t
    return max(1, round(t * self.rounds / self.paper_rounds))

  def seconds(self) -> float:
    """Returns the estimated duration on two CPU cores."""
    flags = self.flags
    data, algorithm = flags['dataset'], flags['algorithm']
    size, test_size = _EXAMPLES[data]
    per_example = _MICROSECONDS[flags['model']].get(data, _LENET5_DIGITS) / 1e6
    examples = flags['num_clients'] * flags['mean_examples']
    work = flags['local_epochs'] * per_example
    if algorithm == 'centralized':
      whole = flags.get('partition') == 'quantity'
      examples = size if whole else min(examples, size)
      work *= _ONE_CORE if flags['model'] == 'lenet5' else 1
    else:
      examples *= flags.get('fraction', 1)
    if algorithm == 'fedsgd':
      work = per_example
    if algorithm == 'extended_safl':
      work *= _GATE
    evaluations = flags['rounds'] / flags.get('eval_every', 1)
    testing = evaluations * test_size * per_example * _FORWARD
    return flags['rounds'] * examples * work + testing + _OVERHEAD


class Plan(NamedTuple):
  """An experiment at a scale.

  Attributes:
    experiment: its name.
    scale: one of `SCALES`.
    parts: in the order to run them.
    reductions: sentences that list what is smaller than in the paper.
    seeds: default seeds.
    skip_missing_data: whether parts without their data set are skipped.
  """

  experiment: str
  scale: str
  parts: tuple[Part, ...]
  reductions: tuple[str, ...]
  seeds: tuple[int, ...] = (0,)
  skip_missing_data: bool = False

  def runs(self, seeds: tuple[int, ...]) -> list[tuple[Part, int]]:
    """Returns all parts with their seeds, in the order to run them."""
    return [(part, seed) for seed in seeds for part in self.parts]

  def seconds(self) -> float:
    """Returns the estimated duration with the default seeds."""
    return len(self.seeds) * sum(part.seconds() for part in self.parts)


class Experiment(NamedTuple):
  """One of the paper's tables or figures.

  Attributes:
    name: its key in `paper_numbers.json`.
    parts: function from a scale to the runs.
    title: title of the report.
    place: where it is in the paper.
    settings: the settings, and how gaps in the paper were filled.
    reductions: what is smaller at the scale cpu.
    num_paper_seeds: number of default seeds at the scale paper.
    skip_missing_data: whether parts without their data set are skipped.
  """

  name: str
  parts: Callable[[str], Iterator[Part]]
  title: str
  place: str
  settings: str
  reductions: Sequence[str]
  num_paper_seeds: int = 3
  skip_missing_data: bool = False

  def plan(self, scale: str) -> Plan:
    """Returns the plan at a scale, one of `SCALES`."""
    smaller = {'paper': (), 'cpu': self.reductions, 'smoke': (_SMOKE,)}
    return Plan(
      self.name,
      scale,
      tuple(self.parts(scale)),
      tuple(smaller[scale]),
      tuple(range(self.num_paper_seeds if scale == 'paper' else 1)),
      self.skip_missing_data,
    )


def format_duration(seconds: float) -> str:
  """Returns a duration as '40 s', '25 min', '3.2 h' or '4.1 days'."""
  units = (('s', 1, 100), ('min', 60, 100), ('h', 3600, 48))
  unit, size = next(
    ((unit, size) for unit, size, limit in units if seconds < size * limit),
    ('days', 86400),
  )
  value = seconds / size
  digits = 1 if unit in ('h', 'days') and value < 10 else 0
  return f'{value:.{digits}f} {unit}'
