import copy
import json
import os
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data import registry
from safl_tf.training import export, export_formats, run_directory
from tests.binaries import programs


@pytest.fixture
def run(exported, tmp_path):
  """An exported run, to be changed."""
  shutil.copytree(exported, tmp_path / 'run')
  return tmp_path / 'run'


@pytest.fixture(scope='module')
def images():
  return registry.load('mnist_sample').x_test


def test_files(exported):
  assert {path.name for path in (exported / 'export').iterdir()} == {
    '.safl_tf',
    'export.json',
    'model.keras',
    'model.tflite',
    'saved_model',
  }
  about = json.loads((exported / 'export' / 'export.json').read_text())
  assert about['round'] == 2
  assert about['class_names'] == list('0123456789')


def test_saved_model(exported, images):
  wanted = run_directory.load(exported).model
  loaded = tf.saved_model.load(str(exported / 'export' / 'saved_model' / '1'))
  serve = loaded.signatures['serving_default']
  assert serve.structured_input_signature[1] == {
    'inputs': tf.TensorSpec([None, 28, 28, 1], tf.uint8, 'inputs')
  }
  batch = tf.constant(images[:5])
  probabilities = serve(inputs=batch)['probabilities']
  np.testing.assert_allclose(
    probabilities, tf.nn.softmax(wanted(batch)), atol=1e-6
  )
  classes = loaded.signatures['classes'](indices=tf.constant([7, 0]))
  assert classes['class_names'].numpy().tolist() == [b'7', b'0']


def test_keras_file(exported, images):
  path = exported / 'export' / 'model.keras'
  with zipfile.ZipFile(path) as archive:
    config = archive.read('config.json').decode()
  assert 'safl' not in config and '"registered_name": null' in config
  model = keras.models.load_model(path)
  wanted = run_directory.load(exported).model
  for mine, theirs in zip(
    model.get_weights(), wanted.get_weights(), strict=True
  ):
    np.testing.assert_array_equal(mine, theirs)
  np.testing.assert_array_equal(model(images[:5]), wanted(images[:5]))


@pytest.mark.slow
def test_wrong_saved_model(run, call, monkeypatch):
  """A new process without safl_tf finds it, and the earlier export stays."""
  write = export_formats.write_saved_model

  def write_another(serving, path):
    other = copy.copy(serving)
    other.model = keras.models.clone_model(serving.model)
    write(other, path)

  monkeypatch.setattr(export_formats, 'write_saved_model', write_another)
  before = programs.snapshot(run)
  outcome = call('export', f'--run={run}')
  assert outcome.code == 1
  assert outcome.err.startswith(
    f'safl-export: --run={run}: the exported model was not verified: '
    'saved_model: predictions differ by '
  )
  assert outcome.err.count('\n') == 1
  assert outcome.out == ''
  assert programs.snapshot(run) == before


def test_model_that_cannot_be_written(run, call, monkeypatch):
  def fail(*args):
    raise ValueError('no\nway')

  before = programs.snapshot(run)
  monkeypatch.setattr(export_formats, 'write_saved_model', fail)
  outcome = call('export', f'--run={run}', '--format=savedmodel')
  assert (outcome.code, outcome.err) == (
    1,
    f'safl-export: --run={run}: the model could not be written: no way\n',
  )
  assert programs.snapshot(run) == before


def test_elsewhere(run, call, tmp_path, monkeypatch):
  """LiteRT's file, in a folder of the user's choice."""
  monkeypatch.setattr(export, '_check_in_new_process', export._check)
  shutil.rmtree(run / 'export')
  arguments = (f'--run={run}', f'--output={tmp_path}/a/b', '--format=tflite')
  outcome = call('export', *arguments)
  assert (outcome.code, outcome.err) == (0, '')
  assert f'  {tmp_path}/a/b/model.tflite\n' in outcome.out
  names = ['.safl_tf', 'export.json', 'model.tflite']
  assert sorted(os.listdir(tmp_path / 'a' / 'b')) == names
  assert not (run / 'export').exists()


def test_output_that_is_no_folder(run, call, tmp_path):
  (tmp_path / 'file').write_text('')
  for place in ('file', 'file/below'):
    outcome = call('export', f'--run={run}', f'--output={tmp_path}/{place}')
    programs.check_refused(outcome, 'export', f'--output={tmp_path}/{place}: ')


def test_run_without_a_model_yet(run, call):
  shutil.rmtree(run / 'checkpoints')
  outcome = call('export', f'--run={run}')
  assert (outcome.code, outcome.err) == (
    2,
    f'safl-export: --run={run}: has no global model yet\n',
  )
