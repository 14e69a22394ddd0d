"""Rules that hold what came out against what the paper says.

Each gives a sentence with its numbers and a verdict. Values are compared only
if the runs have the paper's size; relations between runs (who is ahead) always
are, unless none of them has learned anything.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.experiments.paper import run_stats

AGREES, DIFFERS, OPEN, SEEN = 'agrees', 'differs', 'open', 'seen'

POINTS = 0.02  # accuracies that differ by no more are alike
COST = 0.05  # the same for costs
UPLOADS = 0.05  # the same for uploads, of the paper's number
_NO_VALUE, _NOTHING = 'no value for round {}', 'nothing was learned'
_RULES = frozenset(
  {'algorithm', 'round', 'accuracy', 'below', 'over', 'lead', 'near', 'says'}
)


class Finding(NamedTuple):
  """A sentence, and whether it speaks for the paper.

  Attributes:
    verdict: `AGREES`, `DIFFERS`, `OPEN` if these runs can't tell, or `SEEN`
      for what the paper says nothing about.
    text: with the numbers.
    numbers: how many numbers of a table it lists; 0 for other statements.
  """

  verdict: str
  text: str
  numbers: int = 0


class Compared(NamedTuple):
  """A number of the paper, and ours.

  Attributes:
    what: whose it is.
    measure: 'accuracy', 'top5', 'cost' or 'uploads'.
    round: the paper's.
    ours: None if it isn't there.
    paper: what the paper has.
    like_paper: whether ours is of the paper's size.
  """

  what: str
  measure: str
  round: int
  ours: run_stats.Value | None
  paper: float
  like_paper: bool

  @property
  def is_near(self) -> bool:
    """Whether both are alike, by the bounds above."""
    assert self.ours is not None
    bounds = {'cost': COST, 'uploads': UPLOADS * self.paper}
    bound = bounds.get(self.measure, POINTS)
    return is_within(self.ours.mean - self.paper, bound)

  @property
  def told(self) -> str:
    """Both numbers: 'SAFL 94.2 (94)'."""
    assert self.ours is not None
    if self.measure == 'cost':
      return f'{self.what} {self.ours.mean:.3f} ({self.paper:.3f})'
    if self.measure == 'uploads':
      return f'{self.what} {self.ours.mean:,.0f} ({self.paper:,.0f})'
    return f'{self.what} {100 * self.ours.mean:.1f} ({paper(self.paper)})'


def is_within(away: float, bound: float = POINTS) -> bool:
  """Whether a difference is at most a bound, up to rounding."""
  return abs(away) <= bound + 1e-9


def paper(share: float) -> str:
  """A share of the paper in %, with the paper's digits."""
  return f'{100 * share:.4g}'


def values(compared: Sequence[Compared], unit: str) -> list[Finding]:
  """Which of some numbers of one kind are near the paper's, which are not.

  Args:
    compared: the numbers; those that aren't there, or not of the paper's size,
      are passed over.
    unit: what they are, with the bound: 'accuracies (%, within 2 points)'.
  """
  known = [c for c in compared if c.ours is not None and c.like_paper]
  found = []
  for verdict, near, words in (
    (AGREES, True, 'as in the paper'),
    (DIFFERS, False, 'not as in the paper'),
  ):
    those = [c.told for c in known if c.is_near is near]
    if those:
      text = f'{len(those)} of {len(known)} {unit} {words}: '
      text += f'{"; ".join(those)}.'
      found.append(Finding(verdict, text, len(those)))
  return found


def order(
  where: str,
  ours: Mapping[str, run_stats.Value | None],
  theirs: Mapping[str, float],
  learned: bool,
) -> Finding:
  """Whether algorithms are in the paper's order.

  Args:
    where: a row of a table, to start the sentence.
    ours: what each has, by name.
    theirs: the same in the paper; equal values have no order.
    learned: whether any of them has learned anything.
  """
  lost = [name for name, found in ours.items() if found is None]
  if lost:
    return Finding(OPEN, f'{where}: there is no {" and no ".join(lost)}.')
  known = {name: found.mean for name, found in ours.items() if found}
  if not learned:
    return Finding(OPEN, f'{where}: {_NOTHING}.')
  names = list(known)
  same = all(
    known[a] < known[b] for a in names for b in names if theirs[a] < theirs[b]
  )
  told = ' < '.join(
    f'{name} {100 * known[name]:.1f}'
    for name in sorted(names, key=lambda name: known[name])
  )
  if same:
    return Finding(AGREES, f"{where}: {told}, the paper's order.")
  wanted = ' < '.join(sorted(names, key=lambda name: theirs[name]))
  return Finding(DIFFERS, f'{where}: {told}; in the paper {wanted}.')


def check(
  claim: Mapping[str, Any], results: run_stats.Results
) -> Finding | None:
  """Checks one of the paper's sentences on accuracy, by what it has.

  Args:
    claim: `algorithm`, and `accuracy` (is reached by `round`), `below` (isn't),
      `over` (is ahead of, in `round` by `lead`, or without these on average)
      or `near` (is about as good as in `round`). Other keys say which runs:
      `n`, `fraction`, `dataset`.
    results: of the experiment.

  Returns:
    None if it is a claim of another kind.
  """
  if not claim.keys() & {'accuracy', 'below', 'over', 'near'}:
    return None
  cell = {k: v for k, v in claim.items() if k not in _RULES}
  mine = results.get(algorithm=claim['algorithm'], **cell)
  part = None if mine is None else mine.part
  told = run_stats.NAMES[claim['algorithm']]
  for key, value in cell.items():
    told += ' ' if key == 'dataset' else ', '
    told += run_stats.where(key, value, part)
  if mine is None:
    return Finding(OPEN, f'{told}: was not run.')
  if 'accuracy' in claim:
    return reaches(told, mine, claim['accuracy'], claim['round'])
  if 'below' in claim:
    return reaches(told, mine, claim['below'], claim['round'], later=True)
  name = claim.get('over', claim.get('near'))
  other = results.get(algorithm=name, **cell)
  if other is None:
    return Finding(OPEN, f'{told}: {run_stats.NAMES[name]} was not run.')
  if 'round' not in claim:
    return is_ahead_on_average(told, mine, other)
  if 'over' in claim:
    return is_ahead(told, mine, other, claim['round'], claim.get('lead'))
  return is_near(told, mine, other, claim['round'])


def reaches(
  told: str, mine: run_stats.Runs, level: float, by: int, later: bool = False
) -> Finding:
  """Whether a level is reached by a round, or with `later` only after it."""
  first, T = mine.first(level), mine.last
  goal = f'{paper(level)} %'
  if first is None:
    best = f'{100 * mine.best():.1f}'
    ours = f'does not reach {goal} within {T} rounds (best {best} %)'
  else:
    ours = f'reaches {goal} in round {first}'
  said = f'after more than {by} rounds' if later else f'by round {by}'
  text = f'{told} {ours}; the paper: {said}.'
  if not mine.part.like_paper:
    return Finding(OPEN, f'{text} Sizes differ.')
  if first is None and by > T:
    return Finding(OPEN, text)
  reached = first is not None and first <= by
  return Finding(DIFFERS if reached is later else AGREES, text)


def is_ahead(
  told: str,
  mine: run_stats.Runs,
  other: run_stats.Runs,
  t: int,
  lead: float | None = None,
) -> Finding:
  """Whether one is ahead of another in a round, by at least `lead`.

  If sizes differ from the paper's, only whether it is ahead.
  """
  a, b = mine.at(t), other.at(t)
  full = mine.part.like_paper and other.part.like_paper
  said = f'ahead of {other.name}'
  if lead is not None:
    said += f' by {paper(lead)} points'
    said += '' if full else ', at another size'
  if a is None or b is None:
    return Finding(OPEN, f'{told}: {_NO_VALUE.format(t)}; the paper: {said}.')
  here = mine.part.round_for(t)
  if not (mine.has_learned() or other.has_learned()):
    return Finding(OPEN, f'{told}: {_NOTHING}; the paper: {said}.')
  ours = f'{told} is {_points(a.mean - b.mean)} {other.name} in round {here}'
  needed = lead if full and lead is not None else 0.0
  agrees = a.mean - b.mean > 0 and a.mean - b.mean >= needed - 1e-12
  verdict = AGREES if agrees else DIFFERS
  return Finding(verdict, f'{ours}; the paper: {said}.{_most(mine, other)}')


def is_ahead_on_average(
  told: str, mine: run_stats.Runs, other: run_stats.Runs
) -> Finding:
  """Whether one is ahead of another, by the mean over all rounds of both."""
  leads = lead(mine, other)
  if not leads:
    return Finding(OPEN, f'{told}: there is no round to compare.')
  if not (mine.has_learned() or other.has_learned()):
    return Finding(OPEN, f'{told}: {_NOTHING}; the paper: ahead.')
  mean = statistics.fmean(leads.values())
  ours = f'{told} is {_points(mean)} {other.name} on average over the rounds'
  text = f'{ours} up to {max(leads)}; the paper: ahead.{_most(mine, other)}'
  return Finding(AGREES if mean > 0 else DIFFERS, text)


def is_near(
  told: str, mine: run_stats.Runs, other: run_stats.Runs, t: int
) -> Finding:
  """Whether two are about as good in a round, or in the centralised's last."""
  level = other.part.cell['algorithm'] == 'centralized'
  a, b = mine.at(t), other.final() if level else other.at(t)
  said = f'about as good as {other.name}'
  if a is None or b is None:
    return Finding(OPEN, f'{told}: {_NO_VALUE.format(t)}; the paper: {said}.')
  if not (mine.has_learned() or other.has_learned()):
    return Finding(OPEN, f'{told}: {_NOTHING}; the paper: {said}.')
  away = a.mean - b.mean
  ours = f'{told} is {_points(away)} {other.name}'
  return Finding(
    AGREES if is_within(away) else DIFFERS,
    f'{ours} in round {mine.part.round_for(t)}; the paper: {said}.',
  )


def lead(mine: run_stats.Runs, other: run_stats.Runs) -> dict[int, float]:
  """How far one is ahead, in each round that both have."""
  a, b = mine.by_round(), other.by_round()
  return {t: a[t].mean - b[t].mean for t in a if t in b}


def largest_lead(
  mine: run_stats.Runs, other: run_stats.Runs
) -> tuple[int | None, float | None]:
  """The round in which one is farthest ahead, and how far, if there is one."""
  leads = lead(mine, other)
  none = (None, None)
  return max(leads.items(), key=lambda lead: lead[1], default=none)


def _most(mine: run_stats.Runs, other: run_stats.Runs) -> str:
  """The largest lead, as a sentence; nothing if there is none."""
  t, most = largest_lead(mine, other)
  if most is None or most <= 0:
    return ''
  return f' Its largest lead is {100 * most:.1f} points, in round {t}.'


def _points(away: float) -> str:
  if math.isnan(away):
    return 'not comparable with'
  side = 'ahead of' if away >= 0 else 'behind'
  return f'{100 * abs(away):.1f} points {side}'
