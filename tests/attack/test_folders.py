"""Folders of other people are refused, and nothing in them changes."""

import os

import pytest

from safl_tf.util import output_folder
from tests.binaries import programs

# Program -> its arguments to write to the folder PLACE/NAME, the name of the
# folder if it cannot be chosen, and the flag that errors name.
PROGRAMS = {
  'train': ('--output_dir={place} --experiment={name}', 'mine', 'experiment'),
  'theory': ('--output_dir={place}/{name}', 'mine', 'output_dir'),
  'partition': ('--output_dir={place}/{name}', 'mine', 'output_dir'),
  'compare': ('--output_dir={place} --experiment={name}', 'mine', 'experiment'),
  'sweep': (
    '--output_dir={place} --experiment={name} --grid=epsilon=0.1',
    'mine',
    'experiment',
  ),
  'reproduce': (
    '--output_dir={place} --experiment=early_accuracy --scale=smoke',
    'early_accuracy_smoke',
    'output_dir',
  ),
  'export': ('--run={place}/run --output={place}/{name}', 'mine', 'output'),
}
# Files that the programs write, here with other people's contents.
OWN_NAMES = (
  'report.md theory.csv manifest.json comparison.html runs.csv export.json '
  'model.keras metrics.csv saved_model/saved_model.pb plots/accuracy.png'
)


def write(path, text='mine'):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def fill(folder, *names):
  for name in names:
    write(folder / name)


def mark(folder, kind):
  write(folder / '.safl_tf', kind)
  write(folder / 'metrics.csv', 'round')


def link(folder, target):
  folder.symlink_to(target)


def inside(kind):
  return lambda folder: mark(folder.parent, kind)


# What is there -> a part of the message.
FOLDERS = {
  'a text': (lambda f: fill(f, 'thesis.txt'), 'such as thesis.txt'),
  'a hidden file': (lambda f: fill(f, '.hidden'), 'such as .hidden'),
  'a subfolder': (lambda f: fill(f, 'notes/a.txt'), 'such as notes'),
  'names of ours': (
    lambda f: fill(f, *OWN_NAMES.split()),
    'has files that safl_tf did not write',
  ),
  'another program': (
    lambda f: mark(f, 'talk'),
    'is the folder of a talk; choose another folder',
  ),
  'a binary mark': (
    lambda f: (fill(f, 'a'), (f / '.safl_tf').write_bytes(b'\xff' * 99)),
    'is the folder of a',
  ),
  'a file': (write, 'is not a folder that can be written to'),
  'a link to nowhere': (
    lambda f: link(f, f.parent / 'absent'),
    'is not a folder that can be written to',
  ),
  'a link to itself': (lambda f: link(f, f), 'is not a folder'),
  'a link to a text': (
    lambda f: (fill(f.parent / 'other', 'thesis.txt'), link(f, 'other')),
    'such as thesis.txt',
  ),
  'inside a talk': (inside('talk'), 'the folder of a talk'),
  'inside a report': (inside('theory report'), 'folder of a theory report'),
}


@pytest.mark.parametrize('folder', FOLDERS)
@pytest.mark.parametrize('program', PROGRAMS)
def test_refused(call, no_tensorflow, tmp_path, program, folder):
  arguments, name, flag = PROGRAMS[program]
  make, message = FOLDERS[folder]
  place = tmp_path / 'place'
  write(place / 'run' / 'model.json', '{}')  # looks like a run
  make(place / name)
  before = programs.snapshot(place)
  command = arguments.format(place=place, name=name).split()
  outcome = call(program, *command)
  programs.check_refused(
    outcome, program, f'--{flag}={place / name}: ... {message}'
  )
  assert programs.snapshot(place) == before


@pytest.mark.parametrize('program', [p for p in PROGRAMS if p != 'reproduce'])
def test_a_name_that_is_too_long(call, no_tensorflow, tmp_path, program):
  arguments, _, flag = PROGRAMS[program]
  write(tmp_path / 'run' / 'model.json', '{}')
  name = 'n' * 300
  command = arguments.format(place=tmp_path, name=name).split()
  outcome = call(program, *command)
  programs.check_refused(
    outcome, program, f'--{flag}={tmp_path / name}: ... File name too long'
  )
  assert os.listdir(tmp_path) == ['run']


@pytest.mark.parametrize(
  ('outer', 'inner', 'fits'),
  [
    ('comparison', 'run', True),
    ('reproduction', 'run', True),
    ('sweep', 'run', True),
    ('run', 'export', True),
    ('run', 'run', False),
    ('run', 'comparison', False),
    ('export', 'run', False),
    ('comparison', 'partition', False),
    ('theory report', 'theory report', False),
  ],
)
@pytest.mark.parametrize('below', ['a', 'a/b/c'])
def test_folders_in_folders(tmp_path, outer, inner, fits, below):
  mark(tmp_path, outer)
  before = programs.snapshot(tmp_path)
  try:
    with output_folder.opened(tmp_path / below, inner, 'output'):
      pass
  except ValueError as error:
    assert not fits
    assert f'is inside {tmp_path}, the folder of a {outer}' in str(error)
    assert programs.snapshot(tmp_path) == before
  else:
    assert fits
    assert (tmp_path / below / '.safl_tf').read_text() == f'{inner}\n'


def test_partition_writes_again_into_its_own_folder(call, tmp_path):
  """It replaces its own files; a text of the user's beside them stays."""
  command = ('partition', f'--output_dir={tmp_path}/own', '--num_clients=4')
  assert call(*command).code == 0
  fill(tmp_path / 'own', 'notes.txt', '.partial-manifest.json-0123abcd.tmp')
  (tmp_path / 'link').symlink_to('own')
  again = (command[0], f'--output_dir={tmp_path}/link', '--num_clients=5')
  assert call(*again).code == 0
  assert sorted(os.listdir(tmp_path / 'own')) == [
    '.safl_tf',
    'heterogeneity.json',
    'manifest.json',
    'notes.txt',
    'partition.png',
  ]
  assert (tmp_path / 'own' / 'notes.txt').read_text() == 'mine'


@pytest.mark.parametrize('kind', ['comparison', 'reproduction', 'export'])
def test_partition_refuses_a_folder_of_another_kind(call, tmp_path, kind):
  mark(tmp_path, kind)
  before = programs.snapshot(tmp_path)
  outcome = call('partition', f'--output_dir={tmp_path}')
  programs.check_refused(
    outcome,
    'partition',
    f'--output_dir={tmp_path}: is the folder of a {kind}; choose another',
  )
  assert programs.snapshot(tmp_path) == before


def test_a_locked_folder_is_refused(call, tmp_path):
  with output_folder.opened(tmp_path / 'own', 'partition', 'output_dir'):
    before = programs.snapshot(tmp_path)
    outcome = call('partition', f'--output_dir={tmp_path}/own')
    assert programs.snapshot(tmp_path) == before
  programs.check_refused(
    outcome,
    'partition',
    f'--output_dir={tmp_path}/own: another process is writing to this folder',
  )


def test_a_mark_that_is_a_link_is_not_followed(call, tmp_path):
  (tmp_path / 'empty.txt').write_text('')
  (tmp_path / 'own').mkdir()
  (tmp_path / 'own' / '.safl_tf').symlink_to(tmp_path / 'empty.txt')
  outcome = call('partition', f'--output_dir={tmp_path}/own')
  assert outcome.code == 1
  assert outcome.err.startswith(f'safl-partition: {tmp_path}/own/.safl_tf: ')
  assert outcome.err.count('\n') == 1
  assert (tmp_path / 'empty.txt').read_text() == ''
