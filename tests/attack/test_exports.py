"""Exports: killed at any time, in the way of others, from other people."""

import json
import os
import shutil

import pytest

from safl_tf.training import export_files
from safl_tf.util import errors, hardware
from tests.binaries import programs

NAMES = [
  export_files.SAVED_MODEL,
  export_files.KERAS_FILE,
  export_files.TFLITE_FILE,
]
OUTPUTS = dict.fromkeys(NAMES, 'probabilities')


def make(folder, text, names=NAMES):
  """Writes files that look like those of an export."""
  for name in names:
    if name == export_files.SAVED_MODEL:
      version = folder / name / export_files.VERSION
      (version / 'variables').mkdir(parents=True)
      (version / 'saved_model.pb').write_text(text)
      (version / 'variables' / 'data').write_text(f'{text} data')
    else:
      (folder / name).write_text(text)


def prepare(folder, text, number, names=NAMES):
  """Writes and describes a new export, to be installed."""
  new = folder / f'.new-{number:08d}'
  new.mkdir()
  make(new, text, names)
  outputs = {name: OUTPUTS[name] for name in names}
  export_files.write(new, folder, outputs, {'round': number})
  return new


def install(folder, text, number, names=NAMES):
  export_files.install(prepare(folder, text, number, names), folder)


def check(folder, text, number):
  """The folder has this export, complete, and no left-overs."""
  assert sorted(os.listdir(folder)) == sorted([*NAMES, 'export.json'])
  assert export_files.is_current(folder, OUTPUTS, {'round': number})
  assert (folder / 'model.keras').read_text() == text
  assert (folder / 'saved_model' / '1' / 'saved_model.pb').read_text() == text


class KilledError(BaseException):
  """Simulates a kill."""


def killed_after(lives, function):
  """Lets some file operations happen; returns whether the function ended."""
  left = [lives]

  def mortal(call):
    def wrapped(*args, **options):
      if left[0] <= 0:
        raise KilledError
      left[0] -= 1
      return call(*args, **options)

    return wrapped

  with pytest.MonkeyPatch.context() as patch:
    for name in ('replace', 'unlink', 'rmdir', 'fsync'):
      patch.setattr(os, name, mortal(getattr(os, name)))
    try:
      function()
    except KilledError:
      return False
  return True


@pytest.mark.parametrize('earlier', [False, True])
def test_killed_at_every_step(tmp_path, earlier):
  """Before recovery nothing mixed is current; then the new one is there."""
  for lives in range(100):
    folder = tmp_path / str(lives)
    folder.mkdir()
    if earlier:
      install(folder, 'old', 1)
    new = prepare(folder, 'new', 2)
    ended = killed_after(lives, lambda: export_files.install(new, folder))  # noqa: B023
    for number, text in ((1, 'old'), (2, 'new')):
      if export_files.is_current(folder, OUTPUTS, {'round': number}):
        assert (folder / 'model.keras').read_text() == text
        assert (
          folder / 'saved_model' / '1' / 'saved_model.pb'
        ).read_text() == text
    while not killed_after(lives, lambda: export_files.recover(folder)):  # noqa: B023
      lives += 1
    check(folder, 'new', 2)
    if ended:
      break
  assert ended and lives > 8


def test_killed_before_it_was_verified(tmp_path):
  install(tmp_path, 'old', 1)
  (tmp_path / '.new-abcd_123').mkdir()
  make(tmp_path / '.new-abcd_123', 'new')
  export_files.recover(tmp_path)
  check(tmp_path, 'old', 1)


@pytest.mark.parametrize('name', NAMES)
def test_an_old_file_that_is_all_that_is_left_is_restored(tmp_path, name):
  install(tmp_path, 'old', 1)
  os.replace(tmp_path / name, tmp_path / f'.old-{name}')
  export_files.recover(tmp_path)
  check(tmp_path, 'old', 1)


def test_folders_of_others_are_no_leftovers(tmp_path):
  install(tmp_path, 'old', 1)
  names = ['.new-ideas', '.old-stuff', '.new-', 'new']
  for name in names:
    (tmp_path / name).mkdir()
  export_files.recover(tmp_path)
  assert set(names) < set(os.listdir(tmp_path))


def replace_file(path):
  path.write_text('mine') if path.is_file() else (path / 'mine').write_text('')


def replace_by_link(path):
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  (path.parent.parent / 'elsewhere').mkdir()
  path.symlink_to(path.parent.parent / 'elsewhere')


def forget(path):
  (path.parent / 'export.json').unlink()


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('change', [replace_file, replace_by_link, forget])
def test_what_was_not_exported_is_not_replaced(tmp_path, name, change):
  folder = tmp_path / 'export'
  folder.mkdir()
  install(folder, 'old', 1)
  change(folder / name)
  before = programs.snapshot(folder)
  with pytest.raises(errors.RunError, match='move it to another folder'):
    export_files.check_own(folder, [name])
  new = prepare(folder, 'new', 2)
  with pytest.raises(errors.RunError, match='is not replaced'):
    export_files.install(new, folder)
  shutil.rmtree(new)
  assert programs.snapshot(folder) == before


def test_a_file_of_an_earlier_export_stays_own(tmp_path):
  install(tmp_path, 'one', 1)
  install(tmp_path, 'two', 2, ['model.keras'])
  assert (
    tmp_path / 'saved_model' / '1' / 'saved_model.pb'
  ).read_text() == 'one'
  assert export_files.is_own(tmp_path / 'saved_model')
  assert not export_files.is_current(tmp_path, OUTPUTS, {'round': 2})
  install(tmp_path, 'three', 3)
  check(tmp_path, 'three', 3)


BROKEN = {
  'a list': '[]',
  'a string': '"x"',
  'a number': '3',
  'null': 'null',
  'no JSON': '{"files"',
  'empty': '',
  'deep': '[' * 100_000,
  'files a list': '{"files": ["saved_model"]}',
  'earlier files a string': '{"files": {}, "earlier_files": "x"}',
  'outputs a list': '{"files": {}, "outputs": []}',
  'class names a number': '{"files": {}, "class_names": 3}',
  'class names numbers': '{"files": {}, "class_names": [1, 2]}',
}


@pytest.mark.parametrize('content', BROKEN)
def test_broken_export_json(call, no_tensorflow, tmp_path, content):
  install(tmp_path, 'old', 1)
  (tmp_path / 'export.json').write_text(BROKEN[content])
  assert not export_files.is_current(tmp_path, OUTPUTS, {'round': 1})
  outcome = call('evaluate', f'--model={tmp_path}/saved_model')
  assert (outcome.code, outcome.out) == (1, '')
  assert outcome.err == (
    f'safl-evaluate: {tmp_path}/export.json: is damaged, or not from safl_tf; '
    'move it to another folder\n'
  )


@pytest.fixture
def started(monkeypatch):
  """Stops a program when it would start TensorFlow."""

  def stop():
    raise errors.RunError('would load the model')

  monkeypatch.setattr(hardware, 'start_tensorflow', stop)


def change_byte(folder):
  path = folder / '1' / 'variables' / 'data'
  path.write_text(path.read_text().replace('o', 'a'))


FOREIGN = {
  'another': lambda f: (f.parent / 'export.json').unlink(),
  'changed byte': change_byte,
  'added file': lambda f: (f / 'assets').write_text('x'),
  'added folder': lambda f: (f / 'assets').mkdir(),
  'added link': lambda f: (f / 'assets').symlink_to('/'),
  'added pipe': lambda f: os.mkfifo(f / 'pipe'),
  'added version': lambda f: shutil.copytree(f / '1', f / '2'),
  'renamed version': lambda f: (f / '1').rename(f / '2'),
  'lost file': lambda f: (f / '1' / 'variables' / 'data').unlink(),
  'renamed file': lambda f: (f / '1/variables').rename(f / '1/variable'),
  'moved': lambda f: f.rename(f.parent / 'model'),
}


@pytest.mark.parametrize('case', FOREIGN)
def test_a_foreign_saved_model_needs_trust(call, started, tmp_path, case):
  install(tmp_path, 'old', 1)
  base = tmp_path / 'saved_model'
  FOREIGN[case](base)
  base = base if base.exists() else tmp_path / 'model'
  for path in (base, export_files.find_saved_model(base)):
    outcome = call('evaluate', f'--model={path}')
    programs.check_refused(
      outcome,
      'evaluate',
      f'--model={path}: is a SavedModel that safl-export did not write ... can '
      'run code ... --trust',
    )
    outcome = call('evaluate', f'--model={path}', '--trust')
    assert outcome.err == 'safl-evaluate: would load the model\n'


@pytest.mark.parametrize(
  'part', ['saved_model', 'saved_model/', 'saved_model/1', 'l', 'l/1', 'x/../l']
)
def test_an_own_saved_model_needs_no_trust(call, started, tmp_path, part):
  install(tmp_path, 'old', 1)
  (tmp_path / 'l').symlink_to('saved_model')
  (tmp_path / 'x').mkdir()
  outcome = call('evaluate', f'--model={tmp_path}/{part}')
  assert outcome.err == 'safl-evaluate: would load the model\n'


def test_the_highest_version_counts(tmp_path):
  for name in ('1', '9', '10', '11', '100x', 'x'):
    (tmp_path / name).mkdir()
    if name != '11':
      (tmp_path / name / 'saved_model.pb').write_text('')
  assert export_files.find_saved_model(tmp_path) == tmp_path / '10'
  assert export_files.find_saved_model(tmp_path / '9') == tmp_path / '9'
  assert export_files.find_saved_model(tmp_path / '11') is None


def test_trust_has_no_effect_on_others(call, no_tensorflow, tmp_path):
  (tmp_path / 'model.json').write_text(json.dumps({}))
  outcome = call('evaluate', f'--model={tmp_path}', '--trust')
  programs.check_refused(
    outcome, 'evaluate', '--trust=True: is only for a SavedModel'
  )
