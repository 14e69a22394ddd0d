"""The paper's numbers and statements, checked against finished runs.

Values are compared only if the runs have the paper's size. Differences between
runs are always compared, at least in sign, unless none of the runs has learned.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from safl_tf.experiments.paper import results as results_lib
from safl_tf.experiments.paper import tables
from safl_tf.reporting import names

if TYPE_CHECKING:
  import pandas as pd

Results = results_lib.Results
PaperNumbers = results_lib.PaperNumbers
Runs = results_lib.Runs

AGREES, DIFFERS = 'agrees', 'does not agree'
UNTESTED, MISSING = 'not tested at this scale', 'runs missing'
VERDICTS = (AGREES, DIFFERS, UNTESTED, MISSING)

_SMOKE = 'tests the program only'
_SMALLER, _ROUNDS = 'smaller than in the paper', 'too few rounds'
_RULES = ('minus', 'reaches', 'measure', 'round', 'is', 'value', 'says')
_HOLDS = {
  '>': lambda x, value: x > value + 1e-9,
  '≥': lambda x, value: x >= value - 1e-9,
  '≤': lambda x, value: x <= value + 1e-9,
  '±': lambda x, value: abs(x) <= value + 1e-9,
}


class Claim(NamedTuple):
  """A row of the table of claims.

  Attributes:
    claim: what is compared.
    kind: 'number' of a table, or 'statement'.
    paper: what the paper has.
    ours: what our runs have.
    round: the paper's round, after the one that stands for it if they differ.
    verdict: one of `VERDICTS`.
    reason: why it was not tested.
    largest_lead: the largest difference in any round, in points.
    largest_lead_round: that round.
    quote: the paper's words.
  """

  claim: str
  kind: str
  paper: str
  ours: str = '-'
  round: str = ''
  verdict: str = MISSING
  reason: str = ''
  largest_lead: str = ''
  largest_lead_round: str = ''
  quote: str = ''

  def judge(self, agrees: bool, runs: Sequence[Runs] = ()) -> 'Claim':
    """Returns the claim with a verdict, unless none of the runs has learned."""
    if runs and not any(one.has_learned() for one in runs):
      return self.untested('nothing learned')
    return self._replace(verdict=AGREES if agrees else DIFFERS)

  def untested(self, reason: str) -> 'Claim':
    """Returns the claim as not tested."""
    return self._replace(verdict=UNTESTED, reason=reason)


def claims(results: Results, paper: PaperNumbers) -> 'pd.DataFrame':
  """Returns a row for each number and statement of the paper."""
  import pandas as pd

  if results.plan.experiment == 'uploads':
    results = tables.with_nearest_nu(results, paper)
  numbers = tables.numbers(results, paper)
  rows = [*map(_number, numbers)]
  for claim in paper['claims']:
    if 'best' in claim:
      checked = [_best(claim, key, numbers) for key in ('loss', 'accuracy')]
    else:
      checked = [_statement(claim, results, paper)]
    rows += [row._replace(quote=claim.get('says', '')) for row in checked]
  if results.plan.scale == 'smoke':
    rows = [
      row if row.verdict == MISSING else row.untested(_SMOKE) for row in rows
    ]
  return pd.DataFrame(rows, columns=Claim._fields)


def _number(number: tables.Number) -> Claim:
  """Checks a number of one of the paper's tables."""
  measure = tables.MEASURES[number.measure]
  label = f'{results_lib.describe(number.cell)}: {measure.label}'
  ours, paper = number.texts
  row = Claim(label, 'number', paper, ours, number.round_label)
  if number.runs is None:
    return row
  if number.ours is None:
    return row.untested(_ROUNDS)
  if not number.runs.part.full_size:
    return row.untested(_SMALLER)
  relative = number.paper if number.measure == 'uploads' else 1
  difference = number.ours.mean - number.paper
  return row.judge(_HOLDS['±'](difference, relative * measure.tolerance))


def _best(
  claim: Mapping[str, Any], measure: str, numbers: Sequence[tables.Number]
) -> Claim:
  """Checks which cell of an algorithm has the lowest loss or best accuracy."""
  algorithm, goal = claim['algorithm'], results_lib.describe(claim['best'])
  label = f'{names.ALGORITHMS[algorithm]}: best {measure}'
  members = [
    number
    for number in numbers
    if (number.measure, number.cell['algorithm']) == (measure, algorithm)
  ]
  row = Claim(label, 'statement', goal, round=members[0].round_label)
  sign = -1 if measure == 'loss' else 1
  runs = [number.runs for number in members if number.runs]
  ours = [(sign * n.ours.mean, n.cell) for n in members if n.ours]
  if len(ours) < len(members):
    return row.untested(_ROUNDS) if len(runs) == len(members) else row
  cell = max(ours, key=lambda pair: pair[0])[1]
  best = results_lib.describe(cell, skip=['algorithm'])
  return row._replace(ours=best).judge(best == goal, runs)


def _statement(
  claim: Mapping[str, Any], results: Results, paper: PaperNumbers
) -> Claim:
  """Checks a statement on one or two cells.

  Args:
    claim: a cell, and `is` and `value`, which a quantity has to satisfy: the
      first round that `reaches` an accuracy; the share of `saved_uploads`; or
      the difference to the cell with the changes `minus`, in a `round` (null
      is the last one) or else on average over all rounds.
    results: results of the experiment.
    paper: the paper's numbers.
  """
  cell = {key: value for key, value in claim.items() if key not in _RULES}
  mine = results.get(**cell)
  label = results_lib.describe(cell, mine and mine.part)
  if 'minus' in claim:
    label = f'{label} vs. {results_lib.describe(claim["minus"])}'
    other = results.get(**{**cell, **claim['minus']})
    return _difference(label, mine, other, claim)
  if 'reaches' in claim:
    label = f'{label}: first round with {100 * claim["reaches"]:g} %'
    row = Claim(label, 'statement', f'{claim["is"]} {claim["value"]}')
    if mine is None:
      return row
    first = mine.first_round(claim['reaches'])
    best = f'none up to {mine.last} (best {100 * mine.best():.1f} %)'
    row = row._replace(ours=str(first or best))
    value = first or math.inf
    known = first is not None or mine.last >= claim['value']
  else:
    label = f'{label}: uploads saved (%)'
    row = Claim(label, 'statement', f'{claim["is"]} {100 * claim["value"]:g}')
    if mine is None:
      return row
    saved = 1 - tables.upload_shares(results, paper).iloc[0].dropna()
    value, known = saved.max(), len(saved) > 0
    if known:
      label = results_lib.round_label(saved.idxmax(), [mine])
      row = row._replace(ours=f'{100 * value:.1f}', round=label)
  if not mine.part.full_size:
    return row.untested(_SMALLER)
  if not known:
    return row.untested(_ROUNDS)
  return row.judge(_HOLDS[claim['is']](value, claim['value']))


def _difference(
  label: str, mine: Runs | None, other: Runs | None, claim: Mapping[str, Any]
) -> Claim:
  """Checks how far one is ahead of another; only the sign in smaller runs."""
  relation, value = claim['is'], claim['value']
  condition = f'{relation} {100 * value:g}'
  row = Claim(f'{label}: lead (points)', 'statement', condition)
  if mine is None or other is None:
    return row
  if claim.get('measure') == 'uploads':
    difference = mine.total_uploads().max() - other.total_uploads().max()
    row = row._replace(claim=f'{label}: uploads', ours=f'{difference:+,.0f}')
    return row.judge(_HOLDS[relation](difference, value))
  leads = mine.lead(other)
  if 'round' in claim:
    t = claim['round']
    difference = tables.subtract(mine.at(t), other.at(t))
    label = results_lib.round_label(t, [mine, other])
  else:
    difference, label = leads.mean(), f'mean of 1 to {leads.index.max()}'
  row = row._replace(ours=tables.format_points(difference), round=label)
  if math.isnan(difference):
    return row.untested(_ROUNDS)
  if len(leads) and 'centralized' not in (mine.algorithm, other.algorithm):
    row = row._replace(
      largest_lead=tables.format_points(leads.max()),
      largest_lead_round=str(leads.idxmax()),
    )
  if relation == '≥' and not (mine.part.full_size and other.part.full_size):
    relation, value = '>', 0
    row = row._replace(paper=f'> 0 ({condition} at full size)')
  return row.judge(_HOLDS[relation](difference, value), (mine, other))
