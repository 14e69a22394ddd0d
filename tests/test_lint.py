import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ('safl_tf', 'binaries', 'tests', 'benchmarks', 'examples')


@pytest.mark.parametrize(
  'tool, arguments',
  [
    ('ruff', ['check', *FOLDERS]),
    ('ruff', ['format', '--check', *FOLDERS]),
    ('mypy', []),
  ],
  ids=['ruff check', 'ruff format', 'mypy'],
)
def test_clean(tool, arguments):
  if importlib.util.find_spec(tool) is None:
    pytest.skip(f'{tool} is not installed')
  done = subprocess.run(
    [sys.executable, '-m', tool, *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
