"""Figures of a run.

Each drawing function writes one or more files, in the format of their suffix
(png, pdf or svg), and returns the matplotlib figure. A history is a run's rows
of metrics, see `metrics_log`; rounds without a value are skipped.
"""

import contextlib
import functools
import io
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from safl_tf.reporting import metrics
from safl_tf.util import atomic_io

History = metrics.History
Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

_BLUE, _ORANGE, _GREEN, _GREY = '#0072B2', '#D55E00', '#009E73', '#C8CDD3'
# Without the date, so that the same figure gives the same file.
_NO_DATE = {'png': None, 'pdf': {'CreationDate': None}, 'svg': {'Date': None}}
_MODELS = {'global': _BLUE, 'own': _ORANGE, 'personalized': _GREEN}
_STYLE = pathlib.Path(__file__).with_name('style.mplstyle')
_MAX_ANNOTATED = 30  # clients whose counts are printed in the heat map
_MAX_LABELS = 40  # class names on the axis
_MAX_CLIENTS = 1000  # clients drawn; of more, an evenly spaced sample
_MAX_BARS = 60  # rounds drawn as separate bars


def accuracy(history: History, path: Paths, title: str) -> Any:
  """Draws top-1 and top-5 test accuracy in % by round."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _draw_accuracy(axes, history)
  return figure


def loss(history: History, path: Paths, title: str) -> Any:
  """Draws test and train loss by round."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _draw_loss(axes, history)
  return figure


def curves(history: History, title: str) -> Any:
  """Draws accuracy, loss and all other test metrics above each other.

  Writes no file.
  """
  others = metrics.extra([history])
  has_accuracy = metrics.has_values(history, 'test_accuracy')
  with new_figure(None) as figure:
    panels = has_accuracy + 1 + len(others)
    axes = list(_panels(figure, history, title, panels))
    if has_accuracy:
      _draw_accuracy(axes.pop(0), history)
    _draw_loss(axes.pop(0), history)
    for other, panel in zip(others, axes, strict=True):
      _draw_metric(panel, history, other)
    figure.align_ylabels()
  # IPython displays figures by itself only after an import of pyplot.
  figure._repr_png_ = functools.partial(_to_png, figure)
  return figure


def metric(
  history: History, what: metrics.Metric, path: Paths, title: str
) -> Any:
  """Draws another metric of the test data by round."""
  with new_figure(path) as figure:
    (axes,) = _panels(figure, history, title)
    _draw_metric(axes, history, what)
  return figure


def _draw_metric(axes: Any, history: History, what: metrics.Metric) -> None:
  _line(axes, *series(history, what.column), _BLUE, 'test, last {:.4g}')
  axes.set_ylabel(what.axis)
  _legend(axes, 'best')


def client_evaluation(history: History, path: Paths, title: str) -> Any:
  """Draws the metrics of clients by round, with a panel for each metric.

  A line is the median over clients of a model (the global one, their own, or
  the personalized one); bands cover 25 to 75 % and 5 to 95 % of the clients.
  """
  found = metrics.of_clients(history)
  with new_figure(path) as figure:
    panels = _panels(figure, history, title, max(1, len(found)))
    for axes, (name, models) in zip(panels, found.items(), strict=False):
      factor = 100.0 if name == 'accuracy' else 1.0
      for model in models:
        column, color = f'client_{model}_{name}', _MODELS[model]
        for low, high, alpha in (('p5', 'p95', 0.12), ('p25', 'p75', 0.25)):
          t, lower = series(history, f'{column}_{low}')
          _, upper = series(history, f'{column}_{high}')
          band = {'color': color, 'alpha': alpha, 'linewidth': 0}
          axes.fill_between(t, factor * lower, factor * upper, **band)
        t, middle = series(history, f'{column}_p50')
        text = f'{model} model, last median {{:.4g}}'
        _line(axes, t, factor * middle, color, text)
      unit = ' (%)' if name == 'accuracy' else ''
      axes.set_ylabel(f'{metrics.title(name).lower()} of clients{unit}')
    for axes in panels:
      _legend(axes, 'best')
    bands = 'bands: 25 to 75 % and 5 to 95 % of the clients'
    panels[-1].set_xlabel(f'communication round ({bands})')
  return figure


def annealing(history: History, path: Paths, title: str) -> Any:
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


def uploads(history: History, path: Paths, title: str) -> Any:
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
    counts.yaxis.set_major_locator(integer_ticks(8))
    _legend(counts, 'upper right')
    t, values = series(history, 'total_bytes_up')
    _line(traffic, t, values / 1e6, _BLUE, 'total, last {:,.1f} MB')
    traffic.set(ylabel='uploaded in total (MB)', ylim=(0, None))
    traffic.yaxis.set_major_formatter('{x:,.10g}')
    _legend(traffic, 'lower right')
    figure.align_ylabels()
  return figure


def partition(
  label_counts: np.ndarray, class_names: Sequence[str], path: Paths, title: str
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
    sizes.xaxis.set_major_locator(integer_ticks(3))
    style = {'aspect': 4 * height, 'fraction': 0.15}
    bar = figure.colorbar(image, ax=sizes, ticks=integer_ticks(6), **style)
    bar.set_label('examples of a label')
    bar.outline.set_visible(False)
  return figure


def client_sizes(sizes: np.ndarray, path: Paths, title: str) -> Any:
  """Draws the clients' numbers of examples, for data without classes."""
  sizes = np.sort(np.asarray(sizes))[::-1]
  with new_figure(path) as figure:
    figure.set_size_inches(7, 4.2)
    axes = figure.subplots()
    edges = np.arange(sizes.size + 1) - 0.5
    axes.stairs(sizes, edges, fill=True, color=_BLUE)
    axes.set_title(title)
    axes.set(xlabel='clients, by size', ylabel='examples $m_k$', ylim=(0, None))
    axes.xaxis.set_major_locator(integer_ticks(10))
    axes.yaxis.set_major_locator(integer_ticks(6))
  return figure


def write_all(
  folder: Path,
  history: History,
  label_counts: np.ndarray | None,
  class_names: Sequence[str] | None,
  title: str,
  formats: Sequence[str] = ('png',),
  sizes: np.ndarray | None = None,
) -> None:
  """Writes the figures of a run to `folder/plots/`.

  Args:
    folder: of the run.
    history: of the run.
    label_counts: see `partition`; None for data without classes.
    class_names: of the labels.
    title: of the figures.
    formats: 'png', 'pdf' or 'svg'.
    sizes: the clients' numbers of examples, for data without classes.
  """
  plots = os.path.join(folder, 'plots')
  os.makedirs(plots, exist_ok=True)

  def files(name: str) -> list[pathlib.Path]:
    return paths(plots, name, formats)

  if metrics.has_values(history, 'test_accuracy'):
    accuracy(history, files('accuracy'), title)
  for draw in (loss, annealing, uploads):
    draw(history, files(draw.__name__), title)
  for other in metrics.extra([history]):
    name = re.sub(r'[^\w.+-]', '-', other.name)
    metric(history, other, files(name), title)
  if metrics.of_clients(history):
    client_evaluation(history, files('clients'), title)
  if label_counts is not None:
    partition(label_counts, class_names or (), files('partition'), title)
  elif sizes is not None:
    client_sizes(sizes, files('partition'), title)


def paths(
  folder: Path, name: str, formats: Sequence[str]
) -> list[pathlib.Path]:
  """Returns the paths of a figure, in order of the formats."""
  return [pathlib.Path(folder, f'{name}.{suffix}') for suffix in formats]


def series(history: History, column: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns rounds and values, both [k], of the k rows that have a value."""
  rows = [row for row in history if row.get(column) is not None]
  t = np.array([row['round'] for row in rows], int)
  return t, np.array([row[column] for row in rows], float)


@contextlib.contextmanager
def new_figure(path: Paths | None) -> Iterator[Any]:
  """Gives an empty figure in this style, and writes it when the block ends.

  Without a path nothing is written; a notebook displays the figure.
  """
  import matplotlib.figure

  logging.getLogger('fontTools').setLevel(logging.WARNING)  # else of each font
  several = [path] if isinstance(path, str | os.PathLike) else path or []
  contents = []
  style = matplotlib.rc_params_from_file(_STYLE, use_default_template=False)
  with matplotlib.rc_context(style):
    figure = matplotlib.figure.Figure(layout='constrained')
    yield figure
    for file in several:
      suffix, buffer = pathlib.Path(file).suffix[1:], io.BytesIO()
      figure.savefig(buffer, format=suffix, metadata=_NO_DATE[suffix])
      contents.append((file, buffer.getvalue()))
  for file, content in contents:
    atomic_io.write_bytes(file, content)


def _panels(figure: Any, history: History, title: str, panels: int = 1) -> Any:
  """Adds axes above each other that share an axis of rounds."""
  figure.set_size_inches(7, 2 + 2.2 * panels)
  axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
  axes[0].set_title(title)
  axes[-1].set_xlabel('communication round')
  axes[-1].xaxis.set_major_locator(integer_ticks(10))
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
  axes.xaxis.set_major_locator(integer_ticks(10))
  axes.yaxis.set_major_locator(integer_ticks(n if n <= _MAX_ANNOTATED else 10))
  if C <= _MAX_LABELS:
    rotation = 90 if max(map(len, names)) > 3 else 0
    axes.set_xticks(range(C), names, rotation=rotation)
  if n <= _MAX_ANNOTATED:
    for (k, c), count in np.ndenumerate(counts):
      dark = 'white' if norm(count) > 0.6 else '#333333'
      style = {'color': dark if count else _GREY, 'ha': 'center'}
      axes.text(c, k, f'{count}', fontsize=8, va='center', **style)
  return image


def integer_ticks(count: int) -> Any:
  """Returns a locator of ticks at integers, roughly `count` at most."""
  import matplotlib.ticker

  return matplotlib.ticker.MaxNLocator(
    count, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1
  )
