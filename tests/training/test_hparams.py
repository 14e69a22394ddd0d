"""hparams.json: versions, commit, what it holds and what is refused."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from safl_tf import version
from safl_tf.training import hparams as hparams_lib
from safl_tf.util import errors
from safl_tf.util import versions as versions_lib


def test_versions_import_no_package():
  script = (
    'import json, sys\n'
    'from safl_tf.util import versions\n'
    'for name in ("tensorflow", "keras"):\n'
    '  sys.modules[name] = None  # an import would fail\n'
    'print(json.dumps(versions.find()))\n'
  )
  versions = json.loads(subprocess.check_output([sys.executable, '-c', script]))
  assert versions['python'].split('.')[0] == str(sys.version_info[0])
  assert versions['numpy'] == np.__version__
  assert versions['safl_tf'] == version.__version__
  assert versions['tensorflow'][0].isdigit()
  assert int(versions['cpu_count']) >= 1
  assert versions.keys() >= {'keras', 'tensorflow-datasets', 'platform'}


@pytest.mark.skipif(not shutil.which('git'), reason='needs git')
def test_git_commit(tmp_path, capfd):
  def git(*arguments):
    identity = ['-c', 'user.name=a', '-c', 'user.email=a@b']
    command = ['git', '-C', str(tmp_path), *identity, *arguments]
    return subprocess.check_output(command, text=True, stderr=subprocess.PIPE)

  git('init')
  (tmp_path / 'source').mkdir()
  (tmp_path / 'source' / 'code.py').write_text('1')
  (tmp_path / 'installed').mkdir()
  (tmp_path / 'installed' / 'code.py').write_text('1')
  assert hparams_lib.git_commit(tmp_path / 'source') is None
  git('add', 'source')
  git('commit', '-m', 'first')
  git('tag', 'v1')
  commit = git('rev-parse', 'HEAD').strip()
  assert hparams_lib.git_commit(tmp_path / 'source') == commit
  # A package inside the checkout of another project has no commit.
  assert hparams_lib.git_commit(tmp_path / 'installed') is None
  (tmp_path / 'source' / 'code.py').write_text('2')
  assert hparams_lib.git_commit(tmp_path / 'source') == f'{commit}-dirty'
  assert hparams_lib.git_commit(tmp_path / 'absent') is None
  assert capfd.readouterr() == ('', '')


def test_git_commit_without_git(tmp_path, monkeypatch, capfd):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert hparams_lib.git_commit(os.path.dirname(hparams_lib.__file__)) is None
  assert capfd.readouterr() == ('', '')


def test_hparams(tmp_path):
  assert hparams_lib.read(tmp_path) is None
  flags = {'rounds': 3, 'epsilon': 0.1, 'export': None, 'sizes': (1, 2)}
  hparams_lib.write(tmp_path, hparams_lib.create({'seed': 3}, flags))
  hparams = hparams_lib.read(tmp_path)
  assert hparams.keys() == {
    'flags',
    'format',
    'git_commit',
    'identity',
    'saved_round',
    'settings',
    'versions',
  }
  assert hparams['identity'] == {'seed': 3}
  assert hparams['flags'] == flags | {'sizes': [1, 2]}
  assert hparams['versions'] == versions_lib.find()
  assert hparams_lib.differing(hparams['flags'], flags, ignore=()) == {}
  (tmp_path / 'hparams.json').write_text('{')
  with pytest.raises(errors.InputError, match='json cannot be parsed'):
    hparams_lib.read(tmp_path)


@pytest.mark.parametrize(
  'change, version_name',
  [
    ({}, 'an older'),  # the first versions wrote no number
    ({'format': hparams_lib.FORMAT - 1}, 'an older'),
    ({'format': hparams_lib.FORMAT + 1}, 'a newer'),
  ],
)
def test_hparams_of_another_version(tmp_path, change, version_name):
  hparams = {'flags': {'num_devices': 4}, **change}
  (tmp_path / 'hparams.json').write_text(json.dumps(hparams))
  with pytest.raises(errors.InputError) as caught:
    hparams_lib.read(tmp_path, 'run')
  assert str(caught.value) == (
    f'run={tmp_path}: was made by {version_name} version of safl_tf; use that '
    'version or train again'
  )


def test_differing():
  old = {'same': 1, 'changed': 1, 'rounds': 10, 'gone': 2, 'gone_none': None}
  new = {'same': 1.0, 'changed': 'a', 'rounds': 20, 'added': [3]}
  assert hparams_lib.differing(old, new, ignore=('rounds',)) == {
    'added': (None, [3]),
    'changed': (1, 'a'),
    'gone': (2, None),
  }


VALID = {
  'format': hparams_lib.FORMAT,
  'identity': {},
  'flags': None,
  'saved_round': 5,
  'versions': {},
}


@pytest.mark.parametrize(
  'content, part',
  [
    ([], 'must be a JSON object'),
    (3, 'must be a JSON object'),
    (None, 'must be a JSON object'),
    ('x', 'must be a JSON object'),
    ({**VALID, 'identity': []}, 'no valid field identity'),
    ({**VALID, 'flags': 'a'}, 'no valid field flags'),
    ({**VALID, 'saved_round': None}, 'no valid field saved_round'),
    ({'format': hparams_lib.FORMAT}, 'no valid field identity'),
    ({'format': 'four'}, 'an older version'),
  ],
)
def test_another_shape_is_named(tmp_path, content, part):
  (tmp_path / 'hparams.json').write_text(json.dumps(content))
  with pytest.raises(errors.InputError, match=part) as caught:
    hparams_lib.read(tmp_path, 'run')
  assert caught.value.argument == 'run'


@pytest.mark.parametrize('data', [b'', b'{', b'\xff', b'[' * 100_000])
def test_no_json_is_named(tmp_path, data):
  (tmp_path / 'hparams.json').write_bytes(data)
  with pytest.raises(errors.InputError, match='cannot be parsed'):
    hparams_lib.read(tmp_path)
