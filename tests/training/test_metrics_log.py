import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from safl_tf import version
from safl_tf.training import metrics_log
from safl_tf.util import errors

HEADER = (
  'round,test_accuracy,test_top5_accuracy,test_loss,train_loss,p,kept_local,'
  'selected,uploaded,dropped,malicious,bytes_up,bytes_down,total_bytes_up,'
  'total_bytes_down,delta_p50,delta_p90,q_p10,q_p50,seconds,rss_mb'
)


def make_row(number, **changes):
  row = {column: None for column in metrics_log.COLUMNS}
  row |= {
    'round': number,
    'test_loss': 0.1 + number / 3,
    'p': math.exp(-number / 7),
    'selected': 10,
    'bytes_up': 123_456_789_012_345,
  }
  return row | changes


def read_events(logdir):
  """Tag -> [(step, value)], in the order of the files."""
  import tensorflow as tf

  scalars = {}
  for name in sorted(os.listdir(logdir)):
    for record in tf.data.TFRecordDataset(os.path.join(logdir, name)):
      event = tf.compat.v1.Event.FromString(record.numpy())
      for value in event.summary.value:
        assert value.metadata.plugin_data.plugin_name == 'scalars'
        assert value.metadata.data_class == 1
        scalar = tf.make_ndarray(value.tensor)
        assert scalar.dtype == np.float32  # TensorBoard drops float64
        scalars.setdefault(value.tag, []).append((event.step, scalar.item()))
  return scalars


@pytest.fixture
def log(tmp_path):
  log = metrics_log.MetricsLog(tmp_path)
  yield log
  log.close()


def test_columns():
  assert ','.join(metrics_log.COLUMNS) == HEADER
  assert set(metrics_log.MEASURED) < set(metrics_log.COLUMNS)
  assert len(set(metrics_log.TAGS.values())) == len(metrics_log.COLUMNS) - 1


def test_rows_round_trip_exactly(log):
  random = np.random.default_rng(0)
  rows = [
    make_row(i, test_loss=float(random.normal() * 10.0**e), q_p50=-0.0)
    for i, e in enumerate(range(-300, 38, 13), start=1)
  ]
  log.start([])
  for row in rows:
    log.append(row)
  read = metrics_log.read_csv(log.path)
  assert read == rows
  for got, row in zip(read, rows, strict=True):
    assert list(got) == list(metrics_log.COLUMNS)
    assert [type(v) for v in got.values()] == [type(v) for v in row.values()]
    assert math.copysign(1, got['q_p50']) == -1


def test_content_of_the_file(log):
  log.start([make_row(1, test_loss=0.1, p=1.0)])
  log.append({'round': 2, 'selected': np.int64(3), 'p': np.float32(0.1)})
  with open(log.path) as file:
    lines = file.read().split('\n')
  assert lines == [
    HEADER,
    '1,,,0.1,,1.0,,10,,,,123456789012345,,,,,,,,,',
    '2,,,,,0.10000000149011612,,3,,,,,,,,,,,,,',
    '',
  ]


def test_non_finite_numbers_round_trip(log):
  log.start([])
  log.append(make_row(1, train_loss=math.nan, test_loss=math.inf))
  (row,) = metrics_log.read_csv(log.path)
  assert math.isnan(row['train_loss'])
  assert row['test_loss'] == math.inf


def test_append_syncs_the_row(log, monkeypatch):
  log.start([])
  synced = []
  monkeypatch.setattr(
    os, 'fsync', lambda _: synced.append(len(metrics_log.read_csv(log.path)))
  )
  log.append(make_row(1))
  log.append(make_row(2))
  assert synced == [1, 2]


@pytest.mark.parametrize('row', [{'round': 1, 'tset_loss': 1.0}, {'p': 0.5}])
def test_invalid_row_is_refused(log, row):
  log.start([make_row(1)])
  with pytest.raises(ValueError, match='not a row of metrics'):
    log.append(row)
  assert len(metrics_log.read_csv(log.path)) == 1


def test_append_needs_start(log):
  with pytest.raises(RuntimeError, match='start'):
    log.append(make_row(1))
  log.start([])
  log.close()
  with pytest.raises(RuntimeError, match='start'):
    log.append(make_row(1))


def test_events_contain_the_rows(log):
  log.start([make_row(1)])
  log.append(make_row(2, test_accuracy=0.1))
  scalars = read_events(log.logdir)
  expected = [(i, np.float32(make_row(i)['test_loss'])) for i in (1, 2)]
  assert scalars.pop('test/loss') == expected
  assert scalars.pop('test/accuracy') == [(2, np.float32(0.1))]
  assert scalars.pop('clients/selected') == [(1, 10.0), (2, 10.0)]
  assert scalars.keys() == {'annealing/p', 'traffic/bytes_up'}


def test_resumed_run_has_each_step_once(tmp_path):
  killed = metrics_log.MetricsLog(tmp_path)
  killed.start([])
  for number in (1, 2, 3):
    killed.append(make_row(number))
  with open(killed.path, 'a') as file:
    file.write('4,0.2,')
  assert metrics_log.read_csv(killed.path) == [make_row(i) for i in (1, 2, 3)]
  (tmp_path / 'logdir' / 'notes.txt').write_text('the user put this here')

  resumed = metrics_log.MetricsLog(tmp_path)
  resumed.start([make_row(1), make_row(2)])
  resumed.append(make_row(3, test_loss=5.0))
  resumed.close()
  os.unlink(tmp_path / 'logdir' / 'notes.txt')
  rows = [make_row(1), make_row(2), make_row(3, test_loss=5.0)]
  assert metrics_log.read_csv(resumed.path) == rows
  losses = read_events(resumed.logdir)['test/loss']
  assert losses == [(r['round'], np.float32(r['test_loss'])) for r in rows]


@pytest.mark.parametrize('line', ['1,x', '1', '1,2,3'])
def test_error_names_the_broken_line(tmp_path, line):
  path = tmp_path / 'metrics.csv'
  path.write_text(f'round,p\n1,0.5\n{line}\n')
  with pytest.raises(errors.InputError, match='line 3: must be 2 numbers'):
    metrics_log.read_csv(path)


def test_rss_is_in_megabytes():
  before = metrics_log.rss_mb()
  block = np.ones(50_000_000, np.uint8)
  assert 40 < metrics_log.rss_mb() - before < 80
  del block


def test_versions_import_no_package():
  script = (
    'import json, sys\n'
    'from safl_tf.training import metrics_log\n'
    'for name in ("tensorflow", "keras"):\n'
    '  sys.modules[name] = None  # an import would fail\n'
    'print(json.dumps(metrics_log.versions()))\n'
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
  assert metrics_log.git_commit(tmp_path / 'source') is None
  git('add', 'source')
  git('commit', '-m', 'first')
  git('tag', 'v1')
  commit = git('rev-parse', 'HEAD').strip()
  assert metrics_log.git_commit(tmp_path / 'source') == commit
  # A package inside the checkout of another project has no commit.
  assert metrics_log.git_commit(tmp_path / 'installed') is None
  (tmp_path / 'source' / 'code.py').write_text('2')
  assert metrics_log.git_commit(tmp_path / 'source') == f'{commit}-dirty'
  assert metrics_log.git_commit(tmp_path / 'absent') is None
  assert capfd.readouterr() == ('', '')


def test_git_commit_without_git(tmp_path, monkeypatch, capfd):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert metrics_log.git_commit(os.path.dirname(metrics_log.__file__)) is None
  assert capfd.readouterr() == ('', '')


def test_hparams(tmp_path):
  assert metrics_log.read_hparams(tmp_path) is None
  flags = {'rounds': 3, 'epsilon': 0.1, 'export': None, 'sizes': (1, 2)}
  metrics_log.write_hparams(tmp_path, {'seed': 3}, flags, 5)
  hparams = metrics_log.read_hparams(tmp_path)
  assert hparams.keys() == {
    'checkpoint_every',
    'flags',
    'format',
    'git_commit',
    'identity',
    'versions',
  }
  assert hparams['identity'] == {'seed': 3}
  assert hparams['flags'] == flags | {'sizes': [1, 2]}
  assert hparams['versions'] == metrics_log.versions()
  assert metrics_log.differing(hparams['flags'], flags, ignore=()) == {}
  (tmp_path / 'hparams.json').write_text('{')
  with pytest.raises(errors.InputError, match='json cannot be parsed'):
    metrics_log.read_hparams(tmp_path)


@pytest.mark.parametrize(
  'change, version_name',
  [
    ({}, 'an older'),  # the first versions wrote no number
    ({'format': metrics_log.FORMAT - 1}, 'an older'),
    ({'format': metrics_log.FORMAT + 1}, 'a newer'),
  ],
)
def test_hparams_of_another_version(tmp_path, change, version_name):
  hparams = {'flags': {'num_devices': 4}, **change}
  (tmp_path / 'hparams.json').write_text(json.dumps(hparams))
  with pytest.raises(errors.InputError) as caught:
    metrics_log.read_hparams(tmp_path, 'run')
  assert str(caught.value) == (
    f'run={tmp_path}: was made by {version_name} version of safl_tf; use that '
    'version or train again'
  )


def test_client_table(tmp_path):
  table = [
    {'client': 'a,b', 'examples': 3, 'own_accuracy': 1 / 3},
    {'client': 'ü', 'examples': 12, 'own_accuracy': 1.0},
  ]
  metrics_log.write_clients(tmp_path, table)
  text = (tmp_path / 'clients.csv').read_bytes().decode()
  assert text == (
    'client,examples,own_accuracy\n"a,b",3,0.3333333333333333\nü,12,1.0\n'
  )


def test_differing():
  old = {'same': 1, 'changed': 1, 'rounds': 10, 'gone': 2, 'gone_none': None}
  new = {'same': 1.0, 'changed': 'a', 'rounds': 20, 'added': [3]}
  assert metrics_log.differing(old, new, ignore=('rounds',)) == {
    'added': (None, [3]),
    'changed': (1, 'a'),
    'gone': (2, None),
  }
