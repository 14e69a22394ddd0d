"""Programs and Python agree on the runs that resume."""

import dataclasses
import os

import keras
import numpy as np
import pytest

import safl_tf
from binaries.flags import data as data_flags
from safl_tf.util import errors
from tests.attack.test_identity import CONFIG, TEST, X, Y, model, train
from tests.binaries import programs
from tests.data.speech_commands import make_archive

SMALL = (*programs.SMALL, '--jit_compile=false')


@pytest.fixture
def command(tmp_path):
  path = tmp_path / 'data.npz'
  np.savez(path, x=X, y=Y, x_test=TEST[0], y_test=TEST[1])
  model().save(tmp_path / 'own.keras')
  return (
    *SMALL,
    f'--dataset=npz:{path}',
    f'--model={tmp_path}/own.keras',
    f'--output_dir={tmp_path}',
    '--experiment=run',
    '--mean_examples=10',
  )


@pytest.mark.parametrize(
  'change, code, name',
  [
    pytest.param('--executor=serial', 0, '', marks=pytest.mark.slow),
    ('--executor=vectorized', 2, 'stack was None, is '),
    ('--jit_compile=true', 2, 'jit_compile was False, is True'),
    pytest.param('--device=cpu', 0, '', marks=pytest.mark.slow),
    ('--client_store=mmap', 0, ''),
    pytest.param('--seed=1', 2, 'seed was 0, is 1', marks=pytest.mark.slow),
  ],
)
def test_hardware_flags_as_in_python(command, call, change, code, name):
  assert call('train', *command).code == 0
  outcome = call('train', *command, change, '--rounds=3')
  assert outcome.code == code, outcome.err
  assert name in outcome.err


def test_python_and_the_program_share_a_run(command, call, tmp_path):
  """Each resumes what the other began, and refuses another run."""
  assert call('train', *command).code == 0
  config = programs.config(*command)
  dataset = config.load()
  data, _ = config.clients(dataset, 0)
  options = {
    'model': keras.models.load_model(tmp_path / 'own.keras'),
    'data': data,
    'config': safl_tf.LocalConfig(),
    'test_data': (dataset.x_test, dataset.y_test),
  }
  run = tmp_path / 'run'
  with pytest.raises(errors.InputError, match='learning_rate'):
    train(run, rounds=3, **{**options, 'config': CONFIG})
  train(run, rounds=3, **options)
  outcome = call('train', *command, '--rounds=4')
  assert outcome.code == 0, outcome.err
  whole = (*command, '--rounds=4', '--experiment=whole')
  assert call('train', *whole).code == 0
  assert programs.metrics(run) == programs.metrics(tmp_path / 'whole')


@pytest.fixture
def other_data(monkeypatch):
  """Makes the same flags load other inputs, as another TFDS folder would."""
  load = data_flags.Data.load

  def change():
    def load_other(self, *args):
      dataset = load(self, *args)
      return dataclasses.replace(dataset, x_train=255 - dataset.x_train)

    monkeypatch.setattr(data_flags.Data, 'load', load_other)

  return change


def test_another_folder_of_data_is_refused(call, dense, tmp_path, other_data):
  command = (*SMALL, f'--model={dense}', f'--output_dir={tmp_path}')
  assert call('train', *command).code == 0
  before = programs.snapshot(tmp_path)
  other_data()
  outcome = call('train', *command, '--rounds=3')
  run = tmp_path / 'safl_mnist_sample'
  programs.check_refused(
    outcome, 'train', f'--experiment={run}: ... other settings (inputs was '
  )
  assert programs.snapshot(tmp_path) == before


@pytest.mark.slow
def test_no_table_mixes_data(call, dense, tmp_path, other_data):
  command = (*SMALL, f'--model={dense}', f'--output_dir={tmp_path}')
  assert call('compare', *command, '--algorithms=fedavg').code == 0
  before = programs.snapshot(tmp_path)
  other_data()
  outcome = call('compare', *command, '--algorithms=fedavg,safl')
  run = tmp_path / 'compare_mnist_sample' / 'fedavg_seed0'
  programs.check_refused(
    outcome, 'compare', f'--experiment={run}: ... (inputs was '
  )
  assert programs.snapshot(tmp_path) == before


def test_changed_clips_are_refused(call, tmp_path):
  """A clip that keeps its name, length and time."""
  clips = make_archive.write_folder(tmp_path / 'clips')
  keras.Sequential(
    [
      keras.Input((59, 13, 1)),
      keras.layers.Flatten(),
      keras.layers.Dense(30),
    ]
  ).save(tmp_path / 'flat.keras')
  command = (
    *SMALL[2:],
    '--dataset=speech_commands',
    f'--speech_dir={clips}',
    '--partition=client',
    f'--model={tmp_path}/flat.keras',
    f'--output_dir={tmp_path}',
    '--experiment=run',
  )
  outcome = call('train', *command)
  assert outcome.code == 0, outcome.err
  clip = clips / make_archive.names(make_archive.TRAIN_SPEAKERS)[0]
  times = clip.stat()
  samples = make_archive.noise(7, (times.st_size - 44) // 2)
  clip.write_bytes(make_archive.wav(samples))
  os.utime(clip, ns=(times.st_atime_ns, times.st_mtime_ns))
  assert clip.stat().st_size == times.st_size
  outcome = call('train', *command, '--rounds=3')
  programs.check_refused(
    outcome, 'train', f'--experiment={tmp_path}/run: ... (inputs was '
  )


@pytest.mark.parametrize('some', [False, True])
def test_lost_checkpoints_are_not_repeated(tmp_path, some):
  train(tmp_path, rounds=4, checkpoint_every=2)
  for path in (tmp_path / 'checkpoints').iterdir():
    if '4' in path.name or not some:
      path.unlink()
  before = programs.snapshot(tmp_path)
  with pytest.raises(errors.InputError, match='lost the checkpoint of round 4'):
    train(tmp_path, rounds=5)
  assert programs.snapshot(tmp_path) == before
