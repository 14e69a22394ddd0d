import html.parser
import re
import xml.etree.ElementTree as ET

import matplotlib.colors
import pytest

from safl_tf.reporting import charts, theme
from safl_tf.reporting import html as html_lib
from tests import browser

VOID = {'meta'}
STYLE = re.compile(r'(--\w+: (var\(--\w+\)|none|[\d. %]+); ?)+')
MARKUP = '<script>alert("1")</script> & \'two\''


def make_chart(curves=11, points=50, spread=True, **options):
  """Curves from 0 % to 100 %."""
  return charts.Chart(
    options.pop('title', 'Accuracy'),
    'round',
    'test accuracy (%)',
    [
      charts.Curve(
        f'curve_{i}',
        [t + 1 for t in range(points)],
        [100 * t / points * (1 - 0.05 * i) for t in range(points)],
        [5.0] * points if spread else [],
      )
      for i in range(curves)
    ],
    y_max=100.0,
  )


def make_page(chart, title='Title'):
  lines = [['name', 'value'], *([c.name, '1.0 ± 0.1'] for c in chart.curves)]
  keys = dict(enumerate(chart.looks()))
  parts = [
    html_lib.heading('Heading'),
    html_lib.paragraph('Text'),
    html_lib.table(lines, keys, best=0),
    html_lib.charts([html_lib.line_chart(chart)]),
    html_lib.settings('Settings', {'epsilon': 0.3, 'data_dir': None}),
  ]
  return html_lib.page(title, parts)


class Checker(html.parser.HTMLParser):
  """Parses a page and checks that elements are closed in order."""

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.text = [], [], []
    self.attributes = []
    self.feed(text)
    self.close()
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes.append(dict(attrs))
    assert len(dict(attrs)) == len(attrs), 'duplicate attribute'
    if tag not in VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.handle_starttag(tag, attrs)
    self.handle_endtag(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text.append(data)


def drawing(chart):
  """Parses the chart's SVG."""
  text = html_lib.line_chart(chart)
  match = re.search(r'<svg viewBox="0 0 480.*?</svg>', text, re.DOTALL)
  return ET.fromstring(match[0])


def points(element):
  pairs = element.get('points').split()
  return [tuple(map(float, pair.split(','))) for pair in pairs]


@pytest.mark.parametrize(
  'chart',
  [make_chart(), make_chart(points=1), make_chart(2, 0), make_chart(0)],
  ids=['usual', 'one point', 'no points', 'no curves'],
)
def test_page_is_well_formed_and_self_contained(chart):
  page = make_page(chart)
  read = Checker(page)
  assert page.startswith('<!DOCTYPE html>')
  assert read.text.count('-') == 1  # data_dir
  assert {'title', 'main', 'table', 'svg', 'figure', 'dl'} <= set(read.tags)
  assert not {'link', 'img', 'iframe', 'object', 'embed'} & set(read.tags)
  for attributes in read.attributes:
    assert not {'src', 'href', 'xlink:href'} & attributes.keys()
    assert STYLE.fullmatch(attributes.get('style') or '--color: var(--a);')
  assert not re.search(r'https?:|@import|url\(', page)


def test_arguments_are_escaped():
  chart = make_chart(2, title=MARKUP)
  chart = chart._replace(x_label=MARKUP, y_label=MARKUP)
  chart.curves[0] = chart.curves[0]._replace(name=MARKUP)
  parts = [
    html_lib.heading(MARKUP),
    html_lib.paragraph(MARKUP),
    html_lib.note(MARKUP),
    html_lib.table([[MARKUP, MARKUP], [MARKUP, MARKUP]]),
    html_lib.line_chart(chart),
    html_lib.settings(MARKUP, {MARKUP: MARKUP}),
  ]
  plain = Checker(make_page(make_chart(2)))
  read = Checker(html_lib.page(MARKUP, parts))
  assert read.tags.count('script') == plain.tags.count('script') == 1
  # Title, h1, h2, two p, four cells, caption, two labels, legend, settings.
  assert read.text.count(MARKUP) == 2 + 3 + 4 + 3 + 1 + 3
  assert MARKUP in [a.get('data-algorithm') for a in read.attributes]


def test_curve_coordinates():
  curve = charts.Curve('a', [0, 4, 10], [20, 60, 100], [0, 10, 10])
  tree = drawing(charts.Chart('t', 'x', 'y', [curve], y_max=100.0))
  (group,) = tree.iter('g')
  assert group.get('class').split()[0] == 'curve'
  assert group.get('data-algorithm') == 'a'
  assert group.get('data-y') == '20 60 100'
  assert group.get('data-spread') == '0 10 10'
  numbers = {e.text: e for e in tree.iter('text')}
  line = points(group.find('polyline'))
  for (x, y), x_text, y_text in zip(
    line, ('0', '4', '10'), ('20', '60', '100'), strict=True
  ):
    assert x == pytest.approx(float(numbers[x_text].get('x')), abs=0.1)
    assert y == pytest.approx(float(numbers[y_text].get('y')) - 4, abs=0.1)
  band = points(group.find('polygon'))
  assert [x for x, _ in band] == [x for x, _ in line + line[::-1]]
  high, low = band[:3], band[3:][::-1]
  assert high[0] == low[0] == line[0]
  assert line[1][1] - high[1][1] == pytest.approx(low[1][1] - line[1][1])
  assert high[2] == line[2]  # clipped at y_max
  assert low[2][1] > line[2][1]


@pytest.mark.parametrize(
  ('low', 'high', 'expected'),
  [
    (0, 100, ['0', '20', '40', '60', '80', '100']),
    (0.11, 0.29, ['0.10', '0.15', '0.20', '0.25', '0.30']),
    (10, 10, ['9.4', '9.6', '9.8', '10.0', '10.2', '10.4', '10.6']),
    (0, 2.31, ['0.0', '0.5', '1.0', '1.5', '2.0', '2.5']),
    (500, 12_400, ['0', '5,000', '10,000', '15,000']),
    (0, 4e30, ['0', '1e+30', '2e+30', '3e+30', '4e+30']),
  ],
)
def test_y_tick_labels(low, high, expected):
  curve = charts.Curve('a', [1, 2], [low, high])
  tree = drawing(charts.Chart('t', 'x', 'y', [curve]))
  left = [e for e in tree.iter('text') if e.get('class') == 'left']
  assert [e.text for e in left] == expected
  widest = max(len(text) for text in expected)
  assert all(float(e.get('x')) > 8 * widest for e in left)  # none is clipped


@pytest.mark.parametrize('rounds', [1, 2, 3, 50, 100, 1000])
def test_round_ticks_are_integers(rounds):
  tree = drawing(make_chart(1, rounds))
  below = [e for e in tree.iter('text') if e.get('class') != 'left']
  assert 1 <= len(below) <= 8
  for text in below:
    assert 1 <= int(text.text.replace(',', '')) <= rounds
    assert 0 < float(text.get('x')) <= 480 - 14


@pytest.mark.parametrize('count, marked', [(1, 1), (4, 4), (13, 0)])
def test_few_points_are_marked(count, marked):
  (group,) = drawing(make_chart(1, count)).iter('g')
  markers = [
    (float(dot.get('cx')), float(dot.get('cy'))) for dot in group.iter('circle')
  ]
  assert markers == points(group.find('polyline'))[:marked]


def test_curve_without_values():
  """It is not in the legend."""
  chart = make_chart(2)
  chart.curves[0] = charts.Curve('empty', [], [])
  assert 'empty' not in Checker(html_lib.line_chart(chart)).text
  empty, other = drawing(chart).iter('g')
  assert points(empty.find('polyline')) == []
  assert len(points(other.find('polyline'))) == 50


def luminance(color):
  linear = [
    v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
    for v in matplotlib.colors.to_rgb(color)
  ]
  weights = (0.2126, 0.7152, 0.0722)
  return sum(w * v for w, v in zip(weights, linear, strict=True))


def test_colors():
  """Colours contrast with light and dark pages."""
  css = html_lib.style_sheet()
  roots = re.findall(r':root \{(.*?)\}', css, re.DOTALL)
  for text in (roots[0] + roots[2], roots[1] + roots[3]):  # light, dark
    colors = dict(re.findall(r'--(\w+): (#\w{6});', text))
    page = luminance(colors['page'])
    assert set(theme.LIGHT) < set(colors)
    for name in theme.LIGHT:
      one, other = sorted((luminance(colors[name]), page))
      assert (other + 0.05) / (one + 0.05) > 2.5, name
  assert luminance('#FFFFFF') == pytest.approx(1)


@browser.needed
def test_in_a_browser(tmp_path):
  """Every curve has its own style, and the script runs."""
  probe = """<script>
    const lines = [...document.querySelectorAll('.curve .line')];
    const styles = lines.map(line => getComputedStyle(line))
      .map(style => style.stroke + style.strokeDasharray);
    const wide = lines.filter(line => line.getBoundingClientRect().width > 100);
    document.querySelector('.legend li').click();
    const off = document.querySelectorAll('.curve.off').length;
    const svg = document.querySelector('figure > svg');
    const box = lines[1].getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent('pointermove',
      {clientX: box.left, clientY: box.bottom}));
    const tip = document.querySelector('.tip').getBoundingClientRect();
    const result = [new Set(styles).size, wide.length, off,
      document.documentElement.scrollWidth <= innerWidth,
      tip.height > 9 && Math.abs(box.bottom - tip.bottom) < 30];
    document.body.setAttribute('data-result', result.join(' '));
  </script></body>"""
  path = tmp_path / 'page.html'
  path.write_text(make_page(make_chart()).replace('</body>', probe))
  read = Checker(browser.render(path, tmp_path / 'browser'))
  curves = [
    a['data-algorithm']
    for a in read.attributes
    if 'curve' in (a.get('class') or '').split()
  ]
  assert curves == [f'curve_{i}' for i in range(11)]
  (result,) = [a['data-result'] for a in read.attributes if 'data-result' in a]
  assert result == '11 11 1 true true'
  assert any(re.match(r'curve_\d: 0 ± 5 at 1$', text) for text in read.text)
