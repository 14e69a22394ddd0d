import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.training import checkpoint, loop, metrics_log, run_directory
from tests import tiny, tiny_rounds
from tests.training import test_checkpoint


@pytest.fixture(scope='module')
def trainer():
  """A process that is compiled once."""
  return tiny_rounds.make()


def run(trainer, rounds, folder=None, callbacks=(), every=10):
  if folder is not None:
    folder = run_directory.RunDirectory(folder)
  schedule = loop.Schedule(rounds, checkpoint_every=every)
  return loop.run(
    trainer,
    schedule,
    test_data=tiny.blobs(30),
    directory=folder,
    callbacks=callbacks,
    progress=False,
  )


class Recorder(safl_tf.Callback):
  """Records calls; stops after a round, or raises there."""

  def __init__(self, last=None, error=None):
    self.last, self.error = last, error
    self.calls = []

  def on_train_begin(self, run):
    self.calls.append(('begin', [row['round'] for row in run.history]))
    self.run = run

  def on_round_end(self, t, row, state):
    assert t == row['round'] == state.t
    self.calls.append(('round', t))
    if t == self.last:
      self.stop = True
      if self.error is not None:
        raise self.error

  def on_train_end(self, result):
    self.calls.append(('end', result.state.t))


def saved(folder):
  return checkpoint.Checkpoints(folder / 'checkpoints').rounds()


def rounds_of(folder):
  rows = metrics_log.read_csv(folder / 'metrics.csv')
  return [row['round'] for row in rows]


def test_calls_and_what_they_get(trainer, tmp_path):
  first, second = Recorder(), Recorder()
  rows = []
  result = run(trainer, 2, tmp_path, [first, rows.append, second])
  expected = [('begin', []), ('round', 1), ('round', 2), ('end', 2)]
  assert first.calls == second.calls == expected
  assert rows == result.history
  assert first.run.process is trainer and first.run.path == tmp_path
  assert first.run.rounds == 2
  settings = first.run.settings
  assert settings['algorithm'] == 'safl' and settings['temperature'] == 80.0
  assert settings['learning_rate'] == 0.02 and settings['num_clients'] == 6


def test_settings_of_keras_objects():
  optimizer = keras.optimizers.Adam(tiny.ConstantRate(0.01))
  config = safl_tf.LocalConfig(1, 8, optimizer=optimizer)
  recorder = Recorder()
  run(tiny_rounds.make(config=config), 1, callbacks=[recorder])
  assert recorder.run.settings['optimizer'] == 'Adam'
  assert recorder.run.path is None


def test_a_callback_cannot_change_the_history(trainer):
  def spoil(row):
    row['test_loss'] = -1

  result = run(trainer, 1, callbacks=[spoil])
  assert result.history[0]['test_loss'] > 0


def test_stop_saves_and_the_same_call_resumes(trainer, tmp_path):
  recorder = Recorder(last=2)
  stopped = run(trainer, 4, tmp_path, [recorder])
  assert stopped.state.t == 2 and recorder.calls[-1] == ('end', 2)
  assert saved(tmp_path) == [2] and rounds_of(tmp_path) == [1, 2]
  recorder.calls.clear()
  recorder.last = None
  resumed = run(trainer, 4, tmp_path, [recorder])  # stop is False again
  assert recorder.calls == [
    ('begin', [1, 2]),
    ('round', 3),
    ('round', 4),
    ('end', 4),
  ]
  whole = run(trainer, 4)
  assert resumed.state.z_bar.tobytes() == whole.state.z_bar.tobytes()
  test_checkpoint.check_same_models(
    resumed.state.client_models, whole.state.client_models
  )


def test_stop_without_a_folder(trainer):
  result = run(trainer, 5, callbacks=[Recorder(last=1)])
  assert len(result.history) == 1
  assert result.state.t == 1


@pytest.mark.parametrize('error', [ValueError('mine'), KeyboardInterrupt()])
def test_errors_propagate_after_a_checkpoint(trainer, tmp_path, error):
  recorder = Recorder(last=2, error=error)
  with pytest.raises(type(error)):
    run(trainer, 4, tmp_path, [recorder])
  assert recorder.calls[-1] == ('round', 2)  # no end
  assert saved(tmp_path) == [2] and rounds_of(tmp_path) == [1, 2]
  resumed = run(trainer, 3, tmp_path)
  whole = run(trainer, 3)
  np.testing.assert_array_equal(resumed.state.z_bar, whole.state.z_bar)


def test_a_finished_run_begins_and_ends(trainer, tmp_path):
  run(trainer, 1, tmp_path)
  recorder = Recorder()
  run(trainer, 1, tmp_path, [recorder])
  assert recorder.calls == [('begin', [1]), ('end', 1)]
