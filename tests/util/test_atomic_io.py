import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from safl_tf.util import atomic_io

SORTED_JSON = b'{\n  "a": [\n    0.1\n  ],\n  "b": 1\n}\n'
WRITERS = {
  'bytes': (atomic_io.write_bytes, b'\x00\xff', b'\x00\xff'),
  'text': (atomic_io.write_text, 'z̄\n', 'z̄\n'.encode()),
  'json': (atomic_io.write_json, {'b': 1, 'a': [0.1]}, SORTED_JSON),
}


@pytest.mark.parametrize('kind', WRITERS)
def test_write_replaces_the_file_and_leaves_no_other(tmp_path, kind):
  write, content, expected = WRITERS[kind]
  path = tmp_path / 'file'
  path.write_bytes(b'something longer that was there before')
  write(path, content)
  assert path.read_bytes() == expected
  assert os.listdir(tmp_path) == ['file']


def test_permissions_are_the_defaults(tmp_path):
  (tmp_path / 'usual').write_bytes(b'')
  atomic_io.write_bytes(tmp_path / 'atomic', b'')
  modes = [
    stat.S_IMODE((tmp_path / name).stat().st_mode)
    for name in ('usual', 'atomic')
  ]
  assert modes[0] == modes[1]


def test_json_accepts_numpy_scalars_but_not_arrays(tmp_path):
  path = tmp_path / 'file.json'
  atomic_io.write_json(path, {'a': np.float32(0.5), 'b': np.int64(3)})
  assert json.loads(path.read_text()) == {'a': 0.5, 'b': 3}
  with pytest.raises(TypeError, match='cannot be written as JSON'):
    atomic_io.write_json(path, {'a': np.zeros(2)})
  assert json.loads(path.read_text()) == {'a': 0.5, 'b': 3}


@pytest.mark.parametrize('broken', ['fsync', 'replace'])
def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch, broken):
  path = tmp_path / 'file'
  atomic_io.write_bytes(path, b'old')

  def fail(*args):
    raise OSError('disk full')

  monkeypatch.setattr(os, broken, fail)
  with pytest.raises(OSError, match='disk full'):
    atomic_io.write_bytes(path, b'new')
  assert path.read_bytes() == b'old'
  assert os.listdir(tmp_path) == ['file']


def test_data_is_synced_before_the_rename(tmp_path, monkeypatch):
  calls = []
  fsync, replace = os.fsync, os.replace

  def record_fsync(descriptor):
    folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    calls.append('fsync folder' if folder else 'fsync file')
    fsync(descriptor)

  def record_replace(*args):
    calls.append('replace')
    replace(*args)

  monkeypatch.setattr(os, 'fsync', record_fsync)
  monkeypatch.setattr(os, 'replace', record_replace)
  atomic_io.write_bytes(tmp_path / 'file', b'new')
  assert calls == ['fsync file', 'replace', 'fsync folder']


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
  script = (
    'import os, sys\n'
    'from safl_tf.util import atomic_io\n'
    'with atomic_io.replacing(sys.argv[1]) as file:\n'
    '  file.write(b"half")\n'
    '  file.flush()\n'
    '  os.kill(os.getpid(), 9)\n'
  )
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  (tmp_path / 'user.tmp').write_bytes(b'')
  subprocess.run([sys.executable, '-c', script, str(path)], check=False)
  assert len(os.listdir(tmp_path)) == 3
  assert atomic_io.remove_leftovers(tmp_path) == 1
  assert sorted(os.listdir(tmp_path)) == ['file', 'user.tmp']
  assert path.read_bytes() == b'old'


def test_no_leftovers_in_a_missing_folder(tmp_path):
  assert atomic_io.remove_leftovers(tmp_path / 'absent') == 0
