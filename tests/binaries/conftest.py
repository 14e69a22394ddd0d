import shutil

import pytest

from safl_tf.util import hardware
from tests.binaries import programs


@pytest.fixture
def call(capfd):
  """Runs a program in this process: its exit code and what it printed."""

  def run(program, *arguments):
    capfd.readouterr()
    code = programs.call(program, *arguments)
    return programs.Outcome(code, *capfd.readouterr())

  return run


@pytest.fixture
def no_tensorflow(monkeypatch):
  """Fails a test that starts TensorFlow."""
  monkeypatch.setattr(
    hardware, 'start_tensorflow', lambda: pytest.fail('starts')
  )


@pytest.fixture(scope='session')
def finished(tmp_path_factory):
  """The folder of a run of LeNet-5 that has learned; not to be changed."""
  folder = tmp_path_factory.mktemp('finished')
  code = programs.call('train', *programs.LEARNING, f'--output_dir={folder}')
  assert code == 0
  return folder / 'safl_mnist_sample'


@pytest.fixture(scope='session')
def exported(finished, tmp_path_factory):
  """The same run, exported in all formats; not to be changed."""
  run = tmp_path_factory.mktemp('exported') / 'run'
  shutil.copytree(finished, run)
  assert programs.call('export', f'--run={run}', '--format=all') == 0
  return run


@pytest.fixture(scope='session')
def dense(tmp_path_factory):
  """The file of a small model of a user's own."""
  import keras

  path = tmp_path_factory.mktemp('models') / 'dense.keras'
  model = keras.Sequential(
    [
      keras.Input((28, 28, 1), dtype='uint8'),
      keras.layers.Rescaling(1 / 255),
      keras.layers.AveragePooling2D(4),
      keras.layers.Flatten(),
      keras.layers.Dense(10),
    ]
  )
  model.save(path)
  return path
