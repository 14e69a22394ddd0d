import pytest

from safl_tf.reporting import charts


@pytest.mark.parametrize(
  'names, columns',
  [
    (['a', 'b'], 2),
    (['a'] * 9, 4),
    (['twelve chars'] * 5, 4),
    (['Extended SAFL'] * 4, 3),
    (['Extended SAFL, paper'] * 6, 2),
    (['x' * 40, 'y'], 1),
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
