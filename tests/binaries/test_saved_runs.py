"""safl-compare --runs compares runs that there are."""

import json
import shutil

import pytest

from safl_tf.reporting import charts
from tests.binaries import programs


@pytest.fixture(scope='module')
def trained(tmp_path_factory, dense):
  """Runs of safl-train, not to be changed."""
  folder = tmp_path_factory.mktemp('trained')
  common = (*programs.SMALL, *programs.ALIKE, '--jit_compile=false')
  with pytest.MonkeyPatch.context() as patch:
    from safl_tf.reporting import plots

    patch.setattr(plots, 'write_all', lambda *args: None)
    for name, flags in {
      'a': ('--epsilon=0.1',),
      'b': ('--epsilon=0.1', '--seed=1'),
      'c': ('--algorithm=fedavg',),
    }.items():
      where = (f'--output_dir={folder}', f'--experiment={name}')
      code = programs.call('train', *common, *where, f'--model={dense}', *flags)
      assert code == 0
  return folder


@pytest.fixture
def saved(trained, tmp_path, monkeypatch):
  shutil.copytree(trained, tmp_path / 'runs')
  for name in ('chart', 'heat_map'):
    monkeypatch.setattr(
      charts, name, lambda chart, paths: [path.touch() for path in paths]
    )
  monkeypatch.chdir(tmp_path)
  return tmp_path / 'runs'


def change(run, **values):
  """Changes hparams.json."""
  path = run / 'hparams.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_runs_are_grouped_by_the_flags_that_differ(saved, call, no_tensorflow):
  (saved / 'notes').mkdir()
  (saved / 'a.txt').write_text('')
  outcome = call('compare', '--runs=runs/*')
  assert outcome.code == 0, outcome.err
  assert outcome.err == 'not runs with a finished round: notes\n'
  lines = [line.split('|')[1:3] for line in outcome.out.splitlines()[:4]]
  cells = [[cell.strip() for cell in line] for line in lines]
  assert cells[0] == ['algorithm', 'seeds']
  assert cells[2:] == [['SAFL', '2'], ['FedAvg', '1']]
  folder = saved / 'compare'
  names = {path.name for path in folder.iterdir()}
  texts = {f'comparison.{suffix}' for suffix in ('csv', 'html', 'md', 'tex')}
  assert names == {*texts, 'runs.csv', 'plots', '.safl_tf'}
  page = (folder / 'comparison.html').read_text()
  assert '3 runs of 2 rounds.' in page
  assert '<dt>num_clients</dt><dd>4</dd>' in page
  assert '<dt>algorithm</dt>' not in page
  again = call('compare', '--runs=runs/*', '--target_accuracy=0.01')
  assert (again.code, again.err) == (0, outcome.err)  # not its own folder
  assert '2 of 2' in again.out


def test_only_seeds_differ(saved, call, no_tensorflow):
  outcome = call('compare', '--runs=runs/a,runs/b', '--experiment=ab')
  assert outcome.out.splitlines()[2].startswith('| SAFL ')
  assert (saved / 'ab' / 'comparison.csv').exists()


def test_runs_of_python_code(saved, call, no_tensorflow):
  """The names of their folders without the seed are the settings."""
  for old, new in {'a': 'mine_seed0', 'b': 'mine_seed1', 'c': 'other'}.items():
    change(saved / old, flags=None)
    (saved / old).rename(saved / new)
  outcome = call('compare', '--runs=runs/*')
  rows = [line.split('|')[1:3] for line in outcome.out.splitlines()[2:4]]
  cells = [[cell.strip() for cell in row] for row in rows]
  assert cells == [['mine', '2'], ['other', '1']]


def check_refused(saved, call, message, *arguments):
  before = programs.snapshot(saved)
  outcome = call('compare', *arguments)
  programs.check_refused(outcome, 'compare', message)
  assert programs.snapshot(saved) == before


def test_other_test_data(saved, call, no_tensorflow):
  identity = json.loads((saved / 'b' / 'hparams.json').read_text())['identity']
  change(saved / 'b', identity={**identity, 'test_labels': 'other'})
  message = '--runs=runs/b: was tested on other data than runs/a; leave one out'
  check_refused(saved, call, message, '--runs=runs/*')


def test_the_same_run_twice(saved, call, no_tensorflow):
  shutil.copytree(saved / 'a', saved / 'd')
  message = '--runs=runs/d: has the setting and the seed of runs/a; leave one'
  check_refused(saved, call, message, '--runs=runs/*')


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--runs=none/*'], '--runs=none/*: there is no run; give the folders of'),
    (['--runs='], '--runs=: there is no run; give the folders of runs'),
    (['--runs=runs/*', '--epsilon=0.1'], '--epsilon=0.1: has no effect with'),
    (['--runs=runs/*', '--seeds=0'], '--seeds=0: has no effect with --runs'),
    (['--runs=runs/*', '--preset=mnist_n40'], '--preset=mnist_n40: has no ef'),
    (['--runs=runs/*', '--at_rounds=3'], '--at_rounds=3: must be a whole num'),
    (['--runs=runs/*', '--experiment=a'], '--experiment=runs/a: is the folder'),
  ],
)
def test_refused(saved, call, no_tensorflow, arguments, message):
  check_refused(saved, call, message, *arguments)
