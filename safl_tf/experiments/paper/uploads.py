"""Findings on Extended SAFL's uploads, and the search for the paper's ν."""

import itertools
import math
from collections.abc import Sequence

from safl_tf.experiments.paper import (
  claims,
  paper_table,
  run_stats,
)
from safl_tf.experiments.paper import (
  results as results_lib,
)
from safl_tf.reporting import plots

_COLUMNS = ('fedavg', 'safl', 'extended_safl')
_NEAR = 0.01  # shares of uploads that are called the same
_NAMES = [run_stats.NAMES[name] for name in _COLUMNS]


def uploads(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Total uploads and accuracy, with the ν that is nearest to the paper."""
  rounds = {int(t): row for t, row in numbers['rounds'].items()}
  tried = results.where(algorithm='extended_safl')
  chosen = min(tried, key=lambda runs: _away(runs, rounds), default=None)
  nu = None if chosen is None else chosen.part.cell['nu']
  others = [runs for runs in results.runs if runs not in tried]
  kept = results._replace(runs=[*others, *([] if chosen is None else [chosen])])
  rows = {
    f'up to {results_lib.told_round(t, kept.runs)}': [
      paper_table.Cell(
        f'{run_stats.NAMES[name]}, round {t}',
        kept.get(algorithm=name),
        measure,
        t,
        row[name][measure],
      )
      for name in _COLUMNS
      for measure in ('uploads', 'accuracy')
    ]
    for t, row in rounds.items()
  }
  heads = [
    f'{run_stats.NAMES[name]} {told}'
    for name in _COLUMNS
    for told in ('uploads', '(%)')
  ]
  title = 'Total uploads and accuracy'
  title += '' if nu is None else f', Extended SAFL with ν = {nu:g}'
  return results_lib.Outcome(
    [
      paper_table.table(title, ['', *heads], rows),
      _search_table(tried, rounds),
    ],
    _charts(kept, tried, rounds),
    [
      *paper_table.near(rows),
      *(
        paper_table.order(
          f'Accuracy, {name.removeprefix("up to ")}', _NAMES, cells[1::2]
        )
        for name, cells in rows.items()
      ),
      *(
        _saving(claim, chosen, rounds)
        for claim in numbers['claims']
        if 'saving' in claim
      ),
      *(_same_cost(results) for claim in numbers['claims'] if 'cost' in claim),
      *results_lib.check_all(numbers, kept),
      *_search(tried, rounds),
    ],
    paper_table.compared(rows),
  )


def share(runs: run_stats.Runs, t: int) -> float | None:
  """The uploads up to a round, of all that the selected clients could do."""
  sent, selected = runs.total(t), runs.total(t, 'selected')
  if sent is None or selected is None:
    return None
  return sent.mean / selected.mean


def _paper_share(row: results_lib.Numbers) -> float:
  return row['extended_safl']['uploads'] / row['safl']['uploads']


def _away(
  runs: run_stats.Runs, rounds: dict[int, results_lib.Numbers]
) -> float:
  """How far the shares are from the paper's, on average over its rounds."""
  shares = {t: share(runs, t) for t in rounds}
  known = [
    abs(s - _paper_share(rounds[t])) for t, s in shares.items() if s is not None
  ]
  return math.fsum(known) / len(known) if known else math.inf


def _saving(
  claim: results_lib.Numbers,
  runs: run_stats.Runs | None,
  rounds: dict[int, results_lib.Numbers],
) -> claims.Finding:
  """Whether more uploads are saved than the paper says, in some round."""
  told = run_stats.NAMES['extended_safl']
  if runs is None:
    return claims.Finding(claims.OPEN, f'{told}: was not run.')
  saved = {t: 1 - s for t in rounds if (s := share(runs, t)) is not None}
  if not saved:
    return claims.Finding(claims.OPEN, f'{told}: too few rounds were run.')
  listed = ', '.join(
    f'{100 * s:.1f} % by round {runs.part.round_for(t)}'
    for t, s in saved.items()
  )
  goal = claims.paper(claim['saving'])
  text = f'{told} saves {listed}; the paper: more than {goal} %.'
  if not runs.part.like_paper:
    return claims.Finding(claims.OPEN, f'{text} Sizes differ.')
  agrees = max(saved.values()) > claim['saving']
  return claims.Finding(claims.AGREES if agrees else claims.DIFFERS, text)


def _same_cost(results: run_stats.Results) -> claims.Finding:
  """Whether SAFL uploads as much as FedAvg."""
  safl, fedavg = (results.get(algorithm=name) for name in ('safl', 'fedavg'))
  if safl is None or fedavg is None:
    return claims.Finding(claims.OPEN, 'SAFL or FedAvg was not run.')
  counts = [
    sum(row['uploaded'] for history in runs.histories for row in history)
    for runs in (safl, fedavg)
  ]
  verdict = claims.AGREES if counts[0] == counts[1] else claims.DIFFERS
  text = f'SAFL uploads {counts[0]:,} models, FedAvg {counts[1]:,}'
  return claims.Finding(verdict, f'{text}; the paper: as many.')


def _search(
  tried: Sequence[run_stats.Runs], rounds: dict[int, results_lib.Numbers]
) -> list[claims.Finding]:
  """Which ν would give the paper's share, between those that were tried."""
  t = max(rounds)
  found = [(runs.part.cell['nu'], share(runs, t)) for runs in tried]
  known = sorted((nu, s) for nu, s in found if s is not None)
  goal = _paper_share(rounds[t])
  told = f"the paper's share of uploads in round {t}, {100 * goal:.1f} %"
  nu, s = min(known, key=lambda one: abs(one[1] - goal), default=(0.0, None))
  if s is not None and abs(s - goal) <= _NEAR:
    text = f'ν = {nu:g} gives {told}, within a point: {100 * s:.1f} %.'
    return [claims.Finding(claims.SEEN, text)]
  for (a, low), (b, high) in itertools.pairwise(known):
    if min(low, high) <= goal <= max(low, high) and low != high:
      part = (goal - low) / (high - low)
      nu = math.exp(math.log(a) + part * (math.log(b) - math.log(a)))
      text = f'By interpolation, ν = {nu:.2g} gives {told}.'
      return [claims.Finding(claims.SEEN, text)]
  if not known:
    return []
  listed = ', '.join(f'{100 * s:.1f} % with ν = {nu:g}' for nu, s in known)
  text = f'No ν that was tried gives {told}: {listed}.'
  return [claims.Finding(claims.SEEN, text)]


def _search_table(
  tried: Sequence[run_stats.Runs], rounds: dict[int, results_lib.Numbers]
) -> results_lib.Table:
  """For each ν the share of uploads, and the accuracy at the end."""
  t = max(rounds)
  heads = [f'share, {results_lib.told_round(r, tried)} (%)' for r in rounds]
  lines = [['ν', *heads, 'accuracy (%)']]
  for runs in tried:
    shares = [share(runs, r) for r in rounds]
    lines.append(
      [
        f'{runs.part.cell["nu"]:g}',
        *('-' if s is None else f'{100 * s:.1f}' for s in shares),
        run_stats.percent(runs.at(t)),
      ]
    )
  paper = [f'{100 * _paper_share(row):.1f}' for row in rounds.values()]
  accuracy = claims.paper(rounds[t]['extended_safl']['accuracy'])
  lines.append(['in the paper', *paper, accuracy])
  return results_lib.Table(
    'Share of uploads of Extended SAFL for several ν', lines
  )


def _charts(
  kept: run_stats.Results,
  tried: Sequence[run_stats.Runs],
  rounds: dict[int, results_lib.Numbers],
) -> dict[str, plots.Chart]:
  """Accuracy by uploads; the share of uploads against ν."""
  curves = []
  for name in _COLUMNS:
    runs = kept.get(algorithm=name)
    told = run_stats.NAMES[name]
    points = {} if runs is None else runs.by_round()
    x = [_sent(runs, t) for t in points] if runs else []
    y = [100 * value.mean for value in points.values()]
    curves.append(plots.Curve(told, x, y))
  for name in _COLUMNS:
    x = [row[name]['uploads'] for row in rounds.values()]
    y = [100 * row[name]['accuracy'] for row in rounds.values()]
    curves.append(plots.Curve(f'{run_stats.NAMES[name]}, paper', x, y))
  t = max(rounds)
  found = [(runs.part.cell['nu'], share(runs, t)) for runs in tried]
  known = [(nu, 100 * s) for nu, s in found if s is not None]
  nus = [nu for nu, _ in known]
  goal = 100 * _paper_share(rounds[t])
  ends = [min(nus), max(nus)] if nus else []
  return {
    'uploads': results_lib.accuracy_chart(
      'Test accuracy by uploads', curves, 'uploads in total'
    ),
    'search': plots.Chart(
      f'Share of uploads in {results_lib.told_round(t, tried)} against ν',
      'ν',
      'uploads of those possible (%)',
      [
        plots.Curve('Extended SAFL', nus, [s for _, s in known]),
        plots.Curve('paper', ends, [goal] * len(ends)),
      ],
      y_max=100.0,
    ),
  }


def _sent(runs: run_stats.Runs, t: int) -> float:
  """The mean of all uploads up to one of our rounds."""
  sums = [
    sum(row['uploaded'] for row in history if row['round'] <= t)
    for history in runs.histories
  ]
  return sum(sums) / len(sums)
