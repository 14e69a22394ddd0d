"""Writes what compares finished runs: a table, charts and a page."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.reporting import charts as charts_lib
from safl_tf.reporting import html, names, tables
from safl_tf.reporting import plots as plots_lib
from safl_tf.util import atomic_io

_CLIENTS = (
  'Tests on the own examples of each client, which nobody trains on, in the '
  'last round that has them: the global model, the model that the client '
  'keeps, and the global model after some steps on the examples of the client. '
  'Statistics are over clients, ± over seeds.'
)
_MAX_CURVES = 14  # settings that charts show; the best ones if there are more


class Comparison(NamedTuple):
  """Finished runs to compare.

  Attributes:
    runs: at least one; in the order of the table.
    description: sentences for the reader.
    at_rounds: rounds to report the metric at; quarters if None.
    target: test accuracy to which rounds and megabytes are counted.
    shared: names and values of the settings that all runs share.
    formats: of the figures, some of `choices.FIGURES`.
    title: of the page; the folder's name if there is none.
    algorithm: that of all runs, if they share one.
    subtitle: of the charts: what all runs train on, and their n, ε and L.
    guess: the accuracy of guessing, if that is known.
  """

  runs: Sequence[tables.Run]
  description: Sequence[str] = ()
  at_rounds: Sequence[int] | None = None
  target: float = 0.9
  shared: Mapping[str, Any] | None = None
  formats: Sequence[str] = ('png',)
  title: str = ''
  algorithm: str | None = None
  subtitle: str = ''
  guess: float | None = None


def write(
  folder: str | os.PathLike[str], name: str, content: Comparison
) -> str:
  """Writes all files of a comparison and returns its table as Markdown.

  Args:
    folder: an existing folder.
    name: of the files `name`.html, .md, .tex and .csv, which has a row per
      setting, beside runs.csv with a row per run and plots/.
    content: the runs.
  """
  folder, runs, formats = pathlib.Path(folder), content.runs, content.formats
  at_rounds = content.at_rounds
  if at_rounds is None:
    at_rounds = tables.quarters(max(run.history[-1]['round'] for run in runs))
  rows = tables.run_rows(runs, at_rounds, content.target)
  averaged = tables.setting_rows(rows)
  lines, best = tables.table(averaged), tables.best_row(averaged)
  left = list(averaged[0]).index('seeds')
  table = tables.to_markdown(lines, left)
  drawn = _drawn(averaged)
  labels = list(dict.fromkeys(run.label for run in runs))
  shown = {labels[i] for i in drawn}
  charts = charts_lib.comparison(
    [run for run in runs if run.label in shown],
    content.algorithm,
    content.subtitle,
    content.guess,
  )
  looks = next(iter(charts.values())).looks()
  heat = heat_map(averaged)
  notes = tables.notes(runs)
  if len(drawn) < len(averaged):
    notes += f' Curves are those of the {len(drawn)} best settings.'
  of_clients = tables.client_table(runs)
  keys = dict(zip(drawn, looks, strict=True))
  star = best if len(averaged) > 1 else None
  figures = [
    f'plots/{path.name}'
    for file in [*charts, *(['heat_map'] if heat else [])]
    for path in plots_lib.paths('', file, formats)
  ]
  title = content.title or folder.name
  files: dict[str, str] = {
    'runs.csv': tables.to_csv(rows),
    f'{name}.csv': tables.to_csv(averaged),
    f'{name}.tex': tables.to_latex(lines, left),
  }
  markdown = f'{table}\n{notes}\n'
  if of_clients:
    columns = of_clients[0].index('seeds')
    second = tables.to_markdown(of_clients, columns)
    markdown += f'\n{second}\n{_CLIENTS}\n'
    table += f'\n{second}'
    files[f'{name}_clients.csv'] = tables.to_csv(tables.client_rows(runs))
    files[f'{name}_clients.tex'] = tables.to_latex(of_clients, columns)
  introduction = '\n\n'.join([f'# {title}', *content.description])
  files[f'{name}.md'] = f'{introduction}\n\n{markdown}'
  body = [
    *map(html.paragraph, content.description),
    html.table(lines, keys, star),
    html.note(notes),
    *([html.table(of_clients), html.note(_CLIENTS)] if of_clients else []),
    *([html.heat_map(heat)] if heat else []),
    html.charts(html.line_chart(c, 'setting') for c in charts.values()),
    html.heading('Download'),
    html.downloads({'Data and tables': list(files), 'Figures': figures}),
  ]
  if content.shared:
    body.append(html.settings('All settings', content.shared))
  files[f'{name}.html'] = html.page(title, body)
  for file, text in files.items():
    atomic_io.write_text(folder / file, text)
  plots = folder / 'plots'
  plots.mkdir(exist_ok=True)
  for file, chart in charts.items():
    charts_lib.chart(chart, plots_lib.paths(plots, file, formats))
  if heat:
    charts_lib.heat_map(heat, plots_lib.paths(plots, 'heat_map', formats))
  return table


def _drawn(rows: Sequence[tables.Row]) -> list[int]:
  """Returns the numbers of the settings that have curves, in their order."""
  metric = tables.metric_of(rows[0])
  column, sign = (
    f'final_{metric.name}_mean',
    1 if metric.higher_is_better else -1,
  )

  def rank(i: int) -> tuple[bool, float]:
    value = rows[i][column]
    return value is None, -sign * (value or 0.0)

  return sorted(sorted(range(len(rows)), key=rank)[:_MAX_CURVES])


def heat_map(rows: Sequence[tables.Row]) -> charts_lib.HeatMap | None:
  """Returns the final metric by two parameters, if exactly two differ."""
  keys = list(rows[0])[: list(rows[0]).index('seeds')]
  values = {
    name: list(dict.fromkeys(row[name] for row in rows)) for name in keys
  }
  varied = [name for name in keys if len(values[name]) > 1]
  if len(varied) != 2 or any(None in values[name] for name in varied):
    return None
  metric = tables.metric_of(rows[0])
  y_name, x_name = varied
  ys, xs = values[y_name], values[x_name]
  means: list[list[float | None]] = [[None] * len(xs) for _ in ys]
  texts = [[''] * len(xs) for _ in ys]
  places = []
  for row in rows:
    i, j = ys.index(row[y_name]), xs.index(row[x_name])
    mean, sd = (row[f'final_{metric.name}_{kind}'] for kind in ('mean', 'sd'))
    digits = 1 if metric.percent else 4
    means[i][j] = mean
    texts[i][j] = tables.format_mean_sd(mean, sd, digits, metric.factor)
    places.append((i, j))
  best = tables.best_row(rows)
  unit = ' (%)' if metric.percent else ''
  return charts_lib.HeatMap(
    f'Final {metric.title.lower()}{unit}',
    names.heading(x_name),
    names.heading(y_name),
    [names.value(x_name, x) for x in xs],
    [names.value(y_name, y) for y in ys],
    means,
    texts,
    None if best is None else places[best],
    metric.higher_is_better,
  )
