"""Renders pages in a headless browser."""

import shutil
import subprocess

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)

needed = pytest.mark.skipif(PROGRAM is None, reason='needs Chromium')


def render(path, folder, query=''):
  """Returns the DOM of a page after its scripts ran, as HTML.

  Args:
    path: the page's file.
    folder: an empty folder for the browser's profile.
    query: of the page's address; its scripts then get 5 s of their time.
  """
  waits = ['--virtual-time-budget=5000'] if query else []
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
      *waits,
      '--dump-dom',
      f'{path.as_uri()}?{query}' if query else path.as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  return done.stdout
