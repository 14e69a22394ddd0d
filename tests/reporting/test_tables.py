import csv
import io
import math
import subprocess
import sys

import pytest

from safl_tf.reporting import charts as charts_lib
from safl_tf.reporting import tables

AT = (1, 3, 5)


def make_run(algorithm, seed, accuracies, losses=None, megabytes=2):
  """A run whose round t uploads `megabytes`, half of it down, in t seconds."""
  losses = losses or [1.0] * len(accuracies)
  return tables.Run(
    {'algorithm': algorithm},
    seed,
    [
      {
        'round': t,
        'test_accuracy': accuracy,
        'test_loss': loss,
        'uploaded': 3,
        'total_bytes_up': megabytes * 1_000_000 * t,
        'total_bytes_down': megabytes * 500_000 * t,
        'seconds': float(t),
      }
      for t, (accuracy, loss) in enumerate(
        zip(accuracies, losses, strict=True), start=1
      )
    ],
  )


RUNS = [
  make_run('fedavg', 0, [0.1, 0.2, 0.3, 0.4, 0.3]),
  make_run('fedavg', 1, [0.1, 0.3, 0.5, 0.7, 0.6], megabytes=4),
  make_run('safl', 0, [0.2, 0.5, 0.6, 0.8, 0.7]),
  make_run('safl', 1, [0.4, 0.6, 0.8, 0.8, 0.9]),
]


def by_algorithm(runs, target=0.6, at_rounds=AT):
  rows = tables.run_rows(runs, at_rounds, target)
  return {row['algorithm']: row for row in tables.setting_rows(rows)}


def test_run_row():
  (row,) = tables.run_rows(RUNS[1:2], AT, 0.6)
  assert row == {
    'algorithm': 'fedavg',
    'seed': 1,
    'target_accuracy': 0.6,
    'rounds': 5,
    'accuracy_round_1': 0.1,
    'accuracy_round_3': 0.5,
    'accuracy_round_5': 0.6,
    'final_accuracy': 0.6,
    'best_accuracy': 0.7,
    'rounds_to_target': 4,
    'mb_up_to_target': 16.0,
    'uploads': 15,
    'mb_up': 20.0,
    'mb_down': 10.0,
    'seconds': 15.0,
  }


def test_rounds_without_evaluation():
  run = make_run('safl', 0, [None, 0.5, None, 0.9, None])
  (row,) = tables.run_rows([run], (1, 2, 3, 5, 6), 0.9)
  assert row['accuracy_round_1'] is None
  assert row['accuracy_round_2'] == row['accuracy_round_3'] == 0.5
  assert row['accuracy_round_5'] == row['final_accuracy'] == 0.9
  assert row['accuracy_round_6'] is None  # the run ended before
  assert row['rounds_to_target'] == 4


def test_no_accuracy():
  runs = [make_run('safl', seed, [None, None]) for seed in (0, 1)]
  row = by_algorithm(runs)['safl']
  assert not [name for name in row if 'accuracy' in name or 'target' in name]
  assert row['final_loss_mean'] == 1
  assert row['mb_up_mean'] == 4
  charts = charts_lib.comparison(runs)
  assert list(charts) == ['loss']
  runs = [make_run('safl', 0, [None], [None])]
  assert by_algorithm(runs)['safl']['final_loss_mean'] is None
  assert not charts_lib.comparison(runs)['loss'].curves[0].x


def test_mean_and_sample_standard_deviation():
  row = by_algorithm(RUNS)['safl']
  assert (row['seeds'], row['reached_target']) == (2, 2)
  assert row['final_accuracy_mean'] == pytest.approx(0.8)
  assert row['final_accuracy_sd'] == pytest.approx(0.2 / math.sqrt(2))
  assert row['accuracy_round_3_mean'] == pytest.approx(0.7)
  assert row['rounds_to_target_mean'] == 2.5
  assert row['rounds_to_target_sd'] == pytest.approx(math.sqrt(0.5))
  three = [make_run('safl', s, [a]) for s, a in enumerate((0.1, 0.2, 0.6))]
  # Squared distances from the mean 0.3 sum to 0.14; divided by n - 1 = 2.
  assert by_algorithm(three)['safl']['final_accuracy_sd'] == pytest.approx(
    math.sqrt(0.07)
  )


def test_target_reached_by_some_runs():
  row = by_algorithm(RUNS)['fedavg']
  assert (row['seeds'], row['reached_target']) == (2, 1)
  assert (row['rounds_to_target_mean'], row['rounds_to_target_sd']) == (4, None)
  assert row['mb_up_to_target_mean'] == 16
  row = by_algorithm(RUNS, target=0.75)['fedavg']
  assert (row['reached_target'], row['rounds_to_target_mean']) == (0, None)


def test_mean_needs_a_value_of_every_run():
  runs = [make_run('safl', 0, [0.1, 0.2]), make_run('safl', 1, [0.3])]
  row = by_algorithm(runs, at_rounds=(1, 2))['safl']
  assert row['accuracy_round_1_mean'] == pytest.approx(0.2)
  assert row['accuracy_round_2_mean'] is row['accuracy_round_2_sd'] is None
  assert row['rounds_mean'] == 1.5
  chart = charts_lib.comparison(runs)['accuracy']
  assert len(chart.curves[0].x) == 1


def test_one_seed():
  row = by_algorithm(RUNS[2:3])['safl']
  assert row['final_accuracy_mean'] == 0.7
  assert {v for name, v in row.items() if name.endswith('_sd')} == {None}
  assert charts_lib.comparison(RUNS[2:3])['loss'].curves[0].spread == []


@pytest.mark.parametrize('make', [lambda rows: rows, tables.setting_rows])
def test_csv_round_trip(make):
  rows = make(tables.run_rows(RUNS, AT, 0.75))
  read = list(csv.DictReader(io.StringIO(tables.to_csv(rows))))
  assert len(read) == len(rows)
  for cells, row in zip(read, rows, strict=True):
    assert list(cells) == list(row)
    for name, value in row.items():
      if name == 'algorithm':
        assert cells[name] == value
      else:
        assert (float(cells[name]) if cells[name] else None) == value


def test_table():
  rows = tables.run_rows(RUNS, (3,), 0.6)
  headings, *lines = tables.table(tables.setting_rows(rows))
  fedavg, safl = (dict(zip(headings, line, strict=True)) for line in lines)
  assert safl == {
    'algorithm': 'SAFL',
    'seeds': '2',
    'round 3 (%)': '70.0 ± 14.1',
    'final (%)': '80.0 ± 14.1',
    'best (%)': '85.0 ± 7.1',
    'reached 60 %': '2 of 2',
    'rounds until 60 %': '2.5 ± 0.7',
    'MB up until 60 %': '5.0 ± 1.4',
    'uploads': '15 ± 0',
    'MB up': '10.0 ± 0.0',
    'MB down': '5.0 ± 0.0',
    'seconds': '15.0 ± 0.0',
  }
  assert fedavg['reached 60 %'] == '1 of 2'
  assert fedavg['rounds until 60 %'] == '4'


def test_table_of_one_seed():
  rows = tables.run_rows(RUNS[:1], (3, 6), 0.6)
  headings, line = tables.table(tables.setting_rows(rows))
  cells = dict(zip(headings, line, strict=True))
  assert cells['final (%)'] == '30.0'
  assert cells['round 6 (%)'] == '-'
  assert (
    cells['rounds until 60 %'] == cells['MB up until 60 %'] == 'not reached'
  )
  assert cells['uploads'] == '15'


def test_markdown():
  lines = [['name', 'number'], ['a|b', '1.0'], ['longer', '10.0 ± 1.0']]
  assert tables.to_markdown(lines) == (
    '| name   |     number |\n'
    '| ------ | ---------: |\n'
    '| a\\|b   |        1.0 |\n'
    '| longer | 10.0 ± 1.0 |\n'
  )
  assert tables.to_markdown(lines, left=2) == (
    '| name   | number     |\n'
    '| ------ | ---------- |\n'
    '| a\\|b   | 1.0        |\n'
    '| longer | 10.0 ± 1.0 |\n'
  )


@pytest.mark.parametrize(
  'mean, sd, expected',
  [(None, None, '-'), (1234.56, None, '1,234.6'), (0.5, 0.25, '0.5 ± 0.2')],
)
def test_format_mean_sd(mean, sd, expected):
  assert tables.format_mean_sd(mean, sd) == expected


def test_charts():
  charts = charts_lib.comparison(RUNS)
  assert list(charts) == ['accuracy', 'loss', 'traffic']
  for chart in charts.values():
    assert [curve.name for curve in chart.curves] == ['FedAvg', 'SAFL']
  fedavg = charts['accuracy'].curves[0]
  assert fedavg.x == [1, 2, 3, 4, 5]
  assert fedavg.y == pytest.approx([10, 25, 40, 55, 45])
  halved = [d / math.sqrt(2) for d in (0, 10, 20, 30, 30)]
  assert fedavg.spread == pytest.approx(halved)
  by_traffic = charts['traffic'].curves[0]
  assert by_traffic.x == pytest.approx([3, 6, 9, 12, 15])
  assert by_traffic.y == fedavg.y


def test_nonfinite_losses_are_not_drawn():
  losses = [2.0, math.inf, math.nan, 1.0, None]
  run = make_run('safl', 0, [0.1] * 5, losses)
  curve = charts_lib.comparison([run])['loss'].curves[0]
  assert (curve.x, curve.y) == ([1, 4], [2, 1])


def test_chart_figure(tmp_path):
  path = tmp_path / 'a.png'
  chart = charts_lib.comparison(RUNS)['traffic']
  figure = charts_lib.chart(chart, path)
  assert path.read_bytes().startswith(b'\x89PNG')
  (axes,) = figure.axes
  assert axes.get_xlabel() == 'uploaded in total (MB)'
  assert axes.get_ylim()[1] <= 101
  for line, band, curve in zip(
    axes.lines, axes.collections, chart.curves, strict=True
  ):
    assert line.get_label() == curve.name
    assert line.get_xdata().tolist() == curve.x
    assert line.get_ydata().tolist() == curve.y
    ends = band.get_paths()[0].vertices[:, 1]
    y_max = max(y + d for y, d in zip(curve.y, curve.spread, strict=True))
    assert ends.max() == pytest.approx(y_max)
  # Their ends are apart: names there would hide the curves that go on.
  (legend,) = figure.legends
  assert {t.get_text() for t in legend.get_texts()} >= {'FedAvg', 'SAFL'}


def test_few_curves_with_one_end_are_named_there(tmp_path):
  runs = [make_run(name, 0, [0.5, 0.6]) for name in ('fedavg', 'safl')]
  chart = charts_lib.comparison(runs)['accuracy']
  figure = charts_lib.chart(chart, tmp_path / 'a.png')
  assert figure.legends == []
  texts = {text.get_text() for text in figure.axes[0].texts}
  assert texts == {'FedAvg', 'SAFL'}


def test_chart_of_many_curves_and_of_none(tmp_path):
  runs = [make_run(f'algorithm_{i}', 0, [0.5]) for i in range(28)]
  runs.append(make_run('empty', 0, [None]))
  figure = charts_lib.chart(
    charts_lib.comparison(runs)['accuracy'], tmp_path / 'a.png'
  )
  lines = figure.axes[0].lines
  styles = {f'{line.get_color()} {line._dash_pattern}' for line in lines[:28]}
  assert len(styles) == len(lines) == 28
  (legend,) = figure.legends
  assert 'empty' not in [text.get_text() for text in legend.get_texts()]
  assert lines[0].get_marker() == 'o'  # a single point is visible


@pytest.mark.parametrize(
  ('rounds', 'expected'),
  [(100, [25, 50, 75]), (50, [12, 25, 37]), (2, [1]), (1, [1])],
)
def test_quarters(rounds, expected):
  assert tables.quarters(rounds) == expected


def test_needs_no_tensorflow():
  script = (
    'import sys; from safl_tf.reporting import html, names, tables; '
    'print([m for m in ("tensorflow", "keras", "matplotlib", "pandas") '
    'if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == '[]'
