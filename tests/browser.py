"""Looks at pages as a user's browser would."""

import shutil
import subprocess

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)

needed = pytest.mark.skipif(PROGRAM is None, reason='there is no Chromium')


def render(path, folder):
  """What the browser makes of the page in a file, as HTML.

  Args:
    path: of the page.
    folder: an empty one for what the browser keeps.
  """
  done = subprocess.run(
    [
      PROGRAM,
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      f'--user-data-dir={folder}',
      '--dump-dom',
      path.as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  return done.stdout
