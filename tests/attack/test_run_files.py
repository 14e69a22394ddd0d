"""Damaged files of a run: named, and written again only if nothing is lost."""

import shutil

import pytest

from tests.binaries import programs


@pytest.fixture(scope='module')
def command(dense):
  return (
    *programs.SMALL,
    '--jit_compile=false',
    f'--model={dense}',
    '--experiment=run',
  )


@pytest.fixture(scope='module')
def trained(command, tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained')
  assert programs.call('train', *command, f'--output_dir={folder}') == 0
  return folder / 'run'


@pytest.fixture
def run(trained, tmp_path):
  return shutil.copytree(trained, tmp_path / 'run')


def text(name, content):
  return lambda run: (run / name).write_text(content)


def folder_for_file(name):
  def change(run):
    (run / name).unlink()
    (run / name).mkdir()

  return change


def file_for_folder(name):
  def change(run):
    shutil.rmtree(run / name)
    (run / name).write_text('x')

  return change


def changed_class(run):
  path = run / 'model.json'
  path.write_text(path.read_text().replace('"Dense"', '"Denser"'))


# The damage, then exit code and a part of the messages of safl-train and of
# safl-evaluate. Code 0 with a part is a warning.
DAMAGE = {
  'hparams.json is a number': (
    text('hparams.json', '3'),
    (2, 'hparams.json must be a JSON object'),
    (2, 'hparams.json must be a JSON object'),
  ),
  'hparams.json is cut': (
    text('hparams.json', '{"format": 5,'),
    (2, 'hparams.json cannot be parsed'),
    (2, 'hparams.json cannot be parsed'),
  ),
  'hparams.json is empty': (
    text('hparams.json', '{"format": 5}'),
    (2, 'hparams.json has no valid field identity'),
    (2, 'hparams.json has no valid field identity'),
  ),
  'model.json is a list': (
    text('model.json', '[]'),
    (0, 'model.json must be a JSON object; it is written again'),
    (2, 'model.json must be a JSON object'),
  ),
  'model.json is no JSON': (
    text('model.json', 'x'),
    (0, 'model.json cannot be parsed'),
    (2, 'model.json cannot be parsed'),
  ),
  'model.json is empty': (
    text('model.json', '{}'),
    (0, 'model.json has no valid field model; it is written again'),
    (2, 'model.json has no valid field model'),
  ),
  'model.json has an unknown class': (
    changed_class,
    (0, ''),
    (2, 'Keras cannot rebuild model.json'),
  ),
  'metrics.csv has another header': (
    text('metrics.csv', 'a,b\n1,2\n'),
    (0, 'line 1: must name the columns, round first; it is written again'),
    (0, ''),
  ),
  'metrics.csv has words': (
    text('metrics.csv', 'round\nword\n'),
    (0, 'line 2: must be 1 numbers, round 1 first; it is written again'),
    (0, ''),
  ),
  'metrics.csv is a folder': (
    folder_for_file('metrics.csv'),
    (1, 'metrics.csv: Is a directory'),
    (0, ''),
  ),
  'model.json is a folder': (
    folder_for_file('model.json'),
    (1, 'model.json: Is a directory'),
    (2, 'is neither a run'),
  ),
  'logdir is a file': (
    file_for_folder('logdir'),
    (1, 'logdir: File exists'),
    (0, ''),
  ),
  'plots is a file': (
    file_for_folder('plots'),
    (1, 'plots: File exists'),
    (0, ''),
  ),
  'checkpoints is a file': (
    file_for_folder('checkpoints'),
    (2, 'has lost the checkpoint of round 2'),
    (2, 'has no global model yet'),
  ),
  'the mark is of another kind': (
    text('.safl_tf', 'comparison\n'),
    (2, 'is the folder of a comparison'),
    (0, ''),
  ),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_damaged_files(call, command, run, damage):
  change, trains, evaluates = DAMAGE[damage]
  change(run)
  before = programs.snapshot(run)
  check(call('evaluate', f'--model={run}'), 'evaluate', evaluates)
  assert programs.snapshot(run) == before
  outcome = call('train', *command, f'--output_dir={run.parent}')
  check(outcome, 'train', trains)
  if trains[0] == 2:
    assert programs.snapshot(run) == before
  if trains[0] == 0:
    assert programs.metrics(run)[-1]['round'] == 2
    assert call('evaluate', f'--model={run}').code == 0


def check(outcome, program, expected):
  code, part = expected
  assert outcome.code == code, outcome.err
  assert part in outcome.err and 'Traceback' not in outcome.err
  if code:
    last = outcome.err.splitlines()[-1]
    assert last.startswith(f'safl-{program}: ') and part in last
