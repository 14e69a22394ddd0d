import json
import pathlib
import shutil
import subprocess
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data import registry
from safl_tf.training import export, export_check, run_directory
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
    'saved_model',
  }
  about = json.loads((exported / 'export' / 'export.json').read_text())
  assert about['round'] == 2
  assert about['class_names'] == list('0123456789')


def test_saved_model(exported, images):
  wanted = run_directory.load(exported).model
  loaded = tf.saved_model.load(str(exported / 'export' / 'saved_model'))
  serve = loaded.signatures['serving_default']
  [(name, spec)] = serve.structured_input_signature[1].items()
  assert spec.dtype == tf.uint8
  assert spec.shape.as_list() == [None, 28, 28, 1]
  for size in (1, 5):
    batch = tf.constant(images[:size])
    [probabilities] = serve(**{name: batch}).values()
    assert probabilities.shape == (size, 10)
    np.testing.assert_allclose(
      tf.reduce_sum(probabilities, axis=1), 1, atol=1e-6
    )
    np.testing.assert_allclose(
      probabilities, tf.nn.softmax(wanted(batch)), atol=1e-6
    )


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


def shifted(model):
  """The model with other weights."""
  other = keras.models.clone_model(model)
  other.set_weights([w + 0.01 for w in model.get_weights()])
  return other


def sabotage_saved_model(monkeypatch):
  write = export._write_saved_model
  monkeypatch.setattr(
    export,
    '_write_saved_model',
    lambda model, *args: write(shifted(model), *args),
  )


def sabotage_keras(monkeypatch):
  save = keras.Sequential.save
  monkeypatch.setattr(
    keras.Sequential, 'save', lambda model, path: save(shifted(model), path)
  )


def check_refused(run, call, name, *arguments):
  before = programs.snapshot(run)
  outcome = call('export', f'--run={run}', *arguments)
  assert outcome.code == 1
  assert outcome.err.startswith(
    f'safl-export: --run={run}: the exported model was not verified: '
    f'{name}: predictions differ by '
  )
  assert outcome.err.count('\n') == 1
  assert outcome.out == ''
  assert programs.snapshot(run) == before


def test_wrong_saved_model(run, call, monkeypatch):
  sabotage_saved_model(monkeypatch)
  check_refused(run, call, 'saved_model')


def test_wrong_keras_file(run, call, monkeypatch):
  def check_here(command, **options):
    with pytest.raises(SystemExit) as caught:
      export_check.main(pathlib.Path(command[-1]))
    return subprocess.CompletedProcess(command, 1, '', str(caught.value))

  sabotage_keras(monkeypatch)
  monkeypatch.setattr(subprocess, 'run', check_here)
  check_refused(run, call, 'model.keras', '--format=keras')


def test_model_that_cannot_be_written(run, call, monkeypatch):
  def fail(*args):
    raise ValueError('no\nway')

  before = programs.snapshot(run)
  monkeypatch.setattr(export, '_write_saved_model', fail)
  outcome = call('export', f'--run={run}', '--format=savedmodel')
  assert (outcome.code, outcome.err) == (
    1,
    f'safl-export: --run={run}: the model could not be written: no way\n',
  )
  assert programs.snapshot(run) == before


def test_elsewhere(run, call, tmp_path, monkeypatch):
  monkeypatch.setattr(export, '_check', lambda *args: None)
  shutil.rmtree(run / 'export')
  arguments = (f'--run={run}', f'--output={tmp_path}/a/b', '--format=keras')
  outcome = call('export', *arguments)
  assert outcome.code == 0
  assert f'  {tmp_path}/a/b/model.keras\n' in outcome.out
  assert not (run / 'export').exists()
  assert keras.models.load_model(tmp_path / 'a' / 'b' / 'model.keras')


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
