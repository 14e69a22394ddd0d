"""Pictures of measured errors and bounds; each function writes a PNG file."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from safl_tf.experiments.theory import bounds as bounds_lib
from safl_tf.experiments.theory import comparisons
from safl_tf.reporting import plots

_BLUE, _ORANGE, _GREEN = plots.COLORS[0], plots.COLORS[1], plots.COLORS[2]
_GREY = '#777777'
# The look of each bound: colour, dashes and what the legend calls it.
_LOOKS = {
  '(16)': (_ORANGE, '-', 'main theorem (16)'),
  'remark': (_GREEN, (0, (4, 2)), 'remark on n'),
  'Jensen': (_GREY, (0, (1, 1.5)), 'Jensen'),
  '(17)': (_ORANGE, '-', 'corollary (17)'),
  '(20)': (_ORANGE, '-', 'quasi-convex theorem (20)'),
}
_TITLES = {
  'n': 'Error by local step t, for n clients',
  'alpha': 'Error by local step t, for learning rates α',
  'mixing': 'Error by local step t, for ways to mix',
  'q': 'Error by local step t, for q local steps in a round',
  'edges': 'Error by local step t, at corners of what (16) allows',
  'corollary': 'Error by local step t, rates α₀/(t+1)',
  'quasi_convex': 'Error by local step t, not convex, rates α₀/(t+1)',
}
_COLUMNS = {'alpha': 4, 'edges': 2, 'quasi_convex': 4}


def write_all(
  folder: str, found: Sequence[comparisons.Comparison]
) -> list[str]:
  """Writes all pictures to the folder; their names."""
  written = []
  for study in dict.fromkeys(c.case.study for c in found):
    written.append(f'mse_{study}.png')
    of_study = [c for c in found if c.case.study == study]
    panels(of_study, os.path.join(folder, written[-1]))
  by_n = [c for c in found if c.case.study == 'n']
  if by_n:
    written.append('final_by_n.png')
    final_by_n(by_n, os.path.join(folder, written[-1]))
  written.append('conditions.png')
  conditions(os.path.join(folder, written[-1]))
  return written


def panels(found: Sequence[comparisons.Comparison], path: plots.Path) -> Any:
  """The settings of a study, each in a panel: error and bounds by t."""
  cases = list(dict.fromkeys(c.case for c in found))
  columns = min(len(cases), _COLUMNS.get(cases[0].study, 3))
  rows = -(-len(cases) // columns)
  with plots.new_figure(path) as figure:
    figure.set_size_inches(max(7, 1 + 3 * columns), 1.2 + 2.2 * rows)
    share = cases[0].study != 'edges' and 'row'
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share)
    for axes in grid.flat[len(cases) :]:
      axes.set_visible(False)
    for axes, case in zip(grid.flat, cases, strict=False):
      _panel(axes, [c for c in found if c.case == case])
    for axes in grid[:, 0]:
      axes.set_ylabel('squared error')
    for axes in grid[-1]:
      plus = ' + 1' if cases[0].setting.decaying else ''
      axes.set_xlabel(f'local steps t{plus}')
    figure.suptitle(_TITLES[cases[0].study], weight='bold')
    known: dict[str, Any] = {}
    for axes in grid.flat:
      handles, labels = axes.get_legend_handles_labels()
      known |= dict(zip(labels, handles, strict=True))
    count = 3 if len(known) > 4 and columns < 4 else len(known)
    place = {'loc': 'outside lower center', 'ncols': count}
    figure.legend(known.values(), known.keys(), **place)
  return figure


def _panel(axes: Any, found: Sequence[comparisons.Comparison]) -> None:
  """One setting: the error with its band, the exact one, and its bounds."""
  first = found[0]
  setting = first.case.setting
  t = first.t + 1 if setting.decaying else first.t
  axes.plot(t, _positive(first.mse), color=_BLUE, label='measured')
  low, high = (
    _positive(first.mse + times * first.error)
    for times in (-comparisons.CERTAIN, comparisons.CERTAIN)
  )
  label = f'± {comparisons.CERTAIN:g} standard errors'
  axes.fill_between(
    t, low, high, color=_BLUE, alpha=0.2, linewidth=0, label=label
  )
  if first.exact is not None:
    style = {'color': 'black', 'linewidth': 0.9, 'linestyle': (0, (1, 2))}
    axes.plot(t, _positive(first.exact), **style, label='exact')
  failed = []
  for comparison in found:
    color, dashes, name = _LOOKS[comparison.bound_name]
    style = {'color': color, 'linestyle': dashes, 'linewidth': 1.5}
    axes.plot(t, _positive(comparison.bound), **style, label=name)
    if not comparison.holds.all():
      failed.append(comparison.bound_name)
  axes.set_yscale('log')
  axes.margins(y=0.2)  # room for words
  if setting.decaying:
    axes.set_xscale('log')
  axes.set_title(first.case.name, fontsize=9.5, weight='normal')
  words = f'{" and ".join(failed)} exceeded' if failed else 'all bounds hold'
  words += '' if first.met else '\nconditions not met'
  axes.text(
    0.97,
    0.95,
    words,
    transform=axes.transAxes,
    ha='right',
    va='top',
    fontsize=8.5,
    color=_ORANGE if failed else '#444444',
    bbox={'boxstyle': 'square,pad=0.1', 'fc': 'white', 'lw': 0, 'alpha': 0.9},
  )


def _positive(values: np.ndarray) -> np.ndarray:
  """The same, with gaps where a logarithmic axis has no place."""
  return np.where(values > 0, values, np.nan)


def final_by_n(
  found: Sequence[comparisons.Comparison], path: plots.Path
) -> Any:
  """The error at the end of a run by the number of clients."""
  kinds = list(dict.fromkeys(c.case.setting.lam for c in found))
  with plots.new_figure(path) as figure:
    figure.set_size_inches(max(7, 1 + 3.6 * len(kinds)), 4)
    grid = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for axes, lam in zip(grid, kinds, strict=True):
      some = [c for c in found if c.case.setting.lam == lam]
      _final_panel(axes, some)
      kind = 'H = μI' if lam == 1 else f'λ = {lam:g}μ'
      axes.set_title(kind, fontsize=9.5, weight='normal')
    grid[0].set_ylabel('squared error at the end')
    figure.suptitle('What n clients gain', weight='bold')
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=4)
  return figure


def _final_panel(axes: Any, found: Sequence[comparisons.Comparison]) -> None:
  for bound_name, (color, dashes, label) in _LOOKS.items():
    some = [c for c in found if c.bound_name == bound_name]
    if some:
      n = [c.case.setting.n for c in some]
      bounds = [c.bound[-1] for c in some]
      axes.plot(n, bounds, color=color, linestyle=dashes, label=label)
  some = [c for c in found if c.bound_name == found[0].bound_name]
  n = [c.case.setting.n for c in some]
  axes.errorbar(
    n,
    [c.mse[-1] for c in some],
    [comparisons.CERTAIN * c.error[-1] for c in some],
    color=_BLUE,
    marker='o',
    linestyle='',
    capsize=3,
    label='measured',
  )
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.set_xticks(n, [str(count) for count in n])
  axes.set_xlabel('clients n')


def conditions(path: plots.Path, temperature: float = 80.0) -> Any:
  """Which ε and p the proof of (16) speaks of, for several c1."""
  epsilon = np.linspace(0, 0.6, 241)
  p = np.linspace(0.8, 1, 241)
  levels = (0.5, 0.4, 0.3, 0.2)
  with plots.new_figure(path) as figure:
    figure.set_size_inches(7, 4.4)
    axes = figure.subplots()
    for i, c1 in enumerate(levels):
      inside = bounds_lib.margin(epsilon[None], p[:, None], c1)
      style = {'colors': [_BLUE], 'alpha': 0.13 + 0.12 * i}
      axes.contourf(epsilon, p, inside, levels=[0, 1], **style)
    for c1 in levels:
      label = f'$c_1$ = {c1:g}: p ≥ {bounds_lib.least_p(c1):.3f}'
      axes.plot(c1 / 2, bounds_lib.least_p(c1), 'o', color=_BLUE, markersize=5)
      axes.annotate(
        label,
        (c1 / 2, bounds_lib.least_p(c1)),
        (8, -13),
        textcoords='offset points',
        fontsize=9,
        bbox={'boxstyle': 'square,pad=0.1', 'fc': 'white', 'lw': 0},
      )
    q = np.linspace(bounds_lib.least_p(), 1, 100)
    paired = [bounds_lib.paired_epsilon(x) for x in q]
    axes.plot(paired, q, color=_ORANGE, label='the ε of (42), $c_1$ = 1/2')
    for t in (1, 5, 9, 15):
      height = float(np.exp(-t / temperature))
      axes.axhline(height, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)))
      words = f'p in round {t}, L = {temperature:g}'
      axes.text(0.595, height + 0.002, words, ha='right', fontsize=8.5)
    axes.axvline(0.3, color='black', linewidth=0.9, linestyle=(0, (1, 2)))
    axes.text(0.305, 0.803, "the paper's ε = 0.3", fontsize=8.5)
    axes.set(xlabel='ε', ylabel='p', xlim=(0, 0.6), ylim=(0.8, 1.003))
    axes.set_yticks(np.arange(0.8, 1.01, 0.05))
    axes.set_title('ε and p that the proof of (16) speaks of (blue)')
    axes.legend(loc='lower left')
  return figure
