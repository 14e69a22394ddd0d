"""The programs on data files of a user."""

import json

import numpy as np
import pytest

from safl_tf.reporting import plots
from safl_tf.training import export_files, metrics_log
from tests.binaries import programs

SMALL = (
  '--num_clients=3',
  '--mean_examples=20',
  '--rounds=2',
  '--local_epochs=1',
  '--init=shared',
  '--jit_compile=false',
  '--export=none',
)
CLASSES = ('ant', 'bee', 'cat')


def table(rows, classes=CLASSES, seed=0):
  """Lines of a CSV file whose first three columns depend on the class."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, len(classes), rows)
  lines = ['a,b,c,d,kind,who']
  for i, label in enumerate(labels):
    cells = rng.normal(size=4) + 6 * np.eye(4)[CLASSES.index(classes[label])]
    numbers = ','.join(f'{cell:.3f}' for cell in cells)
    lines.append(f'{numbers},{classes[label]},w{i % 5}')
  return '\n'.join(lines) + '\n'


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
  monkeypatch.setattr(plots, 'write_all', lambda *args: None)


@pytest.fixture(scope='module')
def linear(tmp_path_factory):
  """A model of four features."""
  import keras

  path = tmp_path_factory.mktemp('models') / 'linear.keras'
  keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(path)
  return path


@pytest.fixture
def home(tmp_path, monkeypatch):
  """A folder with data of all kinds, to work in."""
  import tensorflow as tf

  monkeypatch.chdir(tmp_path)
  rng = np.random.default_rng(0)
  (tmp_path / 'flowers.csv').write_text(table(120))
  x = rng.random((90, 16, 16, 1), np.float32)
  np.savez(tmp_path / 'floats.npz', x=x, y=np.arange(90) % 3 + 5)
  for i in range(30):
    path = tmp_path / 'animals' / CLASSES[i % 2] / f'{i}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (8, 8, 1)).astype(np.uint8)
    path.write_bytes(tf.io.encode_png(pixels).numpy())
  return tmp_path


def succeed(outcome):
  assert outcome.code == 0, outcome.err
  return outcome


def hparams(run):
  return json.loads((run / 'hparams.json').read_text())['flags']


def test_train_and_evaluate(home, call, linear):
  csv = ('--dataset=csv:flowers.csv', '--label_column=kind')
  options = (f'--model={linear}', '--client_column=who', '--learning_rate=0.01')
  succeed(call('train', *SMALL, *csv, *options))
  run = home / 'runs' / 'safl_flowers'
  assert hparams(run)['test_fraction'] == 0.2
  assert hparams(run)['max_labels'] is None
  assert len(hparams(run)['data_sha256']) == 64
  last = metrics_log.read_csv(run / 'metrics.csv')[-1]
  outcome = succeed(call('evaluate', f'--model={run}'))
  assert 'data     flowers, 24 test examples' in outcome.out
  assert f'top-1    {last["test_accuracy"]:.2%}' in outcome.out

  natural = ('--partition=client', '--num_clients=5', '--experiment=natural')
  rounds = ('--rounds=2', '--export=none')
  succeed(call('train', *rounds, *csv, *options, *natural))
  first = metrics_log.read_csv(home / 'runs' / 'natural' / 'metrics.csv')[0]
  assert first['selected'] == 5

  npz = '--dataset=npz:floats.npz'
  succeed(call('train', *SMALL, npz, '--model=lenet5'))
  run = home / 'runs' / 'safl_floats'
  described = json.loads((run / 'model.json').read_text())
  assert described['inputs'] == {'shape': [16, 16, 1], 'dtype': 'float32'}
  assert described['class_names'] == ['5', '6', '7']
  given = (f'--model={run}', npz, '--test_fraction=1')
  outcome = succeed(call('evaluate', *given))
  assert 'data     floats, 90 test examples' in outcome.out

  folder = ('--dataset=folder:animals', '--image_size=16,16')
  succeed(call('train', *SMALL, *folder, '--model=lenet5'))
  described = json.loads((home / 'runs/safl_animals/model.json').read_text())
  assert described['inputs'] == {'shape': [16, 16, 1], 'dtype': 'uint8'}
  assert described['class_names'] == ['ant', 'bee']


@pytest.fixture
def trained(home, call, linear):
  """A run on flowers.csv, and the command that made it."""
  command = (
    *SMALL,
    '--dataset=csv:flowers.csv',
    '--label_column=kind',
    '--client_column=who',
    '--learning_rate=0.05',
    '--local_epochs=30',
    '--partition=iid',
    f'--model={linear}',
  )
  succeed(call('train', *command))
  return home / 'runs' / 'safl_flowers', command


def test_changed_files_are_refused(home, call, trained):
  run, command = trained
  path = home / 'flowers.csv'
  path.write_text(path.read_text().replace('w1', 'w9', 1))
  before = programs.snapshot(run)
  outcome = call('train', *command, '--rounds=3')
  assert outcome.code == 2
  assert 'was made with other flags (data_sha256 was ' in outcome.err
  assert programs.snapshot(run) == before
  outcome = call('evaluate', f'--model={run}')
  assert outcome.code == 2
  assert outcome.err == (
    'safl-evaluate: --dataset=csv:flowers.csv: has changed since the run; '
    'give --dataset to use it nevertheless\n'
  )
  succeed(call('evaluate', f'--model={run}', '--dataset=csv:flowers.csv'))


def test_other_data_with_some_of_the_classes(home, call, trained):
  """Labels have the meaning that they have in the run."""
  run, _ = trained
  (home / 'new.csv').write_text(table(40, ('bee', 'cat'), seed=1))
  given = (f'--model={run}', '--dataset=csv:new.csv', '--test_fraction=1')
  outcome = succeed(call('evaluate', *given))
  rows = [line.split() for line in outcome.out.splitlines()[-3:]]
  assert [row[0] for row in rows] == ['ant', 'bee', 'cat']
  assert rows[0][1] == '0'
  assert int(rows[1][1]) + int(rows[2][1]) == 40
  [top] = [line for line in outcome.out.splitlines() if 'top-1' in line]
  assert float(top.split()[1].rstrip('%')) > 90
  (home / 'new.csv').write_text(table(4).replace('cat', 'dog'))
  outcome = call('evaluate', *given)
  assert outcome.code == 2
  assert "'dog' is none of the known labels, ant, bee, cat" in outcome.err


def test_class_names_of_exported_models(home, call, linear):
  """A model beside its export.json has its class names."""
  folder = home / 'export'
  folder.mkdir()
  (folder / 'model.keras').write_bytes(linear.read_bytes())
  about = {'class_names': ['cat', 'bee', 'ant']}
  export_files.write(folder, folder, {'model.keras': 'logits'}, about)
  outcome = succeed(
    call(
      'evaluate',
      f'--model={folder}/model.keras',
      '--dataset=csv:flowers.csv',
      '--label_column=kind',
      '--client_column=who',
    )
  )
  names = [line.split()[0] for line in outcome.out.splitlines()[-3:]]
  assert names == ['cat', 'bee', 'ant']


# Refused before TensorFlow is imported, in the folder of `fill`.
LIGHT = [
  ('train', '--dataset=csv:no.csv', '--dataset=csv:no.csv: '),
  ('train', '--dataset=npz:no.npz', '--dataset=npz:no.npz: '),
  ('train', '--dataset=folder:no', '--dataset=folder:no: '),
  (
    'train',
    '--dataset=a.csv',
    '--dataset=a.csv: did you mean csv:a.csv? must be one of mnist_sample, ',
  ),
  ('train', '--dataset=npz:a.csv', '--dataset=npz:a.csv: '),
  ('train', '--dataset=csv:empty.csv', '--dataset=csv:empty.csv: '),
  (
    'train',
    '--dataset=csv:a.csv --label_column=kind',
    '--dataset=csv:a.csv: has no column kind (--label_column); ',
  ),
  ('train', '--dataset=npz:x.npz', '--dataset=npz:x.npz: '),
  ('train', '--dataset=folder:images', '--dataset=folder:images: '),
  ('train', '--dataset=tfds:', '--dataset=tfds:: '),
  ('evaluate', '--model=m --dataset=csv:no', '--dataset=csv:no: '),
  ('evaluate', '--model=m --dataset=csv:empty.csv', '--dataset=csv:empty.csv'),
  ('train', '--dataset=npz:x.npz --label_column=y', '--label_column=y: '),
  (
    'train',
    '--test_fraction=0.5',
    '--test_fraction=0.5: has no effect with --dataset=mnist_sample; it is '
    'for --dataset=npz:FILE, csv:FILE, folder:FOLDER',
  ),
  ('train', '--dataset=csv:a.csv --test_fraction=1', '--test_fraction=1.0: '),
  ('train', '--dataset=csv:a.csv --image_size=28x28', '--image_size=28x28: '),
  (
    'evaluate',
    '--model=m --dataset=mnist --image_size=2,2',
    '--image_size=2,2: ',
  ),
]


def fill(folder):
  (folder / 'a.csv').write_text('a,b\n1,2\n')
  (folder / 'empty.csv').write_text('')
  np.savez(folder / 'x.npz', x=np.zeros((2, 2)))
  (folder / 'images' / 'ant').mkdir(parents=True)
  (folder / 'm').mkdir()


def test_bad_input_without_tensorflow(tmp_path):
  fill(tmp_path)
  before = programs.snapshot(tmp_path)
  outcomes = programs.call_light(
    [(program, line.split(), tmp_path) for program, line, _ in LIGHT]
  )
  for (program, _, message), outcome in zip(LIGHT, outcomes, strict=True):
    programs.check_refused(outcome, program, message)
  assert programs.snapshot(tmp_path) == before


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      '--dataset=csv:flowers.csv --label_column=kind --weight_column=a',
      '--dataset=csv:flowers.csv: line ',
    ),
    (
      '--dataset=csv:flowers.csv --label_column=kind --client_column=who '
      '--model=light_vgg',
      '--model=light_vgg: takes images, [height, width, channels], but the '
      'rows of flowers are [4], for classification; give another model or a '
      '.keras file, or --image_size=H,W if rows are images',
    ),
    ('--dataset=npz:floats.npz --model={}', '--model={}: '),
    ('--dataset=npz:floats.npz --max_labels=4', '--max_labels=4: '),
    ('--dataset=npz:floats.npz --partition=client', '--partition=client: '),
  ],
)
def test_bad_input_with_tensorflow(home, call, linear, arguments, message):
  before = programs.snapshot(home)
  outcome = call('train', *arguments.format(linear).split())
  programs.check_refused(outcome, 'train', message.format(linear))
  assert programs.snapshot(home) == before
