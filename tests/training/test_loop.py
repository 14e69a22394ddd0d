import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import client_config, process
from safl_tf.training import (
  client_evaluation,
  identity,
  loop,
  metrics_log,
  run_directory,
)
from safl_tf.training import row as row_lib
from safl_tf.util import errors
from tests import tiny
from tests.training import test_checkpoint, test_metrics_log

pytestmark = pytest.mark.usefixtures('no_outputs')

CLIENTS = tiny.clients((20, 13, 31, 7))
TEST_X, TEST_Y = tiny.blobs(60, seed=9)
CONFIG = client_config.LocalConfig(
  local_epochs=1, batch_size=8, learning_rate=0.02
)
FAST = {'config': CONFIG, 'jit_compile': 'false', 'progress': False}


def train(rounds, clients=CLIENTS, algorithm=None, **options):
  options = {**FAST, 'test_data': (TEST_X, TEST_Y), **options}
  return loop.train(tiny.dense, clients, algorithm, rounds=rounds, **options)


def computed(history):
  """Returns the columns that must be equal in two runs of a command."""
  return [
    {k: v for k, v in row.items() if k not in metrics_log.MEASURED}
    for row in history
  ]


def check_same(one, other):
  assert computed(one.history) == computed(other.history)
  assert one.state.z_bar.tobytes() == other.state.z_bar.tobytes()
  test_checkpoint.check_same_models(
    one.state.client_models, other.state.client_models
  )


@pytest.fixture(scope='module')
def trainer():
  """A process that is compiled once; a state is a value, so tests share it."""
  return process.FederatedProcess(
    tiny.dense,
    CLIENTS,
    safl_tf.build_extended_safl(nu=0.2, temperature=5, fraction=0.75),
    CONFIG,
    jit_compile='false',
  )


def run(trainer, rounds, folder=None, test_data=(TEST_X, TEST_Y), **options):
  if folder is not None:
    folder = run_directory.RunDirectory(folder, {'seed': 0})
  return loop.run(
    trainer,
    loop.Schedule(rounds, **options),
    test_data=test_data,
    directory=folder,
    progress=False,
  )


@pytest.mark.parametrize('checkpoint_every', [1, 5])
def test_resumed_run_equals_an_uninterrupted_one(
  trainer, tmp_path, checkpoint_every
):
  options = {'checkpoint_every': checkpoint_every}
  whole = run(trainer, 3, tmp_path / 'whole', **options)
  half = run(trainer, 2, tmp_path / 'parts', **options)
  assert half.state.t == 2
  both = run(trainer, 3, tmp_path / 'parts', **options)
  check_same(both, whole)
  check_same(run(trainer, 3), whole)  # and without a folder
  for name in 'whole', 'parts':
    rows = metrics_log.read_csv(tmp_path / name / 'metrics.csv')
    assert computed(rows) == computed(whole.history)


def test_unsaved_rounds_are_computed_again(trainer, tmp_path):
  """A run that was killed after round 4, with a checkpoint of round 2."""
  folder = run_directory.RunDirectory(tmp_path)
  state, history = trainer.initialize(0), []
  metadata = {'class_names': ['0', '1', '2']}
  definition = identity.of_run(trainer, state, None, metadata)
  with folder.opened():
    folder.begin({**definition, 'eval_every': 1}, 5)
    folder.restore(state)
    for t in (1, 2, 3, 4):
      state, metrics = trainer.next(state)
      history.append(row_lib.create(metrics, None, {}, history, 0.0))
      folder.append(history[-1])
      if t == 2:
        folder.save(state, history)
  assert len(metrics_log.read_csv(tmp_path / 'metrics.csv')) == 4
  resumed = run(trainer, 5, tmp_path, test_data=None)
  check_same(resumed, run(trainer, 5, test_data=None))
  rows = metrics_log.read_csv(tmp_path / 'metrics.csv')
  assert computed(rows) == computed(resumed.history)


def test_train_resumes(tmp_path):
  options = {'output_dir': tmp_path, 'seed': 4}
  first = train(2, **options)
  second = train(3, **options)
  assert [row['round'] for row in second.history] == [1, 2, 3]
  assert second.history[:2] == first.history
  check_same(second, train(3, seed=4))
  with pytest.raises(errors.InputError, match='seed was 4, is 5'):
    train(3, output_dir=tmp_path, seed=5)
  hparams = json.loads((tmp_path / 'hparams.json').read_text())
  assert hparams['flags'] is None
  assert hparams['identity']['seed'] == 4
  assert hparams['identity']['num_clients'] == 4
  assert hparams['identity']['model'].startswith('63 parameters, ')


def test_train_refuses_the_folder_of_another_run(tmp_path):
  train(1, output_dir=tmp_path)
  with pytest.raises(errors.InputError, match=r'mix was anneal\.mix'):
    train(1, algorithm=safl_tf.build_fed_avg(), output_dir=tmp_path)
  with pytest.raises(errors.InputError, match=r'mix .*temperature=9'):
    train(1, algorithm=safl_tf.build_safl(temperature=9), output_dir=tmp_path)
  with pytest.raises(errors.InputError, match='partition was'):
    train(1, clients=tiny.clients((20, 13, 32, 7)), output_dir=tmp_path)


def test_train_resumes_with_a_keras_optimizer(tmp_path):
  def options(rate):
    optimizer = keras.optimizers.SGD(rate, momentum=0.5)
    config = client_config.LocalConfig(1, 8, optimizer=optimizer)
    return {'config': config}

  whole = train(2, **options(0.02))
  train(1, output_dir=tmp_path, **options(0.02))
  check_same(train(2, output_dir=tmp_path, **options(0.02)), whole)
  with pytest.raises(errors.InputError, match='optimizer'):
    train(2, output_dir=tmp_path, **options(0.03))


def test_metadata_is_written_and_loaded(trainer, tmp_path):
  metadata = {'class_names': ['a', 'b', 'c'], 'standardised': {'mean': [1.5]}}
  folder = run_directory.RunDirectory(tmp_path, {'seed': 0})
  loop.run(trainer, loop.Schedule(1), directory=folder, metadata=metadata)
  loaded = run_directory.load(tmp_path)
  assert loaded.metadata == {'round': 1, **metadata}


def test_a_run_from_python_can_be_loaded(tmp_path):
  result = train(1, output_dir=tmp_path)
  loaded = run_directory.load(tmp_path)
  assert loaded.metadata['class_names'] == ['0', '1', '2']
  np.testing.assert_array_equal(
    loaded.model.predict(TEST_X, verbose=0),
    result.model.predict(TEST_X, verbose=0),
  )


def test_finished_run_is_not_repeated(trainer, tmp_path):
  first = run(trainer, 2, tmp_path)
  again = run(trainer, 2, tmp_path)
  assert again.history == first.history  # the measured seconds, too
  assert again.state.z_bar.tobytes() == first.state.z_bar.tobytes()


def test_history_equals_the_files(trainer, tmp_path):
  result = run(trainer, 4, tmp_path)
  assert metrics_log.read_csv(tmp_path / 'metrics.csv') == result.history
  assert [list(row) for row in result.history] == [
    list(metrics_log.COLUMNS)
  ] * 4
  events = test_metrics_log.read_events(tmp_path / 'logdir')
  for column, tag in metrics_log.TAGS.items():
    expected = [
      (row['round'], np.float32(row[column]).item())
      for row in result.history
      if row[column] is not None
    ]
    assert events.get(tag, []) == expected


def test_row_equals_the_round_metrics(trainer):
  result = run(trainer, 4)
  state, bytes_up, bytes_down = trainer.initialize(0), 0, 0
  for row in result.history:
    state, metrics = trainer.next(state)
    outputs = np.asarray(trainer.get_model(state)(TEST_X))
    assert row['round'] == metrics.t == state.t
    assert row['test_accuracy'] == pytest.approx(
      np.mean(outputs.argmax(axis=1) == TEST_Y)
    )
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    y_hat = (e / e.sum(axis=1, keepdims=True))[np.arange(60), TEST_Y]
    assert row['test_loss'] == pytest.approx(-np.log(y_hat).mean(), rel=1e-4)
    assert row['test_top5_accuracy'] is None  # of three classes
    assert row['train_loss'] == metrics.train_loss
    assert row['p'] == metrics.p and row['kept_local'] == metrics.kept_local
    assert row['selected'] == 3 and row['dropped'] == 0
    assert row['uploaded'] == metrics.sent.sum()
    bytes_up += metrics.bytes_up
    bytes_down += metrics.bytes_down
    assert row['bytes_up'] == metrics.bytes_up
    assert row['total_bytes_up'] == bytes_up
    assert row['bytes_down'] == metrics.bytes_down
    assert row['total_bytes_down'] == bytes_down
    assert row['seconds'] > 0 and row['rss_mb'] > 10
    if (metrics.q < 1).any():
      assert row['q_p50'] == pytest.approx(np.percentile(metrics.q, 50))
      assert row['delta_p90'] == pytest.approx(np.percentile(metrics.delta, 90))
    else:
      assert row['q_p50'] is None and row['delta_p90'] is None
  assert result.history[-1]['q_p50'] is not None


def test_result_has_the_last_state(trainer):
  result = run(trainer, 2)
  assert result.process is trainer and result.state.t == 2
  weights = np.concatenate([np.ravel(w) for w in result.model.get_weights()])
  np.testing.assert_array_equal(weights, result.state.z_bar)


def test_eval_every(trainer):
  history = run(trainer, 5, eval_every=2).history
  evaluated = [row['test_accuracy'] is not None for row in history]
  assert evaluated == [False, True, False, True, True]  # the last always
  every = run(trainer, 5).history
  assert history[3]['test_loss'] == every[3]['test_loss']


def test_without_test_data(trainer):
  history = run(trainer, 2, test_data=None).history
  for row in history:
    assert row['test_accuracy'] is row['test_loss'] is None
    assert row['train_loss'] > 0


def test_stop_at_accuracy(trainer, tmp_path):
  accuracies = [row['test_accuracy'] for row in run(trainer, 8).history]
  target = accuracies[3]
  first = next(i for i, a in enumerate(accuracies) if a >= target)
  stopped = run(trainer, 8, tmp_path, stop_at_accuracy=target)
  assert len(stopped.history) == first + 1 < 8
  # Once reached, the same command does nothing more.
  again = run(trainer, 8, tmp_path, stop_at_accuracy=target)
  assert again.history == stopped.history


def test_client_table(trainer):
  state = run(trainer, 2).state
  table = client_evaluation.client_table(trainer, state)
  assert [row['client'] for row in table] == ['0', '1', '2', '3']
  for k, row in enumerate(table):
    rows = CLIENTS.indices(k)
    y = CLIENTS.y[rows]
    assert row['examples'] == len(rows) and row['labels'] == len(set(y))
    for column, z in (
      ('own_train_accuracy', state.client_models[k]),
      ('global_train_accuracy', state.z_bar),
    ):
      outputs = np.asarray(trainer.model.to_model(z)(CLIENTS.x[rows]))
      assert row[column] == pytest.approx(np.mean(outputs.argmax(1) == y))


def test_program_of_the_readme():
  x, y = tiny.blobs(600)
  clients = safl_tf.ClientData.from_arrays(
    x,
    y,
    partition=safl_tf.partition.by_labels(num_clients=5, max_labels=2, seed=0),
  )
  result = safl_tf.train(
    tiny.dense,
    clients,
    algorithm=safl_tf.build_safl(epsilon=0.3, temperature=80),
    test_data=(TEST_X, TEST_Y),
    rounds=15,
  )
  y_hat = result.model.predict(TEST_X, verbose=0)
  assert y_hat.shape == (60, 3)
  accuracy = np.mean(y_hat.argmax(axis=1) == TEST_Y)
  assert result.history[-1]['test_accuracy'] == pytest.approx(accuracy)
  assert accuracy > 0.9
  assert [row['round'] for row in result.history] == list(range(1, 16))


def test_test_data_of_tf_data():
  dataset = tf.data.Dataset.from_tensor_slices((TEST_X, TEST_Y))
  rows = [
    train(1, test_data=data).history[-1]['test_loss']
    for data in ((TEST_X, TEST_Y), dataset, dataset.batch(7))
  ]
  assert rows[0] == rows[1] == rows[2]


def test_invalid_test_data_is_refused():
  with pytest.raises(errors.InputError, match=r'^test_data: y=7 in row 1: '):
    train(1, test_data=(TEST_X[:2], np.array([0, 7])))
  with pytest.raises(errors.InputError, match=r'^test_data: x=array'):
    train(1, test_data=(TEST_X[:3], TEST_Y[:2]))


@pytest.mark.parametrize(
  'argument, value',
  [
    ('rounds', 0),
    ('eval_every', 0),
    ('checkpoint_every', 1.5),
    ('stop_at_accuracy', 1.01),
  ],
)
def test_invalid_argument_is_refused_before_anything_is_written(
  tmp_path, argument, value
):
  options = {'rounds': 2, 'output_dir': tmp_path / 'run', argument: value}
  with pytest.raises(errors.InputError, match=f'^{argument}={value}: '):
    train(**options)
  assert os.listdir(tmp_path) == []
