"""Settings that the experiments share, and how their parts are put together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safl_tf.experiments.paper import runs

Flags = Mapping[str, Any]

# The paper's settings wherever an experiment doesn't say otherwise.
PAPER: dict[str, Any] = {
  'dataset': 'mnist',
  'model': 'lenet5',
  'num_clients': 80,
  'mean_examples': 600,
  'variance_examples': 100,
  'max_labels': 7,
  'local_epochs': 3,
  'batch_size': 50,
  'learning_rate': 0.002,
  'epsilon': 0.3,
  'temperature': 80,
}
# What a smoke run has in their place.
_SMOKE: dict[str, Any] = PAPER | {
  'dataset': 'mnist_sample',
  'num_clients': 4,
  'mean_examples': 20,
  'variance_examples': 4,
  'local_epochs': 1,
  'batch_size': 10,
  'rounds': 3,
  'jit_compile': 'false',
}
SPEECH = {'dataset': 'speech_commands', 'model': 'light_vgg'}
# As many local steps of the same size as in the paper, on a fifth of the data.
SMALL_SPEECH = SPEECH | {
  'num_clients': 4,
  'mean_examples': 120,
  'speech_words': 'commands',
  'batch_size': 10,
  'learning_rate': 0.01,
  'eval_every': 4,
}
SPEECH_CUT = (
  'Speech: ten commands in place of 30 words; 120 examples a client in batches '
  'of 10 with α = 0.01, in place of 600 in batches of 50 with α = 0.002: as '
  'many steps of the same rate.'
)
CENTRALIZED_CUT = 'Centralised training: 15 epochs in place of 60.'
UNION_CUT = 'Where clients are fewer, centralised training has only their data.'
_SMOKE_CUTS = (
  'This only shows that everything works: a few clients with 20 digits each '
  'of the bundled sample, which stands for every data set, one local epoch '
  'and a few rounds. What the numbers below say is chance.',
)

_SEEDS = {'paper': (0, 1, 2), 'cpu': (0,), 'smoke': (0,)}
_WHOLE = {'partition': 'quantity', 'num_clients': 1}  # all data in one place
_CENTRALIZED_ROUNDS = {'paper': 20, 'cpu': 5, 'smoke': 3}


def plan(
  name: str,
  scale: str,
  made: Iterable[runs.Part],
  cuts: Sequence[str],
  seeds: tuple[int, ...] | None = None,
  spare: bool = False,
) -> runs.Plan:
  """An experiment at a scale; `cuts` are the reductions at the scale cpu."""
  told = {'paper': (), 'cpu': tuple(cuts), 'smoke': _SMOKE_CUTS}[scale]
  return runs.Plan(
    name, scale, tuple(made), told, seeds or _SEEDS[scale], spare
  )


def part(
  scale: str,
  cell: Mapping[str, Any],
  name: str,
  flags: Flags,
  paper_rounds: int,
  like_paper: bool | None = None,
) -> runs.Part:
  """A part of an experiment.

  Args:
    scale: one of `runs.SCALES`.
    cell: what it stands for; has `algorithm`.
    name: what tells it from others of the algorithm.
    flags: those of the scale that the experiment sets.
    paper_rounds: what the last round stands for, if it isn't like the paper.
    like_paper: whether it has the paper's size; only at the scale paper if not
      given.
  """
  base = _SMOKE if scale == 'smoke' else PAPER
  if like_paper is None:
    like_paper = scale == 'paper'
  return runs.Part(
    '_'.join(filter(None, (cell['algorithm'], name))),
    cell,
    {**base, **flags, 'algorithm': cell['algorithm']},
    like_paper,
    None if like_paper else paper_rounds,
  )


def centralized(
  scale: str, flags: Flags, whole: bool, data: str | None = None
) -> runs.Part:
  """Centralised training.

  Args:
    scale: one of `runs.SCALES`.
    flags: of the clients.
    whole: whether it has the whole data set, or else the clients' data.
    data: what the paper calls the data set, where there are several.
  """
  rounds = _CENTRALIZED_ROUNDS[scale]
  own = {**flags, **(_WHOLE if whole else {}), 'rounds': rounds}
  if not whole:
    own['eval_every'] = rounds
  cell = {'algorithm': 'centralized'} | ({'dataset': data} if data else {})
  return part(scale, cell, data or '', own, rounds, like_paper=whole)
