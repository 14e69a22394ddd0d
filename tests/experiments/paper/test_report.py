import csv
import re

import pytest

from safl_tf.experiments.paper import registry, report
from safl_tf.reporting import plots
from tests import browser
from tests.experiments.paper import make_runs as made


@pytest.fixture
def no_pictures(monkeypatch):
  monkeypatch.setattr(plots, 'chart', lambda chart, path: path.touch())


def table(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def lead_of_safl(lead):
  """Results of sensitivity in which SAFL is ahead by so much everywhere."""
  plan = made.complete('sensitivity').plan
  ends = {'fedavg': 0.5, 'safl': 0.5 + lead}
  several = [
    made.runs('sensitivity', made.rows([end] * 50), **part.cell)
    for part in plan.parts
    for end in [ends[part.cell['algorithm']]]
  ]
  return made.results('sensitivity', *several)


def test_files(tmp_path):
  told = report.write(tmp_path, made.complete('uploads', 'cpu', seeds=(0, 1)))
  names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob('*.*')}
  assert names == {
    'report.md',
    'report.html',
    'values.csv',
    *('figures/uploads.png', 'figures/uploads.csv'),
    *('figures/search.png', 'figures/search.csv'),
  }
  for path in tmp_path.rglob('*.png'):
    assert path.read_bytes().startswith(b'\x89PNG')
  text = (tmp_path / 'report.md').read_text()
  for piece in told.split('\n\n'):
    assert piece.strip() in text
  for name in ('uploads', 'search'):
    assert f'](figures/{name}.png)\n' in text


def test_what_is_behind_the_figures(tmp_path, no_pictures):
  results = made.complete('uploads', 'cpu', seeds=(0, 1))
  report.write(tmp_path, results)
  chart = registry.find(results).charts['search']
  rows = table(tmp_path / 'figures' / 'search.csv')
  assert list(rows[0]) == ['curve', chart.x_label, chart.y_label, 'spread']
  ours = [row for row in rows if row['curve'] == 'Extended SAFL']
  assert [float(row['ν']) for row in ours] == list(chart.curves[0].x)
  assert [float(row[chart.y_label]) for row in ours] == list(chart.curves[0].y)
  values = table(tmp_path / 'values.csv')
  assert len(values) == 18
  assert values[1]['what'] == 'FedAvg, round 60'
  assert (values[1]['measure'], values[1]['paper']) == ('accuracy', '0.5222')
  runs = results.get(algorithm='fedavg')
  assert float(values[1]['mean']) == runs.at(60).mean
  assert float(values[1]['sd']) == runs.at(60).sd
  assert (values[1]['runs'], values[1]['of_the_papers_size']) == ('2', 'True')


def test_words(tmp_path, no_pictures):
  report.write(tmp_path, made.complete('convergence_mnist', 'cpu'))
  text = (tmp_path / 'report.md').read_text()
  assert text.startswith(
    '# Test accuracy by round on MNIST\n\nFigure 5a of "Gradual Federated '
    'Learning with Simulated Annealing". LeNet-5 on n = 40, 80 and 120 clients'
  )
  # 7 parts; a round takes two seconds.
  rounds = 5 + 2 * (30 + 56 + 36)
  assert (
    f'Scale cpu. Seed 0. 7 of 7 runs are finished, {2 * rounds / 60:.0f} '
    in text
  )
  assert (
    '## What is smaller than in the paper\n\n'
    '- 30, 56 and 36 rounds for n = 40, 80 and 120, in place of 100.\n'
  ) in text
  assert 'cannot be compared with it' not in text  # only rounds are fewer
  assert 'There is one seed: small differences may be chance.' in text
  assert '### In the paper\'s words\n\n- "the proposed SAFL outperforms' in text
  assert 'All runs: `--dataset=mnist` `--model=lenet5` ' in text
  line = re.search(r'^\| safl_n120 .*$', text, re.MULTILINE).group()
  assert [cell.strip() for cell in line.split('|')[1:-1]] == [
    *('safl_n120', '120', '', '36', 'safl'),
  ]
  counts = re.search(
    r'Of (\d+) statements, (\d+) agree with the paper, (\d+) do not, and (\d+)',
    text,
  )
  total, *several = map(int, counts.groups())
  assert sum(several) == total == 9


def test_words_of_smaller_runs(tmp_path, no_pictures):
  missing = {'cifar10': 'dataset=cifar10: is <not> there'}
  results = made.complete('early_accuracy', 'smoke', seeds=(3, 5))
  kept = [r for r in results.runs if r.part.cell['dataset'] != 'cifar10']
  report.write(tmp_path, results._replace(runs=kept, missing=missing))
  text = (tmp_path / 'report.md').read_text()
  assert 'Seeds 3, 5. 18 of 24 runs are finished' in text
  assert 'CIFAR-10 is left out: dataset=cifar10: is <not> there.\n' in text
  assert '\n| CIFAR-10' not in text
  assert 'the bundled sample, which stands for every data set' in text
  assert 'cannot be compared with it; of these, only who is ahead of ' in text
  assert 'There is one seed' not in text
  assert 'No number can be compared with the paper. Of ' in text
  page = (tmp_path / 'report.html').read_text()
  assert 'is &lt;not&gt; there.' in page
  assert '<ul class="bullets">\n<li>This only shows that everything' in page


def test_many_seeds(tmp_path, no_pictures):
  results = made.complete('fraction', 'smoke')._replace(seeds=tuple(range(100)))
  report.write(tmp_path, results)
  text = (tmp_path / 'report.md').read_text()
  assert 'Seeds 0 to 99. 6 of 600 runs are finished' in text


def test_numbers_are_counted(tmp_path, no_pictures):
  told = report.write(tmp_path, made.complete('batch_size'))
  near = [c for c in registry.find(made.complete('batch_size')).compared]
  count = sum(c.is_near for c in near)
  assert (
    f'\n{count} of 16 numbers are as in the paper. Of 12 statements' in told
  )


def test_not_in_the_paper(tmp_path, no_pictures):
  told = report.write(tmp_path, lead_of_safl(0.2))
  assert told.endswith('\nThe paper says nothing of this.')
  assert not (tmp_path / 'values.csv').exists()


@pytest.mark.parametrize('lead, lowest', [(-0.3, True), (0.3, False)])
def test_negative_leads_are_drawn(tmp_path, lead, lowest):
  """The only chart in which values may be negative."""
  report.write(tmp_path, lead_of_safl(lead))
  page = (tmp_path / 'report.html').read_text()
  figure = page.split('<figcaption>Lead against n, rate 0.1</figcaption>')[1]
  ticks = re.findall(
    '<text class="left"[^>]*>([^<]+)', figure.split('</svg>')[0]
  )
  assert any(tick.startswith('-') for tick in ticks) is lowest
  chart = registry.find(lead_of_safl(lead)).charts['lead_by_n']
  low, high = plots.chart(chart, tmp_path / 'a.png').axes[0].get_ylim()
  assert (low < 100 * lead) and (high > 64)


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
  curves = [plots.Curve(name, [1, 2], [3, 4]) for name in names]
  figure = plots.chart(plots.Chart('t', 'x', 'y', curves), tmp_path / 'a.png')
  (legend,) = figure.legends
  assert legend._ncols == columns
  if columns > 1:
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize('points, marker', [(4, 'o'), (13, '')])
def test_few_points_have_dots(tmp_path, points, marker):
  curve = plots.Curve('c', range(points), range(points))
  figure = plots.chart(plots.Chart('t', 'x', 'y', [curve]), tmp_path / 'a.png')
  assert figure.axes[0].lines[0].get_marker() == marker


@browser.needed
def test_page_in_a_browser(tmp_path, no_pictures):
  report.write(tmp_path, made.complete('techniques', 'cpu'))
  (tmp_path / 'profile').mkdir()
  dom = browser.render(tmp_path / 'report.html', tmp_path / 'profile')
  assert len(re.findall('<g class="curve [^>]*data-curve="', dom)) == 8
  assert 'role="button"' in dom  # the script has run
