"""What an experiment comes to, and pieces that several of them have."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.experiments.paper import claims, run_stats
from safl_tf.reporting import plots

Numbers = Mapping[str, Any]

_LEVELS = (0.8, 0.95)  # that the paper's sentences are about


class Table(NamedTuple):
  """A table to be read: its title, the headings, then the cells."""

  title: str
  lines: list[list[str]]


class Outcome(NamedTuple):
  """Results beside the paper's.

  Attributes:
    tables: in the paper's form.
    charts: by file name.
    findings: sentences on what agrees and what doesn't.
    compared: every number that the paper has, and ours.
  """

  tables: list[Table]
  charts: dict[str, plots.Chart]
  findings: list[claims.Finding]
  compared: list[claims.Compared]


def check_all(
  numbers: Numbers, results: run_stats.Results
) -> list[claims.Finding]:
  """The findings on the paper's sentences that `claims.check` knows."""
  found = [claims.check(claim, results) for claim in numbers['claims']]
  return [finding for finding in found if finding is not None]


def accuracy_chart(
  title: str, curves: Sequence[plots.Curve], x: str = 'communication round'
) -> plots.Chart:
  """A chart of accuracies in %."""
  return plots.Chart(title, x, 'test accuracy (%)', curves, y_max=100.0)


def curve(
  results: run_stats.Results, cell: Mapping[str, Any], name: str | None = None
) -> plots.Curve:
  """Accuracy by round of a cell's runs; without points if there are none."""
  runs = results.get(**cell)
  if runs is not None:
    return runs.curve(name)
  return plots.Curve(name or run_stats.NAMES[cell['algorithm']], [], [])


def level(results: run_stats.Results, rounds: int, **cell: Any) -> plots.Curve:
  """The line of centralised training."""
  runs = results.get(algorithm='centralized', **cell)
  name = f'{run_stats.NAMES["centralized"]} (level)'
  if runs is None or (final := runs.final()) is None:
    return plots.Curve(name, [], [])
  return plots.Curve(name, [1, rounds], [100 * final.mean] * 2)


def last_round(results: run_stats.Results, **cell: Any) -> int:
  """The last round of any run with clients, at least 2."""
  found = [
    runs.last
    for runs in results.where(**cell)
    if runs.part.cell['algorithm'] != 'centralized'
  ]
  return max([2, *found])


def accuracy_table(
  title: str, named: Mapping[str, run_stats.Runs], rounds: Sequence[int]
) -> Table:
  """Accuracies in some of the paper's rounds, and when levels are reached.

  Args:
    title: of the table.
    named: the lines.
    rounds: of the paper; those that nobody has run are left out.
  """
  shown = [t for t in rounds if any(r.at(t) for r in named.values())]
  heads = [f'{told_round(t, named.values())} (%)' for t in shown]
  reached = [f'{claims.paper(goal)} % in round' for goal in _LEVELS]
  lines = [
    [
      name,
      *(run_stats.percent(runs.at(t)) for t in shown),
      run_stats.percent(runs.final()),
      *(str(runs.first(goal) or '-') for goal in _LEVELS),
    ]
    for name, runs in named.items()
  ]
  return Table(title, [['', *heads, 'last (%)', *reached], *lines])


def told_round(t: int, several: Iterable[run_stats.Runs | None]) -> str:
  """'round 50', or 'round 2 for 50' where one stands for the other."""
  stands = {runs.part.round_for(t) for runs in several if runs is not None}
  if stands <= {t}:
    return f'round {t}'
  return f'round {"/".join(map(str, sorted(stands)))} for {t}'
