import os
import pathlib
import sys

import keras
import pytest

from safl_tf.util import describe, installed


@pytest.mark.parametrize(
  'path',
  [
    'home/.local/lib/python3.11/site-packages/one/two/three.py',
    'usr/lib/python3/dist-packages/one.py',
    'target/one/two.py',
  ],
)
def test_packages_in_any_folder(tmp_path, path):
  (tmp_path / 'target' / 'one-1.0.dist-info').mkdir(parents=True)
  assert installed.is_installed(str(tmp_path / path))


def test_own_code(tmp_path):
  (tmp_path / 'own.egg-info').mkdir()
  for path in ('own.py', 'own/part.py', '.venv/bin/own.py'):
    assert not installed.is_installed(str(tmp_path / path))
  assert not installed.is_installed(__file__)
  assert not installed.is_installed('relative.py')


def test_models_are_recognised_with_packages_of_another_folder(
  tmp_path, monkeypatch
):
  """As of `pip install --user`: Keras's own code is not read."""
  layer = keras.layers.Dense(1, name='one')
  expected = describe.describe('model', layer)
  folder = os.path.dirname(os.path.dirname(keras.__file__))
  moved = tmp_path / 'site-packages'
  for name, module in list(sys.modules.items()):
    file = getattr(module, '__file__', None) or ''
    if name.partition('.')[0] == 'keras' and file.startswith(folder):
      new = moved / pathlib.Path(file).relative_to(folder)
      monkeypatch.setattr(module, '__file__', str(new))
  describe._is_installed.cache_clear()
  assert describe.describe('model', layer) == expected
  describe._is_installed.cache_clear()
