import contextlib
import csv
import io
import re

import pytest
from PIL import Image

from tests.binaries import programs

STUDIES = ['n', 'alpha', 'mixing', 'q', 'edges', 'corollary', 'quasi_convex']
ARGUMENTS = ('--scale=smoke', '--trials=20', '--rounds=6', '--seed=3')


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folder of a small run, not to be changed, and what was printed."""
  folder = tmp_path_factory.mktemp('theory') / 'new' / 'theory'
  with contextlib.redirect_stdout(io.StringIO()) as out:
    assert programs.call('theory', *ARGUMENTS, f'--output_dir={folder}') == 0
  return folder, out.getvalue()


@pytest.fixture(scope='module')
def folder(finished):
  return finished[0]


@pytest.fixture(scope='module')
def rows(folder):
  with open(folder / 'theory.csv', newline='') as file:
    return list(csv.DictReader(file))


def test_table(rows):
  assert list(dict.fromkeys(row['study'] for row in rows)) == STUDIES
  bounds = {row['bound_name'] for row in rows}
  assert bounds == {'(16)', 'remark', 'Jensen', '(17)', '(20)'}
  for row in rows:
    assert row['holds'] in ('yes', 'no')
    excess = float(row['mse']) - 4 * float(row['standard_error'])
    if excess > 1.001 * float(row['bound']):
      assert row['holds'] == 'no'
    assert (row['alpha'] == '') != (row['alpha0'] == '')
  one = [r for r in rows if (r['n'], r['bound_name']) == ('1', '(16)')]
  assert [int(r['t']) for r in one] == list(range(7))
  assert float(one[-1]['bound']) < float(one[0]['bound'])


def test_report(folder, rows):
  text = (folder / 'report.md').read_text()
  assert '`safl-theory --scale=smoke --trials=20 --rounds=6 --seed=3' in text
  settings = {(r['study'], r['setting'], r['bound_name']) for r in rows}
  lines = {
    tuple(cell.strip() for cell in line.split('|')[1:4])
    for line in text.splitlines()
    if line.startswith('|')
  }
  assert settings < lines


def test_pictures(folder):
  names = {path.name.split('.')[0] for path in folder.glob('*.png')}
  wanted = {f'mse_{study}' for study in STUDIES}
  assert names == wanted | {'final_by_n', 'conditions'}
  for path in folder.glob('*.png'):
    with Image.open(path) as image:
      image.load()
      assert image.size[0] >= 840  # room for the legend
  page = (folder / 'report.html').read_text()
  files = re.findall('(?:src|srcset|href)="([^"]+)"', page)
  assert {path.name for path in folder.glob('*.png')} < set(files)
  assert all((folder / file).is_file() for file in files)


def test_summary_is_printed(finished):
  folder, out = finished
  for study in STUDIES:
    assert f'\n| {study} ' in out
  assert ' in 1 of 1 settings |\n' in out
  assert out.endswith(f'page  {folder / "report.html"}\n')


@pytest.mark.parametrize(
  'argument, message',
  [
    ('--trials=1', '--trials=1: must be a whole number in [2, 1000000]'),
    ('--rounds=0', '--rounds=0: must be a whole number in [1, 1000000]'),
    ('--scale=smok', '--scale=smok: '),
    ('--seed=-1', '--seed=-1: '),
    ('--output_dir=', '--output_dir=: '),
    ('--executor=fast', '--executor=fast: '),
    ('--output_dir=/dev/null/x', '--output_dir=/dev/null/x: '),
  ],
)
def test_mistakes(call, argument, message):
  programs.check_refused(call('theory', argument), 'theory', message)


def test_help_needs_no_tensorflow():
  script = (
    'import sys; sys.argv = ["safl-theory", "--help"]; '
    'from binaries import theory; theory.cli(); '
    'print([m for m in ("tensorflow", "keras") if m in sys.modules])'
  )
  process = programs.start('-c', script)
  out, err = process.communicate(timeout=60)
  assert process.returncode == 0, err
  assert '--trials' in out
  assert out.endswith('[]\n')
