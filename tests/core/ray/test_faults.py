"""What happens when workers, nodes, the head or the user's code fail.

`faults` has the steps, which run in a process of their own.
"""

import os
import subprocess
import sys

import pytest

from tests.core.ray import faults

pytestmark = pytest.mark.slow
_SECONDS = 400


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
  """Runs all steps in a new home; returns the output and that home."""
  home = tmp_path_factory.mktemp('home')
  folder = tmp_path_factory.mktemp('faults')
  process = subprocess.run(
    [sys.executable, '-m', faults.__name__, folder],
    capture_output=True,
    text=True,
    timeout=_SECONDS,
    env={**os.environ, 'HOME': str(home), 'TF_CPP_MIN_LOG_LEVEL': '3'},
    check=False,
  )
  return process, home


@pytest.mark.parametrize('step', faults.STEPS)
def test_fault(driver, step):
  process, _ = driver
  assert f'ok {step} ' in process.stdout, process.stderr[-6000:]


def test_nothing_is_left(driver):
  """Clusters check that none of their processes is left."""
  process, home = driver
  assert process.returncode == 0, process.stderr[-6000:]
  assert list(home.rglob('*ray*')) == []
