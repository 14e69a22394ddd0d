"""What a run of FedMA leaves, and how it goes on."""

import numpy as np
import pytest

import safl_tf
from safl_tf.training import (
  client_evaluation,
  export,
  loop,
  metrics_log,
  run_directory,
)
from safl_tf.util import errors
from tests import tiny
from tests.algorithms.fed_ma import test_rounds

TEST_X, TEST_Y = tiny.blobs(60, seed=9)


def run(rounds, folder=None, schedule='layerwise'):
  """A run of 'bbp', which goes on where its folder says it stopped."""
  if folder is not None:
    folder = run_directory.RunDirectory(folder, {'seed': 0})
  return loop.run(
    test_rounds.make('bbp', schedule, fraction=0.75),
    loop.Schedule(rounds, checkpoint_every=1),
    test_data=(TEST_X, TEST_Y),
    directory=folder,
    progress=False,
  )


def computed(history):
  return [
    {k: v for k, v in row.items() if k not in metrics_log.MEASURED}
    for row in history
  ]


@pytest.fixture(scope='module')
def grown(tmp_path_factory):
  """A run that ended in the midst of its second pass."""
  folder = tmp_path_factory.mktemp('run') / 'grown'
  return folder, run(5, folder)


def test_resumed_in_the_midst_of_a_pass(tmp_path):
  """After one of three layers was matched, and after two."""
  whole = run(6)
  for rounds in (4, 5, 6):
    parts = run(rounds, tmp_path)
    assert ('pass_models' in parts.state.memory) == (rounds < 6)
  assert test_rounds.bits(parts.state) == test_rounds.bits(whole.state)
  assert computed(parts.history) == computed(whole.history)


def test_resumed_at_once(tmp_path):
  whole = run(4, schedule='oneshot')
  for rounds in (2, 4):
    parts = run(rounds, tmp_path, 'oneshot')
  assert test_rounds.bits(parts.state) == test_rounds.bits(whole.state)
  assert computed(parts.history) == computed(whole.history)


def test_evaluated_between_pass_ends(grown):
  """The model that counts is the last whole one."""
  _, done = grown
  accuracies = [row['test_accuracy'] for row in done.history]
  assert accuracies[:2] == [None, None]
  assert accuracies[2] == accuracies[3] == accuracies[4]
  outputs = done.model.predict(TEST_X, verbose=0)
  assert accuracies[-1] == pytest.approx(np.mean(outputs.argmax(1) == TEST_Y))


def test_a_grown_model_is_loaded(grown):
  folder, done = grown
  loaded = run_directory.load(folder)
  assert loaded.round_number == 5
  assert [layer.units for layer in loaded.model.layers] == [
    *done.state.memory['global_widths'],
    3,
  ]
  assert loaded.model.layers[0].units > 6
  np.testing.assert_array_equal(
    loaded.model.predict(TEST_X, verbose=0),
    done.model.predict(TEST_X, verbose=0),
  )


def test_clients_that_start_from_the_global_model_keep_none(grown):
  run = safl_tf.load_run(grown[0])
  with pytest.raises(errors.InputError, match='or none is kept'):
    run.client_model(0)


def test_models_that_clients_keep_are_loaded(tmp_path):
  folder = run_directory.RunDirectory(tmp_path)
  process = test_rounds.make('hungarian', 'oneshot')
  done = loop.run(process, loop.Schedule(1), directory=folder, progress=False)
  own = safl_tf.load_run(tmp_path).client_model(1)
  expected = done.state.client_models[1]
  assert process.model.read(own).tobytes() == expected.tobytes()


def test_a_grown_model_is_exported(grown, tmp_path):
  """It is loaded and predicts the same, or this raises."""
  folder, _ = grown
  loaded = run_directory.load(folder)
  paths = export.export(
    loaded.model, tmp_path, loaded.input_spec, 'softmax', 'savedmodel'
  )
  assert [path.name for path in paths] == ['saved_model']


def test_client_table(grown):
  _, done = grown
  table = client_evaluation.client_table(done.process, done.state)
  clients = done.process.clients
  for k, row in enumerate(table):
    assert 'own_train_accuracy' not in row  # clients keep no model
    rows = clients.indices(k)
    outputs = np.asarray(done.model(clients.x[rows]))
    accuracy = np.mean(outputs.argmax(axis=1) == clients.y[rows])
    assert row['global_train_accuracy'] == pytest.approx(accuracy)
