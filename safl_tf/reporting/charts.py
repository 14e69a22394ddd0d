"""Charts that compare runs: their curves, and figures of them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf.reporting import metrics, plots, tables

MAX_MARKERS = 12  # points of a compared curve that are marked

# The i-th curve of a chart has the i-th of each, modulo: 28 distinct looks.
# Okabe and Ito's colour-blind-safe palette without yellow, partly darkened;
# dashes are lengths of strokes and gaps in units of the line width.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#C0629B',
  '#222222',
  '#3FA0DA',
  '#D89000',
)
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1, 1.5), (5, 1.5, 1, 1.5))


class Curve(NamedTuple):
  """A curve of a chart; all sequences have the same length.

  Attributes:
    name: the label in the legend.
    x: x of the points.
    y: y of the points.
    spread: half the height of a band around each point; empty for no band.
  """

  name: str
  x: Sequence[float]
  y: Sequence[float]
  spread: Sequence[float] = ()


class Chart(NamedTuple):
  """Curves to compare, with their axes.

  Attributes:
    title: the title.
    x_label: label of the x axis.
    y_label: label of the y axis.
    curves: the curves; the position sets colour and dashes in every chart.
    y_max: upper limit of the y axis, if any.
    signed: whether y may be negative.
  """

  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  y_max: float | None = None
  signed: bool = False


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


def comparison(runs: Sequence[tables.Run]) -> dict[str, Chart]:
  """Returns the metrics by round and the main one by traffic, by file name.

  Each chart has a curve for every setting, in the same order: the mean over
  its runs, at the rounds where all of them have a finite value.
  """
  histories: dict[str, list[metrics.History]] = {}
  for run in runs:
    histories.setdefault(run.label, []).append(run.history)
  everything = [run.history for run in runs]
  main, others = metrics.main(everything), metrics.extra(everything)
  of_clients = metrics.means_of_clients(everything)
  by_round = dict.fromkeys([main, metrics.LOSS, *others, *of_clients])
  return {
    metric.name: _comparison(histories, metric, 'round') for metric in by_round
  } | {'traffic': _comparison(histories, main, 'total_bytes_up')}


def _comparison(
  histories: Mapping[str, Sequence[metrics.History]],
  metric: metrics.Metric,
  x: str,
) -> Chart:
  label, of = {
    'round': ('communication round', 'round'),
    'total_bytes_up': ('uploaded in total (MB)', 'traffic'),
  }[x]
  curves = [
    _mean_curve(name, runs, x, metric) for name, runs in histories.items()
  ]
  return Chart(
    f'{metric.title} by {of}',
    label,
    metric.axis,
    curves,
    y_max=100.0 if metric.percent else None,
    signed=any(y < 0 for curve in curves for y in curve.y),
  )


def _mean_curve(
  name: str,
  histories: Sequence[metrics.History],
  x: str,
  metric: metrics.Metric,
) -> Curve:
  factor = 1e-6 if x == 'total_bytes_up' else 1.0
  points: list[dict[Any, tuple[float, float]]] = []
  for history in histories:
    points.append({})
    for row in history:
      at, value = row[x], row.get(metric.column)
      if at is not None and value is not None and math.isfinite(value):
        points[-1][row['round']] = (at * factor, value * metric.factor)
  rounds = sorted(set.intersection(*map(set, points)))
  xs = [statistics.fmean(run[t][0] for run in points) for t in rounds]
  ys = [tables.mean_and_sd([run[t][1] for run in points]) for t in rounds]
  spread = [sd for _, sd in ys if sd is not None]
  return Curve(name, xs, [mean for mean, _ in ys if mean is not None], spread)


def chart(content: Chart, path: plots.Paths) -> Any:
  """Draws curves with their bands, and a legend below."""
  curves = content.curves
  longest = max((len(curve.name) for curve in curves), default=0)
  columns = min(max(1, 88 // (longest + 10)), 4, max(1, len(curves)))
  rows = max(1, -(-len(curves) // columns))
  with plots.new_figure(path) as figure:
    figure.set_size_inches(7, 4.2 + 0.22 * (rows - 1))
    axes = figure.subplots()
    for i, curve in enumerate(curves):
      color, dashes = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)]
      x, y = np.array(curve.x), np.array(curve.y)
      style = (0, dashes) if dashes else '-'
      marker = 'o' if x.size <= MAX_MARKERS else ''
      label = curve.name if x.size else f'{curve.name} (no values)'
      axes.plot(x, y, color=color, linestyle=style, marker=marker, label=label)
      if curve.spread:
        low, high = y - curve.spread, y + curve.spread
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_title(content.title)
    axes.set(xlabel=content.x_label, ylabel=content.y_label)
    low, high = axes.get_ylim()
    top = high if content.y_max is None else min(high, 1.01 * content.y_max)
    axes.set_ylim(low if content.signed else max(low, 0), top)
    if all(float(x).is_integer() for c in curves for x in c.x):
      axes.xaxis.set_major_locator(plots.integer_ticks(10))
    figure.legend(loc='outside lower center', ncols=columns, handlelength=3.5)
  return figure


def heat_map(content: HeatMap, path: plots.Paths) -> Any:
  """Draws a heat map; a frame marks the best cell."""
  import matplotlib.patches

  shares = [
    [np.nan if share is None else share for share in row]
    for row in content.shares()
  ]
  with plots.new_figure(path) as figure:
    rows, columns = len(content.y), len(content.x)
    figure.set_size_inches(2.2 + 1.1 * columns, 1.6 + 0.5 * rows)
    axes = figure.subplots()
    axes.imshow(shares, cmap='Blues', vmin=0, vmax=1.6, aspect='auto')
    axes.grid(False)
    axes.set_xticks(range(columns), content.x)
    axes.set_yticks(range(rows), content.y)
    axes.set_title(content.title)
    axes.set(xlabel=content.x_label, ylabel=content.y_label)
    for i, texts in enumerate(content.texts):
      for j, text in enumerate(texts):
        style = 'bold' if (i, j) == content.best else 'normal'
        axes.text(j, i, text, ha='center', va='center', fontweight=style)
    if content.best is not None:
      i, j = content.best
      frame: Any = {'fill': False, 'edgecolor': COLORS[1], 'linewidth': 2.5}
      corner = (j - 0.48, i - 0.48)
      axes.add_patch(matplotlib.patches.Rectangle(corner, 0.96, 0.96, **frame))
  return figure
