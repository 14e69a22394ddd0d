"""What safl-compare takes and refuses."""

import pathlib
import re

import pytest

from binaries import common, compare_flags, training_flags
from tests.binaries import programs

LIGHT = [
  ('--algorithms=sfal', 'did you mean safl ... must be one of '),
  ('--algorithms=', 'must be one of '),
  ('--algorithms=safl,fedavg,safl', 'safl must be there only once'),
  ('--seeds=-1', 'must be a whole number in [0, '),
  ('--seeds=a', 'must be a whole number in [0, '),
  ('--seeds=1,2,01', '1 must be there only once'),
  ('--at_rounds=0', 'must be a whole number in [1, 50]'),
  ('--at_rounds=51', 'must be a whole number in [1, 50]'),
  ('--at_rounds=3.5', 'must be a whole number in [1, 50]'),
  ('--target_accuracy=0.0', 'must be a number in (0, 1]'),
  ('--target_accuracy=90.0', 'must be a number in (0, 1]'),
  ('--epsilon=1.5', 'must be a number in [0, 1]'),
  ('--rounds=0', 'must be a whole number >= 1'),
  ('--experiment=a/b', "must be a folder's name"),
  ('--clients_per_round=21', 'must be at most the number of clients, 20'),
  ('--algorithm=safl', 'no such flag; did you mean --algorithms? see --help'),
  ('--seed=3', 'no such flag; did you mean --seeds? see --help'),
]


@pytest.fixture
def no_tensorflow(monkeypatch):
  """Whoever starts TensorFlow fails."""
  monkeypatch.setattr(common, 'start_tensorflow', lambda: pytest.fail('starts'))


@pytest.mark.parametrize('flag, allowed', LIGHT, ids=[f for f, _ in LIGHT])
def test_bad_value(flag, allowed, call, no_tensorflow, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  outcome = call('compare', flag)
  beginning, *parts = allowed.split(' ... ')
  assert outcome.err.startswith(f'safl-compare: {flag}: {beginning}')
  assert all(part in outcome.err for part in parts)
  assert outcome.err.count('\n') == 1
  assert (outcome.code, outcome.out) == (2, '')
  assert list(tmp_path.iterdir()) == []


def test_bad_item_among_good_ones(call, no_tensorflow, tmp_path):
  where = f'--output_dir={tmp_path}'
  outcome = call('compare', where, '--algorithms=fedavg,sfal')
  assert outcome.err.startswith('safl-compare: --algorithms=sfal: did you mean')
  assert outcome.code == 2


def test_bad_value_that_takes_tensorflow(call, tmp_path, dense):
  where = (f'--output_dir={tmp_path}', f'--model={dense}')
  outcome = call('compare', *where, '--max_labels=11')
  assert outcome.err.startswith('safl-compare: --max_labels=11: must be ')
  assert outcome.code == 2
  assert list(tmp_path.iterdir()) == []


def plan(*given):
  flags = compare_flags.FLAGS
  for name in flags:
    flags[name].unparse()
  flags(['safl-compare', *given])
  return compare_flags.plan()


def test_defaults():
  made = plan()
  assert made.path == pathlib.Path('runs') / 'compare_mnist_sample'
  assert made.algorithms == ['fedavg', 'safl', 'extended_safl']
  assert (made.seeds, made.at_rounds, made.target) == ([0], [12, 25, 37], 0.9)
  assert made.common['export'] == 'none'


def test_values_are_those_of_safl_train():
  """A run's flags are what safl-train has with the same command."""
  made = plan('--epsilon=0.4', '--experiment=mine', '--seeds=3,5')
  assert made.runs[:2] == [('fedavg', 3), ('safl', 3)]
  alone = training_flags.FLAGS
  for name in alone:
    alone[name].unparse()
  alone(['safl-train', '--epsilon=0.4', '--seed=5', '--export=none'])
  where = {'output_dir': 'runs/mine', 'experiment': 'safl_seed5'}
  assert made.values('safl', 5) == training_flags.values() | where


def test_help():
  script = (
    'import sys; from binaries import compare; compare.cli(); '
    'print([m for m in ("tensorflow", "keras", "numpy") if m in sys.modules])'
  )
  process = programs.start('-c', script, '--help', cwd=programs.ROOT)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (0, '')
  assert out.endswith('\n[]\n')
  told = re.findall(r'^  --(?:\[no\])?(\w+): ', out, re.MULTILINE)
  inherited = set(training_flags.FLAGS.own(training_flags.__name__))
  own = {'algorithms', 'seeds', 'at_rounds', 'target_accuracy'}
  assert set(told) == inherited - {'algorithm', 'seed'} | own
  assert set(compare_flags.FLAGS.own(compare_flags.__name__)) == own
  assert training_flags.FLAGS['export'].default == 'both'
  assert "\n    (default: 'none')\n" in out.split('--export: ')[1]
