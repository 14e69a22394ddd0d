"""Flags of safl-compare."""

import pathlib
import re

import pytest

from binaries import compare
from binaries.flags import report, run_config
from tests.binaries import programs

LIGHT = [
  ('--algorithms=sfal', 'did you mean safl ... must be one of '),
  ('--algorithms=', 'must be one of '),
  ('--algorithms=safl,fedavg,safl', 'safl must occur only once'),
  ('--seeds=-1', 'must be a whole number in [0, '),
  ('--seeds=a', 'must be a whole number in [0, '),
  ('--seeds=1,2,01', '1 must occur only once'),
  ('--at_rounds=0', 'must be a whole number in [1, 50]'),
  ('--at_rounds=51', 'must be a whole number in [1, 50]'),
  ('--at_rounds=3.5', 'must be a whole number in [1, 50]'),
  ('--target_accuracy=0.0', 'must be a number in (0, 1]'),
  ('--target_accuracy=90.0', 'must be a number in (0, 1]'),
  ('--epsilon=1.5', 'must be a number in [0, 1]'),
  ('--rounds=0', 'must be a whole number in [1, 1000000]'),
  ('--experiment=a/b', 'must be the name of a folder'),
  ('--clients_per_round=21', 'must be at most the number of clients, 20'),
  ('--algorithm=safl', 'no such flag; did you mean --algorithms? see --help'),
  ('--seed=3', 'no such flag; did you mean --seeds? see --help'),
]


@pytest.mark.parametrize('flag, hint', LIGHT, ids=[f for f, _ in LIGHT])
def test_bad_value(flag, hint, call, no_tensorflow, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  outcome = call('compare', flag)
  programs.check_refused(outcome, 'compare', f'{flag}: {hint}')
  assert list(tmp_path.iterdir()) == []


def test_bad_item_among_good_ones(call, no_tensorflow, tmp_path):
  where = f'--output_dir={tmp_path}'
  outcome = call('compare', where, '--algorithms=fedavg,sfal')
  message = '--algorithms=sfal: did you mean '
  programs.check_refused(outcome, 'compare', message)


def test_bad_value_that_takes_tensorflow(call, tmp_path, dense):
  where = (f'--output_dir={tmp_path}', f'--model={dense}')
  outcome = call('compare', *where, '--max_labels=11')
  programs.check_refused(outcome, 'compare', '--max_labels=11: must be ')
  assert list(tmp_path.iterdir()) == []


def runs(*arguments):
  return compare.comparison_of(programs.parse(compare.define, *arguments)).runs


def test_defaults():
  flags = programs.parse(compare.define)
  configs = compare.comparison_of(flags).runs
  folder = pathlib.Path('runs') / 'compare_mnist_sample'
  algorithms = ['fedavg', 'safl', 'extended_safl']
  assert [run.path for run in configs] == [
    folder / f'{name}_seed0' for name in algorithms
  ]
  assert [run.algorithm for run in configs] == algorithms
  assert {run.seed for run in configs} == {0}
  assert {run.export for run in configs} == {'none'}
  assert report.at_rounds(flags, 50) == [12, 25, 37]
  assert flags.target_accuracy == 0.9


def test_runs_have_the_flags_of_safl_train():
  """A run has the flags that safl-train has with the same command."""
  configs = runs('--epsilon=0.4', '--experiment=mine', '--seeds=3,5')
  order = [(run.algorithm, run.seed) for run in configs]
  assert order[:2] == [('fedavg', 3), ('safl', 3)]
  alone = programs.config(
    '--epsilon=0.4',
    '--seed=5',
    '--export=none',
    '--output_dir=runs/mine',
    '--experiment=safl_seed5',
  )
  assert configs[order.index(('safl', 5))] == alone


def test_help():
  script = (
    'import sys; from binaries import compare; compare.cli(); '
    'print([m for m in ("tensorflow", "keras", "numpy") if m in sys.modules])'
  )
  process = programs.start('-c', script, '--help', cwd=programs.ROOT)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (0, '')
  assert out.endswith('\n[]\n')
  names = re.findall(r'^  --(?:\[no\])?(\w+): ', out, re.MULTILINE)
  inherited = programs.flag_names(run_config.RunConfig) | {'preset'}
  own = {'algorithms', 'seeds', 'at_rounds', 'target_accuracy', 'runs'}
  assert set(names) == inherited - {'algorithm', 'seed'} | own
  assert len(names) == len(set(names))
  export = out.split('  --export: ')[1].split('  --')[0]
  assert '(default: none)' in export
