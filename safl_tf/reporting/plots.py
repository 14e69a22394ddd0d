"""Figures of a run, and charts that compare runs.

Each drawing function writes a PNG file and returns the matplotlib figure. A
history is a run's rows of metrics, see `training.metrics_log`; rounds without a
value are skipped.
"""

import contextlib
import functools
import io
import math
import os
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf.reporting import tables
from safl_tf.util import atomic_io

History = Sequence[Mapping[str, float | int | None]]
Path = str | os.PathLike[str]

_BLUE, _ORANGE, _GREY = '#0072B2', '#D55E00', '#C8CDD3'
_STYLE = pathlib.Path(__file__).with_name('style.mplstyle')
_MAX_ANNOTATED = 30  # clients whose counts are printed in the heat map
_MAX_LABELS = 40  # class names on the axis
_MAX_CLIENTS = 1000  # clients drawn; of more, an evenly spaced sample
_MAX_BARS = 60  # rounds drawn as separate bars
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

# File name -> title, column of x, column of y.
_COMPARISONS = {
  'accuracy': ('Test accuracy by round', 'round', 'test_accuracy'),
  'loss': ('Test loss by round', 'round', 'test_loss'),
  'traffic': ('Test accuracy by traffic', 'total_bytes_up', 'test_accuracy'),
}
_DRAWN = ('test_accuracy', 'test_top5_accuracy', 'test_loss')
# Column -> axis label, factor to its unit.
_AXES = {
  'round': ('communication round', 1.0),
  'test_accuracy': ('test accuracy (%)', 100.0),
  'test_loss': ('test loss', 1.0),
  'total_bytes_up': ('uploaded in total (MB)', 1e-6),
}


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


def accuracy(history: History, path: Path, title: str) -> Any:
  """Draws top-1 and top-5 test accuracy in % by round."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _draw_accuracy(axes, history)
  return figure


def loss(history: History, path: Path, title: str) -> Any:
  """Draws test and train loss by round."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _draw_loss(axes, history)
  return figure


def curves(history: History, title: str) -> Any:
  """Draws accuracy, loss and all other test metrics above each other.

  Writes no file.
  """
  known = dict.fromkeys(
    column
    for row in history
    for column, value in row.items()
    if column.startswith('test_') and value is not None
  )
  others = [column for column in known if column not in _DRAWN]
  has_accuracy = 'test_accuracy' in known
  with new_figure(None) as figure:
    panels = has_accuracy + 1 + len(others)
    axes = list(_panels(figure, history, title, panels))
    if has_accuracy:
      _draw_accuracy(axes.pop(0), history)
    _draw_loss(axes.pop(0), history)
    for column, panel in zip(others, axes, strict=True):
      _line(panel, *series(history, column), _BLUE, 'test, last {:.4g}')
      panel.set_ylabel(column.removeprefix('test_'))
      _legend(panel, 'best')
    figure.align_ylabels()
  # IPython displays figures by itself only after an import of pyplot.
  figure._repr_png_ = functools.partial(_to_png, figure)
  return figure


def annealing(history: History, path: Path, title: str) -> Any:
  """Draws p_t and the measured share of elements that clients kept local."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _line(axes, *series(history, 'p'), _BLUE, 'probability $p_t$', markers=1)
    t, values = series(history, 'kept_local')
    if t.size:
      label = 'share kept local, measured'
      size = 4 if t.size <= _MAX_BARS else 2
      axes.plot(t, values, 'o', color=_ORANGE, markersize=size, label=label)
    axes.set(ylabel='share of elements', ylim=(-0.03, 1.03))
    _legend(axes, 'upper right')
  return figure


def uploads(history: History, path: Path, title: str) -> Any:
  """Draws selected and uploading clients by round, and total megabytes."""
  with new_figure(path) as figure:
    counts, traffic = _panels(figure, history, title, panels=2)
    for column, color in (('selected', _GREY), ('uploaded', _BLUE)):
      t, values = series(history, column)
      if 0 < t.size <= _MAX_BARS:
        width = min(0.8, 0.1 * t.size)
        counts.bar(t, values, width, color=color, label=column)
      elif t.size:
        edges = np.append(t, t[-1] + 1) - 0.5
        counts.stairs(values, edges, fill=True, color=color, label=column)
    top = 1.15 * counts.get_ylim()[1]  # room for the legend
    counts.set(ylabel='clients per round', ylim=(0, top))
    counts.yaxis.set_major_locator(_integer_ticks(8))
    _legend(counts, 'upper right')
    t, values = series(history, 'total_bytes_up')
    _line(traffic, t, values / 1e6, _BLUE, 'total, last {:,.1f} MB')
    traffic.set(ylabel='uploaded in total (MB)', ylim=(0, None))
    traffic.yaxis.set_major_formatter('{x:,.10g}')
    _legend(traffic, 'lower right')
    figure.align_ylabels()
  return figure


def partition(
  label_counts: np.ndarray, class_names: Sequence[str], path: Path, title: str
) -> Any:
  """Draws a heat map of examples by client and label, and clients' sizes.

  `label_counts` are the examples of each label on each client [n, C].
  """
  label_counts = np.asarray(label_counts)
  n, C = label_counts.shape
  width = 3.8 + np.clip(0.42 * C, 2, 12)
  height = 1.8 + min(0.25 * n, 6 + 0.004 * n, 10)
  drawn = np.linspace(0, n - 1, min(n, _MAX_CLIENTS)).round().astype(int)
  with new_figure(path) as figure:
    figure.set_size_inches(width, height)
    heat, sizes = figure.subplots(1, 2, width_ratios=(width - 3, 1.8))
    image = _heat_map(heat, label_counts[drawn], class_names, n)
    note = f' ({_MAX_CLIENTS:,} of {n:,} drawn)' if n > _MAX_CLIENTS else ''
    heat.set(title=title, xlabel='label', ylabel=f'client{note}')
    m, edges = label_counts[drawn].sum(1), np.linspace(0, n, drawn.size + 1)
    style = {'orientation': 'horizontal', 'fill': True, 'color': _BLUE}
    sizes.stairs(m, edges - 0.5, **style)
    sizes.set(xlabel='examples $m_k$', xlim=(0, None), ylim=(n - 0.5, -0.5))
    sizes.set_yticks([])
    sizes.xaxis.set_major_locator(_integer_ticks(3))
    style = {'aspect': 4 * height, 'fraction': 0.15}
    bar = figure.colorbar(image, ax=sizes, ticks=_integer_ticks(6), **style)
    bar.set_label('examples of a label')
    bar.outline.set_visible(False)
  return figure


def write_all(
  folder: Path,
  history: History,
  label_counts: np.ndarray,
  class_names: Sequence[str],
  title: str,
) -> None:
  """Writes the five figures of a run to `folder/plots/`."""
  plots = os.path.join(folder, 'plots')
  os.makedirs(plots, exist_ok=True)
  for draw in (accuracy, loss, annealing, uploads):
    draw(history, os.path.join(plots, f'{draw.__name__}.png'), title)
  path = os.path.join(plots, 'partition.png')
  partition(label_counts, class_names, path, title)


def comparison_charts(runs: Sequence[tables.Run]) -> dict[str, Chart]:
  """Returns accuracy by round, loss by round and accuracy by traffic.

  Each chart has a curve for every algorithm, in the same order: the mean over
  its runs, at the rounds where all of them have a finite value.
  """
  histories: dict[str, list[Sequence[tables.Row]]] = {}
  for run in runs:
    histories.setdefault(run.algorithm, []).append(run.history)
  return {
    name: Chart(
      title,
      _AXES[x][0],
      _AXES[y][0],
      [_mean_curve(name, rows, x, y) for name, rows in histories.items()],
      y_max=100.0 if y == 'test_accuracy' else None,
    )
    for name, (title, x, y) in _COMPARISONS.items()
  }


def _mean_curve(
  name: str, histories: Sequence[Sequence[tables.Row]], x: str, y: str
) -> Curve:
  points = [
    {
      row['round']: (row[x] * _AXES[x][1], row[y] * _AXES[y][1])
      for row in history
      if row[y] is not None and math.isfinite(row[y])
    }
    for history in histories
  ]
  rounds = sorted(set.intersection(*map(set, points)))
  xs = [statistics.fmean(run[t][0] for run in points) for t in rounds]
  ys = [tables.mean_and_sd([run[t][1] for run in points]) for t in rounds]
  spread = [sd for _, sd in ys if sd is not None]
  return Curve(name, xs, [mean for mean, _ in ys if mean is not None], spread)


def chart(content: Chart, path: Path) -> Any:
  """Draws curves with their bands, and a legend below."""
  curves = content.curves
  longest = max((len(curve.name) for curve in curves), default=0)
  columns = min(max(1, 88 // (longest + 10)), 4, max(1, len(curves)))
  rows = max(1, -(-len(curves) // columns))
  with new_figure(path) as figure:
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
      axes.xaxis.set_major_locator(_integer_ticks(10))
    figure.legend(loc='outside lower center', ncols=columns, handlelength=3.5)
  return figure


def series(history: History, column: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns rounds and values, both [k], of the k rows that have a value."""
  rows = [row for row in history if row.get(column) is not None]
  t = np.array([row['round'] for row in rows], int)
  return t, np.array([row[column] for row in rows], float)


@contextlib.contextmanager
def new_figure(path: Path | None) -> Iterator[Any]:
  """Gives an empty figure in this style, and writes it when the block ends.

  Without a path nothing is written; a notebook displays the figure.
  """
  import matplotlib.figure
  from matplotlib.backends import backend_agg

  buffer = io.BytesIO()
  style = matplotlib.rc_params_from_file(_STYLE, use_default_template=False)
  with matplotlib.rc_context(style):
    figure = matplotlib.figure.Figure(layout='constrained')
    yield figure
    if path is not None:
      backend_agg.FigureCanvasAgg(figure).print_png(buffer)
      atomic_io.write_bytes(path, buffer.getvalue())


def _panels(figure: Any, history: History, title: str, panels: int = 1) -> Any:
  """Adds axes above each other that share an axis of rounds."""
  figure.set_size_inches(7, 2 + 2.2 * panels)
  axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
  axes[0].set_title(title)
  axes[-1].set_xlabel('communication round')
  axes[-1].xaxis.set_major_locator(_integer_ticks(10))
  t, _ = series(history, 'round')
  margin = max(0.6, 0.015 * t.size)
  axes[-1].set_xlim(t.min(initial=1) - margin, t.max(initial=1) + margin)
  return axes


def _to_png(figure: Any) -> bytes:
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png')
  return buffer.getvalue()


def _draw_accuracy(axes: Any, history: History) -> None:
  t, values = series(history, 'test_top5_accuracy')
  _line(axes, t, 100 * values, _ORANGE, 'top-5, last {:.2f} %')
  t, values = series(history, 'test_accuracy')
  _line(axes, t, 100 * values, _BLUE, 'top-1, last {:.2f} %')
  axes.set_ylabel('test accuracy (%)')
  axes.set_ylim(top=min(axes.get_ylim()[1], 101.0))
  _legend(axes, 'lower right')


def _draw_loss(axes: Any, history: History) -> None:
  _line(axes, *series(history, 'train_loss'), _ORANGE, 'train, last {:.4g}')
  _line(axes, *series(history, 'test_loss'), _BLUE, 'test, last {:.4g}')
  axes.set_ylabel('loss')
  _legend(axes, 'upper right')


def _line(
  axes: Any,
  t: np.ndarray,
  values: np.ndarray,
  color: str,
  label: str,
  markers: int = 40,
) -> None:
  """Adds a curve with up to `markers` markers and the last value as label."""
  if t.size:
    marker = 'o' if t.size <= markers else ''
    label = label.format(values[-1])
    axes.plot(t, values, color=color, marker=marker, label=label)


def _legend(axes: Any, location: str) -> None:
  if axes.lines or axes.patches:
    axes.legend(loc=location, ncols=2 if axes.patches else 1)
  else:
    axes.text(0.5, 0.5, 'no values', transform=axes.transAxes, ha='center')


def _heat_map(
  axes: Any, counts: np.ndarray, names: Sequence[str], n: int
) -> Any:
  """Draws counts [<= n, C], with as much text as is legible."""
  import matplotlib.colors

  C = len(names)
  extent = (-0.5, C - 0.5, n - 0.5, -0.5)
  # By the square root, so that small counts differ visibly from none.
  norm = matplotlib.colors.PowerNorm(0.5, 0, max(1, counts.max()))
  style = {'cmap': 'Blues', 'aspect': 'auto', 'interpolation': 'nearest'}
  image = axes.imshow(counts, norm=norm, extent=extent, **style)
  axes.grid(False)
  axes.xaxis.set_major_locator(_integer_ticks(10))
  axes.yaxis.set_major_locator(_integer_ticks(n if n <= _MAX_ANNOTATED else 10))
  if C <= _MAX_LABELS:
    rotation = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(C), names, rotation=rotation)
  if n <= _MAX_ANNOTATED:
    for (k, c), count in np.ndenumerate(counts):
      dark = 'white' if norm(count) > 0.6 else '#333333'
      style = {'color': dark if count else _GREY, 'ha': 'center'}
      axes.text(c, k, f'{count}', fontsize=8, va='center', **style)
  return image


def _integer_ticks(count: int) -> Any:
  """Returns a locator of ticks at integers, roughly `count` at most."""
  import matplotlib.ticker

  return matplotlib.ticker.MaxNLocator(
    count, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1
  )
