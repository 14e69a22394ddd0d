"""The files that an installation has, and programs run from them."""

import configparser
import os
import re
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


def test_programs(installed, tmp_path):
  """Installed programs are found, have presets and need no checkout."""
  config = configparser.ConfigParser()
  config.read(programs.ROOT / 'setup.cfg')
  lines = config['options.entry_points']['console_scripts'].strip().split('\n')
  entry_points = 'safl_tf.binaries.entry_points'
  names = [
    re.fullmatch(rf'safl-(.*) = {entry_points}:\1', line)[1] for line in lines
  ]
  code = (
    'import importlib, sys\n'
    f'from {entry_points} import {", ".join(names)}\n'
    'assert not any(m.startswith("absl") for m in sys.modules)\n'
    f'for name in {names}:\n'
    '  program = importlib.import_module(f"safl_tf.binaries.{name}")\n'
    '  assert callable(program.cli)\n'
    'assert "binaries" not in sys.modules\n'
    'train()'
  )
  options = {'cwd': tmp_path, 'path': installed}
  process = programs.start('-P', '-c', code, '--preset=list', **options)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (0, '')
  presets = (programs.ROOT / 'binaries' / 'presets').iterdir()
  assert len(out.splitlines()) == len(list(presets))
