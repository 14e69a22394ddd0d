"""safl-sweep: one sweep as a user runs it; the rest without training."""

import contextlib
import csv
import pathlib
import shutil

import pytest

from binaries import points, pool, runs, sweep
from safl_tf.reporting import charts, hparams_plugin
from safl_tf.util import errors
from tests.binaries import programs
from tests.reporting import hparams_messages

COMMAND = (
  *programs.SMALL,
  *programs.ALIKE,
  '--jit_compile=false',
  '--experiment=mine',
  '--processes=1',
  '--figures=svg',
)
GRID = ('--grid=learning_rate=1e38,0.01', '--grid=epsilon=0.5')
FAILED = 'α = 1e+38, ε = 0.5, seed 0: round 1: no update of the '


def command(folder, dense, *more):
  return *COMMAND, f'--output_dir={folder}', f'--model={dense}', *more


@pytest.fixture(scope='module')
def made(tmp_path_factory, dense):
  """The folder of a sweep with runs that fail, and what it printed."""
  folder = tmp_path_factory.mktemp('made')
  process = programs.start(
    '-c',
    'from binaries.entry_points import sweep; sweep()',
    *command(folder, dense, *GRID),
  )
  out, err = process.communicate(timeout=300)
  return folder / 'mine', programs.Outcome(process.returncode, out, err)


@pytest.fixture
def copied(made, tmp_path, dense, monkeypatch):
  """The sweep, to be changed; pictures are empty files."""
  shutil.copytree(made[0], tmp_path / 'mine')
  for name in ('chart', 'heat_map'):
    monkeypatch.setattr(
      charts, name, lambda chart, paths: [path.touch() for path in paths]
    )
  return tmp_path / 'mine'


@pytest.fixture
def in_process(monkeypatch):
  """The work of other processes is done in this one."""

  class Pool(contextlib.nullcontext):
    def __init__(self, function, processes, describe):
      super().__init__(self)
      self.function = function

    def call(self, task):
      try:
        return pool.Done(task, self.function(task))
      except errors.InputError as error:
        return pool.Done(task, error=error)

    def map(self, tasks):
      return map(self.call, tasks)

  monkeypatch.setattr(pool, 'Pool', Pool)


def table(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def test_a_run_that_fails_does_not_end_the_others(made):
  folder, outcome = made
  assert outcome.code == 1
  lines = outcome.err.splitlines()
  assert lines[-1] == (
    'safl-sweep: 1 of 2 runs failed; the same command tries again'
  )
  assert lines[-2].startswith(FAILED)
  assert 'Traceback' not in outcome.err
  [finished] = [line for line in lines if line.endswith('is finished')]
  assert ': α = 0.01, ε = 0.5, seed 0 is' in finished
  assert f'page  {folder / "sweep.html"}\n' in outcome.out


def test_files(made):
  folder, _ = made
  texts = {f'sweep.{suffix}' for suffix in ('csv', 'html', 'md', 'tex')}
  names = {path.name for path in folder.iterdir() if path.is_file()}
  assert names == {*texts, 'runs.csv', '.safl_tf', hparams_plugin.FILE}
  assert {path.suffix for path in (folder / 'plots').iterdir()} == {'.svg'}
  [row] = table(folder / 'sweep.csv')
  assert (row['learning_rate'], row['epsilon']) == ('0.01', '0.5')
  text = (folder / 'sweep.md').read_text()
  assert 'So far, 1 of 2 runs are finished.' in text


def test_tensorboard(made):
  folder, _ = made
  infos, tags = hparams_messages.columns(folder / hparams_plugin.FILE)
  assert list(infos) == ['learning_rate', 'epsilon', 'seed']
  assert tags == ['test/accuracy']
  logdir = folder / 'learning_rate_0.01_epsilon_0.5_seed0' / 'logdir'
  session = hparams_messages.parameters(logdir / hparams_plugin.FILE)
  assert session == {'learning_rate': 0.01, 'epsilon': 0.5, 'seed': 0}


def test_runs_are_those_of_safl_train(made, dense, tmp_path):
  name = 'learning_rate_0.01_epsilon_0.5_seed0'
  flags = (*command(tmp_path, dense), '--learning_rate=0.01', '--epsilon=0.5')
  flags = [flag for flag in flags if not flag.startswith('--processes')]
  assert programs.call('train', *flags, f'--experiment={name}') == 0
  programs.check_equal(made[0] / name, tmp_path / name)


def test_finished_runs_are_not_trained(copied, call, dense, no_tensorflow):
  arguments = command(copied.parent, dense, '--grid=epsilon=0.5')
  one = '--point=learning_rate=0.01'
  outcome = call('sweep', *arguments, one, '--target_accuracy=0.01')
  assert (outcome.code, outcome.err) == (0, 'all 1 runs are finished\n')
  [row] = table(copied / 'sweep.csv')
  assert row['reached_target'] == '1'
  assert 'So far' not in (copied / 'sweep.md').read_text()


def test_more_values(copied, call, dense, in_process, monkeypatch):
  trained = []
  monkeypatch.setattr(
    runs, 'run', lambda config, *args, **kwargs: trained.append(config)
  )
  arguments = command(copied.parent, dense, '--grid=epsilon=0.1,0.5,0.7')
  outcome = call('sweep', *arguments, '--point=learning_rate=0.01')
  assert outcome.code == 0, outcome.err
  assert [config.epsilon for config in trained] == [0.1, 0.7]
  [row] = table(copied / 'sweep.csv')  # the new ones have left no files
  assert row['epsilon'] == '0.5'


def test_changed_flags(copied, call, dense, no_tensorflow):
  before = programs.snapshot(copied)
  more = (*GRID, '--batch_size=7')
  outcome = call('sweep', *command(copied.parent, dense, *more))
  run = copied / 'learning_rate_1e+38_epsilon_0.5_seed0'
  message = f'--experiment={run}: ... (batch_size was 50, is 7)'
  programs.check_refused(outcome, 'sweep', message)
  assert programs.snapshot(copied) == before


def test_bad_input_that_takes_tensorflow(call, tmp_path, dense, in_process):
  arguments = ('--num_clients=4', '--max_labels=11', '--grid=epsilon=0.1')
  where = (f'--output_dir={tmp_path}', f'--model={dense}')
  outcome = call('sweep', *arguments, *where)
  programs.check_refused(outcome, 'sweep', '--max_labels=11: must be ')
  assert list(tmp_path.iterdir()) == []


REFUSED = [
  ('', '--grid=: is required, such as --grid=epsilon=0.1,0.3; see --help'),
  ('--grid=epsilom=0.1', '--grid=epsilom=0.1: there is no flag epsilom; did '),
  ('--grid=epsilon', '--grid=epsilon: must be a flag and values, such as '),
  ('--grid=epsilon=0.1,1.5', '--epsilon=1.5: must be a number in [0, 1]'),
  ('--grid=epsilon=', '--epsilon=: must be a number'),
  ('--grid=algorithm=sfal', '--algorithm=sfal: did you mean safl ... one of '),
  ('--grid=epsilon=0.1,0.1', '--grid=epsilon=0.1,0.1: 0.1 must occur only '),
  (
    '--grid=epsilon=0.1 --grid=epsilon=0.2',
    '--grid=epsilon=0.2: epsilon must occur only once; give its values in one',
  ),
  ('--point=epsilon', '--point=epsilon: must be a flag and values'),
  (
    '--point=epsilon=0.1,temprature=1',
    '--point=epsilon=0.1,temprature=1: there is no flag temprature; did you ',
  ),
  ('--point=nu=1,nu=2', '--point=nu=1,nu=2: nu must occur only once'),
  (
    '--point=epsilon=0.1 --point=epsilon=0.1',
    '--point=epsilon=0.1: must occur only once',
  ),
  (
    '--point=epsilon=0.1 --grid=epsilon=0.2',
    '--point=epsilon=0.1: --grid has epsilon, too',
  ),
  ('--grid=seed=1', '--grid=seed=1: seed cannot be swept; give --seeds'),
  ('--grid=rounds=1', '--grid=rounds=1: rounds cannot be swept; a run also '),
  ('--grid=epsilon=0.1 --seeds=0,0', '--seeds=0,0: 0 must occur only once'),
  ('--grid=epsilon=0.1 --epsilon=0.2', '--epsilon=0.2: is also swept; give '),
  (
    '--algorithm=fedavg --grid=epsilon=0.1',
    '--epsilon=0.1: has no effect with --algorithm=fedavg; it is for ',
  ),
  (
    '--grid=algorithm=fedavg,safl --nu=0.2',
    '--nu=0.2: has no effect with --algorithm=fedavg; it is for ',
  ),
  ('--grid=epsilon=0.1 --at_rounds=51', '--at_rounds=51: must be a whole num'),
  ('--grid=epsilon=0.1 --processes=0', '--processes=0: must be a whole num'),
  (
    '--grid=epsilon=0.1 --processes=2 --executor=ray',
    '--processes=2: must be 1 with --executor=ray',
  ),
  ('--grid=clients_per_round=2,99', '--clients_per_round=99: must be at most'),
  ('--grid=epsilon=0.1 --figures=jpg', '--figures=jpg: did you mean png'),
]


def test_refused_without_tensorflow(tmp_path):
  outcomes = programs.call_light(
    [('sweep', line.split(), tmp_path) for line, _ in REFUSED]
  )
  for outcome, (_, message) in zip(outcomes, REFUSED, strict=True):
    programs.check_refused(outcome, 'sweep', message)
  assert list(tmp_path.iterdir()) == []


def parse(*arguments):
  return programs.parse(sweep.define, *arguments)


def test_grid_and_seeds():
  flags = parse(
    '--grid=epsilon=0.1,0.3', '--grid=temperature=10,80', '--seeds=0,4'
  )
  found = sweep.runs_of(flags)
  assert len(found) == 8
  assert [run.config.seed for run in found] == [0] * 4 + [4] * 4
  settings = [(r.setting['epsilon'], r.setting['temperature']) for r in found]
  assert settings[:4] == [(0.1, 10), (0.1, 80), (0.3, 10), (0.3, 80)]
  folder = pathlib.Path('runs', 'sweep_mnist_sample')
  assert found[1].config.path == folder / 'epsilon_0.1_temperature_80_seed0'
  assert found[1].config.epsilon == 0.1
  assert found[1].label == 'ε = 0.1, L = 80, seed 0'
  assert {run.config.export for run in found} == {'none'}


def test_points_with_different_flags():
  flags = parse(
    '--point=epsilon=0.1',
    '--point=temperature=10',
    '--epsilon=0.2',
    '--grid=batch_size=5,6',
  )
  settings = [setting.values for setting in points.settings(flags)]
  assert [s['epsilon'] for s in settings] == [0.1, 0.1, 0.2, 0.2]
  assert [s['temperature'] for s in settings] == [80, 80, 10, 10]
  assert [s['batch_size'] for s in settings] == [5, 6, 5, 6]


def test_flags_that_an_algorithm_does_not_use():
  """They take their defaults, and equal settings are one."""
  flags = parse('--grid=algorithm=fedavg,safl', '--grid=epsilon=0.1,0.5')
  found = points.settings(flags)
  assert [tuple(setting.values.values()) for setting in found] == [
    ('fedavg', None),
    ('safl', 0.1),
    ('safl', 0.5),
  ]
  names = [run.config.experiment for run in sweep.runs_of(flags)]
  assert names[0] == 'algorithm_fedavg_seed0'
  alone = programs.config(
    '--algorithm=fedavg',
    '--output_dir=runs/sweep_mnist_sample',
    '--experiment=algorithm_fedavg_seed0',
    '--export=none',
  )
  assert sweep.runs_of(flags)[0].config == alone


def test_values_that_are_not_numbers(dense):
  flags = parse(f'--grid=model={dense},lenet5', '--grid=client_table=true')
  found = sweep.runs_of(flags)
  assert [run.config.model for run in found] == [str(dense), 'lenet5']
  assert all(run.config.client_table is True for run in found)
  assert all('/' not in run.config.experiment for run in found)


@pytest.mark.parametrize(
  ('flags', 'cores', 'memory', 'expected'),
  [
    ((), 2, 64e9, 1),
    ((), 16, 64e9, 8),
    ((), 16, 5e9, 2),
    ((), 1, 1e9, 1),
    (('--processes=5',), 2, 1e9, 5),
    (('--executor=ray',), 16, 64e9, 1),
  ],
)
def test_processes(monkeypatch, flags, cores, memory, expected):
  import psutil

  monkeypatch.setattr(sweep.hardware, 'num_cores', lambda: cores)
  monkeypatch.setattr(sweep.glob, 'glob', lambda pattern: [])
  available = type('Memory', (), {'available': memory})
  monkeypatch.setattr(psutil, 'virtual_memory', lambda: available)
  parsed = parse('--grid=epsilon=0.1', *flags)
  found = sweep.runs_of(parsed)
  assert sweep._processes(parsed.processes, found) == expected
  if not flags:
    monkeypatch.setattr(sweep.glob, 'glob', lambda pattern: ['/dev/nvidia0'])
    assert sweep._processes(None, found) == 1


def test_broken_runs_are_trained_again(copied):
  run = sweep.runs_of(
    parse(
      *(flag for flag in COMMAND if not flag.startswith('--output_dir')),
      f'--output_dir={copied.parent}',
      '--grid=learning_rate=0.01',
      '--grid=epsilon=0.5',
    )
  )[0].config
  assert runs.is_complete(run)
  (run.path / 'plots' / 'partition.svg').unlink()
  assert not runs.is_complete(run)
