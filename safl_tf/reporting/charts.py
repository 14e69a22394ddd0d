"""Charts that compare runs: their curves, and figures of them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf.reporting import metrics, plots, tables, theme

MAX_MARKERS = 12  # points of a compared curve that are marked
_MAX_NAMED = 4  # curves that are named at their ends, not in a legend


class Curve(NamedTuple):
  """A curve of a chart; all sequences have the same length.

  Attributes:
    name: to display.
    x: x of the points.
    y: y of the points.
    spread: half the height of a band around each point; empty for no band.
    algorithm: as a flag has it; sets the colour.
    is_paper: whether it has the paper's values, which are open markers.
  """

  name: str
  x: Sequence[float]
  y: Sequence[float]
  spread: Sequence[float] = ()
  algorithm: str | None = None
  is_paper: bool = False


class Chart(NamedTuple):
  """Curves to compare, with their axes.

  Attributes:
    title: says what is shown.
    x_label: label of the x axis.
    y_label: label of the y axis.
    curves: the curves.
    y_max: upper limit of the y axis, if any.
    signed: whether y may be negative.
    subtitle: the settings, such as n, ε and L.
    levels: name -> y of horizontal lines, such as the level of guessing.
  """

  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  y_max: float | None = None
  signed: bool = False
  subtitle: str = ''
  levels: Mapping[str, float] = {}

  def looks(self) -> list[theme.Look]:
    """Returns how each curve is drawn; the paper's looks like ours."""
    ours = [curve for curve in self.curves if not curve.is_paper]
    looks = theme.looks([curve.algorithm for curve in ours])
    by_name = dict(zip((c.name for c in ours), looks, strict=True))
    return [
      by_name.get(curve.name) or theme.look(curve.algorithm)
      for curve in self.curves
    ]


class HeatMap(NamedTuple):
  """The values of a metric by two parameters.

  Attributes:
    title: the title.
    x_label: name of the parameter of the columns.
    y_label: name of the parameter of the rows.
    x: its values.
    y: its values.
    values: [row][column]; None where there is no run.
    texts: what is written in the cells.
    best: row and column of the best value, if there is any.
    higher_is_better: whether large values are drawn in a strong colour.
  """

  title: str
  x_label: str
  y_label: str
  x: Sequence[str]
  y: Sequence[str]
  values: Sequence[Sequence[float | None]]
  texts: Sequence[Sequence[str]]
  best: tuple[int, int] | None
  higher_is_better: bool

  def shares(self) -> list[list[float | None]]:
    """Returns where the values are from the worst, 0, to the best, 1."""
    known = [v for row in self.values for v in row if v is not None]
    low, high = min(known, default=0), max(known, default=0)

    def share(value: float | None) -> float | None:
      if value is None:
        return None
      part = (value - low) / (high - low) if low < high else 1.0
      return part if self.higher_is_better or low == high else 1 - part

    return [[share(value) for value in row] for row in self.values]


def comparison(
  runs: Sequence[tables.Run],
  algorithm: str | None = None,
  subtitle: str = '',
  guess: float | None = None,
) -> dict[str, Chart]:
  """Returns the metrics by round and the main one by traffic, by file name.

  Each chart has a curve for every setting, in the same order: the mean over
  its runs, at the rounds where all of them have a finite value. There is none
  by traffic if all runs upload the same.

  Args:
    runs: to compare.
    algorithm: of the runs whose setting names none.
    subtitle: of the charts.
    guess: the accuracy of guessing, if that is known.
  """
  groups: dict[str, list[tables.Run]] = {}
  for run in runs:
    groups.setdefault(run.label, []).append(run)
  everything = [run.history for run in runs]
  main, others = metrics.main(everything), metrics.extra(everything)
  of_clients = metrics.means_of_clients(everything)
  by_round = dict.fromkeys([main, metrics.LOSS, *others, *of_clients])
  seeds = {len(group) for group in groups.values()} - {1}
  if seeds:
    of = f'mean ± sd of {"/".join(map(str, sorted(seeds)))} seeds'
    subtitle = ', '.join(filter(None, [subtitle, of]))

  def chart(metric: metrics.Metric, x: str) -> Chart:
    curves = [
      _mean_curve(name, group, x, metric, algorithm)
      for name, group in groups.items()
    ]
    percent = metric.percent
    levels = {'guessing': 100 * guess} if percent and guess else {}
    of, label = _AXES[x]
    return Chart(
      f'{metric.title} by {of}',
      label,
      metric.axis,
      curves,
      y_max=100.0 if percent else None,
      signed=any(y < 0 for curve in curves for y in curve.y),
      subtitle=subtitle,
      levels=levels if metric is metrics.ACCURACY else {},
    )

  charts = {metric.name: chart(metric, 'round') for metric in by_round}
  traffic = {
    (row['round'], row['total_bytes_up']) for rows in everything for row in rows
  }
  if len(traffic) > len({t for t, _ in traffic}):
    charts['traffic'] = chart(main, 'total_bytes_up')
  return charts


_AXES = {
  'round': ('round', 'communication round'),
  'total_bytes_up': ('traffic', 'uploaded in total (MB)'),
}


def _mean_curve(
  name: str,
  runs: Sequence[tables.Run],
  x: str,
  metric: metrics.Metric,
  algorithm: str | None,
) -> Curve:
  factor = 1e-6 if x == 'total_bytes_up' else 1.0
  points: list[dict[Any, tuple[float, float]]] = []
  for run in runs:
    points.append({})
    for row in run.history:
      at, value = row[x], row.get(metric.column)
      if at is not None and value is not None and math.isfinite(value):
        points[-1][row['round']] = (at * factor, value * metric.factor)
  rounds = sorted(set.intersection(*map(set, points)))
  xs = [statistics.fmean(run[t][0] for run in points) for t in rounds]
  ys = [tables.mean_and_sd([run[t][1] for run in points]) for t in rounds]
  spread = [sd for _, sd in ys if sd is not None]
  means = [mean for mean, _ in ys if mean is not None]
  own = runs[0].setting.get('algorithm', algorithm)
  return Curve(name, xs, means, spread, own)


def chart(content: Chart, path: plots.Paths) -> Any:
  """Draws curves with their bands; few are named at their ends.

  More have a legend below. Open markers are the paper's values.
  """
  drawn = [
    (curve, look)
    for curve, look in zip(content.curves, content.looks(), strict=True)
    if len(curve.x)
  ]
  ours = [curve for curve, _ in drawn if not curve.is_paper]
  has_paper = any(curve.is_paper for curve, _ in drawn)
  # Names at the ends would hide the paper's values, or curves that go on.
  same_end = len({curve.x[-1] for curve in ours}) <= 1
  named = len(ours) <= _MAX_NAMED and same_end and not has_paper
  longest = max((len(curve.name) for curve in ours), default=0)
  columns = min(max(1, 88 // (longest + 10)), 4, max(1, len(ours)))
  rows = 0 if named else -(-len(ours) // columns)

  def draw(figure: Any) -> None:
    figure.set_size_inches(7, 4.3 + 0.24 * rows)
    axes = figure.subplots()
    lines = []
    for curve, look in drawn:
      x, y = np.array(curve.x), np.array(curve.y)
      color = look.hex()
      if curve.is_paper:
        style = {'linestyle': 'none', 'markersize': 8, 'markeredgewidth': 1.8}
        marker = {'marker': 'o', 'markerfacecolor': 'none'}
        axes.plot(x, y, color=color, zorder=3, **style, **marker)
        continue
      dashes = (0, look.dashes) if look.dashes else '-'
      dots = 'o' if x.size <= MAX_MARKERS else ''
      style = {'linestyle': dashes, 'marker': dots, 'label': curve.name}
      lines += axes.plot(x, y, color=color, **style)
      if curve.spread:
        low, high = y - curve.spread, y + curve.spread
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    for name, level in content.levels.items():
      plots.level(axes, level, f'{name}, {level:.3g}')
    note = 'open circles: the paper' if has_paper else ''
    plots.titled(figure, content.title)
    axes.set_title('\n'.join(filter(None, [content.subtitle, note])))
    axes.set(xlabel=content.x_label, ylabel=content.y_label)
    low, high = axes.get_ylim()
    top = high if content.y_max is None else min(high, 1.01 * content.y_max)
    axes.set_ylim(low if content.signed else max(low, 0), top)
    if all(float(x).is_integer() for c in content.curves for x in c.x):
      axes.xaxis.set_major_locator(plots.integer_ticks(10))
    if named:
      plots.name_ends(axes, lines)
    else:
      style = {'loc': 'outside lower center', 'handlelength': 3.5}
      figure.legend(handles=lines, ncols=columns, **style)

  return plots.render(draw, path)


def heat_map(content: HeatMap, path: plots.Paths) -> Any:
  """Draws a heat map; a frame marks the best cell."""
  import matplotlib.patches

  shares = [
    [np.nan if share is None else share for share in row]
    for row in content.shares()
  ]

  def draw(figure: Any) -> None:
    rows, columns = len(content.y), len(content.x)
    figure.set_size_inches(2.2 + 1.1 * columns, 1.8 + 0.5 * rows)
    axes = figure.subplots()
    ramp = theme.ramp()
    axes.imshow(shares, cmap=ramp, vmin=0, vmax=1.6, aspect='auto')
    axes.grid(False)
    axes.set_xticks(range(columns), content.x)
    axes.set_yticks(range(rows), content.y)
    plots.titled(figure, content.title)
    axes.set(xlabel=content.x_label, ylabel=content.y_label)
    for i, texts in enumerate(content.texts):
      for j, text in enumerate(texts):
        style = 'bold' if (i, j) == content.best else 'normal'
        axes.text(j, i, text, ha='center', va='center', fontweight=style)
    if content.best is not None:
      i, j = content.best
      color = theme.look('fedavg').hex()
      frame: Any = {'fill': False, 'edgecolor': color, 'linewidth': 2.5}
      corner = (j - 0.48, i - 0.48)
      axes.add_patch(matplotlib.patches.Rectangle(corner, 0.96, 0.96, **frame))

  return plots.render(draw, path)
