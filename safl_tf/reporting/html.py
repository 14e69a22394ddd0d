"""Web pages that are one file: text, tables and curves.

A page needs no network and no other file. It is complete without JavaScript;
with it, a curve's values are shown under the pointer, and a click on a name in
a legend hides or shows its curves. Whatever is passed in is text and escaped,
but for parts that functions here have made.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.reporting import html_style, plots

_WIDTH, _HEIGHT = 480, 300
_RIGHT, _TOP, _BOTTOM = 14, 12, 30  # margins; the left one fits its numbers
_DIGIT = 9  # as wide as a digit in large letters, for narrow screens


def page(title: str, parts: Iterable[str]) -> str:
  """A whole page.

  Args:
    title: its heading.
    parts: what functions below gave.
  """
  name = html.escape(title)
  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=client-width, initial-scale=1">\n'
    f'<title>{name}</title>\n<style>\n{html_style.css()}</style>\n</head>\n'
    f'<body>\n<main>\n<h1>{name}</h1>\n{"".join(parts)}</main>\n'
    f'<script>\n{html_style.SCRIPT}</script>\n</body>\n</html>\n'
  )


def heading(text: str) -> str:
  """The title of a part."""
  return f'<h2>{html.escape(text)}</h2>\n'


def paragraph(text: str) -> str:
  """Plain text."""
  return f'<p>{html.escape(text)}</p>\n'


def note(text: str) -> str:
  """Plain text that explains what stands above it."""
  return f'<p class="note">{html.escape(text)}</p>\n'


def bullets(items: Iterable[str]) -> str:
  """Plain texts, one below the other."""
  inner = ''.join(f'<li>{html.escape(item)}</li>\n' for item in items)
  return f'<ul class="bullets">\n{inner}</ul>\n'


def table(lines: Sequence[Sequence[str]], keys: bool = False) -> str:
  """A table that can be scrolled sideways where it is too wide.

  Args:
    lines: the headings, then the cells; the first of a line is its name.
    keys: whether the names are those of curves, in the order of a chart.
  """
  head = ''.join(f'<th scope="col">{html.escape(c)}</th>' for c in lines[0])
  body = []
  for i, (name, *cells) in enumerate(lines[1:]):
    key = _key(i) if keys else ''
    others = ''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)
    first = f'<th scope="row">{key}{html.escape(name)}</th>'
    body.append(f'<tr>{first}{others}</tr>\n')
  return (
    f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
    f'<tbody>\n{"".join(body)}</tbody>\n</table></div>\n'
  )


def settings(title: str, values: Mapping[str, Any]) -> str:
  """Names and values, folded away under a title."""
  told = {k: '-' if v is None else str(v) for k, v in values.items()}
  rows = ''.join(
    f'<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>'
    for name, value in told.items()
  )
  return (
    f'<details><summary>{html.escape(title)}</summary>\n'
    f'<dl>{rows}</dl>\n</details>\n'
  )


def charts(figures: Iterable[str]) -> str:
  """Charts side by side where there is room, else below each other."""
  return f'<div class="charts">\n{"".join(figures)}</div>\n'


def line_chart(chart: plots.Chart, key: str = 'algorithm') -> str:
  """Curves with bands, axes and a legend.

  Every curve is a <g class="curve" data-KEY="its name">, also one without
  points.

  Args:
    chart: what to draw.
    key: what the names of the curves are names of.
  """
  title, x, y = map(html.escape, (chart.title, chart.x_label, chart.y_label))
  legend = ''.join(
    f'<li class="{_look(i)}">{_key(i)}{html.escape(curve.name)}'
    f'{"" if curve.x else " (no values)"}</li>'
    for i, curve in enumerate(chart.curves)
  )
  return (
    f'<figure class="chart"><figcaption>{title}</figcaption>\n'
    f'<div class="y">{y}</div>\n{_svg(chart, key)}<div class="x">{x}</div>\n'
    f'<ul class="legend">{legend}</ul>\n'
    '<div class="tip" hidden></div></figure>\n'
  )


class _Axis(NamedTuple):
  """A range of values, and the pixels it is drawn on."""

  low: float
  high: float
  step: float
  start: float
  end: float

  def at(self, value: float) -> float:
    """The pixel of a value, which is moved into the range."""
    share = (value - self.low) / (self.high - self.low)
    return self.start + min(max(share, 0), 1) * (self.end - self.start)

  def ticks(self) -> list[tuple[float, str]]:
    """Pixels and texts of the round numbers in the range."""
    digits = max(0, -math.floor(math.log10(self.step)))
    form = f',.{digits}f' if 1e-4 < self.step < 1e6 else '.3g'
    first = math.ceil(self.low / self.step - 1e-9)
    last = math.floor(self.high / self.step + 1e-9)
    values = [i * self.step for i in range(first, last + 1)]
    return [(self.at(v), format(v, form)) for v in values]


def _axes(chart: plots.Chart) -> tuple[_Axis, _Axis]:
  """The axes that all of a chart fits on; y's ends are round numbers."""
  xs = [x for curve in chart.curves for x in curve.x] or [0.0, 1.0]
  bands = [
    end for curve in chart.curves for band in _band(curve) for end in band
  ]
  ys = bands or [0.0, 1.0]
  left, right = _widened(min(xs), max(xs))
  least = -math.inf if chart.signed else 0
  most = math.inf if chart.most is None else chart.most
  low, high = _widened(max(min(ys), least), min(max(ys), most))
  step = _step(high - low, 5)
  low = step * math.floor(low / step + 1e-9)
  high = step * math.ceil(high / step - 1e-9)
  y = _Axis(low, high, step, _HEIGHT - _BOTTOM, _TOP)
  margin = 10 + _DIGIT * max(len(text) for _, text in y.ticks())
  whole = all(float(x).is_integer() for x in xs)
  step = max(_step(right - left, 6), 1 if whole else 0)
  return _Axis(left, right, step, margin, _WIDTH - _RIGHT), y


def _widened(low: float, high: float) -> tuple[float, float]:
  """A range that is not empty."""
  return (low, high) if low < high else (low - 0.5, high + 0.5)


def _step(length: float, most: int) -> float:
  """1, 2 or 5 times a power of ten, for about `most` steps at most."""
  power = 10.0 ** math.floor(math.log10(length / most))
  return next(
    k * power for k in (1, 2, 5, 10) if length <= 1.01 * k * power * most
  )


def _band(curve: plots.Curve) -> list[tuple[float, float]]:
  """The lower and the upper end at each point."""
  spread = curve.spread or [0.0] * len(curve.y)
  return [(y - d, y + d) for y, d in zip(curve.y, spread, strict=True)]


def _svg(chart: plots.Chart, key: str) -> str:
  """The drawing: grid and numbers, then the curves."""
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
  curves = [_group(i, c, key, x, y) for i, c in enumerate(chart.curves)]
  label = html.escape(f'{chart.title}: {chart.y_label} by {chart.x_label}')
  return (
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
    f'aria-label="{label}" data-key="{key}">\n'
    f'{"".join(grid)}\n{"".join(curves)}</svg>\n'
  )


def _group(i: int, curve: plots.Curve, key: str, x: _Axis, y: _Axis) -> str:
  """A curve and its band; the data are there to be read by a script."""
  line = _points(zip(curve.x, curve.y, strict=True), x, y)
  parts = []
  if curve.spread:
    lows, highs = zip(*_band(curve), strict=True)
    around = [*zip(curve.x, highs, strict=True)]
    around += reversed([*zip(curve.x, lows, strict=True)])
    parts.append(f'<polygon class="band" points="{_points(around, x, y)}"/>')
  parts.append(f'<polyline class="line" points="{line}"/>')
  if len(curve.x) <= plots.DOTTED:
    for point in line.split():
      cx, cy = point.split(',')
      parts.append(f'<circle class="dot" cx="{cx}" cy="{cy}" r="3.5"/>')
  data = ''.join(
    f' data-{name}="{" ".join(map(_short, values))}"'
    for name, values in zip(('x', 'y', 'spread'), curve[1:], strict=True)
  )
  return (
    f'<g class="curve {_look(i)}" data-{key}="{html.escape(curve.name)}"{data}>'
    f'{"".join(parts)}</g>\n'
  )


def _short(value: float) -> str:
  """A whole number, or one of four digits."""
  whole = float(value).is_integer()
  return f'{value if whole else float(f"{value:.4g}"):.10g}'


def _points(pairs: Iterable[tuple[float, float]], x: _Axis, y: _Axis) -> str:
  return ' '.join(f'{x.at(a):.1f},{y.at(b):.1f}' for a, b in pairs)


def _look(i: int) -> str:
  """The class of all that belongs to the i-th curve."""
  return f's{i % html_style.LOOKS}'


def _key(i: int) -> str:
  """A short piece of a curve's line."""
  return (
    f'<svg class="key {_look(i)}" viewBox="0 0 36 10" aria-hidden="true">'
    '<polyline class="line" points="1,5 35,5"/></svg>'
  )
