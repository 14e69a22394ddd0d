"""A run's pictures, and curves that compare runs.

Each function writes a PNG file and returns the matplotlib Figure. A history is
the run's rows of metrics, as in `metrics_log`; rounds without a value are skipped.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf.training import metrics_log
from safl_tf.util import atomic_io

History = Sequence[metrics_log.Row]
Path = str | os.PathLike[str]

# Okabe and Ito's colours, which the colour-blind can tell apart.
_BLUE, _ORANGE, _GREY = '#0072B2', '#D55E00', '#C8CDD3'
_STYLE = {
  'figure.dpi': 120,
  'figure.constrained_layout.h_pad': 0.1,
  'figure.constrained_layout.w_pad': 0.1,
  'axes.titlesize': 11,
  'axes.titleweight': 'bold',
  'axes.titlelocation': 'left',
  'axes.edgecolor': '#666666',
  'axes.labelcolor': '#333333',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.axisbelow': True,
  'axes.grid': True,
  'grid.color': '#E6E6E6',
  'xtick.color': '#444444',
  'ytick.color': '#444444',
  'legend.frameon': False,
  'lines.linewidth': 1.8,
  'lines.markersize': 4,
}
_ANNOTATED = 30  # up to so many clients, the cells show their counts
_NAMED = 40  # up to so many labels, each has its name
_SHOWN = 1000  # so many clients are drawn at most, evenly spaced
_BARS = 60  # up to so many rounds, bars have gaps between them

# Compared curves take turns with both, so that 28 look different: Okabe and
# Ito's colours but for yellow, some a little darker; lengths of dashes and gaps
# by the width of the line.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#C0629B',
  '#222222',
  '#3FA0DA',
  '#D89000',
)
DOTTED = 12  # a curve of up to so many points has a dot at each
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1, 1.5), (5, 1.5, 1, 1.5))


class Curve(NamedTuple):
  """One of several curves; all lists are equally long.

  Attributes:
    name: for the legend.
    x: of the points.
    y: of the points.
    spread: how far a band reaches above and below each; empty for no band.
  """

  name: str
  x: Sequence[float]
  y: Sequence[float]
  spread: Sequence[float] = ()


class Chart(NamedTuple):
  """Curves to be compared, and what their axes mean.

  Attributes:
    title: what is shown.
    x_label: of the axis.
    y_label: of the axis.
    curves: a curve's place here is its look in every chart.
    most: no value can be larger, if there is such a bound.
    signed: whether values may be negative.
  """

  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  most: float | None = None
  signed: bool = False


def accuracy(history: History, path: Path, title: str) -> Any:
  """Top-1 and top-5 test accuracy in % by round."""
  with picture(path) as figure:
    (axes,) = _panels(figure, history, title)
    t, values = series(history, 'test_top5_accuracy')
    _line(axes, t, 100 * values, _ORANGE, 'top-5, last {:.2f} %')
    t, values = series(history, 'test_accuracy')
    _line(axes, t, 100 * values, _BLUE, 'top-1, last {:.2f} %')
    axes.set_ylabel('test accuracy (%)')
    axes.set_ylim(top=min(axes.get_ylim()[1], 101.0))
    _legend(axes, 'lower right')
  return figure


def loss(history: History, path: Path, title: str) -> Any:
  """Test and train loss by round."""
  with picture(path) as figure:
    (axes,) = _panels(figure, history, title)
    _line(axes, *series(history, 'train_loss'), _ORANGE, 'train, last {:.4g}')
    _line(axes, *series(history, 'test_loss'), _BLUE, 'test, last {:.4g}')
    axes.set_ylabel('loss')
    _legend(axes, 'upper right')
  return figure


def annealing(history: History, path: Path, title: str) -> Any:
  """p_t, and the share of elements that clients kept of their own models."""
  with picture(path) as figure:
    (axes,) = _panels(figure, history, title)
    _line(axes, *series(history, 'p'), _BLUE, 'probability $p_t$', dots=1)
    t, values = series(history, 'kept_local')
    if t.size:
      label = 'share kept local, measured'
      size = 4 if t.size <= _BARS else 2
      axes.plot(t, values, 'o', color=_ORANGE, markersize=size, label=label)
    axes.set(ylabel='share of elements', ylim=(-0.03, 1.03))
    _legend(axes, 'upper right')
  return figure


def uploads(history: History, path: Path, title: str) -> Any:
  """Uploads per round, in front of the selected; megabytes up in total."""
  with picture(path) as figure:
    counts, traffic = _panels(figure, history, title, panels=2)
    for column, color in (('selected', _GREY), ('uploaded', _BLUE)):
      t, values = series(history, column)
      if 0 < t.size <= _BARS:
        width = min(0.8, 0.1 * t.size)
        counts.bar(t, values, width, color=color, label=column)
      elif t.size:
        edges = np.append(t, t[-1] + 1) - 0.5
        counts.stairs(values, edges, fill=True, color=color, label=column)
    top = 1.15 * counts.get_ylim()[1]  # room for the legend
    counts.set(ylabel='clients per round', ylim=(0, top))
    counts.yaxis.set_major_locator(_whole_numbers(8))
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
  """Which client holds how many examples of which label.

  A heat map of `label_counts`, shape [n, C] for n clients and the C labels in
  `class_names`, and beside it the clients' sizes m_k.
  """
  label_counts = np.asarray(label_counts)
  n, C = label_counts.shape
  width = 3.8 + np.clip(0.42 * C, 2, 12)
  height = 1.8 + min(0.25 * n, 6 + 0.004 * n, 10)
  shown = np.linspace(0, n - 1, min(n, _SHOWN)).round().astype(int)
  with picture(path) as figure:
    figure.set_size_inches(width, height)
    heat, sizes = figure.subplots(1, 2, width_ratios=(width - 3, 1.8))
    image = _heat_map(heat, label_counts[shown], class_names, n)
    for text in heat.texts:
      if text.get_text() == '0':
        text.set_color(_GREY)  # where there are examples is what matters
    note = f' ({_SHOWN:,} of {n:,} drawn)' if n > _SHOWN else ''
    heat.set(title=title, xlabel='label', ylabel=f'client{note}')
    m, edges = label_counts[shown].sum(1), np.linspace(0, n, shown.size + 1)
    style = {'orientation': 'horizontal', 'fill': True, 'color': _BLUE}
    sizes.stairs(m, edges - 0.5, **style)
    sizes.set(xlabel='examples $m_k$', xlim=(0, None), ylim=(n - 0.5, -0.5))
    sizes.set_yticks([])
    sizes.xaxis.set_major_locator(_whole_numbers(3))
    style = {'aspect': 4 * height, 'fraction': 0.15}
    bar = figure.colorbar(image, ax=sizes, ticks=_whole_numbers(6), **style)
    bar.set_label('examples of a label')
    bar.outline.set_visible(False)
  return figure


def chart(drawn: Chart, path: Path) -> Any:
  """Curves with their bands, and a legend below."""
  longest = max((len(curve.name) for curve in drawn.curves), default=0)
  columns = min(max(1, 88 // (longest + 10)), 4, max(1, len(drawn.curves)))
  rows = max(1, -(-len(drawn.curves) // columns))
  with picture(path) as figure:
    figure.set_size_inches(7, 4.2 + 0.22 * (rows - 1))
    axes = figure.subplots()
    for i, curve in enumerate(drawn.curves):
      color, dashes = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)]
      x, y = np.array(curve.x), np.array(curve.y)
      style = (0, dashes) if dashes else '-'
      marker = 'o' if x.size <= DOTTED else ''
      label = curve.name if x.size else f'{curve.name} (no values)'
      axes.plot(x, y, color=color, linestyle=style, marker=marker, label=label)
      if curve.spread:
        low, high = y - curve.spread, y + curve.spread
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(title=drawn.title, xlabel=drawn.x_label, ylabel=drawn.y_label)
    low, high = axes.get_ylim()
    most = high if drawn.most is None else 1.01 * drawn.most
    axes.set_ylim(low if drawn.signed else max(low, 0), min(high, most))
    if all(float(x).is_integer() for c in drawn.curves for x in c.x):
      axes.xaxis.set_major_locator(_whole_numbers(10))
    figure.legend(loc='outside lower center', ncols=columns, handlelength=3.5)
  return figure


def write_all(
  folder: Path,
  history: History,
  label_counts: np.ndarray,
  class_names: Sequence[str],
  title: str,
) -> None:
  """Writes the five pictures of a run to `folder/plots/`."""
  plots = os.path.join(folder, 'plots')
  os.makedirs(plots, exist_ok=True)
  for write in (accuracy, loss, annealing, uploads):
    write(history, os.path.join(plots, f'{write.__name__}.png'), title)
  path = os.path.join(plots, 'partition.png')
  partition(label_counts, class_names, path, title)


def series(history: History, column: str) -> tuple[np.ndarray, np.ndarray]:
  """(rounds, values), both of shape [k], of the k rows that have a value."""
  rows = [row for row in history if row.get(column) is not None]
  t = np.array([row['round'] for row in rows], int)
  return t, np.array([row[column] for row in rows], float)


@contextlib.contextmanager
def picture(path: Path) -> Iterator[Any]:
  """An empty figure in this module's style; written when the block ends."""
  import matplotlib.figure
  from matplotlib.backends import backend_agg

  buffer = io.BytesIO()
  with matplotlib.rc_context(_STYLE):
    figure = matplotlib.figure.Figure(layout='constrained')
    yield figure
    backend_agg.FigureCanvasAgg(figure).print_png(buffer)
  atomic_io.write_bytes(path, buffer.getvalue())


def _panels(figure: Any, history: History, title: str, panels: int = 1) -> Any:
  """Axes, one above the other, that share an axis of rounds."""
  figure.set_size_inches(7, 2 + 2.2 * panels)
  axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
  axes[0].set_title(title)
  axes[-1].set_xlabel('communication round')
  axes[-1].xaxis.set_major_locator(_whole_numbers(10))
  t, _ = series(history, 'round')
  margin = max(0.6, 0.015 * t.size)
  axes[-1].set_xlim(t.min(initial=1) - margin, t.max(initial=1) + margin)
  return axes


def _line(
  axes: Any,
  t: np.ndarray,
  values: np.ndarray,
  color: str,
  label: str,
  dots: int = 40,
) -> None:
  """A curve, with its last value in the label; few points get dots."""
  if t.size:
    marker = 'o' if t.size <= dots else ''
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
  """Draws `counts`, shape [<= n, C], with as much text as can be read."""
  import matplotlib.colors

  C = len(names)
  extent = (-0.5, C - 0.5, n - 0.5, -0.5)
  # By the square root, so that small counts are told from none.
  norm = matplotlib.colors.PowerNorm(0.5, 0, max(1, counts.max()))
  style = {'cmap': 'Blues', 'aspect': 'auto', 'interpolation': 'nearest'}
  image = axes.imshow(counts, norm=norm, extent=extent, **style)
  axes.grid(False)
  axes.xaxis.set_major_locator(_whole_numbers(10))
  axes.yaxis.set_major_locator(_whole_numbers(n if n <= _ANNOTATED else 10))
  if C <= _NAMED:
    turned = max(map(len, names)) > 3
    axes.set_xticks(range(C), names, rotation=90 if turned else 0)
  if n <= _ANNOTATED:
    for (k, c), count in np.ndenumerate(counts):
      color = 'white' if norm(count) > 0.6 else '#333333'
      center = {'ha': 'center', 'va': 'center'}
      axes.text(c, k, f'{count}', fontsize=8, color=color, **center)
  return image


def _whole_numbers(most: int) -> Any:
  """Ticks at whole numbers, about `most` at most."""
  import matplotlib.ticker

  return matplotlib.ticker.MaxNLocator(
    most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1
  )
