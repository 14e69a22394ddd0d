"""Writes an experiment's report: Markdown, a web page, figures and CSV."""

import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from safl_tf.experiments.paper import (
  claims,
  experiments,
  registry,
  run_stats,
)
from safl_tf.experiments.paper import (
  results as results_lib,
)
from safl_tf.experiments.paper import (
  runs as runs_lib,
)
from safl_tf.reporting import html as html_lib
from safl_tf.reporting import plots, tables
from safl_tf.util import atomic_io

_PAPER = '"Gradual Federated Learning with Simulated Annealing"'
_NOTE = (
  'Accuracies and costs are on the test data; at a round it is the last '
  'evaluation up to there. ± is the sample standard deviation over seeds. - '
  'stands for what was not run.'
)
_SMALLER = (
  "Numbers of runs that are smaller than the paper's cannot be compared with "
  'it; of these, only who is ahead of whom is compared.'
)
_ONE_SEED = 'There is one seed: small differences may be chance.'
_VERDICTS = {
  claims.AGREES: 'Agrees with the paper',
  claims.DIFFERS: 'Does not agree',
  claims.OPEN: 'Cannot be told from these runs',
  claims.SEEN: 'Also seen',
}


def write(folder: pathlib.Path, results: run_stats.Results) -> str:
  """Writes all files of a report; returns what to tell at its end.

  Args:
    folder: the experiment's.
    results: of its finished runs, at least one.
  """
  outcome = registry.find(results)
  figures = folder / 'figures'
  figures.mkdir(parents=True, exist_ok=True)
  for name, chart in outcome.charts.items():
    atomic_io.write_text(figures / f'{name}.csv', tables.to_csv(_points(chart)))
    plots.chart(chart, figures / f'{name}.png')
  if outcome.compared:
    rows = tables.to_csv(_numbers(outcome))
    atomic_io.write_text(folder / 'values.csv', rows)
  atomic_io.write_text(folder / 'report.md', markdown(results, outcome))
  atomic_io.write_text(folder / 'report.html', html(results, outcome))
  texts = [tables.to_markdown(table.lines) for table in outcome.tables]
  return '\n'.join([*texts, summary(outcome)])


def summary(outcome: results_lib.Outcome) -> str:
  """How much agrees with the paper, in a sentence or two."""
  near, far = (
    sum(f.numbers for f in outcome.findings if f.verdict == verdict)
    for verdict in (claims.AGREES, claims.DIFFERS)
  )
  told = []
  if near + far:
    told.append(f'{near} of {near + far} numbers are as in the paper.')
  elif outcome.compared:
    told.append('No number can be compared with the paper.')
  agree, differ, untold = (
    sum(f.verdict == verdict and not f.numbers for f in outcome.findings)
    for verdict in (claims.AGREES, claims.DIFFERS, claims.OPEN)
  )
  if agree + differ + untold:
    told.append(
      f'Of {agree + differ + untold} statements, {agree} agree with the paper, '
      f'{differ} do not, and {untold} cannot be told from these runs.'
    )
  return ' '.join(told or ['The paper says nothing of this.'])


def markdown(results: run_stats.Results, outcome: results_lib.Outcome) -> str:
  """The report as Markdown; figures are files beside it."""
  render: dict[str, Callable[[Any], str]] = {
    'heading': lambda text: f'## {text}',
    'subheading': lambda text: f'### {text}',
    'text': str,
    'note': str,
    'list': _listed,
    'table': lambda lines: tables.to_markdown(lines).rstrip(),
  }
  shared, own = _settings(results.plan)
  return '\n\n'.join(
    [
      f'# {experiments.EXPERIMENTS[results.plan.experiment].title}',
      *(render[kind](content) for kind, content in _blocks(results, outcome)),
      '## Figures',
      *(
        f'![{chart.title}](figures/{name}.png)'
        for name, chart in outcome.charts.items()
      ),
      '## Settings, as flags of safl-train',
      'All runs: '
      + ' '.join(f'`--{name}={value}`' for name, value in shared.items()),
      tables.to_markdown(own),
    ]
  )


def html(results: run_stats.Results, outcome: results_lib.Outcome) -> str:
  """The report as a page that is one file."""
  render: dict[str, Callable[[Any], str]] = {
    'heading': html_lib.heading,
    'subheading': lambda text: html_lib.paragraph(f'{text}:'),
    'text': html_lib.paragraph,
    'note': html_lib.note,
    'list': html_lib.bullets,
    'table': html_lib.table,
  }
  drawn = (
    html_lib.line_chart(chart, 'curve') for chart in outcome.charts.values()
  )
  shared, own = _settings(results.plan)
  return html_lib.page(
    experiments.EXPERIMENTS[results.plan.experiment].title,
    [
      *(render[kind](content) for kind, content in _blocks(results, outcome)),
      html_lib.heading('Figures'),
      html_lib.charts(drawn),
      html_lib.heading('Settings, as flags of safl-train'),
      html_lib.table(own),
      html_lib.settings('Settings that all runs share', shared),
    ],
  )


def _blocks(
  results: run_stats.Results, outcome: results_lib.Outcome
) -> Iterator[tuple[str, Any]]:
  """What a report says: the kind of each block, and its content."""
  for text in _intro(results):
    yield 'text', text
  plan = results.plan
  if plan.reductions:
    yield 'heading', 'What is smaller than in the paper'
    yield 'list', plan.reductions
    if not all(part.like_paper for part in plan.parts):
      yield 'text', _SMALLER
  for table in outcome.tables:
    yield 'heading', table.title
    yield 'table', table.lines
  yield 'note', _NOTE
  yield 'heading', 'What agrees and what does not'
  yield 'text', summary(outcome)
  if len(results.seeds) == 1:
    yield 'text', _ONE_SEED
  for verdict, title in _VERDICTS.items():
    texts = [f.text for f in outcome.findings if f.verdict == verdict]
    if texts:
      yield 'subheading', title
      yield 'list', texts
  known = registry.paper_numbers()[plan.experiment].get('claims', ())
  said = dict.fromkeys(f'"{claim["says"]}"' for claim in known)
  if said:
    yield 'subheading', "In the paper's words"
    yield 'list', list(said)


def _intro(results: run_stats.Results) -> list[str]:
  """What it is, and what there is of it."""
  plan = results.plan
  about = experiments.EXPERIMENTS[plan.experiment]
  source = registry.paper_numbers()[plan.experiment]['source']
  of = f'{about.place} of {_PAPER}. ' if about.place[0].isupper() else ''
  finished = sum(len(runs.histories) for runs in results.runs)
  total = len(plan.runs(results.seeds))
  shared = ', '.join(results.shared)
  return [
    f'{of}{about.about}',
    f"The paper's numbers: {source}.",
    f'Scale {plan.scale}. {_seeds(results.seeds)}. {finished} of {total} runs '
    f'are finished, {runs_lib.told(results.seconds)} in rounds.',
    *(
      f'{run_stats.DATA[data]} is left out: {reason}.'
      for data, reason in results.missing.items()
    ),
    *([f'Runs shared with other experiments: {shared}.'] if shared else []),
  ]


def _seeds(seeds: tuple[int, ...]) -> str:
  """'Seed 0', 'Seeds 3, 5' or 'Seeds 0 to 99'."""
  if len(seeds) == 1:
    return f'Seed {seeds[0]}'
  if len(seeds) > 3 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
    return f'Seeds {seeds[0]} to {seeds[-1]}'
  return f'Seeds {", ".join(map(str, seeds))}'


def _settings(plan: runs_lib.Plan) -> tuple[dict[str, Any], list[list[str]]]:
  """Flags that all parts share; a table of the others, a line for each part."""
  flags = [part.flags for part in plan.parts]
  shared = {
    name: value
    for name, value in flags[0].items()
    if all(name in own and own[name] == value for own in flags)
  }
  names = dict.fromkeys(name for own in flags for name in own)
  varied = [name for name in names if name not in shared]
  lines = [
    [part.name, *(str(part.flags.get(name, '')) for name in varied)]
    for part in plan.parts
  ]
  return shared, [['run', *varied], *lines]


def _listed(texts: Iterable[str]) -> str:
  return '\n'.join(f'- {text}' for text in texts)


def _points(chart: plots.Chart) -> list[dict[str, Any]]:
  """The points of all curves, a row each."""
  rows = [
    {
      'curve': curve.name,
      chart.x_label: x,
      chart.y_label: y,
      'spread': curve.spread[i] if curve.spread else None,
    }
    for curve in chart.curves
    for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True))
  ]
  none = dict.fromkeys(('curve', chart.x_label, chart.y_label, 'spread'))
  return rows or [none]


def _numbers(outcome: results_lib.Outcome) -> list[dict[str, Any]]:
  """All numbers that the paper has, a row each."""
  return [
    {
      'what': c.what,
      'measure': c.measure,
      'paper_round': c.round,
      'paper': c.paper,
      'mean': c.ours and c.ours.mean,
      'sd': c.ours and c.ours.sd,
      'runs': c.ours.runs if c.ours else 0,
      'of_the_papers_size': c.like_paper,
    }
    for c in outcome.compared
  ]
