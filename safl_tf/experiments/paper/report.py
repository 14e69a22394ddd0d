"""Writes the report of an experiment: Markdown, a web page, figures and CSV."""

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from safl_tf.experiments.paper import claims as claims_lib
from safl_tf.experiments.paper import experiments, figures, plans, tables
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import charts as charts_lib
from safl_tf.reporting import html as html_lib
from safl_tf.reporting import names, plots
from safl_tf.reporting import tables as tables_lib
from safl_tf.util import atomic_io

if TYPE_CHECKING:
  import pandas as pd

_PAPER = '"Gradual Federated Learning with Simulated Annealing"'
_NOTE = (
  'Accuracy and loss are on the test data: the last evaluation up to a round; '
  'of centralised training, the last one. "2 for 50" is round 2, which stands '
  "for the paper's round 50. ± is the sample standard deviation over seeds. - "
  'is a missing value.'
)
_SMOKE = (
  'This is a test of the program. It cannot tell whether a claim of the paper '
  'holds: a few clients with a few digits each train for a few rounds, so no '
  'claim is judged and no figure says anything about the algorithms. '
  'Use --scale=cpu or paper for results.'
)
_CLAIMS_NOTE = (
  'Numbers agree within 2 points of accuracy, 0.05 of loss or 5 % of uploads; '
  'leads are in points of accuracy. Of runs that are smaller than in the paper '
  'only the sign of a lead is compared. With a single seed, small differences '
  'may be chance.'
)


_MARKDOWN: Mapping[str, Callable[[Any], str]] = {
  'title': lambda text: f'# {text}',
  'heading': lambda text: f'## {text}',
  'note': str,
  'warning': lambda text: f'> {text}',
  'downloads': lambda files: '\n'.join(
    f'- {what}: ' + ', '.join(f'[{path}]({path})' for path in paths)
    for what, paths in files.items()
  ),
  'list': lambda texts: '\n'.join(f'- {text}' for text in texts),
  'table': lambda lines: tables_lib.to_markdown(lines).rstrip(),
  'charts': lambda charts: '\n\n'.join(
    f'![{chart.title}](figures/{name})' for name, chart in charts.items()
  ),
  'flags': lambda flags: (
    'All runs: ' + ' '.join(f'`--{name}={v}`' for name, v in flags.items())
  ),
}
_HTML: Mapping[str, Callable[[Any], str]] = {
  'title': lambda text: '',  # the page has it
  'heading': html_lib.heading,
  'note': html_lib.note,
  'warning': html_lib.warning,
  'downloads': html_lib.downloads,
  'list': html_lib.bullets,
  'table': html_lib.table,
  'charts': lambda charts: html_lib.charts(
    html_lib.line_chart(chart, 'curve') for chart in charts.values()
  ),
  'flags': lambda flags: html_lib.settings('Flags that all runs share', flags),
}


def write(
  folder: pathlib.Path,
  results: results_lib.Results,
  formats: Sequence[str] = ('png',),
) -> str:
  """Writes all files of a report.

  Args:
    folder: folder of the experiment.
    results: its finished runs, at least one.
    formats: of the figures.

  Returns:
    The tables and the numbers of verdicts, as Markdown.
  """
  paper = results_lib.paper_numbers()[results.plan.experiment]
  claims = claims_lib.claims(results, paper)
  values = tables.values(tables.numbers(results, paper))
  (folder / 'figures').mkdir(parents=True, exist_ok=True)
  files: dict[str, list[str]] = {'Data': [], 'Figures': []}
  for name, frame in (('claims', claims), ('values', values)):
    if len(frame):
      _write_csv(folder / f'{name}.csv', frame)
      files['Data'].append(f'{name}.csv')
  charts = figures.figures(results, paper)
  for name, chart in charts.items():
    _write_csv(folder / 'figures' / f'{name}.csv', _points(chart))
    paths = plots.paths(folder / 'figures', name, formats)
    charts_lib.chart(chart, paths)
    files['Data'].append(f'figures/{name}.csv')
    files['Figures'] += [f'figures/{path.name}' for path in paths]
  content = tables.tables(results, paper)
  if len(claims):
    content['Verdicts'] = _count(claims)
  title = experiments.EXPERIMENTS[results.plan.experiment].title
  blocks = [
    ('title', title),
    *_introduction(results, paper),
    *_body(content, claims),
    *_section(
      'Figures',
      'charts',
      {f'{name}.{formats[0]}': chart for name, chart in charts.items()},
    ),
    *_section(
      'Download',
      'downloads',
      {what: paths for what, paths in files.items() if paths},
    ),
    *_flags(results.plan),
  ]
  text = '\n\n'.join(_MARKDOWN[kind](content) for kind, content in blocks)
  atomic_io.write_text(folder / 'report.md', f'{text}\n')
  page = html_lib.page(title, (_HTML[kind](block) for kind, block in blocks))
  atomic_io.write_text(folder / 'report.html', page)
  return '\n'.join(tables_lib.to_markdown(_lines(t)) for t in content.values())


def _section(
  heading: str, kind: str, content: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
  """Yields a heading and what is below it, if that is anything."""
  if content:
    yield 'heading', heading
    yield kind, content


def _introduction(
  results: results_lib.Results, paper: results_lib.PaperNumbers
) -> Iterator[tuple[str, Any]]:
  """Yields the blocks on the settings and the runs."""
  plan, seeds = results.plan, results.seeds
  if plan.scale == 'smoke':
    yield 'warning', _SMOKE
  experiment = experiments.EXPERIMENTS[plan.experiment]
  finished = sum(len(runs.histories) for runs in results.runs)
  consecutive = seeds == tuple(range(len(seeds))) and len(seeds) > 3
  facts = {
    'Paper': f'{_PAPER}, {experiment.place}',
    "Paper's numbers": paper['source'],
    'Settings': experiment.settings,
    'Scale': plan.scale,
    'Seeds': f'0 to {seeds[-1]}' if consecutive else ', '.join(map(str, seeds)),
    'Finished runs': f'{finished} of {len(plan.runs(seeds))}',
    'Time in rounds': plans.format_duration(results.seconds),
    'Runs shared with other experiments': ', '.join(results.shared),
  }
  for dataset, reason in results.missing.items():
    facts[f'{names.DATASETS[dataset]} is left out'] = reason
  yield 'list', [f'{name}: {text}' for name, text in facts.items() if text]
  if plan.reductions:
    yield 'heading', 'Smaller than in the paper'
    yield 'list', plan.reductions


def _body(
  content: Mapping[str, 'pd.DataFrame'], claims: 'pd.DataFrame'
) -> Iterator[tuple[str, Any]]:
  """Yields the blocks with the tables, the claims and the paper's words."""
  for title, table in content.items():
    yield 'heading', title
    yield 'table', _lines(table)
  yield 'note', _NOTE
  if len(claims):
    table = claims.loc[:, (claims != '').any()].drop(
      columns='quote', errors='ignore'
    )
    yield 'heading', 'Claims'
    yield 'table', _lines(table.rename(columns=lambda c: c.replace('_', ' ')))
    yield 'note', _CLAIMS_NOTE
    quotes = [f'"{quote}"' for quote in claims['quote'].unique() if quote]
    if quotes:
      yield 'heading', "The paper's words"
      yield 'list', quotes


def _flags(plan: plans.Plan) -> Iterator[tuple[str, Any]]:
  """Yields the blocks with the flags of all runs."""
  import pandas as pd

  flags = [{k: str(v) for k, v in part.flags.items()} for part in plan.parts]
  frame = pd.DataFrame(flags).fillna('')
  shared = frame.columns[frame.nunique() == 1]
  varied = frame.drop(columns=shared)
  varied.insert(0, 'run', [part.name for part in plan.parts])
  yield 'heading', 'Flags of safl-train'
  yield 'flags', frame.loc[0, shared].to_dict()
  yield 'table', _lines(varied)


def _count(claims: 'pd.DataFrame') -> 'pd.DataFrame':
  """Returns the number of claims of each kind by verdict."""
  import pandas as pd

  counts = pd.crosstab(claims['kind'], claims['verdict'])
  return counts.reindex(columns=claims_lib.VERDICTS, fill_value=0).reset_index()


def _points(chart: charts_lib.Chart) -> 'pd.DataFrame':
  """Returns the points of all curves, one per row."""
  import pandas as pd

  rows = [
    (
      f'{curve.name}, paper' if curve.is_paper else curve.name,
      x,
      y,
      curve.spread[i] if curve.spread else None,
    )
    for curve in chart.curves
    for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True))
  ]
  columns = ['curve', chart.x_label, chart.y_label, 'spread']
  return pd.DataFrame(rows, columns=columns)


def _lines(frame: 'pd.DataFrame') -> list[list[str]]:
  """Returns the headings and the cells of a table."""
  return [list(frame.columns), *frame.astype(str).values.tolist()]


def _write_csv(path: pathlib.Path, frame: 'pd.DataFrame') -> None:
  atomic_io.write_text(path, frame.to_csv(index=False, lineterminator='\n'))
