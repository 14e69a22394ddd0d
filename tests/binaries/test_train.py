import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from binaries.flags import run_config
from safl_tf.reporting import plots
from safl_tf.training import export, export_files, metrics_log
from tests import marks
from tests.binaries import programs


def rows(run):
  return metrics_log.read_csv(run / 'metrics.csv')


@pytest.fixture
def train(call, tmp_path, dense, monkeypatch):
  """Trains a small model: outcome and folder. It compiles and plots nothing."""
  quick = (*programs.SMALL, '--jit_compile=false', f'--output_dir={tmp_path}')
  monkeypatch.setattr(
    plots, 'write_all', lambda run, *args: (run / 'plotted').touch()
  )

  def run(*arguments, name='run', model=dense):
    where = (f'--experiment={name}', f'--model={model}')
    return call('train', *quick, *where, *arguments), tmp_path / name

  return run


@pytest.fixture
def copied(finished, tmp_path):
  """The finished run, to be changed, and the command that made it."""
  run = tmp_path / finished.name
  shutil.copytree(finished, run)
  return run, (*programs.LEARNING, f'--output_dir={tmp_path}')


def test_files_of_a_run(finished):
  hparams = json.loads((finished / 'hparams.json').read_text())
  names = programs.flag_names(run_config.RunConfig)
  assert set(hparams['flags']) == names
  assert hparams['flags']['learning_rate'] == 0.01
  assert hparams['flags']['model'] == 'lenet5'
  assert set(hparams['versions']) >= {'python', 'tensorflow', 'keras', 'numpy'}
  lines = (finished / 'metrics.csv').read_text().splitlines()
  assert lines[0] == ','.join(metrics_log.COLUMNS)
  assert [row['round'] for row in rows(finished)] == [1, 2]
  assert all(row['uploaded'] == row['selected'] == 4 for row in rows(finished))
  assert rows(finished)[-1]['test_accuracy'] > 0.6
  kept = sorted(p.name for p in (finished / 'checkpoints').iterdir())
  assert kept == ['round_000002.json', 'round_000002.npz']
  assert len(list((finished / 'logdir').glob('events.out.tfevents.*'))) == 1
  plots = {path.stem: path.read_bytes() for path in finished.glob('plots/*')}
  # None of uploads, as every client uploads.
  assert plots.keys() == {'accuracy', 'annealing', 'loss', 'partition'}
  assert all(image.startswith(b'\x89PNG') for image in plots.values())
  described = json.loads((finished / 'model.json').read_text())
  assert described['task']['from_logits'] is True
  assert described['class_names'] == list('0123456789')
  assert not (finished / 'export').exists()
  assert not list(finished.rglob('.partial-*'))


def test_same_command_again(copied, call):
  run, command = copied
  before = programs.snapshot(run)
  outcome = call('train', *command)
  assert outcome.code == 0
  last, best = rows(run)[-1], max(r['test_accuracy'] for r in rows(run))
  printed = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
  assert printed['files'] == str(run)
  assert printed['uploads'] == '8 of 8'
  assert printed['communication'].startswith(
    f'{last["total_bytes_up"] / 1e6:.1f} MB up, '
  )
  assert f'best accuracy  {best:.1%} (round ' in outcome.out
  assert f'last accuracy  {last["test_accuracy"]:.1%}\n' in outcome.out
  after = programs.snapshot(run)
  for state in (before, after):
    del state[pathlib.Path('hparams.json')]  # it names the folder
    logs = [path for path in state if path.parent.name == 'logdir']
    del state[logs.pop()]  # rewritten under a new name
    assert not logs
  assert after == before


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      ('--epsilon=0.5', '--seed=3'),
      '--experiment={0}: this folder was made with other flags '
      '(epsilon was 0.3, is 0.5; seed was 0, is 3); choose ',
    ),
    (('--activation=relu',), '--experiment={0}: this folder was made with '),
    (
      ('--rounds=1',),
      '--rounds=1: must be at least 2, as {0} has completed 2; or choose ',
    ),
  ],
)
def test_other_command_in_the_same_folder(copied, call, arguments, message):
  run, command = copied
  before = programs.snapshot(run)
  outcome = call('train', *command, *arguments)
  programs.check_refused(outcome, 'train', message.format(run))
  assert programs.snapshot(run) == before


@pytest.mark.parametrize('step, version', [(-1, 'an older'), (1, 'a newer')])
def test_run_of_another_version(copied, call, no_tensorflow, step, version):
  """All programs that read runs refuse it and change nothing."""
  run, command = copied
  hparams = json.loads((run / 'hparams.json').read_text())
  hparams['format'] += step
  (run / 'hparams.json').write_text(json.dumps(hparams))
  before = programs.snapshot(run)
  for program, flag, arguments in (
    ('train', 'experiment', command),
    ('evaluate', 'model', [f'--model={run}']),
    ('export', 'run', [f'--run={run}']),
  ):
    outcome = call(program, *arguments)
    message = f'--{flag}={run}: was made by {version} version of safl_tf; '
    programs.check_refused(outcome, program, message)
  assert programs.snapshot(run) == before


def test_more_rounds(train):
  _, short = train('--rounds=2', name='raised')
  assert train('--rounds=4', name='raised')[0].code == 0
  assert train('--rounds=4', name='direct')[0].code == 0
  direct = short.with_name('direct')
  assert programs.metrics(short) == programs.metrics(direct)
  assert [row['round'] for row in rows(short)] == [1, 2, 3, 4]
  for name, array in programs.newest(direct).items():
    np.testing.assert_array_equal(programs.newest(short)[name], array)
  hparams = json.loads((short / 'hparams.json').read_text())
  assert hparams['flags']['rounds'] == 4


def test_stop_at_accuracy(train):
  outcome, run = train('--rounds=50', '--stop_at_accuracy=0.01')
  assert outcome.code == 0
  assert [row['round'] for row in rows(run)] == [1]
  assert train('--rounds=50', '--stop_at_accuracy=0.01')[0].code == 0
  assert [row['round'] for row in rows(run)] == [1]


@pytest.mark.parametrize(
  'flag',
  marks.some(
    [
      '--algorithm=fedavg',
      '--algorithm=extended_safl',
      '--optimizer=adam',
      '--loss=paper',
      '--loss_reduction=mean',
      '--anneal_clock=step',
      '--mix_granularity=model',
      '--partition=iid',
      '--init=per_client',
      '--clients_per_round=2',
      '--seed=1',
      '--executor=serial',
      '--jit_compile=true',
    ],
    [
      '--algorithm=extended_safl',
      '--optimizer=adam',
      '--loss=paper',
      '--mix_granularity=model',
      '--init=per_client',
      '--executor=serial',
    ],
  ),
)
def test_options(train, usual, flag):
  outcome, run = train(flag)
  assert outcome.code == 0, outcome.err
  name, value = flag.removeprefix('--').split('=')
  hparams = json.loads((run / 'hparams.json').read_text())
  assert str(hparams['flags'][name]) == value
  result, other = programs.newest(run)['z_bar'], programs.newest(usual)['z_bar']
  assert np.isfinite(result).all()
  if name == 'executor':
    np.testing.assert_array_equal(result, other)
  elif name == 'jit_compile':
    np.testing.assert_allclose(result, other, atol=1e-5)
  else:
    assert np.abs(result - other).max() > 1e-5
  assert (rows(run)[-1]['q_p50'] is None) == ('extended' not in value)
  assert rows(run)[-1]['selected'] == (2 if name == 'clients_per_round' else 4)


@pytest.fixture(scope='module')
def usual(tmp_path_factory, dense):
  """A run of the small model with no other option."""
  folder = tmp_path_factory.mktemp('usual')
  arguments = (
    '--jit_compile=false',
    f'--output_dir={folder}',
    f'--model={dense}',
  )
  assert programs.call('train', *programs.SMALL, *arguments) == 0
  return folder / 'safl_mnist_sample'


def blocks():
  """A model with nested blocks, batch normalization and dropout."""
  import keras

  def block(name):
    inputs = keras.Input((16,))
    x = keras.layers.Dense(16, name='dense')(inputs)
    x = keras.layers.BatchNormalization(name='norm')(x)
    x = keras.layers.Dropout(0.2, name='drop')(keras.ops.relu(x))
    return keras.Model(inputs, x, name=name)

  inputs = keras.Input((28, 28, 1))
  x = keras.layers.Rescaling(1 / 255)(inputs)
  x = keras.layers.Flatten()(keras.layers.AveragePooling2D(7)(x))
  x = keras.layers.Add()([block('one')(x), block('two')(x)])
  return keras.Model(inputs, keras.layers.Dense(10, activation='softmax')(x))


_OWN_LAYER = """
import keras

@keras.saving.register_keras_serializable('tests')
class Scale(keras.layers.Layer):
  def build(self, shape):
    self.scale = self.add_weight(shape=(shape[-1],), initializer='ones')

  def call(self, x):
    return x * self.scale
"""


def test_layers_of_their_own(train, tmp_path, call):
  import keras

  from binaries import factories

  code, path = tmp_path / 'my_layers.py', tmp_path / 'own.keras'
  code.write_text(_OWN_LAYER)
  names = {}
  exec(_OWN_LAYER, names)
  keras.Sequential(
    [
      keras.Input((28, 28, 1)),
      keras.layers.Flatten(),
      names['Scale'](),
      keras.layers.Dense(10),
    ]
  ).save(path)

  def forget():
    keras.saving.get_custom_objects().pop('tests>Scale', None)
    factories._import.cache_clear()

  forget()
  flags = ('--algorithm=fedavg', '--from_logits')
  outcome, _ = train(*flags, model=path)
  assert outcome.code == 2
  assert 'has Scale of its own: --custom_objects=FILE.py must' in outcome.err
  flags = (*flags, f'--custom_objects={code}')
  outcome, run = train(*flags, model=path)
  assert outcome.code == 0, outcome.err
  forget()
  outcome = call('evaluate', f'--model={run}', f'--custom_objects={code}')
  assert outcome.code == 0, outcome.err
  code.write_text(f'{_OWN_LAYER}1 / 0')
  outcome, _ = train(*flags, model=path)
  assert outcome.code == 2
  assert 'made with other flags (custom_objects_sha256 was ' in outcome.err
  forget()
  outcome, _ = train(*flags, model=path, name='other')
  assert outcome.code == 2
  assert 'cannot be imported (ZeroDivisionError: division' in outcome.err
  forget()


def test_user_model(train, tmp_path, call):
  import keras

  from safl_tf.training import run_directory

  model = blocks()
  model.save(tmp_path / 'blocks.keras')
  arguments = ('--algorithm=fedavg', '--init=shared', '--learning_rate=1e-30')
  outcome, run = train(*arguments, model=tmp_path / 'blocks.keras')
  assert outcome.code == 0, outcome.err
  loaded = run_directory.load(run)
  assert isinstance(loaded.model, keras.Model)
  assert loaded.task['from_logits'] is False
  # Nothing is learned: what remains are the weights of the file. Only the
  # statistics of batch normalization, which start from there too, have changed.
  for mine, given in zip(
    loaded.model.trainable_variables, model.trainable_variables, strict=True
  ):
    np.testing.assert_allclose(mine, given, rtol=1e-6, atol=1e-20)
  changed = [
    np.abs(np.subtract(mine, given)).max() > 1e-3
    for mine, given in zip(
      loaded.model.non_trainable_variables,
      model.non_trainable_variables,
      strict=True,
    )
    if 'moving' in given.name
  ]
  assert changed == [True] * 4
  # Another model under the same name is another run.
  blocks().save(tmp_path / 'blocks.keras')
  outcome, _ = train(*arguments, model=tmp_path / 'blocks.keras')
  assert outcome.code == 2
  assert 'made with other flags (model_sha256 was ' in outcome.err


def test_client_table(train):
  outcome, run = train('--client_table')
  assert outcome.code == 0
  assert len((run / 'clients.csv').read_text().splitlines()) == 1 + 4


def test_export_of_a_run(train, monkeypatch):
  checked = []
  monkeypatch.setattr(export, '_check', lambda *args: checked.append(args))
  outcome, run = train('--export=both')
  assert outcome.code == 0
  names = ['.safl_tf', 'export.json', 'model.keras', 'saved_model']
  assert sorted(os.listdir(run / 'export')) == names
  about = json.loads((run / 'export' / 'export.json').read_text())
  assert about == {
    'round': 2,
    'class_names': list('0123456789'),
    'outputs': {'model.keras': 'logits', 'saved_model': 'probabilities'},
    'files': {
      name: export_files.digest(run / 'export' / name) for name in names[2:]
    },
    'earlier_files': {},
  }
  assert train('--export=keras')[0].code == 0
  assert len(checked) == 1  # that was there already
  assert train('--export=both', '--rounds=3')[0].code == 0
  assert len(checked) == 2


@pytest.mark.parametrize(
  'error', [export.ExportError('predictions differ'), OSError('disk full')]
)
def test_export_that_fails(train, monkeypatch, error):
  def fail(*args):
    raise error

  with monkeypatch.context() as patch:
    patch.setattr(export, '_check', fail)
    outcome, run = train('--export=both')
  assert outcome.code == 1
  lines = outcome.err.splitlines()
  assert lines[-1].startswith(f'safl-train: --export=both: {error}; all other ')
  assert f'safl-export --run={run} tries again' in lines[-1]
  assert 'Traceback' not in outcome.err
  assert f'files          {run}\n' in outcome.out
  assert [row['round'] for row in rows(run)] == [1, 2]
  assert len(programs.newest(run)['clients/z/ids']) == 4
  assert (run / 'plotted').exists()
  assert os.listdir(run / 'export') == ['.safl_tf']


def test_ctrl_c(train, monkeypatch):
  from safl_tf.training import loop

  def stop(*args, **options):
    raise KeyboardInterrupt

  monkeypatch.setattr(loop, 'run', stop)
  outcome, _ = train()
  assert outcome.code == 130
  assert outcome.err == 'safl-train: stopped; the same command resumes\n'


def test_flagfile(train, tmp_path):
  (tmp_path / 'my.flags').write_text('# mine\n--temperature=3\n--epsilon=0.4\n')
  outcome, run = train(f'--flagfile={tmp_path}/my.flags', '--epsilon=0.6')
  assert outcome.code == 0
  flags = json.loads((run / 'hparams.json').read_text())['flags']
  assert (flags['temperature'], flags['epsilon']) == (3, 0.6)
  assert len(rows(run)) == 2


def test_closed_pipe():
  process = programs.start('-m', 'binaries.train', '--help')
  process.stdout.close()
  assert process.stderr.read() == ''
  assert process.wait(timeout=60) == 1
