import csv
import re
import shutil

import numpy as np
import pytest

from binaries import train
from safl_tf.core import shared_function
from safl_tf.reporting import charts, plots
from safl_tf.training import export, run_directory
from safl_tf.training import hparams as hparams_lib
from tests import browser
from tests.binaries import programs

COMMAND = (
  *programs.SMALL,
  '--clients_per_round=2',
  '--jit_compile=false',
  '--experiment=both',
)
FILES = (
  'comparison.csv',
  'comparison.html',
  'comparison.md',
  'comparison.tex',
  'runs.csv',
)
PAIRS = [(name, seed) for name in ('fedavg', 'safl') for seed in (0, 1)]


def arguments(folder, dense, *more):
  flags = (f'--output_dir={folder}', f'--model={dense}')
  several = ('--algorithms=fedavg,safl', '--seeds=0,1')
  return *COMMAND, *flags, *several, *more


def table(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def touch(run, *args):
  """In place of a run's pictures, which take long."""
  (run / 'plots').mkdir(exist_ok=True)
  (run / 'plots' / 'partition.png').touch()


@pytest.fixture(scope='module')
def recorded():
  """Data sets and partitions that the comparison below loads."""
  return {'loaded': [], 'partitions': {}}


@pytest.fixture(scope='module')
def made(tmp_path_factory, dense, recorded):
  """The folder of a comparison; not to be changed."""
  from safl_tf.data import registry
  from safl_tf.training import loop

  folder = tmp_path_factory.mktemp('made')
  with pytest.MonkeyPatch.context() as patch:
    load, run = registry.load, loop.run

    def load_and_record(name, *args):
      recorded['loaded'].append(name)
      return load(name, *args)

    def run_and_record(
      trainer, schedule, seed, test_data, folder, *args, **more
    ):
      recorded['partitions'][folder.path.name] = trainer.clients.rows.tobytes()
      return run(trainer, schedule, seed, test_data, folder, *args, **more)

    patch.setattr(registry, 'load', load_and_record)
    patch.setattr(loop, 'run', run_and_record)
    patch.setattr(plots, 'write_all', touch)
    assert programs.call('compare', *arguments(folder, dense)) == 0
  return folder / 'both'


@pytest.fixture
def copied(made, tmp_path, dense):
  """The comparison, to be changed, and the command that made it."""
  shutil.copytree(made, tmp_path / 'both')
  return tmp_path / 'both', arguments(tmp_path, dense)


@pytest.fixture
def no_pictures(monkeypatch):
  """Pictures are empty files."""
  monkeypatch.setattr(plots, 'write_all', touch)
  monkeypatch.setattr(
    charts, 'chart', lambda chart, paths: [path.touch() for path in paths]
  )


@pytest.fixture
def trained(monkeypatch, no_pictures):
  """The names of the runs that are trained."""
  names, original = [], train.train

  def record(config, *args):
    names.append(config.experiment)
    return original(config, *args)

  monkeypatch.setattr(train, 'train', record)
  return names


def test_files(made):
  names = {f'{name}_seed{seed}' for name, seed in PAIRS}
  created = {path.name for path in made.iterdir()}
  assert created == {*names, *FILES, 'plots', '.safl_tf'}
  for name in ('accuracy', 'loss'):
    image = (made / 'plots' / f'{name}.png').read_bytes()
    assert image.startswith(b'\x89PNG')
  assert not list(made.rglob('.partial-*'))
  assert not list(made.rglob('export'))
  runs = table(made / 'runs.csv')
  assert [(row['algorithm'], int(row['seed'])) for row in runs] == PAIRS
  for row in runs:
    history = programs.metrics(made / f'{row["algorithm"]}_seed{row["seed"]}')
    assert float(row['final_accuracy']) == history[-1]['test_accuracy']
    assert float(row['accuracy_round_1']) == history[0]['test_accuracy']
    assert float(row['mb_up']) == history[-1]['total_bytes_up'] / 1e6
    assert int(row['uploads']) == 4
  for row in table(made / 'comparison.csv'):
    values = [
      float(run['final_accuracy'])
      for run in runs
      if run['algorithm'] == row['algorithm']
    ]
    assert float(row['final_accuracy_mean']) == pytest.approx(np.mean(values))
    sd = np.std(values, ddof=1)
    assert float(row['final_accuracy_sd']) == pytest.approx(sd)
    assert row['reached_target'] == '0' and row['seeds'] == '2'


def test_texts(made):
  text = (made / 'comparison.md').read_text()
  assert text.startswith(
    '# FedAvg, SAFL compared\n\ndense on the MNIST sample, 4 clients, 2 rounds'
  )
  assert 'seeds 0, 1.\n' in text
  lines = re.findall(r'^\| (?:FedAvg|SAFL) .*$', text, re.MULTILINE)
  assert len(lines) == 2
  assert all('not reached' in line and ' ± ' in line for line in lines)
  page = (made / 'comparison.html').read_text()
  assert '<title>FedAvg, SAFL compared</title>' in page
  assert '<dt>epsilon</dt><dd>0.3</dd>' in page
  assert '<dt>algorithm</dt>' not in page
  assert len(re.findall('class="curve [^>]* data-setting="SAFL"', page)) == 2


@browser.needed
def test_page_in_a_browser(made, tmp_path):
  dom = browser.render(made / 'comparison.html', tmp_path)
  for name in ('FedAvg', 'SAFL'):
    curves = re.findall(rf'<g class="curve [^>]*data-setting="{name}"', dom)
    assert len(curves) == 2
  assert 'role="button"' in dom  # the script has run


def test_runs_are_those_of_safl_train(made, dense, tmp_path, no_pictures):
  shared_function._functions.clear()  # as in a process of its own
  where = (f'--output_dir={tmp_path}', '--experiment=safl_seed1')
  flags = ('--algorithm=safl', '--seed=1', f'--model={dense}')
  assert programs.call('train', *COMMAND, *where, *flags) == 0
  mine, alone = made / 'safl_seed1', tmp_path / 'safl_seed1'
  assert programs.metrics(mine) == programs.metrics(alone)
  ours, theirs = (programs.newest(run)['z_bar'] for run in (mine, alone))
  np.testing.assert_array_equal(ours, theirs)
  model = [(run / 'model.json').read_text() for run in (mine, alone)]
  assert model[0] == model[1]
  first, second = (hparams_lib.read(run)['flags'] for run in (mine, alone))
  assert hparams_lib.differing(first, second).keys() == {'output_dir'}


def test_same_data_models_and_selections(made, recorded):
  assert recorded['loaded'] == ['mnist_sample']
  partitions = recorded['partitions']
  assert partitions['fedavg_seed0'] == partitions['safl_seed0']
  assert partitions['fedavg_seed1'] == partitions['safl_seed1']
  assert partitions['safl_seed0'] != partitions['safl_seed1']
  first = {
    pair: programs.metrics(made / '{}_seed{}'.format(*pair))[0]
    for pair in PAIRS
  }
  for seed in (0, 1):
    # In the first round, clients train their own initial models.
    fedavg, safl = first['fedavg', seed], first['safl', seed]
    for column in ('train_loss', 'test_loss', 'test_accuracy'):
      assert fedavg[column] == safl[column]
  assert first['safl', 0]['train_loss'] != first['safl', 1]['train_loss']
  last = [
    programs.metrics(made / f'{name}_seed0')[-1] for name in ('fedavg', 'safl')
  ]
  assert last[0]['test_loss'] != last[1]['test_loss']


def test_same_command_again(copied, call, no_tensorflow):
  folder, command = copied
  before = programs.snapshot(folder)
  for name in FILES:
    (folder / name).unlink()
  outcome = call('compare', *command)
  assert outcome.code == 0
  assert programs.snapshot(folder) == before
  assert outcome.err == 'all 4 runs are finished\n'
  shown, page = outcome.out.strip().split('\n\n')
  assert shown in (folder / 'comparison.md').read_text()
  assert page == f'page  {folder / "comparison.html"}'


def test_other_rounds_and_target(copied, call, no_tensorflow, no_pictures):
  folder, command = copied
  more = ('--at_rounds=2,1', '--target_accuracy=0.01', '--seeds=1')
  assert call('compare', *command, *more).code == 0
  for row in table(folder / 'comparison.csv'):
    assert row['accuracy_round_2_mean'] == row['final_accuracy_mean']
    assert (row['seeds'], row['final_accuracy_sd']) == ('1', '')
    assert (row['reached_target'], row['rounds_to_target_mean']) == ('1', '1.0')


@pytest.mark.slow
def test_more_algorithms_and_seeds(copied, call, trained):
  folder, command = copied
  before = programs.snapshot(folder / 'safl_seed1')
  algorithms = '--algorithms=extended_safl,fedavg,safl'
  outcome = call('compare', *command, algorithms)
  assert outcome.code == 0, outcome.err
  assert trained == ['extended_safl_seed0', 'extended_safl_seed1']
  assert 'run 1 of 6: extended_safl, seed 0\n' in outcome.err
  assert 'run 4 of 6: extended_safl, seed 1\n' in outcome.err
  order = [row['algorithm'] for row in table(folder / 'comparison.csv')]
  assert order == ['extended_safl', 'fedavg', 'safl']
  assert call('compare', *command, '--seeds=1,2').code == 0
  assert trained[2:] == ['fedavg_seed2', 'safl_seed2']
  assert programs.snapshot(folder / 'safl_seed1') == before


@pytest.mark.slow
def test_more_rounds(copied, call, trained):
  folder, command = copied
  assert call('compare', *command, '--rounds=3', '--seeds=0').code == 0
  assert trained == ['fedavg_seed0', 'safl_seed0']
  assert len(programs.metrics(folder / 'safl_seed0')) == 3
  outcome = call('compare', *command)
  assert outcome.code == 2
  assert outcome.err.startswith('safl-compare: --rounds=2: ')


@pytest.mark.slow
def test_interrupted(made, call, dense, tmp_path, monkeypatch, no_pictures):
  appended = []

  def append(self, row, append=run_directory.RunDirectory.append):
    appended.append(row)
    if len(appended) == 4:  # the second round of the second run
      raise KeyboardInterrupt
    append(self, row)

  command = arguments(tmp_path, dense, '--checkpoint_every=1')
  with monkeypatch.context() as patch:
    patch.setattr(run_directory.RunDirectory, 'append', append)
    outcome = call('compare', *command)
  folder = tmp_path / 'both'
  assert outcome.code == 130
  last = outcome.err.splitlines()[-1]
  assert last == 'safl-compare: stopped; the same command resumes'
  (row,) = table(folder / 'runs.csv')
  assert (row['algorithm'], row['seed']) == ('fedavg', '0')
  said = 'So far, 1 of 4 runs are finished.'
  assert said in (folder / 'comparison.md').read_text()
  outcome = call('compare', *command)
  assert outcome.code == 0
  assert f'resuming {folder / "safl_seed0"} after round 1\n' in outcome.err
  assert 'run 1 of 4' not in outcome.err
  assert said not in (folder / 'comparison.html').read_text()
  for name, seed in PAIRS:
    run = f'{name}_seed{seed}'
    assert programs.metrics(folder / run) == programs.metrics(made / run)


@pytest.mark.slow
def test_missing_files_are_rewritten(copied, call, trained):
  folder, command = copied
  runs = [folder / name for name in ('fedavg_seed1', 'safl_seed1')]
  before = [programs.metrics(run) for run in runs]
  (runs[0] / 'metrics.csv').write_text('round,p\n1\n')
  (runs[1] / 'plots' / 'partition.png').unlink()
  assert call('compare', *command).code == 0
  assert trained == [run.name for run in runs]
  assert (runs[1] / 'plots' / 'partition.png').exists()
  assert [programs.metrics(run) for run in runs] == before


def test_stop_at_accuracy(copied, call, no_tensorflow, no_pictures):
  """Runs that have reached it are finished, however many rounds are asked."""
  folder, command = copied
  more = ('--rounds=50', '--stop_at_accuracy=0.01')
  assert call('compare', *command, *more).code == 0
  for row in table(folder / 'runs.csv'):
    assert (row['rounds'], row['accuracy_round_12']) == ('2', '')


@pytest.mark.parametrize(
  'more', [(), ('--seeds=7',), ('--algorithms=extended_safl',)]
)
def test_changed_flag(copied, call, no_tensorflow, more):
  """Also where only runs that are new are asked for."""
  folder, command = copied
  before = programs.snapshot(folder)
  outcome = call('compare', *command, '--epsilon=0.5', *more)
  assert (outcome.code, outcome.out) == (2, '')
  assert outcome.err == (
    f'safl-compare: --experiment={folder / "safl_seed0"}: this folder was '
    'made with other flags (epsilon was 0.3, is 0.5); choose another '
    '--experiment or the same flags\n'
  )
  assert programs.snapshot(folder) == before


def test_folder_of_a_run(copied, call, no_tensorflow):
  folder, command = copied
  where = (f'--output_dir={folder}', '--experiment=safl_seed0')
  outcome = call('compare', *command, *where)
  assert outcome.code == 2
  assert outcome.err == (
    f'safl-compare: --experiment={folder / "safl_seed0"}: is the folder of a '
    'run; choose another folder\n'
  )


@pytest.mark.slow
def test_export_that_fails(copied, call, monkeypatch, trained):
  def fail(*args):
    raise export.ExportError('predictions differ')

  monkeypatch.setattr(export, '_check', fail)
  folder, command = copied
  outcome = call('compare', *command, '--export=keras', '--seeds=0')
  assert outcome.code == 1
  assert trained == ['fedavg_seed0', 'safl_seed0']
  last = outcome.err.splitlines()[-1]
  assert last.count('--export=keras: predictions differ; all other ') == 2
  assert f'page  {folder / "comparison.html"}\n' in outcome.out
