import subprocess
import sys

import pytest

from safl_tf.util import errors, output_folder


def opened(folder, kind='run'):
  return output_folder.opened(folder, kind, 'experiment')


def test_a_folder_is_created_and_marked(tmp_path):
  with opened(tmp_path / 'a' / 'run'):
    pass
  assert (tmp_path / 'a' / 'run' / '.safl_tf').read_text() == 'run\n'


@pytest.mark.parametrize('content', ['', 'run\n'])
def test_an_own_folder_is_opened_again(tmp_path, content):
  (tmp_path / '.safl_tf').write_text(content)
  (tmp_path / 'metrics.csv').write_text('round')
  with opened(tmp_path):
    pass
  assert (tmp_path / '.safl_tf').read_text() == 'run\n'


@pytest.mark.parametrize('name', ['thesis.txt', '.hidden', 'hparams.json'])
def test_a_folder_with_other_files_is_refused(tmp_path, name):
  (tmp_path / name).write_text('mine')
  with pytest.raises(errors.InputError, match=name), opened(tmp_path):
    pass
  assert [path.name for path in tmp_path.iterdir()] == [name]
  assert (tmp_path / name).read_text() == 'mine'


def test_a_folder_of_another_kind_is_refused(tmp_path):
  with opened(tmp_path, 'comparison'):
    pass
  with pytest.raises(errors.InputError, match='comparison'), opened(tmp_path):
    pass


def test_a_dangling_link_is_refused(tmp_path):
  (tmp_path / 'link').symlink_to(tmp_path / 'absent')
  with pytest.raises(errors.InputError), opened(tmp_path / 'link'):
    pass


def test_lock_is_exclusive_and_released(tmp_path):
  folder = tmp_path / 'run'
  with opened(folder):
    with pytest.raises(errors.InputError) as caught, opened(folder):
      pass
    assert caught.value.argument == 'experiment'
    assert caught.value.value == folder
    assert 'another process' in caught.value.hint
  with opened(folder):
    pass


def test_lock_is_released_after_an_error(tmp_path):
  with pytest.raises(KeyError), opened(tmp_path):
    raise KeyError
  with opened(tmp_path):
    pass


def test_lock_of_another_process_is_released_when_it_is_killed(tmp_path):
  script = (
    'import sys, time\n'
    'from safl_tf.util import output_folder\n'
    'with output_folder.opened(sys.argv[1], "run", "experiment"):\n'
    '  print("held", flush=True)\n'
    '  time.sleep(60)\n'
  )
  with subprocess.Popen(
    [sys.executable, '-c', script, str(tmp_path)], stdout=subprocess.PIPE
  ) as process:
    assert process.stdout is not None
    assert process.stdout.readline() == b'held\n'
    with pytest.raises(errors.InputError), opened(tmp_path):
      pass
    process.kill()
  with opened(tmp_path):
    pass


def test_lock_of_a_folder_that_cannot_be_created(tmp_path):
  (tmp_path / 'file').write_bytes(b'')
  with (
    pytest.raises(errors.InputError, match=r'^experiment='),
    opened(tmp_path / 'file' / 'run'),
  ):
    pass


def test_leftovers_of_killed_writers_are_removed(tmp_path):
  """In the folder and its subfolders, but not in marked ones."""
  with opened(tmp_path, 'comparison'), opened(tmp_path / 'run'):
    pass
  leftover = '.partial-a.png-0123abcd.tmp'
  kept = ['.partial-notes.tmp', 'a.tmp', 'run/.safl_tf', f'run/{leftover}']
  for name in (leftover, f'plots/{leftover}', f'run/plots/{leftover}', *kept):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('')
  (tmp_path / '.partial-b-0123abcd.tmp').mkdir()
  with opened(tmp_path, 'comparison'):
    pass
  files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob('*')}
  assert {*kept, f'run/plots/{leftover}', '.partial-b-0123abcd.tmp'} < files
  assert not {leftover, f'plots/{leftover}'} & files
