"""Comparisons by any settings: tables, heat maps and files."""

import itertools
import re

import pytest

from safl_tf.reporting import charts, comparison, html, tables
from tests.reporting import test_tables

GRID = list(itertools.product((0.1, 0.5), (10.0, 80.0)))


def make_runs(losses=False):
  """A run per point and seed; the best one has epsilon 0.5, temperature 10."""
  runs = []
  for (epsilon, temperature), seed in itertools.product(GRID, (0, 1)):
    value = epsilon - temperature / 1000 + seed / 100
    run = test_tables.make_run('', seed, [value / 2, value], [1 - value] * 2)
    if losses:
      run = test_tables.make_run('', seed, [None] * 2, [1 - value] * 2)
    setting = {'epsilon': epsilon, 'temperature': temperature}
    runs.append(run._replace(setting=setting))
  return runs


def rows(runs):
  return tables.setting_rows(tables.run_rows(runs, (1,), 0.4))


@pytest.fixture
def no_pictures(monkeypatch):
  for name in ('chart', 'heat_map'):
    monkeypatch.setattr(
      charts, name, lambda chart, paths: [path.touch() for path in paths]
    )


def test_rows_by_setting():
  averaged = rows(make_runs())
  assert [(r['epsilon'], r['temperature']) for r in averaged] == GRID
  assert {row['seeds'] for row in averaged} == {2}
  assert tables.best_row(averaged) == 2
  headings, *lines = tables.table(averaged)
  assert headings[:3] == ['ε', 'L', 'seeds']
  assert lines[2][:3] == ['0.5', '10', '2']


def test_lower_losses_are_better():
  averaged = rows(make_runs(losses=True))
  assert tables.best_row(averaged) == 2
  assert not [n for n in averaged[0] if 'target' in n or 'accuracy' in n]
  headings, line, *_ = tables.table(averaged)
  cells = dict(zip(headings, line, strict=True))
  assert cells['final loss'] == '0.9050 ± 0.0071'
  assert 'lower is better' in tables.notes(make_runs(losses=True))
  heat = comparison.heat_map(averaged)
  assert (heat.title, heat.best) == ('Final test loss', (1, 0))
  shares = heat.shares()
  assert shares[1][0] == 1 and shares[0][1] == 0


def test_heat_map():
  heat = comparison.heat_map(rows(make_runs()))
  assert (heat.y_label, heat.y) == ('ε', ['0.1', '0.5'])
  assert (heat.x_label, heat.x) == ('L', ['10', '80'])
  assert heat.best == (1, 0)
  assert heat.texts[1][0] == '49.5 ± 0.7'
  page = html.heat_map(heat)
  assert page.count('class="best"') == page.count('★') == 1
  incomplete = comparison.heat_map(rows(make_runs()[:-2]))
  assert incomplete.texts[1][1] == '' and incomplete.shares()[1][1] is None


def test_heat_map_needs_two_parameters():
  runs = make_runs()
  assert comparison.heat_map(rows(runs[:4])) is None  # one epsilon
  more = [
    run._replace(setting={**run.setting, 'nu': i}) for i, run in enumerate(runs)
  ]
  assert comparison.heat_map(rows(more)) is None
  unused = [
    run._replace(setting={**run.setting, 'epsilon': None}) for run in runs[:2]
  ]
  assert comparison.heat_map(rows([*unused, *runs[2:]])) is None


def test_files(tmp_path):
  content = comparison.Comparison(
    make_runs(), ['A sentence.'], shared={'nu': 0.5}, formats=('svg', 'pdf')
  )
  table = comparison.write(tmp_path, 'sweep', content)
  names = {path.name for path in tmp_path.iterdir()}
  texts = {f'sweep.{suffix}' for suffix in ('csv', 'html', 'md', 'tex')}
  assert names == {*texts, 'runs.csv', 'plots'}
  figures = {path.name for path in (tmp_path / 'plots').iterdir()}
  stems = ('accuracy', 'loss', 'heat_map')  # all upload the same
  assert figures == {f'{s}.{f}' for s in stems for f in ('svg', 'pdf')}
  text = (tmp_path / 'sweep.md').read_text()
  assert 'A sentence.' in text and table in text
  page = (tmp_path / 'sweep.html').read_text()
  assert page.count('<table>') == 2
  label = 'data-setting="ε = 0.5, L = 10"'
  assert page.count(label) == 2
  assert '<dt>nu</dt><dd>0.5</dd>' in page
  files = re.findall('<a href="([^"]+)" download>', page)
  assert {f'plots/{name}' for name in figures} < set(files)
  assert all((tmp_path / file).is_file() for file in files)


@pytest.mark.slow
def test_figures_of_a_comparison_are_reproducible(tmp_path):
  contents = []
  for name in 'ab':
    (tmp_path / name).mkdir()
    content = comparison.Comparison(make_runs(), formats=('svg', 'pdf', 'png'))
    comparison.write(tmp_path / name, 'sweep', content)
    plots = tmp_path / name / 'plots'
    contents.append({p.name: p.read_bytes() for p in plots.iterdir()})
  assert contents[0] == contents[1]
  assert b'CreationDate' not in contents[0]['loss.pdf']
  assert b'dc:date' not in contents[0]['loss.svg']


def test_curves_of_the_best_settings(tmp_path, no_pictures):
  runs = [test_tables.make_run(f'a{i:02}', 0, [i / 100]) for i in range(20)]
  comparison.write(tmp_path, 'many', comparison.Comparison(runs))
  page = (tmp_path / 'many.html').read_text()
  curves = re.findall('class="curve [^>]* data-setting="(.*?)"', page)
  assert curves == [f'a{i:02}' for i in range(6, 20)] * 2
  assert 'those of the 14 best settings' in page
  assert len(re.findall('<tr><th scope="row"><svg class="key s0', page)) == 1
  assert '<th scope="row">a05</th>' in page


def test_latex():
  lines = [['a_b & c', 'x %'], ['50 % #1', '1.0 ± 0.5'], ['{~^\\}', '$']]
  assert tables.to_latex(lines) == (
    '\\begin{tabular}{lr}\n\\toprule\n'
    'a\\_b \\& c & x \\% \\\\\n\\midrule\n'
    '50 \\% \\#1 & 1.0 $\\pm$ 0.5 \\\\\n'
    '\\{\\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\} & \\$ \\\\\n'
    '\\bottomrule\n\\end{tabular}\n'
  )
