import itertools

import pytest

from safl_tf.reporting import charts, theme


@pytest.mark.parametrize(
  'names, columns',
  [
    (['a'] * 9, 4),
    (['twelve chars'] * 5, 4),
    (['Extended SAFL'] * 5, 3),
    (['Extended SAFL, paper'] * 6, 2),
    (['x' * 40, *'yzuv'], 1),
  ],
)
def test_legends_fit(tmp_path, names, columns):
  curves = [charts.Curve(name, [1, 2], [3, 4]) for name in names]
  figure = charts.chart(charts.Chart('t', 'x', 'y', curves), tmp_path / 'a.png')
  (legend,) = figure.legends
  assert legend._ncols == columns
  if columns > 1:
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize('points, marker', [(4, 'o'), (13, '')])
def test_few_points_have_dots(tmp_path, points, marker):
  curve = charts.Curve('c', range(points), range(points))
  figure = charts.chart(
    charts.Chart('t', 'x', 'y', [curve]), tmp_path / 'a.png'
  )
  assert figure.axes[0].lines[0].get_marker() == marker


@pytest.mark.parametrize('signed', [True, False])
def test_only_signed_charts_have_negative_values(tmp_path, signed):
  curve = charts.Curve('c', [1, 2], [-30, 64])
  chart = charts.Chart('t', 'x', 'y', [curve], signed=signed)
  low, high = charts.chart(chart, tmp_path / 'a.png').axes[0].get_ylim()
  assert bool(low < -30) is signed and high > 64


def chart_of(*curves, **options):
  return charts.Chart('t', 'x', 'y', curves, **options)


def curve(name, algorithm=None, ends=(3, 4), **options):
  return charts.Curve(name, [1, 2], ends, algorithm=algorithm, **options)


def test_few_curves_are_named_at_their_ends(tmp_path):
  """The names keep a distance from each other."""
  several = [curve(f'curve {i}', ends=(0, 50 + i / 10)) for i in range(4)]
  figure = charts.chart(chart_of(*several), tmp_path / 'a.png')
  assert figure.legends == []
  boxes = [text.get_window_extent() for text in figure.axes[0].texts]
  assert len(boxes) == 4
  for low, high in itertools.pairwise(boxes):
    assert low.y1 <= high.y0 + 1 and high.x1 <= figure.bbox.x1


def test_an_algorithm_has_its_colour_in_every_chart(tmp_path):
  paths = [tmp_path / 'a.png', tmp_path / 'b.png']
  alone = charts.chart(chart_of(curve('SAFL', 'safl')), paths[0])
  among = charts.chart(
    chart_of(curve('mine'), curve('FedAvg', 'fedavg'), curve('SAFL', 'safl')),
    paths[1],
  )
  mine, fedavg, safl = (line.get_color() for line in among.axes[0].lines)
  (line,) = alone.axes[0].lines
  assert line.get_color() == safl == theme.LIGHT['safl'].lower()
  assert len({mine, fedavg, safl}) == 3


def test_the_papers_values_are_open_markers_of_the_same_colour(tmp_path):
  paper = curve('SAFL', 'safl', is_paper=True)
  figure = charts.chart(
    chart_of(curve('SAFL', 'safl'), paper, subtitle='n = 3'),
    tmp_path / 'a.png',
  )
  (axes,) = figure.axes
  ours, theirs = axes.lines
  assert theirs.get_color() == ours.get_color()
  assert theirs.get_markerfacecolor() == theirs.get_linestyle().lower()
  assert axes.get_title('left') == 'n = 3\nopen circles: the paper'
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == ['SAFL']


def test_levels_are_named(tmp_path):
  chart = chart_of(curve('a'), levels={'guessing': 3.2})
  (axes,) = charts.chart(chart, tmp_path / 'a.png').axes
  assert 'guessing, 3.2' in [text.get_text() for text in axes.texts]
  assert [3.2, 3.2] in [list(line.get_ydata()) for line in axes.lines]
