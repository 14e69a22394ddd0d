"""Tables in the paper's form: under each line of ours stands the paper's."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from safl_tf.experiments.paper import claims, results, run_stats

# Measure -> column of metrics.csv, what a sentence calls it.
_MEASURES = {
  'accuracy': (run_stats.ACCURACY, 'accuracies (in %, within 2 points)'),
  'top5': ('test_top5_accuracy', 'top-5 accuracies (in %, within 2 points)'),
  'cost': ('test_loss', f'costs (within {claims.COST:g})'),
  'uploads': ('uploaded', f'numbers of uploads (within {claims.UPLOADS:.0%})'),
}


class Cell(NamedTuple):
  """A number of a table.

  Attributes:
    what: whose it is, for sentences.
    runs: ours, if they are finished.
    measure: 'accuracy', 'top5', 'cost' or 'uploads'.
    round: the paper's. Centralised training is taken after its last.
    paper: what the paper has.
  """

  what: str
  runs: run_stats.Runs | None
  measure: str
  round: int
  paper: float

  @property
  def ours(self) -> run_stats.Value | None:
    """Our number."""
    column, _ = _MEASURES[self.measure]
    if self.runs is None:
      return None
    if self.measure == 'uploads':
      return self.runs.total(self.round)
    if self.runs.part.cell['algorithm'] == 'centralized':
      return self.runs.final(column)
    return self.runs.at(self.round, column)

  @property
  def texts(self) -> tuple[str, str]:
    """Both numbers, as a table has them."""
    if self.measure == 'cost':
      return run_stats.cost(self.ours), f'{self.paper:.3f}'
    if self.measure == 'uploads':
      return run_stats.count(self.ours), f'{self.paper:,.0f}'
    return run_stats.percent(self.ours), claims.paper(self.paper)

  @property
  def compared(self) -> claims.Compared:
    """Both numbers."""
    like_paper = self.runs is not None and self.runs.part.like_paper
    return claims.Compared(
      self.what, self.measure, self.round, self.ours, self.paper, like_paper
    )


def table(
  title: str, heads: Sequence[str], rows: Mapping[str, Sequence[Cell]]
) -> results.Table:
  """Lines of cells, each with the paper's below."""
  lines = [list(heads)]
  for name, cells in rows.items():
    ours, theirs = zip(*(cell.texts for cell in cells), strict=True)
    lines += [[name, *ours], ['in the paper', *theirs]]
  return results.Table(title, lines)


def compared(rows: Mapping[str, Sequence[Cell]]) -> list[claims.Compared]:
  """All numbers of a table, each once."""
  found = [cell.compared for cells in rows.values() for cell in cells]
  return list(dict.fromkeys(found))


def near(rows: Mapping[str, Sequence[Cell]]) -> list[claims.Finding]:
  """Which numbers are near the paper's, for each measure."""
  found = compared(rows)
  return [
    finding
    for measure, (_, unit) in _MEASURES.items()
    for finding in claims.values(
      [c for c in found if c.measure == measure], unit
    )
  ]


def order(
  where: str, names: Sequence[str], cells: Sequence[Cell]
) -> claims.Finding:
  """Whether the cells of a line are in the paper's order."""
  learned = any(c.runs is not None and c.runs.has_learned() for c in cells)
  return claims.order(
    where,
    {name: cell.ours for name, cell in zip(names, cells, strict=True)},
    {name: cell.paper for name, cell in zip(names, cells, strict=True)},
    learned,
  )
