"""HTML reports in a single file: text, tables and line charts.

A page loads nothing from elsewhere and is complete without JavaScript. With it,
the pointer shows a curve's values, and a click on a name in a legend hides or
shows its curves. All arguments are escaped, except for HTML made here.
"""

import html
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.reporting import charts as charts_lib
from safl_tf.reporting import theme

_WIDTH, _HEIGHT = 480, 300
_RIGHT, _TOP, _BOTTOM = 14, 12, 30  # margins; the left one fits the tick labels
_DIGIT_WIDTH = 9  # at the font size of narrow screens
_LINE_WIDTH = 2.0
_STAR = ' <span class="star" title="best">★</span>'


def page(title: str, parts: Iterable[str]) -> str:
  """Returns a complete page; parts are HTML from the functions below."""
  name = html.escape(title)
  script = pathlib.Path(__file__).with_name('page.js').read_text('utf-8')
  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{name}</title>\n<style>\n{style_sheet()}</style>\n</head>\n'
    f'<body>\n<main>\n<h1>{name}</h1>\n{"".join(parts)}</main>\n'
    f'<script>\n{script}</script>\n</body>\n</html>\n'
  )


def style_sheet() -> str:
  """Returns the CSS, with the colours of the theme as variables."""
  rules = pathlib.Path(__file__).with_name('page.css').read_text('utf-8')
  light, dark = (
    ' '.join(f'--{name}: {color};' for name, color in colors.items())
    for colors in (theme.LIGHT, theme.DARK)
  )
  rules += f':root {{ {light} }}\n'
  rules += f'@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n'
  return rules


def heading(text: str) -> str:
  """Returns a section's heading."""
  return f'<h2>{html.escape(text)}</h2>\n'


def paragraph(text: str) -> str:
  """Returns a paragraph."""
  return f'<p>{html.escape(text)}</p>\n'


def note(text: str) -> str:
  """Returns a paragraph in small type that explains the part above it."""
  return f'<p class="note">{html.escape(text)}</p>\n'


def bullets(items: Iterable[str]) -> str:
  """Returns a bulleted list."""
  inner = ''.join(f'<li>{html.escape(item)}</li>\n' for item in items)
  return f'<ul class="bullets">\n{inner}</ul>\n'


def downloads(files: Mapping[str, Sequence[str]]) -> str:
  """Returns links to files beside the page: what they hold -> their paths."""
  items = ''
  for what, paths in files.items():
    links = ', '.join(
      f'<a href="{html.escape(path)}" download>{html.escape(path)}</a>'
      for path in paths
    )
    items += f'<li>{html.escape(what)}: {links}</li>\n'
  return f'<ul class="downloads">\n{items}</ul>\n'


def warning(text: str) -> str:
  """Returns a paragraph that limits what the page may be read as."""
  return f'<p class="warning">{html.escape(text)}</p>\n'


def image(title: str, path: str, dark: str) -> str:
  """Returns a figure from files beside the page, for light and dark pages."""
  name, light, other = map(html.escape, (title, path, dark))
  return (
    f'<figure class="image"><figcaption>{name}</figcaption>\n<picture>'
    f'<source media="(prefers-color-scheme: dark)" srcset="{other}">'
    f'<img src="{light}" alt="{name}" loading="lazy"></picture></figure>\n'
  )


def table(
  lines: Sequence[Sequence[str]],
  keys: Mapping[int, theme.Look] | None = None,
  best: int | None = None,
) -> str:
  """Returns a table of headings and cells; a wide one scrolls sideways.

  Args:
    lines: headings, then cells; the first column holds row headings.
    keys: rows beside which a sample of a line is drawn.
    best: the row to mark with a star.
  """
  samples = {
    row: _key(i, look) for i, (row, look) in enumerate((keys or {}).items())
  }
  head = ''.join(
    f'<th scope="col">{html.escape(c).replace(" %", "&nbsp;%")}</th>'
    for c in lines[0]
  )
  body = ''
  for i, (name, *cells) in enumerate(lines[1:]):
    key = samples.get(i, '')
    star = _STAR if i == best else ''
    others = ''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)
    first = f'<th scope="row">{key}{html.escape(name)}{star}</th>'
    body += f'<tr>{first}{others}</tr>\n'
  return (
    f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
    f'<tbody>\n{body}</tbody>\n</table></div>\n'
  )


def heat_map(content: charts_lib.HeatMap) -> str:
  """Returns a heat map as a table, with the best cell framed and starred."""
  head = ''.join(f'<th scope="col">{html.escape(x)}</th>' for x in content.x)
  body = ''
  cells = zip(content.y, content.texts, content.shares(), strict=True)
  for i, (y, texts, shares) in enumerate(cells):
    body += f'<tr><th scope="row">{html.escape(y)}</th>'
    for j, (text, share) in enumerate(zip(texts, shares, strict=True)):
      is_best = (i, j) == content.best
      look = ' class="best"' if is_best else ''
      color = '' if share is None else f' style="--share: {share:.3f}"'
      star = _STAR if is_best else ''
      body += f'<td{look}{color}>{html.escape(text)}{star}</td>'
    body += '</tr>\n'
  title, x, y = map(
    html.escape, (content.title, content.x_label, content.y_label)
  )
  return (
    f'<figure class="heat"><figcaption>{title}</figcaption>\n'
    f'<div class="scroll"><table>\n<thead><tr><th scope="col">{y} \\ {x}</th>'
    f'{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n</figure>\n'
  )


def settings(title: str, values: Mapping[str, Any]) -> str:
  """Returns names and values, collapsed under a title."""
  rows = ''.join(
    f'<div><dt>{html.escape(name)}</dt>'
    f'<dd>{"-" if value is None else html.escape(str(value))}</dd></div>'
    for name, value in values.items()
  )
  return (
    f'<details><summary>{html.escape(title)}</summary>\n'
    f'<dl>{rows}</dl>\n</details>\n'
  )


def charts(figures: Iterable[str]) -> str:
  """Returns charts in as many columns as fit."""
  return f'<div class="charts">\n{"".join(figures)}</div>\n'


def line_chart(chart: charts_lib.Chart, key: str = 'algorithm') -> str:
  """Returns a chart: curves with bands, axes and a legend.

  Every curve is a <g class="curve" data-KEY="its name">; the key is the kind of
  name that curves have. The legend names those that have points.
  """
  title, x, y = map(html.escape, (chart.title, chart.x_label, chart.y_label))
  sub = chart.subtitle and f'<small>{html.escape(chart.subtitle)}</small>'
  looks, positions = chart.looks(), _positions(chart)
  legend = ''.join(
    f'<li class="s{i}">{_key(i, look)}{html.escape(curve.name)}</li>'
    for curve, look, i in zip(chart.curves, looks, positions, strict=True)
    if len(curve.x) and not curve.is_paper
  )
  if any(curve.is_paper and len(curve.x) for curve in chart.curves):
    legend += (
      '<li><svg class="key" viewBox="0 0 36 10" aria-hidden="true"><circle '
      'class="paper" cx="18" cy="5" r="4"/></svg>the paper</li>'
    )
  return (
    f'<figure class="chart"><figcaption>{title}{sub}</figcaption>\n'
    f'<div class="y">{y}</div>\n{_svg(chart, key)}<div class="x">{x}</div>\n'
    f'<ul class="legend">{legend}</ul>\n'
    '<div class="tip" hidden></div></figure>\n'
  )


def _positions(chart: charts_lib.Chart) -> list[int]:
  """Returns a number for each curve; the paper's have those of ours."""
  names = list(dict.fromkeys(curve.name for curve in chart.curves))
  return [names.index(curve.name) for curve in chart.curves]


class _Axis(NamedTuple):
  """A range of values, the step between ticks, and the range in pixels."""

  low: float
  high: float
  step: float
  start: float
  end: float

  def at(self, value: float) -> float:
    """Returns the pixel of a value, clipped to the range."""
    share = (value - self.low) / (self.high - self.low)
    return self.start + min(max(share, 0), 1) * (self.end - self.start)

  def ticks(self) -> list[tuple[float, str]]:
    """Returns pixels and labels of the multiples of the step."""
    digits = max(0, -math.floor(math.log10(self.step)))
    form = f',.{digits}f' if 1e-4 < self.step < 1e6 else '.3g'
    first = math.ceil(self.low / self.step - 1e-9)
    last = math.floor(self.high / self.step + 1e-9)
    values = [i * self.step for i in range(first, last + 1)]
    return [(self.at(v), format(v, form)) for v in values]


def _axes(chart: charts_lib.Chart) -> tuple[_Axis, _Axis]:
  """Returns axes that fit all curves; y starts and ends at ticks."""
  xs = [x for curve in chart.curves for x in curve.x] or [0.0, 1.0]
  ys = [y for curve in chart.curves for band in _band(curve) for y in band]
  ys += chart.levels.values() if ys else ()
  ys = ys or [0.0, 1.0]
  y_min = -math.inf if chart.signed else 0
  y_max = math.inf if chart.y_max is None else chart.y_max
  low, high = _non_empty(max(min(ys), y_min), min(max(ys), y_max))
  step = _tick_step(high - low, 5)
  low = step * math.floor(low / step + 1e-9)
  high = step * math.ceil(high / step - 1e-9)
  y = _Axis(low, high, step, _HEIGHT - _BOTTOM, _TOP)
  margin = 10 + _DIGIT_WIDTH * max(len(text) for _, text in y.ticks())
  left, right = _non_empty(min(xs), max(xs))
  integers = all(float(x).is_integer() for x in xs)
  step = max(_tick_step(right - left, 6), 1 if integers else 0)
  return _Axis(left, right, step, margin, _WIDTH - _RIGHT), y


def _non_empty(low: float, high: float) -> tuple[float, float]:
  return (low, high) if low < high else (low - 0.5, high + 0.5)


def _tick_step(length: float, count: int) -> float:
  """Returns 1, 2 or 5 times a power of ten, for at most `count` steps."""
  power = 10.0 ** math.floor(math.log10(length / count))
  return next(
    k * power for k in (1, 2, 5, 10) if length <= 1.01 * k * power * count
  )


def _band(curve: charts_lib.Curve) -> list[tuple[float, float]]:
  """Returns the lower and the upper end at each point."""
  spread = curve.spread or [0.0] * len(curve.y)
  return [(y - d, y + d) for y, d in zip(curve.y, spread, strict=True)]


def _svg(chart: charts_lib.Chart, key: str) -> str:
  x, y = _axes(chart)
  grid = [
    f'<line class="grid" x1="{x.start:g}" x2="{x.end:g}" y1="{at:.1f}" '
    f'y2="{at:.1f}"/><text class="left" x="{x.start - 6:g}" y="{at + 4:.1f}">'
    f'{text}</text>'
    for at, text in y.ticks()
  ] + [
    f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{y.start:g}" '
    f'y2="{y.start + 4:g}"/><text x="{at:.1f}" y="{y.start + 20:g}">'
    f'{text}</text>'
    for at, text in x.ticks()
  ]
  grid += [
    f'<line class="level" x1="{x.start:g}" x2="{x.end:g}" y1="{at:.1f}" '
    f'y2="{at:.1f}"/><text class="right" x="{x.start + 4:g}" y="{at + 13:.1f}">'
    f'{html.escape(name)}, {value:.3g}</text>'
    for name, value in chart.levels.items()
    for at in [y.at(value)]
  ]
  looks, positions = chart.looks(), _positions(chart)
  curves = [
    _group(curve, i, look, key, x, y)
    for curve, i, look in zip(chart.curves, positions, looks, strict=True)
  ]
  label = html.escape(f'{chart.title}: {chart.y_label} by {chart.x_label}')
  return (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
    f'aria-label="{label}" data-key="{key}">\n'
    f'{"".join(grid)}\n{"".join(curves)}</svg>\n'
  )


def _group(
  curve: charts_lib.Curve,
  i: int,
  look: theme.Look,
  key: str,
  x: _Axis,
  y: _Axis,
) -> str:
  """Returns a curve and its band, with the data as attributes."""
  line = _points(curve.x, curve.y, x, y)
  shapes = ''
  if curve.spread:
    lows, highs = zip(*_band(curve), strict=True)
    outline = _points(curve.x, highs, x, y) + _points(curve.x, lows, x, y)[::-1]
    shapes += f'<polygon class="band" points="{" ".join(outline)}"/>'
  hidden = ' none' if curve.is_paper else ''
  shapes += f'<polyline class="line{hidden}" points="{" ".join(line)}"/>'
  if curve.is_paper or len(curve.x) <= charts_lib.MAX_MARKERS:
    dot = 'class="paper" r="5"' if curve.is_paper else 'class="dot" r="3.5"'
    for point in line:
      cx, cy = point.split(',')
      shapes += f'<circle {dot} cx="{cx}" cy="{cy}"/>'
  data = ''.join(
    f' data-{name}="{" ".join(map(_format, values))}"'
    for name, values in zip(('x', 'y', 'spread'), curve[1:4], strict=True)
  )
  name = html.escape(curve.name + (', paper' if curve.is_paper else ''))
  return (
    f'<g class="curve s{i}" {_style(look)} data-{key}="{name}"{data}>'
    f'{shapes}</g>\n'
  )


def _format(value: float) -> str:
  """Formats an integer in full, any other number with four digits."""
  integer = float(value).is_integer()
  return f'{value if integer else float(f"{value:.4g}"):.10g}'


def _points(
  xs: Sequence[float], ys: Sequence[float], x: _Axis, y: _Axis
) -> list[str]:
  pairs = zip(xs, ys, strict=True)
  return [f'{x.at(a):.1f},{y.at(b):.1f}' for a, b in pairs]


def _style(look: theme.Look) -> str:
  """Returns the attribute that gives a curve its colour and dashes."""
  dashes = ' '.join(f'{_LINE_WIDTH * length:g}' for length in look.dashes)
  tint = f' --tint: {100 * look.tint:.3g}%;' if look.tint else ''
  return (
    f'style="--color: var(--{look.color});{tint} --dashes: {dashes or "none"};"'
  )


def _key(i: int, look: theme.Look) -> str:
  """Returns a sample of a curve's line."""
  return (
    f'<svg class="key s{i}" {_style(look)} viewBox="0 0 36 10" '
    'aria-hidden="true"><polyline class="line" points="1,5 35,5"/></svg>'
  )
