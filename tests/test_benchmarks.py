import itertools
import json

import numpy as np
import pytest

from benchmarks import reports, workers
from benchmarks.peers import common


def serve_a_count():
  workers.serve(map(float, itertools.count(5)), {'who': 'a count'})


def test_workers_take_turns():
  """Two processes that count; `serve_a_count` is what runs in each."""
  started = {
    name: workers.Worker('tests.test_benchmarks', []) for name in ('a', 'b')
  }
  found = workers.take_turns(started, cycles=2)
  assert found == {'a': [5, 6, 7], 'b': [5, 6, 7]}
  for worker in started.values():
    facts = worker.close()
    assert facts['who'] == 'a count' and facts['peak_mb'] > 1


def test_a_worker_that_ends_is_an_error():
  worker = workers.Worker('tests.no_such_module', [])
  with pytest.raises((RuntimeError, BrokenPipeError)):
    worker.measure()


def test_sections_replace_each_other(tmp_path, capsys):
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


def test_table():
  text = reports.table(['a', 'b'], [['1', '2']])
  assert text == '| a | b |\n| --- | --- |\n| 1 | 2 |'


def work(expected):
  nothing = np.zeros(0)
  plan = np.zeros((2, 3, 4, 5), np.int32)
  return common.Work(*[nothing] * 4, plan, [], 0.1, np.array(expected), nothing)


def test_a_framework_reports_the_same_loss(capsys):
  common.report('other', '1.0', [3.0, 2.0], 0.25, work([0.5, 0.25]))
  told = json.loads(capsys.readouterr().out)
  assert told['same'] and told['round'] == 2 and told['clients'] == 3


def test_a_framework_with_another_loss_fails(capsys):
  with pytest.raises(SystemExit):
    common.report('other', '1.0', [3.0, 2.0], 0.2501, work([0.5, 0.25]))
  assert not json.loads(capsys.readouterr().out)['same']


if __name__ == '__main__':
  serve_a_count()
