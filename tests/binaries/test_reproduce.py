import dataclasses
import re
import shutil

import pytest

from binaries import reproduce, runs
from binaries.flags.data import Data
from safl_tf.experiments.paper import experiments, plans
from safl_tf.reporting import charts, plots
from safl_tf.training import hparams as hparams_lib
from safl_tf.training import metrics_log
from safl_tf.util import errors, hardware
from tests.binaries import programs
from tests.experiments.paper import make_runs as made

NAMES = list(experiments.EXPERIMENTS)
PARTS = ['fedavg', 'safl'] + [
  f'extended_safl_nu{nu}' for nu in (0.15, 0.3, 0.5)
]
COMMAND = ('--experiment=uploads', '--scale=smoke')


def touch(run, *args):
  """In place of a run's pictures, which take long."""
  (run / 'plots').mkdir(exist_ok=True)
  (run / 'plots' / 'partition.png').touch()


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
  """Pictures are empty files."""
  monkeypatch.setattr(plots, 'write_all', touch)
  monkeypatch.setattr(
    charts, 'chart', lambda chart, paths: [path.touch() for path in paths]
  )


@pytest.fixture
def no_tensorflow(monkeypatch):
  """Fails a test that starts TensorFlow."""
  monkeypatch.setattr(
    hardware, 'start_tensorflow', lambda: pytest.fail('starts')
  )


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  """The folder of a smoke run; not to be changed."""
  folder = tmp_path_factory.mktemp('done')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, 'write_all', touch)
    assert programs.call('reproduce', *COMMAND, f'--output_dir={folder}') == 0
  return folder / 'uploads_smoke'


@pytest.fixture
def copied(done, tmp_path):
  """The same, to be changed, and the command that made it."""
  shutil.copytree(done, tmp_path / done.name)
  return tmp_path / done.name, (*COMMAND, f'--output_dir={tmp_path}')


def test_files(done):
  runs = {f'{name}_seed0' for name in PARTS}
  files = {'report.md', 'report.html', 'values.csv', 'claims.csv'}
  files |= {'figures', '.safl_tf'}
  assert {path.name for path in done.iterdir()} == runs | files
  for name in runs:
    rows = metrics_log.read_csv(done / name / 'metrics.csv')
    assert [row['round'] for row in rows] == [1, 2, 3]
    flags = hparams_lib.read(done / name)['flags']
    assert (flags['dataset'], flags['seed']) == ('mnist_sample', 0)
  assert (done / 'figures' / 'search.png').read_bytes().startswith(b'\x89PNG')
  assert not list(done.rglob('.partial-*')) and not list(done.rglob('export'))


def test_report(done):
  text = (done / 'report.md').read_text()
  assert '\n- Scale: smoke\n- Seeds: 0\n- Finished runs: 5 of 5\n' in text
  rows = metrics_log.read_csv(done / 'safl_seed0' / 'metrics.csv')
  sent = sum(row['uploaded'] for row in rows)
  last = f'{100 * rows[-1]["test_accuracy"]:.1f}'
  line = re.search(r'\| round 80 .*', text).group()
  assert [cell.strip().split()[0] for cell in line.split('|')[6:8]] == [
    *(str(sent), last)
  ]


def test_same_command_again(copied, call, no_tensorflow):
  folder, command = copied
  before = programs.snapshot(folder)
  for name in ('report.md', 'report.html', 'values.csv', 'claims.csv'):
    (folder / name).unlink()
  outcome = call('reproduce', *command)
  assert outcome.code == 0
  assert outcome.err == 'all runs are finished\n'
  assert programs.snapshot(folder).keys() == before.keys()
  assert (folder / 'report.md').read_bytes() == before[
    (folder / 'report.md').relative_to(folder)
  ]
  assert outcome.out.endswith(f'page  {folder / "report.html"}\n\n')


def test_only_missing_runs(copied, call):
  folder, command = copied
  shutil.rmtree(folder / 'safl_seed0')
  kept = [path for path in folder.glob('*_seed0')]
  before = {path: programs.snapshot(path) for path in kept}
  outcome = call('reproduce', *command)
  assert outcome.code == 0, outcome.err
  logged = re.findall('^part .*$', outcome.err, re.MULTILINE)
  assert logged == ['part 2 of 5: safl, seed 0; about 6 s left']
  assert {path: programs.snapshot(path) for path in kept} == before
  assert (folder / 'safl_seed0' / 'metrics.csv').exists()


@pytest.mark.slow
def test_only_some_parts(copied, call):
  folder, command = copied
  for name in ('safl', 'fedavg'):
    shutil.rmtree(folder / f'{name}_seed0')
  outcome = call('reproduce', *command, '--parts=safl, extended_safl_nu0.3')
  assert outcome.code == 0, outcome.err
  logged = re.findall('^part .*$', outcome.err, re.MULTILINE)
  assert logged == ['part 2 of 5: safl, seed 0; about 6 s left']
  assert not (folder / 'fedavg_seed0').exists()
  # The report covers all finished runs.
  assert 'Finished runs: 4 of 5\n' in (folder / 'report.md').read_text()
  again = call('reproduce', *command, '--parts=safl')
  assert again.err == 'all runs are finished\n'


@pytest.fixture
def beside(done, tmp_path):
  """An experiment that has made all runs, and the command for another."""
  shutil.copytree(done, tmp_path / 'first')
  return tmp_path / 'first', (*COMMAND, f'--output_dir={tmp_path}')


def test_runs_of_another_experiment(beside, call, no_tensorflow):
  first, command = beside
  before = programs.snapshot(first)
  assert call('reproduce', *command).code == 0
  assert programs.snapshot(first) == before
  folder = first.parent / 'uploads_smoke'
  assert not list(folder.glob('*_seed0'))
  text = (folder / 'report.md').read_text()
  shared = ', '.join(f'first/{name}_seed0' for name in PARTS)
  assert f'Runs shared with other experiments: {shared}\n' in text
  (same,) = re.findall(r'(?s)(\n## Table VI: ours.*)', text)
  assert same in (first / 'report.md').read_text()


@pytest.mark.parametrize(
  'file, old, new',
  [
    pytest.param(
      'hparams.json', '"epsilon": 0.3', '"epsilon": 0.4', marks=pytest.mark.slow
    ),
    pytest.param(
      'hparams.json', '"seed": 0', '"seed": 1', marks=pytest.mark.slow
    ),
    pytest.param('hparams.json', '{', 'no JSON', marks=pytest.mark.slow),
    ('metrics.csv', '\n3,', '\n4,'),  # not what the checkpoint has
  ],
)
def test_other_runs_of_another_experiment(file, old, new, beside, call):
  first, command = beside
  path = first / 'safl_seed0' / file
  assert old in path.read_text()
  path.write_text(path.read_text().replace(old, new))
  outcome = call('reproduce', *command)
  assert outcome.code == 0, outcome.err
  logged = re.findall('^part .*$', outcome.err, re.MULTILINE)
  assert logged == ['part 2 of 5: safl, seed 0; about 6 s left']
  runs = (first.parent / 'uploads_smoke').glob('*_seed0')
  assert [run.name for run in runs] == ['safl_seed0']


@pytest.mark.parametrize(
  'rounds, expected', [(2, [1, 2]), (3, [1, 2, 3]), (4, None)]
)
def test_rounds_of_an_equivalent_run(rounds, expected, beside):
  first, _ = beside
  asked = job('uploads', 'smoke', f'--output_dir={first.parent}')
  config = dataclasses.replace(asked.runs[1][1], rounds=rounds)
  assert runs.history(config) is None
  other = runs.find_finished(config)
  assert (other is None) == (expected is None)
  if other is not None:
    assert other.path == first / 'safl_seed0'
    assert [row['round'] for row in runs.history(other)] == expected


def test_changed_folder(copied, call, no_tensorflow):
  folder, command = copied
  hparams = folder / 'safl_seed0' / 'hparams.json'
  hparams.write_text(hparams.read_text().replace('"nu": 0.5', '"nu": 0.7'))
  before = programs.snapshot(folder)
  outcome = call('reproduce', *command)
  assert (outcome.code, outcome.out) == (2, '')
  assert outcome.err.startswith(
    f'safl-reproduce: --output_dir={folder / "safl_seed0"}: this folder was '
    'made with other flags (nu was 0.7, is 0.5); choose another --output_dir '
  )
  assert programs.snapshot(folder) == before


class FakeRuns:
  """In place of training: runs that leave made-up histories."""

  def __init__(self):
    self.histories = {}
    self.missing = {}
    self.loaded = []

  def load(self, config):
    name = config.dataset
    if name in self.missing:
      raise errors.InputError('dataset', name, self.missing[name])
    self.loaded.append(name)
    return name

  def run(self, config, dataset):
    assert dataset == config.dataset
    if config.experiment == 'safl_R0.5_seed1':
      raise KeyboardInterrupt
    rounds = config.rounds
    self.histories[config.path] = made.rows(
      made.ramp(max(rounds, 2), 0.1, 0.9)[:rounds]
    )

  def history(self, config):
    return self.histories.get(config.path)


@pytest.fixture
def fake(monkeypatch):
  fake_runs = FakeRuns()
  monkeypatch.setattr(Data, 'load', lambda config: fake_runs.load(config))
  monkeypatch.setattr(runs, 'check_data', lambda *args: None)
  monkeypatch.setattr(runs, 'run', fake_runs.run)
  monkeypatch.setattr(runs, 'history', fake_runs.history)
  monkeypatch.setattr(
    runs, 'is_complete', lambda config: fake_runs.history(config) is not None
  )
  return fake_runs


def test_missing_data(call, fake, tmp_path):
  fake.missing = {'mnist': 'is not there'}
  where = f'--output_dir={tmp_path}'
  outcome = call('reproduce', '--experiment=fraction', where)
  assert (outcome.code, outcome.out) == (2, '')
  assert outcome.err == 'safl-reproduce: dataset=mnist: is not there\n'
  assert list(tmp_path.iterdir()) == []


def test_missing_data_of_a_row(call, fake, tmp_path):
  fake.missing = {'cifar10': 'is not there', 'speech_commands': 'nor this'}
  where = f'--output_dir={tmp_path}'
  outcome = call('reproduce', '--experiment=early_accuracy', where)
  assert outcome.code == 0, outcome.err
  assert 'cifar10 is left out: dataset=cifar10: is not there\n' in outcome.err
  assert len(fake.histories) == 6
  assert fake.loaded == ['mnist', 'fashion_mnist']
  text = (tmp_path / 'early_accuracy_cpu' / 'report.md').read_text()
  assert 'CIFAR-10 is left out: dataset=cifar10: is not there\n' in text
  assert '| Fashion-MNIST, round 50' in text and '| CIFAR' not in text
  # The same again: the report stays, though no run can be added.
  outcome = call('reproduce', '--experiment=early_accuracy', where)
  assert (outcome.code, 'part ' in outcome.err) == (0, False)
  again = (tmp_path / 'early_accuracy_cpu' / 'report.md').read_text()
  assert again == text
  fake.missing = {}
  outcome = call('reproduce', '--experiment=early_accuracy', where)
  assert fake.loaded[2:] == ['cifar10', 'speech_commands']
  assert 'part 12 of 12: safl_speech_commands, seed 0; about ' in outcome.err
  text = (tmp_path / 'early_accuracy_cpu' / 'report.md').read_text()
  assert 'left out' not in text and '| CIFAR-10, round 50' in text


def test_all_data_are_missing(call, fake, tmp_path):
  names = ('mnist', 'fashion_mnist', 'cifar10', 'speech_commands')
  fake.missing = dict.fromkeys(names, 'is not there')
  where = f'--output_dir={tmp_path}'
  outcome = call('reproduce', '--experiment=early_accuracy', where)
  assert outcome.code == 2
  last = outcome.err.splitlines()[-1]
  assert last == 'safl-reproduce: dataset=mnist: is not there'
  assert list(tmp_path.iterdir()) == []


def test_all_experiments(call, fake, tmp_path):
  fake.missing = {'speech_commands': 'is not there'}
  outcome = call('reproduce', '--experiment=all', f'--output_dir={tmp_path}')
  assert outcome.code == 1
  last = outcome.err.splitlines()[-1]
  assert last == (
    'safl-reproduce: convergence_speech was left out: '
    'dataset=speech_commands: is not there'
  )
  reported = {path.parent.name for path in tmp_path.glob('*/report.html')}
  assert reported == {f'{n}_cpu' for n in NAMES if n != 'convergence_speech'}
  assert not (tmp_path / 'convergence_speech_cpu').exists()


def test_several_seeds_and_a_stop(call, fake, tmp_path):
  command = ('--experiment=fraction', f'--output_dir={tmp_path}')
  outcome = call('reproduce', *command, '--scale=smoke', '--seeds=0,1')
  assert outcome.code == 130
  text = (tmp_path / 'fraction_smoke' / 'report.md').read_text()
  assert '\n- Seeds: 0, 1\n- Finished runs: 13 of 18\n' in text
  assert re.search(r'\| FedAvg, R = 0.3 .* ± ', text)
  assert not re.search(r'\| SAFL, R = 0.7 .* ± ', text)
  logged = re.findall('^part (.*); about .* left$', outcome.err, re.MULTILINE)
  assert logged[0] == '1 of 18: fedavg_R0.3, seed 0'
  assert logged[13:] == ['14 of 18: safl_R0.5, seed 1']


def job(name, scale, *flags):
  given = (f'--experiment={name}', f'--scale={scale}', *flags)
  (experiment,) = reproduce.jobs(programs.parse(reproduce.define, *given))
  return experiment


@pytest.mark.parametrize('scale', plans.SCALES)
@pytest.mark.parametrize('name', NAMES)
def test_flags_are_those_of_safl_train(name, scale, tmp_path):
  parts = experiments.EXPERIMENTS[name].plan(scale).parts
  sets = {part.flags['dataset'] for part in parts}
  given = []
  if sets - {'mnist_sample', 'speech_commands'}:
    given.append(f'--data_dir={tmp_path}')
  if 'speech_commands' in sets:
    given.append(f'--speech_dir={tmp_path}')
  experiment = job(name, scale, '--seeds=7', *given)
  for part, config in experiment.runs:
    values = config.to_dict()
    used = part.flags.keys() - config.unused()
    assert values.items() >= {(flag, part.flags[flag]) for flag in used}
    assert (values['seed'], values['export']) == (7, 'none')
    assert config.path == experiment.path / f'{part.name}_seed7'
    speech = part.flags['dataset'] == 'speech_commands'
    tfds = not speech and part.flags['dataset'] != 'mnist_sample'
    assert values['data_dir'] == (str(tmp_path) if tfds else None)
    assert values['speech_dir'] == (str(tmp_path) if speech else None)
  assert experiment.path.name == f'{name}_{scale}'


BAD = [
  ('', '--experiment=: '),
  ('--experiment=upload', '--experiment=upload: '),
  ('--experiment=uploads --scale=big', '--scale=big: '),
  ('--experiment=uploads --seeds=a', '--seeds=a: '),
  ('--experiment=uploads --seeds=-1', '--seeds=-1: '),
  ('--experiment=uploads --seeds=1,2,1', '--seeds=1,2,1: 1 must occur only'),
  ('--experiment=uploads --data_dir=no', '--data_dir=no: '),
  ('--experiment=uploads --speech_dir=no', '--speech_dir=no: '),
  (
    '--experiment=uploads --output_dir=a_file',
    '--output_dir=a_file/uploads_cpu: a_file is not a folder',
  ),
  ('--experiment=uploads --parts=safl,nu0.3', '--parts=nu0.3: '),
  (
    '--experiment=all --parts=safl',
    '--parts=safl: needs one experiment, not --experiment=all',
  ),
  ('--nu=0.3', '--nu=0.3: '),
]


@pytest.mark.parametrize('line, message', BAD, ids=[line for line, _ in BAD])
def test_bad_input(line, message, call, no_tensorflow, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a_file').touch()
  outcome = call('reproduce', *line.split())
  assert outcome.err.startswith(f'safl-reproduce: {message}')
  assert outcome.err.count('\n') == 1
  assert (outcome.code, outcome.out) == (2, '')
  assert [path.name for path in tmp_path.iterdir()] == ['a_file']


@pytest.mark.parametrize('flag', ['--list', '--help'])
def test_without_tensorflow(flag):
  script = (
    'import sys; from binaries import reproduce; reproduce.cli(); '
    'print([m for m in ("tensorflow", "keras", "numpy") if m in sys.modules])'
  )
  process = programs.start('-c', script, flag, cwd=programs.ROOT)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (0, '')
  assert out.endswith('\n[]\n')
  for name in NAMES:
    assert name in out
  if flag == '--list':
    lines = out.splitlines()
    assert lines[0].split() == [
      *('experiment', 'in', 'the', 'paper', 'title'),
      *plans.SCALES,
    ]
    assert re.fullmatch(
      r'uploads +Table VI +Uploads .* \d+ min +\d+ s', lines[7]
    )
