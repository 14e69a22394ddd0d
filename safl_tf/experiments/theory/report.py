"""Tables and figures of measured errors and bounds.

All functions take the table of `trials.run`.
"""

import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from safl_tf.experiments.theory import bounds, testbed, trials
from safl_tf.reporting import html, plots, tables, theme
from safl_tf.util import atomic_io

if TYPE_CHECKING:
  import pandas as pd

# The measured error of SAFL, the paper's bounds, its remark, another bound.
_MEASURED, _BOUND, _REMARK, _OTHER = theme.looks(
  ['safl', 'fedavg', 'extended_safl', 'local_only']
)
_STATEMENTS = {
  '(16)': 'the main theorem',
  'remark': "(16) without its last factor, the remark's ασ̄²/(nμ)",
  'Jensen': 'the proofs without the step that fails',
  '(17)': 'the corollary, rates α₀/(t+1)',
  '(20)': 'the quasi-convex theorem, rates α₀/(t+1)',
}
# Bound -> label in legends, look, dashes.
_CURVES: dict[str, tuple[str, theme.Look, Any]] = {
  '(16)': ('main theorem (16)', _BOUND, '-'),
  'remark': ('remark on n', _REMARK, (0, (4, 2))),
  'Jensen': ('Jensen', _OTHER, (0, (1, 1.5))),
  '(17)': ('corollary (17)', _BOUND, '-'),
  '(20)': ('quasi-convex theorem (20)', _BOUND, '-'),
}
_TITLES = {
  'n': 'Error by local step t, for n clients',
  'alpha': 'Error by local step t, for learning rates α',
  'mixing': 'Error by local step t, for mixing rules',
  'q': 'Error by local step t, for q local steps in a round',
  'edges': 'Error by local step t, at the limits of (16)',
  'corollary': 'Error by local step t, rates α₀/(t+1)',
  'quasi_convex': 'Error by local step t, non-convex, rates α₀/(t+1)',
}
_FORMATS = ('png', 'dark.png', 'pdf')
_BY_N = 'Error at the end, by the number of clients'
_CONDITIONS = 'ε and p that the proof of (16) covers (blue)'
_YES_OR_NO = {True: 'yes', False: 'no'}
_COLUMNS = {'alpha': 4, 'edges': 2, 'quasi_convex': 4}
_NOTES = (
  'error/bound is the largest ratio of a measured error to the bound in a run, '
  'at that t; "exact" is the largest ratio of the exact error, where it has a '
  'closed form. A bound holds if the measured error never exceeds it by more '
  f'than {trials.MAX_STANDARD_ERRORS:g} standard errors, and the exact error '
  "never exceeds it. Conditions are the paper's: for (16) and its remark, "
  'those of the proof on ε and p with c1 = 1/2; for (17), also that the first '
  'rate α₀/2 is below 1/(2λ-μ).'
)


def write(folder: str, frame: 'pd.DataFrame', command: str) -> str:
  """Writes theory.csv, report.html, report.md and figures to a folder.

  The reports name the command line. Returns the tables of report.md.
  """
  figures = write_figures(folder, frame)
  contents = [
    [list(table), *table.to_numpy().tolist()]
    for table in (counts(frame), summary(frame))
  ]
  text = '\n'.join(tables.to_markdown(lines, left=4) for lines in contents)
  images = '\n'.join(f'![{text}]({name}.png)' for name, text in figures.items())
  title = 'Measured errors and bounds'
  markdown = f'# {title}\n\n{command}\n\n{text}\n{_NOTES}\n\n{images}\n'
  links = {
    'Data and tables': ['theory.csv', 'report.md'],
    'Figures': [f'{name}.{suffix}' for name in figures for suffix in _FORMATS],
  }
  parts = [
    html.paragraph(command),
    *map(html.table, contents),
    html.note(_NOTES),
    *(
      html.image(text, f'{name}.png', f'{name}.dark.png')
      for name, text in figures.items()
    ),
    html.heading('Download'),
    html.downloads(links),
  ]
  for name, content in {
    'theory.csv': to_csv(frame),
    'report.md': markdown,
    'report.html': html.page(title, parts),
  }.items():
    atomic_io.write_text(os.path.join(folder, name), content)
  return text


def to_csv(frame: 'pd.DataFrame') -> str:
  """Formats a row for every setting, bound and t as CSV."""
  text = frame.drop(columns='config')
  significant = {'mse': 6, 'standard_error': 3, 'exact': 6, 'bound': 6}
  for name, digits in significant.items():
    text[name] = text[name].map(f'{{:.{digits}g}}'.format, na_action='ignore')
  text['holds'] = text['holds'].map(_YES_OR_NO)
  return text.to_csv(index=False, lineterminator='\n')


def summary(frame: 'pd.DataFrame') -> 'pd.DataFrame':
  """Returns a row of text for every setting and bound; see `_NOTES`."""
  import pandas as pd

  rows = []
  keys = ['study', 'setting', 'bound_name', 'conditions']
  columns = ('study', 'setting', 'bound', 'conditions')
  for labels, run in frame.groupby(keys, sort=False):
    bound = run['bound'].where(run['bound'] > 0, np.inf)
    ratio, exact = run['mse'] / bound, (run['exact'] / bound).max()
    rows.append(
      {
        **dict(zip(columns, labels, strict=True)),
        'error/bound': f'{ratio.max():.3f}',
        'at t': str(run['t'][ratio.idxmax()]),
        'exact': '' if np.isnan(exact) else f'{exact:.3f}',
        'holds': _YES_OR_NO[run['holds'].all()],
      }
    )
  return pd.DataFrame(rows)


def counts(frame: 'pd.DataFrame') -> 'pd.DataFrame':
  """Returns a row of text for every bound: in how many settings it holds."""
  import pandas as pd

  keys = ['bound_name', 'conditions']
  # Several studies may share a setting.
  by_setting = frame.groupby([*keys, 'config'], sort=False)['holds'].all()
  held = by_setting.groupby(level=keys).agg(['sum', 'size'])
  rows = [
    {
      'bound': name,
      'statement': _STATEMENTS[name],
      'conditions': conditions,
      'holds': f'in {row["sum"]} of {row["size"]} settings',
    }
    for (name, conditions), row in held.iterrows()
  ]
  order = list(_STATEMENTS)
  return pd.DataFrame(sorted(rows, key=lambda row: order.index(row['bound'])))


def write_figures(folder: str, frame: 'pd.DataFrame') -> dict[str, str]:
  """Writes all figures; returns their titles by file name."""
  titles = {}

  def paths(name: str, title: str) -> list[pathlib.Path]:
    titles[name] = title
    return plots.paths(folder, name, _FORMATS)

  for study, rows in frame.groupby('study', sort=False):
    study_figure(rows, paths(f'mse_{study}', _TITLES[study]))
  by_n = frame[frame['study'] == 'n']
  if len(by_n):
    final_by_n(by_n, paths('final_by_n', _BY_N))
  conditions(paths('conditions', _CONDITIONS))
  return titles


def study_figure(frame: 'pd.DataFrame', path: plots.Paths) -> Any:
  """Draws errors and bounds of a study by t, a panel for each setting."""
  study = frame['study'].iloc[0]
  settings = list(frame.groupby('setting', sort=False))
  columns = min(len(settings), _COLUMNS.get(study, 3))
  rows = -(-len(settings) // columns)

  def draw(figure: Any) -> None:
    figure.set_size_inches(max(7, 1 + 3 * columns), 1.3 + 2.2 * rows)
    share = study != 'edges' and 'row'
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share)
    for axes in grid.flat[len(settings) :]:
      axes.set_visible(False)
    labels: dict[str, Any] = {}
    for axes, (name, runs) in zip(grid.flat, settings, strict=False):
      _draw_setting(axes, runs)
      axes.set_title(name)
      labels |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    for axes in grid[:, 0]:
      axes.set_ylabel('squared error')
    for axes in grid[-1]:
      plus = ' + 1' if frame['alpha0'].notna().any() else ''
      axes.set_xlabel(f'local steps t{plus}')
    plots.titled(figure, _TITLES[study])
    count = 3 if len(labels) > 4 and columns < 4 else len(labels)
    place = {'loc': 'outside lower center', 'ncols': count}
    figure.legend(labels.values(), labels.keys(), **place)

  return plots.render(draw, path)


def _draw_setting(axes: Any, runs: 'pd.DataFrame') -> None:
  """Draws the measured error with its band, the exact error, and bounds."""
  by_bound = dict(list(runs.groupby('bound_name', sort=False)))
  first = next(iter(by_bound.values()))
  decaying = first['alpha0'].notna().all()
  t = first['t'] + 1 if decaying else first['t']
  axes.plot(t, _positive(first['mse']), color=_MEASURED.hex(), label='measured')
  band = trials.MAX_STANDARD_ERRORS * first['standard_error']
  low, high = _positive(first['mse'] - band), _positive(first['mse'] + band)
  label = f'± {trials.MAX_STANDARD_ERRORS:g} standard errors'
  style = {'color': _MEASURED.hex(), 'alpha': 0.2, 'linewidth': 0}
  axes.fill_between(t, low, high, **style, label=label)
  if first['exact'].notna().all():
    style = {'color': theme.ink(), 'linewidth': 0.9, 'linestyle': (0, (1, 2))}
    axes.plot(t, _positive(first['exact']), **style, label='exact')
  for name, run in by_bound.items():
    label, look, dashes = _CURVES[name]
    style = {'color': look.hex(), 'linestyle': dashes, 'linewidth': 1.5}
    axes.plot(t, _positive(run['bound']), **style, label=label)
  axes.set_yscale('log')
  axes.margins(y=0.2)  # room for the verdict
  if decaying:
    axes.set_xscale('log')
  failed = [name for name, run in by_bound.items() if not run['holds'].all()]
  verdict = f'{" and ".join(failed)} exceeded' if failed else 'all bounds hold'
  if first['conditions'].iloc[0] == 'not met':
    verdict += '\nconditions not met'
  style = {
    'color': _BOUND.hex() if failed else theme.soft(),
    'bbox': {**_box(), 'alpha': 0.9},
    'fontsize': 9,
  }
  at_corner = {'transform': axes.transAxes, 'ha': 'right', 'va': 'top'}
  axes.text(0.97, 0.95, verdict, **at_corner, **style)


def _box() -> dict[str, Any]:
  """Returns a box of the paper's colour, behind text."""
  return {'boxstyle': 'square,pad=0.1', 'fc': theme.paper(), 'lw': 0}


def _positive(values: 'pd.Series') -> 'pd.Series':
  """Replaces values that a logarithmic axis cannot show by gaps."""
  return values.where(values > 0)


def final_by_n(frame: 'pd.DataFrame', path: plots.Paths) -> Any:
  """Draws the error at the end of a run by the number of clients."""
  last = frame.groupby(['setting', 'bound_name'], sort=False).tail(1)
  panels = list(last.groupby('lambda', sort=False))

  def draw(figure: Any) -> None:
    figure.set_size_inches(max(7, 1 + 3.6 * len(panels)), 4)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (lam, runs) in zip(grid, panels, strict=True):
      for name, run in runs.groupby('bound_name', sort=False):
        label, look, dashes = _CURVES[name]
        style = {'color': look.hex(), 'linestyle': dashes, 'label': label}
        axes.plot(run['n'], run['bound'], **style)
      style = {
        'color': _MEASURED.hex(),
        'fmt': 'o',
        'capsize': 3,
        'label': 'measured',
      }
      error = trials.MAX_STANDARD_ERRORS * run['standard_error']
      axes.errorbar(run['n'], run['mse'], error, **style)
      axes.set_xscale('log', base=2)
      axes.set_yscale('log')
      axes.set_xticks(run['n'], [str(n) for n in run['n']])
      axes.set_xlabel('clients n')
      axes.set_title(testbed.curvature_label(lam))
    grid[0].set_ylabel('squared error at the end')
    plots.titled(figure, _BY_N)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=4)

  return plots.render(draw, path)


def conditions(path: plots.Paths) -> Any:
  """Draws the ε and p that the proof of (16) covers, for several c1."""
  epsilon, p = np.linspace(0, 0.6, 241), np.linspace(0.8, 1, 241)
  levels = (0.5, 0.4, 0.3, 0.2)

  def draw(figure: Any) -> None:
    figure.set_size_inches(7, 4.4)
    axes = figure.subplots()
    for i, c1 in enumerate(levels):
      inside = bounds.margin(epsilon[None], p[:, None], c1)
      style = {'colors': [_MEASURED.hex()], 'alpha': 0.13 + 0.12 * i}
      axes.contourf(epsilon, p, inside, levels=[0, 1], **style)
    for c1 in levels:
      corner = (c1 / 2, bounds.min_p(c1))
      axes.plot(*corner, 'o', color=_MEASURED.hex(), markersize=5)
      label = f'$c_1$ = {c1:g}: p ≥ {corner[1]:.3f}'
      style = {'textcoords': 'offset points', 'fontsize': 9, 'bbox': _box()}
      axes.annotate(label, corner, (8, -13), **style)
    paired_p = np.linspace(bounds.min_p(), 1, 100)
    paired = [bounds.paired_epsilon(x) for x in paired_p]
    label = 'the ε of (42), $c_1$ = 1/2'
    axes.plot(paired, paired_p, color=_BOUND.hex(), label=label)
    for t in (1, 5, 9, 15):
      p_t = float(np.exp(-t / 80))
      axes.axhline(
        p_t, color=_OTHER.hex(), linewidth=0.9, linestyle=(0, (4, 3))
      )
      label = f'p in round {t}, L = 80'
      axes.text(0.595, p_t + 0.002, label, ha='right', fontsize=9)
    axes.axvline(0.3, color=theme.ink(), linewidth=0.9, linestyle=(0, (1, 2)))
    axes.text(0.305, 0.803, "the paper's ε = 0.3", fontsize=9)
    axes.set(xlabel='ε', ylabel='p', xlim=(0, 0.6), ylim=(0.8, 1.003))
    axes.set_yticks(np.arange(0.8, 1.01, 0.05))
    plots.titled(figure, _CONDITIONS)
    axes.legend(loc='lower left')

  return plots.render(draw, path)
