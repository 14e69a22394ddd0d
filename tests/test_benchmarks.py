import itertools
import json

import numpy as np
import pytest

from benchmarks import reports, workers
from benchmarks.peers import common


def serve_numbers():
  workers.serve(map(float, itertools.count(5)), {'name': 'numbers'})


def test_workers_take_turns():
  """Two processes that run `serve_numbers`."""
  started = {
    name: workers.Worker('tests.test_benchmarks', []) for name in ('a', 'b')
  }
  values = workers.take_turns(started, cycles=2)
  assert values == {'a': [5, 6, 7], 'b': [5, 6, 7]}
  for worker in started.values():
    metadata = worker.close()
    assert metadata['name'] == 'numbers' and metadata['peak_mb'] > 1


def test_worker_that_ends_raises():
  worker = workers.Worker('tests.no_such_module', [])
  with pytest.raises((RuntimeError, BrokenPipeError)):
    worker.measure()


@pytest.mark.parametrize(
  'script, expected',
  [
    ('echo GPU A; echo GPU B', 'GPU A, GPU B'),
    ('echo no driver; exit 9', 'no GPU'),
  ],
)
def test_gpus_are_named(monkeypatch, tmp_path, script, expected):
  program = tmp_path / 'nvidia-smi'
  program.write_text(f'#!/bin/sh\n{script}\n')
  program.chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path))
  assert f', {expected}, seed 0.' in reports.provenance('benchmarks.rounds')


def test_write_replaces_sections(tmp_path, capsys):
  path = tmp_path / 'numbers.md'
  path.write_text('# Numbers\n')
  reports.write(path, 'one', 'first')
  reports.write(path, 'two', r'second \1')
  reports.write(path, 'one', 'third')
  assert path.read_text() == (
    '# Numbers\n\n<!-- one -->\nthird\n<!-- /one -->\n\n'
    '<!-- two -->\nsecond \\1\n<!-- /two -->\n'
  )
  assert capsys.readouterr().out == 'first\nsecond \\1\nthird\n'
  reports.write(None, 'one', 'fourth')
  assert 'third' in path.read_text()


def work(expected):
  empty = np.zeros(0)
  plan = np.zeros((2, 3, 4, 5), np.int32)
  weights = [np.zeros((4, 2)), np.zeros(2)]
  return common.Work(
    *[empty] * 4, plan, weights, 0.1, np.array(expected), empty
  )


def test_report_of_equal_loss(capsys):
  common.report('other', '1.0', [3.0, 2.0], 0.25, work([0.5, 0.25]))
  result = json.loads(capsys.readouterr().out)
  assert result['same'] and result['round'] == 2 and result['clients'] == 3
  assert result['model'] == 'a dense network'


def test_report_of_unequal_loss_exits(capsys):
  with pytest.raises(SystemExit):
    common.report('other', '1.0', [3.0, 2.0], 0.2501, work([0.5, 0.25]))
  assert not json.loads(capsys.readouterr().out)['same']


if __name__ == '__main__':
  serve_numbers()
