"""Figures of a run.

Each drawing function writes one or more files, in the format of their suffix
(png, pdf or svg; dark.png and dark.svg for dark pages), and returns the
matplotlib figure. A history is a run's rows of metrics, see `metrics_log`;
rounds without a value are skipped.
"""

import functools
import io
import logging
import math
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from safl_tf.reporting import metrics, names, theme
from safl_tf.util import atomic_io

History = metrics.History
Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

# Without the date, so that the same figure gives the same file.
_NO_DATE = {'png': None, 'pdf': {'CreationDate': None}, 'svg': {'Date': None}}
_MAX_ANNOTATED = 30  # clients whose counts are printed in the heat map
_MAX_CLASS_NAMES = 40  # class names on the axis
_MAX_CLIENTS = 1000  # clients drawn; of more, an evenly spaced sample
_MAX_BARS = 60  # rounds drawn as separate bars
_MAX_MARKERS = 20  # points of a curve that are marked
_LABEL_SIZE = 9.5  # of the names of curves, in points


class Subject(NamedTuple):
  """What the figures of a run are about.

  Attributes:
    name: to display, such as 'SAFL'.
    settings: what it trains on and its n, ε, L, see `names.subtitle`.
    algorithm: as a flag has it; sets the colour.
    guess: the accuracy of guessing, if that is known.
  """

  name: str = ''
  settings: str = ''
  algorithm: str | None = None
  guess: float | None = None

  @property
  def look(self) -> theme.Look:
    """How its main curve is drawn."""
    return theme.look(self.algorithm)


def subject(
  algorithm: str, settings: dict[str, Any], num_classes: int | None
) -> Subject:
  """Returns the subject of a run.

  Args:
    algorithm: its name, as a flag has it or as a user chose it.
    settings: see `names.subtitle`.
    num_classes: of a classification.
  """
  name = names.value('algorithm', algorithm)
  guess = 1 / num_classes if num_classes else None
  return Subject(name, names.subtitle(settings), algorithm, guess)


def accuracy(history: History, path: Paths, of: Subject) -> Any:
  """Draws top-1 and top-5 test accuracy in % by round."""

  def draw(figure: Any) -> None:
    (axes,) = _panels(figure, history, of, 'Test accuracy')
    _draw_accuracy(axes, history, of)

  return render(draw, path)


def loss(history: History, path: Paths, of: Subject) -> Any:
  """Draws test and train loss by round."""

  def draw(figure: Any) -> None:
    (axes,) = _panels(figure, history, of, 'Loss')
    _draw_loss(axes, history, of)

  return render(draw, path)


def curves(history: History, of: Subject) -> Any:
  """Draws accuracy, loss and all other test metrics above each other.

  Writes no file.
  """
  others = metrics.extra([history])
  has_accuracy = metrics.has_values(history, 'test_accuracy')

  def draw(figure: Any) -> None:
    panels = has_accuracy + 1 + len(others)
    axes = list(_panels(figure, history, of, 'Metrics', panels))
    if has_accuracy:
      _draw_accuracy(axes.pop(0), history, of)
    _draw_loss(axes.pop(0), history, of)
    for other, panel in zip(others, axes, strict=True):
      _draw_metric(panel, history, other, of)
    figure.align_ylabels()

  figure = render(draw, ())
  # IPython displays figures by itself only after an import of pyplot.
  figure._repr_png_ = functools.partial(_to_png, figure)
  return figure


def metric(
  history: History, what: metrics.Metric, path: Paths, of: Subject
) -> Any:
  """Draws another metric of the test data by round."""

  def draw(figure: Any) -> None:
    (axes,) = _panels(figure, history, of, what.title)
    _draw_metric(axes, history, what, of)

  return render(draw, path)


def client_evaluation(history: History, path: Paths, of: Subject) -> Any:
  """Draws the metrics of clients by round, with a panel for each metric.

  A line is the median over clients of a model (the global one, their own, or
  the personalized one); bands cover 25 to 75 % and 5 to 95 % of the clients.
  """
  found = metrics.of_clients(history)
  looks = dict(
    zip(
      metrics.CLIENT_MODELS,
      theme.looks([of.algorithm, 'local_only', 'personalized']),
      strict=True,
    )
  )

  def draw(figure: Any) -> None:
    title = 'Models on the clients'
    panels = _panels(figure, history, of, title, max(1, len(found)))
    for axes, (name, models) in zip(panels, found.items(), strict=False):
      factor = 100.0 if name == 'accuracy' else 1.0
      for model in models:
        column = f'client_{model}_{name}'
        for low, high, alpha in (('p5', 'p95', 0.12), ('p25', 'p75', 0.25)):
          t, lower = series(history, f'{column}_{low}')
          _, upper = series(history, f'{column}_{high}')
          axes.fill_between(
            t,
            factor * lower,
            factor * upper,
            color=looks[model].hex(),
            alpha=alpha,
            linewidth=0,
          )
        t, middle = series(history, f'{column}_p50')
        text = f'{model}\nmedian {{:.4g}}'
        _line(axes, t, factor * middle, looks[model], text)
      unit = ' (%)' if name == 'accuracy' else ''
      axes.set_ylabel(f'{metrics.title(name).lower()} of clients{unit}')
    for axes in panels:
      _name_curves(axes)
    bands = 'bands: 25 to 75 % and 5 to 95 % of the clients'
    panels[-1].set_xlabel(f'communication round ({bands})')

  return render(draw, path)


def annealing(history: History, path: Paths, of: Subject) -> Any:
  """Draws p_t and the measured share of elements that clients kept local."""

  def draw(figure: Any) -> None:
    title = 'Share of the elements that clients keep'
    (axes,) = _panels(figure, history, of, title)
    t, values = series(history, 'kept_local')
    if t.size:
      size = 6 if t.size <= _MAX_BARS else 3
      style = {'markersize': size, 'markerfacecolor': 'none'}
      label = 'kept'
      axes.plot(t, values, 'o', color=of.look.hex(), label=label, **style)
    text = '$p_t$ = exp(-t/L)'
    _line(axes, *series(history, 'p'), of.look, text, markers=1)
    axes.set(ylabel='share of elements', ylim=(-0.03, 1.03))
    _name_curves(axes)

  return render(draw, path)


def uploads(history: History, path: Paths, of: Subject) -> Any:
  """Draws selected and uploading clients by round, and total megabytes."""

  def draw(figure: Any) -> None:
    counts, traffic = _panels(figure, history, of, 'Uploads', panels=2)
    faint = theme.Look(of.look.color, 0.6)
    for column, look in (('selected', faint), ('uploaded', of.look)):
      t, values = series(history, column)
      style = {'color': look.hex(), 'label': column}
      if 0 < t.size <= _MAX_BARS:
        counts.bar(t, values, min(0.8, 0.1 * t.size), **style)
      elif t.size:
        edges = np.append(t, t[-1] + 1) - 0.5
        counts.stairs(values, edges, fill=True, **style)
      if t.size:
        end = (t[-1] + 0.5, values.mean())
        name = f'{column}\n{values.sum():,.0f}'
        counts.plot(*end, ',', color=style['color'], label=name)
    counts.set(ylabel='clients per round', ylim=(0, None))
    counts.yaxis.set_major_locator(integer_ticks(8))
    _name_curves(counts)
    t, values = series(history, 'total_bytes_up')
    _line(traffic, t, values / 1e6, of.look, 'total\n{:,.1f} MB')
    t, selected = series(history, 'selected')
    _, sent = series(history, 'uploaded')
    if t.size and sent.sum():
      everything = values[-1] / sent.sum() * np.cumsum(selected) / 1e6
      color, dashes = theme.look('local_only').hex(), (0, theme.DASHES[1])
      label = 'if all\nhad uploaded'
      traffic.plot(t, everything, color=color, linestyle=dashes, label=label)
    traffic.set(ylabel='uploaded in total (MB)', ylim=(0, None))
    traffic.yaxis.set_major_formatter('{x:,.10g}')
    _name_curves(traffic)
    figure.align_ylabels()

  return render(draw, path)


def partition(
  label_counts: np.ndarray,
  class_names: Sequence[str],
  path: Paths,
  settings: str,
) -> Any:
  """Draws a heat map of examples by client and label, and clients' sizes.

  `label_counts` are the examples of each label on each client [n, C].
  """
  label_counts = np.asarray(label_counts)
  n, C = label_counts.shape
  width = 3.8 + np.clip(0.42 * C, 2, 12)
  height = 2.1 + min(0.25 * n, 6 + 0.004 * n, 10)
  drawn = np.linspace(0, n - 1, min(n, _MAX_CLIENTS)).round().astype(int)

  def draw(figure: Any) -> None:
    figure.set_size_inches(width, height)
    heat, sizes = figure.subplots(1, 2, width_ratios=(width - 3, 1.8))
    image = _heat_map(heat, label_counts[drawn], class_names, n)
    note = f' ({_MAX_CLIENTS:,} of {n:,} drawn)' if n > _MAX_CLIENTS else ''
    titled(figure, 'Which client holds which labels')
    heat.set(title=settings, xlabel='label', ylabel=f'client{note}')
    m, edges = label_counts[drawn].sum(1), np.linspace(0, n, drawn.size + 1)
    color = theme.look('safl').hex()
    style = {'orientation': 'horizontal', 'fill': True, 'color': color}
    sizes.stairs(m, edges - 0.5, **style)
    sizes.set(xlabel='examples $m_k$', xlim=(0, None), ylim=(n - 0.5, -0.5))
    sizes.set_yticks([])
    sizes.xaxis.set_major_locator(integer_ticks(3))
    style = {'aspect': 4 * height, 'fraction': 0.15}
    bar = figure.colorbar(image, ax=sizes, ticks=integer_ticks(6), **style)
    bar.set_label('examples of a label')
    bar.outline.set_visible(False)

  return render(draw, path)


def client_sizes(sizes: np.ndarray, path: Paths, settings: str) -> Any:
  """Draws the clients' numbers of examples, for data without classes."""
  sizes = np.sort(np.asarray(sizes))[::-1]

  def draw(figure: Any) -> None:
    axes = figure.subplots()
    edges = np.arange(sizes.size + 1) - 0.5
    axes.stairs(sizes, edges, fill=True, color=theme.look('safl').hex())
    titled(figure, 'Examples of the clients')
    axes.set_title(settings)
    axes.set(xlabel='clients, by size', ylabel='examples $m_k$', ylim=(0, None))
    axes.xaxis.set_major_locator(integer_ticks(10))
    axes.yaxis.set_major_locator(integer_ticks(6))

  return render(draw, path)


def write_all(
  folder: Path,
  history: History,
  label_counts: np.ndarray | None,
  class_names: Sequence[str] | None,
  of: Subject,
  formats: Sequence[str] = ('png',),
  sizes: np.ndarray | None = None,
) -> None:
  """Writes the figures of a run that say something to `folder/plots/`.

  There is none of the annealing if clients keep nothing of their own models,
  and none of the uploads if all clients upload.

  Args:
    folder: of the run.
    history: of the run.
    label_counts: see `partition`; None for data without classes.
    class_names: of the labels.
    of: the run.
    formats: some of `choices.FIGURES`.
    sizes: the clients' numbers of examples, for data without classes.
  """
  plots = os.path.join(folder, 'plots')
  os.makedirs(plots, exist_ok=True)

  def files(name: str) -> list[pathlib.Path]:
    return paths(plots, name, formats)

  if metrics.has_values(history, 'test_accuracy'):
    accuracy(history, files('accuracy'), of)
  loss(history, files('loss'), of)
  if any(row.get('kept_local') or row.get('p') for row in history):
    annealing(history, files('annealing'), of)
  if any(row.get('uploaded') != row.get('selected') for row in history):
    uploads(history, files('uploads'), of)
  for other in metrics.extra([history]):
    name = re.sub(r'[^\w.+-]', '-', other.name)
    metric(history, other, files(name), of)
  if metrics.of_clients(history):
    client_evaluation(history, files('clients'), of)
  if label_counts is not None:
    labels = class_names or ()
    partition(label_counts, labels, files('partition'), of.settings)
  elif sizes is not None:
    client_sizes(sizes, files('partition'), of.settings)


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


def render(draw: Callable[[Any], None], path: Paths) -> Any:
  """Draws a figure in this style and writes it; returns it as drawn last.

  Args:
    draw: draws on an empty figure; called once for light and once for dark
      files, if there are both.
    path: of the files; without any, nothing is written, and a notebook can
      display the figure.
  """
  import matplotlib as mpl
  import matplotlib.figure

  logging.getLogger('fontTools').setLevel(logging.WARNING)  # else of each font
  several = [path] if isinstance(path, str | os.PathLike) else path
  files = [pathlib.Path(file) for file in several]
  dark = [file for file in files if file.suffixes[-2:-1] == ['.dark']]
  light = [file for file in files if file not in dark]
  contents = []
  for is_dark, group in ((True, dark), (False, light)):
    if group or (not is_dark and not files):
      with mpl.rc_context(theme.rc_params(is_dark)):
        figure = matplotlib.figure.Figure(layout='constrained')
        draw(figure)
        for file in group:
          suffix, buffer = file.suffix[1:], io.BytesIO()
          figure.savefig(buffer, format=suffix, metadata=_NO_DATE[suffix])
          contents.append((file, buffer.getvalue()))
  for file, content in contents:
    atomic_io.write_bytes(file, content)
  return figure


def titled(figure: Any, title: str) -> None:
  """Gives a figure a title above those of its axes, at the left."""
  figure.suptitle(title, x=0.012, ha='left')


def _panels(
  figure: Any, history: History, of: Subject, title: str, panels: int = 1
) -> Any:
  """Adds axes above each other that share an axis of rounds."""
  figure.set_size_inches(7, 2 + 2.2 * panels)
  axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
  titled(figure, f'{title} of {of.name}' if of.name else title)
  axes[0].set_title(of.settings)
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


def _draw_accuracy(axes: Any, history: History, of: Subject) -> None:
  t, values = series(history, 'test_top5_accuracy')
  faint = theme.Look(of.look.color, 0.4, theme.DASHES[1])
  _line(axes, t, 100 * values, faint, 'top-5\n{:.2f} %')
  t, values = series(history, 'test_accuracy')
  _line(axes, t, 100 * values, of.look, 'top-1\n{:.2f} %')
  if of.guess is not None and t.size:
    level(axes, 100 * of.guess, f'guessing, {100 * of.guess:.3g} %')
  axes.set_ylabel('test accuracy (%)')
  axes.set_ylim(top=min(axes.get_ylim()[1], 101.0))
  _name_curves(axes)


def level(axes: Any, value: float, text: str) -> None:
  """Draws a horizontal line with its name on it."""
  style = {'color': theme.look('local_only').hex(), 'linewidth': 1.2}
  axes.axhline(value, linestyle=(0, (2, 2)), **style)
  axes.annotate(
    text,
    (0, value),
    (3, -4),
    xycoords=axes.get_yaxis_transform(),
    textcoords='offset points',
    va='top',
    fontsize=9,
    color=style['color'],
  )


def _draw_loss(axes: Any, history: History, of: Subject) -> None:
  faint = theme.Look(of.look.color, 0.4, theme.DASHES[1])
  _line(axes, *series(history, 'train_loss'), faint, 'train\n{:.4g}')
  _line(axes, *series(history, 'test_loss'), of.look, 'test\n{:.4g}')
  axes.set_ylabel('loss')
  _name_curves(axes)


def _draw_metric(
  axes: Any, history: History, what: metrics.Metric, of: Subject
) -> None:
  text = 'test\n{:.4g}'
  _line(axes, *series(history, what.column), of.look, text)
  axes.set_ylabel(what.axis)
  _name_curves(axes)


def _line(
  axes: Any,
  t: np.ndarray,
  values: np.ndarray,
  look: theme.Look,
  label: str,
  markers: int = _MAX_MARKERS,
) -> None:
  """Adds a curve with up to `markers` markers and the last value as label."""
  if t.size:
    style = {'linestyle': (0, look.dashes) if look.dashes else '-'}
    marker = 'o' if t.size <= markers else ''
    label = label.format(values[-1])
    color = look.hex()
    axes.plot(t, values, color=color, marker=marker, label=label, **style)


def _name_curves(axes: Any) -> None:
  """Names the curves at their ends; says so if there are none."""
  if axes.lines or axes.patches:
    name_ends(axes, axes.lines)
  else:
    axes.text(0.5, 0.5, 'no values', transform=axes.transAxes, ha='center')


def name_ends(axes: Any, lines: Sequence[Any]) -> None:
  """Writes the labels of curves at their ends, above each other."""
  ends = [
    (line.get_xdata()[-1], line.get_ydata()[-1], line)
    for line in lines
    if not line.get_label().startswith('_') and len(line.get_xdata())
  ]
  low, high = axes.get_ylim()
  rows = axes.get_subplotspec().get_gridspec().nrows
  points = 0.68 * 72 * axes.figure.get_size_inches()[1] / rows  # of the axes
  scale = points / (high - low)  # points per unit of y
  free = -math.inf  # the lowest place that is not taken, in points
  for x, y, line in sorted(ends, key=lambda end: end[1]):
    text = line.get_label()
    half = _LABEL_SIZE * 0.62 * (1 + text.count('\n'))
    at = scale * (y - low)
    place = max(at, free + half)
    free = place + half
    axes.annotate(
      text,
      (x, y),
      (7, place - at),
      textcoords='offset points',
      va='center',
      color=line.get_color(),
      fontsize=_LABEL_SIZE,
      linespacing=1.1,
      annotation_clip=False,
    )


def _heat_map(
  axes: Any, counts: np.ndarray, class_names: Sequence[str], n: int
) -> Any:
  """Draws counts [<= n, C], with as much text as is legible."""
  import matplotlib.colors

  C = len(class_names)
  extent = (-0.5, C - 0.5, n - 0.5, -0.5)
  # By the square root, so that small counts differ visibly from none.
  norm = matplotlib.colors.PowerNorm(0.5, 0, max(1, counts.max()))
  ramp = theme.ramp()
  style = {'cmap': ramp, 'aspect': 'auto', 'interpolation': 'nearest'}
  image = axes.imshow(counts, norm=norm, extent=extent, **style)
  axes.grid(False)
  axes.xaxis.set_major_locator(integer_ticks(10))
  axes.yaxis.set_major_locator(integer_ticks(n if n <= _MAX_ANNOTATED else 10))
  if C <= _MAX_CLASS_NAMES:
    rotation = 90 if max(map(len, class_names)) > 3 else 0
    axes.set_xticks(range(C), class_names, rotation=rotation)
  if n <= _MAX_ANNOTATED:
    for (k, c), count in np.ndenumerate(counts):
      color = theme.ink_on(ramp(norm(count))) if count else theme.soft()
      place = {'ha': 'center', 'va': 'center', 'fontsize': 8}
      axes.text(c, k, f'{count}', color=color, **place)
  return image


def integer_ticks(count: int) -> Any:
  """Returns a locator of ticks at integers, roughly `count` at most."""
  import matplotlib.ticker

  return matplotlib.ticker.MaxNLocator(
    count, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1
  )
