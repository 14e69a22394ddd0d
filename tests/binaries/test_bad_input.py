"""A user's mistake: one line on stderr, exit code 2, nothing written."""

import numpy as np
import pytest
import requests

from tests.binaries import programs

# What the command line says before TensorFlow is imported. Of the files named
# here, notes.txt is a text, own.keras a zip archive and run/ an empty folder.
LIGHT = [
  ('train', '--epsilon=1.5', '--epsilon=1.5: must be a number in [0, 1]'),
  ('train', '--epsilon=-0.1', '--epsilon=-0.1: '),
  ('train', '--epsilon=nan', '--epsilon=nan: '),
  ('train', '--epsilon=much', '--epsilon=much: must be a number'),
  ('train', '--temperature=0', '--temperature=0.0: must be a number in (0, '),
  ('train', '--temperature=-80', '--temperature=-80.0: '),
  ('train', '--temperature=inf', '--temperature=inf: '),
  ('train', '--nu=0', '--nu=0.0: '),
  ('train', '--nu=-1', '--nu=-1.0: '),
  ('train', '--fraction=0', '--fraction=0.0: '),
  ('train', '--fraction=1.01', '--fraction=1.01: '),
  ('train', '--learning_rate=-1', '--learning_rate=-1.0: '),
  ('train', '--mean_examples=0', '--mean_examples=0.0: '),
  ('train', '--variance_examples=-1', '--variance_examples=-1.0: '),
  ('train', '--stop_at_accuracy=2', '--stop_at_accuracy=2.0: '),
  ('train', '--rounds=0', '--rounds=0: must be a whole number in [1, '),
  ('train', '--rounds=abc', '--rounds=abc: must be a whole number'),
  ('train', '--rounds=2.5', '--rounds=2.5: '),
  ('train', '--rounds=', '--rounds=: '),
  ('train', '--rounds', 'Missing value for flag --rounds'),
  ('train', '--batch_size=0', '--batch_size=0: '),
  ('train', '--local_epochs=0', '--local_epochs=0: '),
  ('train', '--num_clients=0', '--num_clients=0: '),
  (
    'train',
    '--dataset=speech_commands --speech_words=ten',
    '--speech_words=ten: ',
  ),
  ('train', '--seed=-1', '--seed=-1: '),
  ('train', '--max_labels=0', '--max_labels=0: '),
  ('train', '--dataset=mnst', '--dataset=mnst: '),
  (
    'train',
    '--algorithm=sfal',
    '--algorithm=sfal: did you mean safl ... must be one of centralized, ',
  ),
  ('train', '--optimizer=adma', '--optimizer=adma: '),
  ('train', '--partition=idd', '--partition=idd: '),
  ('train', '--model=lenet', '--model=lenet: '),
  ('train', '--model=notes.txt', '--model=notes.txt: must be one of auto, len'),
  ('train', '--model=no.keras', '--model=no.keras: there is no such file'),
  ('train', '--model=run.keras', '--model=run.keras: '),
  (
    'train',
    '--model=own.keras --mixed_precision=float16',
    '--mixed_precision=float16: ',
  ),
  (
    'train',
    '--model=own.keras --activation=relu',
    '--activation=relu: has no effect with --model=own.keras; it is for '
    '--model other than FILE.keras',
  ),
  (
    'train',
    '--clients_per_round=9 --num_clients=8',
    '--clients_per_round=9: must be at most the number of clients, 8',
  ),
  ('train', '--clients_per_round=21', '--clients_per_round=21: '),
  (
    'train',
    '--fraction=1 --clients_per_round=3',
    '--clients_per_round=3: contradicts --fraction=1; give one of them',
  ),
  ('train', '--round=3', '--round=3: no such flag; did you mean --rounds? see'),
  ('train', '--nothing_like_it', '--nothing_like_it: no such flag; see --help'),
  ('train', 'stray', 'stray: not a flag; flags are written --name=value'),
  ('train', '--flagfile=no.flags', '--flagfile=no.flags: No such file'),
  ('train', '--flagfile=run', '--flagfile=run: '),
  ('train', '--flagfile=own.keras', '--flagfile: must be a text file'),
  (
    'train',
    '--dataset=mnist --data_dir=no',
    '--data_dir=no: must be an existing folder',
  ),
  (
    'train',
    '--output_dir=notes.txt',
    '--output_dir=notes.txt/safl_mnist_sample: notes.txt is not a folder',
  ),
  (
    'train',
    '--output_dir=notes.txt/below',
    '--output_dir=notes.txt/below/safl_mnist_sample: ',
  ),
  ('train', '--experiment=a/b', '--experiment=a/b: must be the name of a'),
  ('train', '--experiment=..', '--experiment=..: '),
  ('train', '--experiment=', '--experiment=: '),
  (
    'train',
    '--epsilon=2 --nu=0',
    '--epsilon=2.0: must be a number in [0, 1]; --nu=0.0: must be a number in ',
  ),
  ('train', '--holdout=1', '--holdout=1.0: '),
  ('export', '', '--run=: is required'),
  ('export', '--run=no', '--run=no: is not a run directory'),
  ('export', '--run=run', '--run=run: '),
  ('export', '--run=run --format=pb', '--format=pb: '),
  ('evaluate', '', '--model=: '),
  ('evaluate', '--model=no.keras', '--model=no.keras: there is no such file'),
  ('evaluate', '--model=notes.txt', '--model=notes.txt: must be a .keras file'),
  ('evaluate', '--model=run', '--model=run: is neither a run (no model.json)'),
  ('evaluate', '--model=own.keras --dataset=x', '--dataset=x: '),
  ('evaluate', '--model=own.keras --trust', '--trust=True: is only for a Sav'),
]


def fill(folder):
  (folder / 'notes.txt').write_text('not a model')
  (folder / 'run.keras').write_text('not a model either')
  (folder / 'own.keras').write_bytes(b'PK\5\6' + bytes([255]) * 4 + bytes(14))
  (folder / 'run').mkdir()
  return programs.snapshot(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  fill(tmp_path)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
  """What each of `LIGHT` gave, and whether it left its folder as it was."""
  folders = [tmp_path_factory.mktemp('light') for _ in LIGHT]
  before = [fill(folder) for folder in folders]
  given = [(program, line.split()) for program, line, _ in LIGHT]
  results = programs.call_light(
    [(*case, folder) for case, folder in zip(given, folders, strict=True)]
  )
  after = [programs.snapshot(folder) for folder in folders]
  return [
    (outcome, was == now)
    for outcome, was, now in zip(results, before, after, strict=True)
  ]


@pytest.mark.parametrize(
  'number', range(len(LIGHT)), ids=[' '.join(case[:2]) for case in LIGHT]
)
def test_without_tensorflow(outcomes, number):
  program, _, message = LIGHT[number]
  outcome, unchanged = outcomes[number]
  programs.check_refused(outcome, program, message)
  assert unchanged


def test_multiline_values_give_one_line(tmp_path):
  value = '/a\nb\r\n  c\x0bd\u2028e'
  names = ['dataset', 'model', 'rounds', 'experiment']
  results = programs.call_light(
    [('train', [f'--{name}={value}'], tmp_path) for name in names]
  )
  for name, outcome in zip(names, results, strict=True):
    programs.check_refused(outcome, 'train', f'--{name}=/a b c d e: ')


@pytest.fixture(scope='session')
def misfits(tmp_path_factory):
  """Models that don't fit the digits: 5 classes, and colour images."""
  import keras

  folder = tmp_path_factory.mktemp('misfits')
  for name, shape, classes in (
    ('narrow', (28, 28, 1), 5),
    ('colour', (32, 32, 3), 10),
  ):
    layers = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    model = keras.Sequential([keras.Input(shape), *layers])
    model.save(folder / f'{name}.keras')
  return folder


@pytest.mark.parametrize(
  'program, arguments, message',
  [
    ('train', '--max_labels=11', '--max_labels=11: must be a whole number in'),
    (
      'train',
      '--activation=rleu',
      '--activation=rleu: did you mean relu or relu6',
    ),
    (
      'train',
      '--device=gpu:99',
      '--device=gpu:99: not on this machine; it has',
    ),
    (
      'train',
      '--device=tpu',
      '--device=tpu: not on this machine; it has cpu, cpu:0',
    ),
    (
      'train',
      '--model=own.keras',
      '--model=own.keras: cannot be loaded by Ker',
    ),
    (
      'train',
      '--model={}/narrow.keras',
      '--model={}/narrow.keras: its outputs have shape (2, 5), but 10 classes',
    ),
    (
      'train',
      '--model={}/colour.keras',
      '--model={}/colour.keras: does not take inputs of shape (28, 28, 1) ',
    ),
    (
      'evaluate',
      '--model={}/narrow.keras',
      '--model={}/narrow.keras: its outputs have shape (2, 5), but 10 classes',
    ),
    ('train', '--loss=papr', '--loss=papr: did you mean paper'),
    (
      'evaluate',
      '--model={}/colour.keras',
      '--model={}/colour.keras: does not take inputs of shape (28, 28, 1) ',
    ),
    (
      'evaluate',
      '--model=own.keras',
      '--model=own.keras: cannot be loaded by K',
    ),
    (
      'evaluate',
      '--model=run',
      '--model=run: is neither a run (no model.json) nor a SavedModel',
    ),
  ],
)
def test_with_tensorflow(folder, call, misfits, program, arguments, message):
  before = programs.snapshot(folder)
  outcome = call(program, *arguments.format(misfits).split())
  programs.check_refused(outcome, program, message.format(misfits))
  assert programs.snapshot(folder) == before


def test_no_gpu(folder, call):
  import tensorflow as tf

  if tf.config.list_physical_devices('GPU'):
    pytest.skip('there is one')
  outcome = call('train', '--device=gpu')
  programs.check_refused(
    outcome, 'train', '--device=gpu: not on this machine; it has cpu, '
  )


@pytest.mark.parametrize('program', ['train', 'evaluate'])
def test_data_that_cannot_be_downloaded(
  folder, call, misfits, monkeypatch, program
):
  def unreachable(*args, **kwargs):
    raise requests.ConnectionError

  monkeypatch.setattr(requests, 'head', unreachable)
  before = programs.snapshot(folder)
  outcome = call(
    program,
    '--dataset=cifar10',
    '--data_dir=run',
    f'--model={misfits}/colour.keras',
  )
  programs.check_refused(
    outcome, program, '--dataset=cifar10: not prepared in '
  )
  command = 'run python -c "import tensorflow_datasets as tfds; '
  assert command in outcome.err and '.download_and_prepare()"' in outcome.err
  assert programs.snapshot(folder) == before


def test_log_of_tfds_is_not_shown(folder, call, misfits, monkeypatch):
  import tensorflow_datasets as tfds

  def splits(self, downloads):
    image = np.zeros((28, 28, 1), np.uint8)
    examples = [(i, {'image': image, 'label': i}) for i in range(10)]
    return {'train': iter(examples), 'test': iter(examples)}

  def reachable(*args, **kwargs):
    answer = requests.Response()
    answer.status_code = 200
    return answer

  monkeypatch.setattr(tfds.builder_cls('mnist'), '_split_generators', splits)
  monkeypatch.setattr(requests, 'head', reachable)
  data = ('--dataset=mnist', '--data_dir=run')
  call('train', *data, '--max_labels=11')  # prepares the data
  outcome = call('train', *data, '--max_labels=11')
  programs.check_refused(
    outcome, 'train', '--max_labels=11: must be a whole number in [1, 10]'
  )
  model = f'--model={misfits}/narrow.keras'
  outcome = call('evaluate', *data, model)
  programs.check_refused(
    outcome, 'evaluate', f'{model}: its outputs have shape (2, 5), but 10'
  )
