"""The files that an installation has, and programs run from them."""

import configparser
import importlib
import os
import subprocess
import sys

import pytest

from tests.binaries import programs

CODE = ('.py', '.pyi', '.typed')
DATA = ('.css', '.flags', '.js', '.json', '.mplstyle')


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
  """A folder with the files that a wheel has."""
  pytest.importorskip('setuptools')
  folder = tmp_path_factory.mktemp('installed')
  subprocess.run(
    [sys.executable, 'setup.py', '-q', 'build_py', f'--build-lib={folder}'],
    cwd=programs.ROOT,
    check=True,
    capture_output=True,
  )
  return folder


def test_files(installed):
  """All modules and data files, in one top-level package."""
  assert os.listdir(installed) == ['safl_tf']
  package = installed / 'safl_tf'
  for source, target in (
    ('safl_tf', package),
    ('binaries', package / 'binaries'),
  ):
    names = {
      str(path.relative_to(programs.ROOT / source))
      for path in (programs.ROOT / source).rglob('*.*')
      if path.suffix in CODE + DATA
    }
    assert len(names) > 20
    assert not [name for name in names if not (target / name).is_file()]


def test_program(installed, tmp_path):
  """An installed program has its presets and needs no other folder."""
  command = ('-m', 'safl_tf.binaries.train')
  options = {'cwd': tmp_path, 'path': installed}
  listing = programs.start(*command, '--preset=list', **options)
  out, err = listing.communicate(timeout=60)
  assert (listing.returncode, err) == (0, '')
  assert 'mnist_n80 ' in out
  bad = programs.start(*command, '--preset=mnist_n80', '--nu=0', **options)
  _, err = bad.communicate(timeout=60)
  assert bad.returncode == 2
  assert err == 'safl-train: --nu=0.0: must be a number > 0\n'


def test_entry_points():
  config = configparser.ConfigParser()
  config.read(programs.ROOT / 'setup.cfg')
  scripts = config['options.entry_points']['console_scripts'].split('\n')
  for script in filter(None, scripts):
    name, target = script.split(' = ')
    module, function = target.split(':')
    program = importlib.import_module(module.removeprefix('safl_tf.'))
    assert name == f'safl-{module.rpartition(".")[2]}'
    assert callable(getattr(program, function))
