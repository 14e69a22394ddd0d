"""The parts of an experiment, and how long they take.

A part is a run of safl-train. It stands for a cell of the paper's table or a
curve of its figure, also where it is smaller than the paper's.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

SCALES = ('paper', 'cpu', 'smoke')

# Examples for training and for testing.
_EXAMPLES = {
  'mnist_sample': (4_000, 1_000),
  'mnist': (60_000, 10_000),
  'fashion_mnist': (60_000, 10_000),
  'cifar10': (50_000, 10_000),
  'speech_commands': (51_088, 6_835),
}
# Microseconds for an example in an epoch on two cores: for LeNet-5 on digits as
# whole experiments take (docs/reproduction.md; a benchmark alone is quicker),
# for Light VGG on CIFAR-10 as in docs/benchmarks.md; the others follow by the
# number of multiplications.
_DIGIT, _COLOUR = 36.7, 81.0
_MICROSECONDS = {
  'lenet5': {'cifar10': _COLOUR},
  'light_vgg': {
    'fashion_mnist': 5_250.0,
    'cifar10': 6_860.0,
    'speech_commands': 5_350.0,
  },
}
_FORWARD = 1 / 3  # of the work of training is the forward pass
_GATE = 1.12  # Extended SAFL beside SAFL, with three local epochs
_ONE_CORE = 2.5  # centralised LeNet-5: one client, so one thread
_AROUND = 6.0  # seconds for a part's compilation, pictures and files


class Part(NamedTuple):
  """A run of safl-train, but for its seed.

  Attributes:
    name: of its folder, before the seed.
    cell: what it stands for in the paper, such as `algorithm` and `n`.
    flags: of safl-train; all others have their defaults.
    like_paper: whether it has the paper's size, so that its values can be
      compared with the paper's. It may have fewer rounds.
    paper_rounds: the round of the paper that the last round stands for, if
      rounds are not the paper's.
  """

  name: str
  cell: Mapping[str, Any]
  flags: Mapping[str, Any]
  like_paper: bool = True
  paper_rounds: int | None = None

  @property
  def rounds(self) -> int:
    """T."""
    return self.flags['rounds']

  @property
  def classes(self) -> int:
    """How many labels there are to guess from."""
    speech = self.flags['dataset'] == 'speech_commands'
    return 30 if speech and self.flags.get('speech_words') != 'commands' else 10

  def round_for(self, t: int) -> int:
    """The round that stands for the paper's round t."""
    if self.paper_rounds is None:
      return t
    return max(1, round(t * self.rounds / self.paper_rounds))


class Plan(NamedTuple):
  """An experiment at a scale.

  Attributes:
    experiment: its name.
    scale: one of `SCALES`.
    parts: in the order to run them.
    reductions: sentences on what is smaller than in the paper.
    seeds: those to run if none are asked for.
    spare: whether parts whose data set is missing are left out.
  """

  experiment: str
  scale: str
  parts: tuple[Part, ...]
  reductions: tuple[str, ...]
  seeds: tuple[int, ...] = (0,)
  spare: bool = False

  def runs(self, seeds: tuple[int, ...]) -> list[tuple[Part, int]]:
    """All parts with their seeds, in the order to run them."""
    return [(part, seed) for seed in seeds for part in self.parts]

  def seconds(self, seeds: tuple[int, ...] | None = None) -> float:
    """About how long it takes on two cores."""
    runs = self.runs(self.seeds if seeds is None else seeds)
    return sum(seconds(part) for part, _ in runs)


def seconds(part: Part) -> float:
  """About how long a part takes on two cores."""
  flags = part.flags
  data = flags['dataset']
  size, tested = _EXAMPLES[data]
  each = 1e-6 * _MICROSECONDS[flags['model']].get(data, _DIGIT)
  examples = flags['num_clients'] * flags['mean_examples']
  work = flags['local_epochs'] * each
  algorithm = flags['algorithm']
  if algorithm == 'centralized':
    whole = flags.get('partition') == 'quantity'
    examples = size if whole else min(examples, size)
    work *= _ONE_CORE if flags['model'] == 'lenet5' else 1
  else:
    examples *= flags.get('fraction', 1)
  if algorithm == 'fedsgd':
    work = each
  if algorithm == 'extended_safl':
    work *= _GATE
  evaluations = flags['rounds'] / flags.get('eval_every', 1)
  testing = evaluations * tested * each * _FORWARD
  return flags['rounds'] * examples * work + testing + _AROUND


def told(seconds: float) -> str:
  """A time as one says it: '40 s', '25 min', '3.2 h' or '4.1 days'."""
  units = (('s', 1, 100), ('min', 60, 100), ('h', 3600, 48))
  unit, size = next(
    ((unit, size) for unit, size, most in units if seconds < size * most),
    ('days', 86400),
  )
  value = seconds / size
  few = unit in ('h', 'days') and value < 10
  return f'{value:.1f} {unit}' if few else f'{value:.0f} {unit}'
