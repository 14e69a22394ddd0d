import math
import mmap
import os

import numpy as np
import pytest

from safl_tf.training import metrics_log
from safl_tf.util import errors

HEADER = (
  'round,test_accuracy,test_top5_accuracy,test_loss,train_loss,p,kept_local,'
  'selected,uploaded,dropped,malicious,bytes_up,bytes_down,total_bytes_up,'
  'total_bytes_down,delta_p50,delta_p90,q_p10,q_p50,seconds,rss_mb,'
  'workers,workers_lost,bytes_to_workers,bytes_from_workers,'
  'missing,wire_bytes_up,wire_bytes_down'
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
    '1,,,0.1,,1.0,,10,,,,123456789012345,,,,,,,,,,,,,,,,',
    '2,,,,,0.10000000149011612,,3,,,,,,,,,,,,,,,,,,,,',
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
  # New pages: NumPy may get memory that the process has already.
  block = mmap.mmap(-1, 50_000_000)
  for place in range(0, len(block), mmap.PAGESIZE):
    block[place] = 1
  assert 40 < metrics_log.rss_mb() - before < 80
  del block


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
