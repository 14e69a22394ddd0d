import csv
import html.parser
import re

import pytest

from safl_tf.experiments.paper import experiments, figures, report
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import charts
from tests import browser
from tests.experiments.paper import make_runs as made


@pytest.fixture
def no_pictures(monkeypatch):
  monkeypatch.setattr(
    charts, 'chart', lambda chart, paths: [path.touch() for path in paths]
  )


def read(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def written(folder, result):
  """The report of some results as Markdown."""
  report.write(folder, result)
  return (folder / 'report.md').read_text()


def lead_of_safl(lead):
  """Results of sensitivity with the same lead of SAFL everywhere."""
  ends = {'fedavg': 0.5, 'safl': 0.5 + lead}
  several = [
    made.flat('sensitivity', ends[part.cell['algorithm']], 50, **part.cell)
    for part in made.complete('sensitivity').plan.parts
  ]
  return made.results('sensitivity', *several)


class Tags(html.parser.HTMLParser):
  """Checks that all tags of a page are closed, in order."""

  def __init__(self):
    super().__init__()
    self.open, self.all = [], []

  def handle_starttag(self, tag, attrs):
    self.all.append(tag)
    if tag not in ('meta', 'br'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def test_files(tmp_path):
  text = report.write(tmp_path, made.complete('uploads', 'cpu', seeds=(0, 1)))
  names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob('*.*')}
  assert names == {
    *('report.md', 'report.html', 'values.csv', 'claims.csv'),
    *('figures/uploads.png', 'figures/uploads.csv'),
    *('figures/search.png', 'figures/search.csv'),
  }
  for path in tmp_path.rglob('*.png'):
    assert path.read_bytes().startswith(b'\x89PNG')
  markdown = (tmp_path / 'report.md').read_text()
  for table in text.split('\n\n'):
    assert table.strip() in markdown
  for name in ('uploads', 'search'):
    assert f'](figures/{name}.png)\n' in markdown


def test_csv_of_figures(tmp_path, no_pictures):
  result = made.complete('uploads', 'cpu', seeds=(0, 1))
  report.write(tmp_path, result)
  paper = results_lib.paper_numbers()['uploads']
  chart = figures.figures(result, paper)['search']
  rows = read(tmp_path / 'figures' / 'search.csv')
  assert list(rows[0]) == ['curve', chart.x_label, chart.y_label, 'spread']
  ours = [row for row in rows if row['curve'] == 'Extended SAFL']
  assert [float(row['ν']) for row in ours] == list(chart.curves[0].x)
  assert [float(row[chart.y_label]) for row in ours] == list(chart.curves[0].y)


def test_csv_of_values_and_claims(tmp_path, no_pictures):
  result = made.complete('uploads', 'cpu', seeds=(0, 1))
  report.write(tmp_path, result)
  values = read(tmp_path / 'values.csv')
  assert list(values[0]) == [
    *('what', 'measure', 'paper_round', 'paper', 'mean', 'sd', 'runs'),
    'of_the_papers_size',
  ]
  (row,) = [
    row
    for row in values
    if (row['what'], row['measure'], row['paper_round'])
    == ('FedAvg', 'accuracy', '60')
  ]
  value = result.get(algorithm='fedavg').at(60)
  assert (float(row['mean']), float(row['sd'])) == (value.mean, value.sd)
  assert (row['paper'], row['runs']) == ('0.5222', '2')
  assert row['of_the_papers_size'] == 'True'
  claims = read(tmp_path / 'claims.csv')
  assert len(claims) == 18 + 9
  assert claims[-1]['quote'].startswith('the accuracy of the extended SAFL')


def test_introduction(tmp_path, no_pictures):
  text = written(tmp_path, made.complete('convergence_mnist', 'cpu'))
  assert text.startswith('# Test accuracy by round on MNIST\n\n- Paper: ')
  # 7 parts; a round takes two seconds.
  minutes = 2 * (5 + 2 * (30 + 60 + 36)) / 60
  for line in (
    '- Scale: cpu',
    '- Seeds: 0',
    '- Finished runs: 7 of 7',
    f'- Time in rounds: {minutes:.0f} min',
    '- 30, 60 and 36 rounds for n = 40, 80 and 120 instead of 100.',
  ):
    assert f'\n{line}\n' in text
  assert '- "the proposed SAFL outperforms the standard FL technique' in text


def test_smoke_says_what_it_cannot_tell(tmp_path, no_pictures):
  text = written(tmp_path, made.complete('convergence_mnist', 'smoke'))
  assert '> This is a test of the program. It cannot tell' in text
  page = (tmp_path / 'report.html').read_text()
  assert '<p class="warning">This is a test of the program.' in page
  text = written(tmp_path, made.complete('convergence_mnist', 'cpu'))
  assert 'test of the program' not in text


def test_downloads(tmp_path):
  report.write(
    tmp_path, made.complete('uploads', 'cpu'), formats=('png', 'dark.png')
  )
  page = (tmp_path / 'report.html').read_text()
  files = re.findall('<a href="([^"]+)" download>', page)
  assert 'figures/uploads.dark.png' in files and 'claims.csv' in files
  assert all((tmp_path / file).is_file() for file in files)


def test_flags(tmp_path, no_pictures):
  text = written(tmp_path, made.complete('convergence_mnist', 'cpu'))
  assert 'All runs: `--dataset=mnist` `--model=lenet5` ' in text
  line = re.search(r'^\| safl_n120 .*$', text, re.MULTILINE).group()
  assert [cell.strip() for cell in line.split('|')[1:-1]] == [
    *('safl_n120', '120', '', '36', 'safl'),
  ]


def test_number_of_verdicts(tmp_path, no_pictures):
  text = written(tmp_path, made.complete('convergence_mnist', 'cpu'))
  line = re.search(r'^\| statement +\|.*$', text, re.MULTILINE).group()
  counts = [int(cell) for cell in line.split('|')[2:-1]]
  verdicts = [row['verdict'] for row in read(tmp_path / 'claims.csv')]
  assert sum(counts) == len(verdicts) == 9
  assert counts[0] == verdicts.count('agrees')
  assert counts[2] == verdicts.count('not tested at this scale') > 0


def test_missing_data_set(tmp_path, no_pictures):
  missing = {'cifar10': 'dataset=cifar10: is <not> there'}
  result = made.complete('early_accuracy', 'smoke', seeds=(3, 5))
  kept = [r for r in result.runs if r.part.cell['dataset'] != 'cifar10']
  text = written(tmp_path, result._replace(runs=kept, missing=missing))
  assert '\n- Seeds: 3, 5\n- Finished runs: 18 of 24\n' in text
  assert '\n- CIFAR-10 is left out: dataset=cifar10: is <not> there\n' in text
  assert '\n| CIFAR-10' not in text
  assert '| SAFL, CIFAR-10 vs. FedAvg' in text  # runs missing
  page = (tmp_path / 'report.html').read_text()
  assert 'is &lt;not&gt; there' in page


def test_shared_runs_and_many_seeds(tmp_path, no_pictures):
  result = made.complete('fraction', 'smoke')
  result = result._replace(seeds=tuple(range(100)), shared=['a/b', 'c/d'])
  text = written(tmp_path, result)
  assert '\n- Seeds: 0 to 99\n- Finished runs: 9 of 900\n' in text
  assert '\n- Runs shared with other experiments: a/b, c/d\n' in text


def test_experiment_that_is_not_in_the_paper(tmp_path, no_pictures):
  text = written(tmp_path, lead_of_safl(0.2))
  assert '## Claims' not in text
  assert not list(tmp_path.glob('*.csv'))


@pytest.mark.parametrize('scale', ['paper', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_first_run_and_all_runs(name, scale, tmp_path, no_pictures):
  """Reports are written after each run, so the first one is enough."""
  result = made.complete(name, scale)
  for several in (result.runs[:1], result.runs):
    finished = result._replace(runs=several)
    report.write(tmp_path, finished)
    tags = Tags()
    tags.feed((tmp_path / 'report.html').read_text())
    assert tags.open == [] and {'table', 'ul'} <= set(tags.all)
    drawn = figures.figures(finished, results_lib.paper_numbers()[name])
    assert ('svg' in tags.all) == bool(drawn)
  assert drawn


@pytest.mark.parametrize('lead, lowest', [(-0.3, True), (0.3, False)])
def test_negative_leads_are_drawn(tmp_path, lead, lowest):
  """Only leads have an axis with negative values."""
  report.write(tmp_path, lead_of_safl(lead))
  page = (tmp_path / 'report.html').read_text()
  figure = page.split(
    '<figcaption>SAFL&#x27;s lead over FedAvg by number of clients, rate 0.1'
  )[1]
  ticks = re.findall(
    '<text class="left"[^>]*>([^<]+)', figure.split('</svg>')[0]
  )
  assert any(tick.startswith('-') for tick in ticks) is lowest


@browser.needed
def test_page_in_a_browser(tmp_path, no_pictures):
  report.write(tmp_path, made.complete('techniques', 'cpu'))
  (tmp_path / 'profile').mkdir()
  dom = browser.render(tmp_path / 'report.html', tmp_path / 'profile')
  assert len(re.findall('<g class="curve [^>]*data-curve="', dom)) == 8
  assert 'role="button"' in dom  # the script has run
