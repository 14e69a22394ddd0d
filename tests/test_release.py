"""What a release consists of: its version, its files, and that it runs."""

import configparser
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import safl_tf

ROOT = pathlib.Path(__file__).parent.parent
# Installed package -> its folder in the checkout.
FOLDERS = {'safl_tf.binaries': 'binaries', 'safl_tf': 'safl_tf'}


@pytest.fixture(scope='module')
def settings():
  parser = configparser.ConfigParser()
  parser.read(ROOT / 'setup.cfg', encoding='utf-8')
  return parser


def field(name):
  """Returns a field of CITATION.cff."""
  text = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  return re.search(rf'^{name}: (.+)$', text, re.MULTILINE)[1]


def test_version_and_date_are_those_of_the_changelog():
  changes = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
  releases = re.findall(r'^## (\d\S+) \((\S+)\)$', changes, re.MULTILINE)
  expected = (safl_tf.__version__, field('date-released'))
  assert releases[:1] == [expected]
  datetime.date.fromisoformat(field('date-released'))


def test_citation_describes_this_package(settings):
  metadata = settings['metadata']
  assert field('version') == safl_tf.__version__
  assert field('title') == metadata['name']
  assert field('license') == metadata['license_expression']
  assert field('url') in metadata['project_urls']
  assert field('repository-code') in metadata['project_urls']


def test_package_data_names_every_file_that_is_not_python(settings):
  named = set()
  for package, lines in settings['options.package_data'].items():
    head = max((p for p in FOLDERS if package.startswith(p)), key=len)
    folder = ROOT / (FOLDERS[head] + package[len(head) :].replace('.', '/'))
    for pattern in re.findall(r'[^\s,]+', lines):
      files = set(folder.glob(pattern))
      assert files, f'{package}: {pattern} matches no file'
      named |= files
  present = {
    path
    for folder in FOLDERS.values()
    for path in (ROOT / folder).rglob('*')
    if path.is_file() and path.suffix not in ('.py', '.pyc')
  }
  assert named == present


def run(*command, cwd):
  """Runs a command without this process's Python path."""
  env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  command = [str(part) for part in command]
  done = subprocess.run(
    command, cwd=cwd, env=env, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture(scope='module')
def tracked():
  if not (ROOT / '.git').exists():
    pytest.skip('not a checkout')
  names = run('git', 'ls-files', '-z', cwd=ROOT).split('\0')
  return {n for n in names if n and not n.startswith('.')}


def build(kind, source, target):
  """Builds from a folder with the installed setuptools; returns the file."""
  call = f'build_meta.build_{kind}({str(target)!r})'
  code = f'from setuptools import build_meta; {call}'
  run(sys.executable, '-c', code, cwd=source)
  (path,) = target.glob('*.whl' if kind == 'wheel' else '*.tar.gz')
  return path


@pytest.fixture(scope='module')
def sdist(tmp_path_factory, tracked):
  """Returns the path of a sdist of the files under version control."""
  source = tmp_path_factory.mktemp('source')
  for name in tracked:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / name, source / name)
  return build('sdist', source, tmp_path_factory.mktemp('sdist'))


@pytest.fixture(scope='module')
def wheel(tmp_path_factory, sdist):
  """Returns the path of a wheel that is built from the sdist."""
  source = tmp_path_factory.mktemp('unpacked')
  with tarfile.open(sdist) as archive:
    archive.extractall(source, filter='data')
  (folder,) = source.iterdir()
  return build('wheel', folder, tmp_path_factory.mktemp('wheel'))


@pytest.mark.slow
def test_sdist_is_the_checkout(sdist, tracked):
  with tarfile.open(sdist) as archive:
    names = {m.name.partition('/')[2] for m in archive if m.isfile()}
  made = {n for n in names if n == 'PKG-INFO' or n.startswith('safl_tf.egg-')}
  assert names - made == tracked


@pytest.mark.slow
def test_wheel_is_the_packages_and_nothing_else(wheel, tracked):
  with zipfile.ZipFile(wheel) as archive:
    names = {n for n in archive.namelist() if '.dist-info/' not in n}
  expected = {n for n in tracked if n.startswith('safl_tf/')}
  expected |= {f'safl_tf/{n}' for n in tracked if n.startswith('binaries/')}
  assert names == expected


@pytest.mark.slow
def test_wheel_trains_outside_the_checkout(wheel, tmp_path):
  home = tmp_path / 'env'
  venv.create(home)
  python = home / 'bin' / 'python'
  pip = [sys.executable, '-m', 'pip', '--python', python, 'install']
  run(*pip, '--no-index', '--no-deps', wheel, cwd=tmp_path)
  (own,) = home.glob('lib/python*/site-packages')
  # The other packages are those of this process; a .pth file adds their folder,
  # but not what is installed there as editable.
  others = [path for path in sys.path if path.endswith('site-packages')]
  (own / 'others.pth').write_text('\n'.join(others))
  work = tmp_path / 'work'
  work.mkdir()
  where = 'import safl_tf; print(safl_tf.__file__)'
  assert run(python, '-c', where, cwd=work).startswith(str(own))
  train = home / 'bin' / 'safl-train'
  listed = run(train, '--preset=list', cwd=work).splitlines()
  presets = {path.stem for path in (ROOT / 'binaries/presets').iterdir()}
  assert {line.split()[0] for line in listed} == presets
  assert 'best accuracy' in run(train, '--rounds=1', cwd=work)
  (folder,) = (work / 'runs').iterdir()
  assert (folder / 'export/model.keras').is_file()
  assert (folder / 'plots/accuracy.png').is_file()
