"""Every flag of the programs around safl-train changes what they do."""

import re
import types

import numpy as np
import pytest

from binaries import (
  compare,
  evaluate,
  export,
  factories,
  partition,
  reproduce,
  runs,
  sweep,
  theory,
)
from binaries.flags import data, run_config
from binaries.flags import partition as partition_flags
from safl_tf.core import task
from safl_tf.data import dataset as dataset_lib
from safl_tf.data import registry
from safl_tf.experiments.theory import report, trials
from safl_tf.reporting import plots
from safl_tf.training import export as export_lib
from safl_tf.training import run_directory, scores
from tests.binaries import programs

SHARED = programs.flag_names(run_config.RunConfig) | {'preset'}
# Program -> (its module, flags of the base command, other values of its flags).
# Data flags, where a program has them, are read as safl-train reads them.
PROGRAMS = {
  'compare': (
    compare,
    {},
    {
      'algorithms': 'fedavg',
      'seeds': '1',
      'at_rounds': '3',
      'target_accuracy': '0.5',
      'runs': 'saved',
    },
  ),
  'evaluate': (
    evaluate,
    {'model': 'a'},
    {
      'model': 'b',
      'loss': 'paper',
      'metrics': 'mse',
      'custom_objects': 'own.py',
      'from_logits': 'true',
      'trust': 'true',
    },
  ),
  'export': (
    export,
    {'run': 'a'},
    {'run': 'b', 'output': 'c', 'format': 'keras'},
  ),
  'partition': (
    partition,
    {},
    {'seed': '1', 'output_dir': 'other', 'export_clients': 'data'},
  ),
  'reproduce': (
    reproduce,
    {'experiment': 'early_accuracy', 'scale': 'paper'},
    {
      'experiment': 'uploads',
      'scale': 'cpu',
      'seeds': '7',
      'parts': 'fedavg_mnist',
      'output_dir': 'other',
      'list': 'true',
      'data_dir': '.',
      'speech_dir': '.',
      'figures': 'svg',
    },
  ),
  'sweep': (
    sweep,
    {'grid': 'epsilon=0.1'},
    {
      'grid': 'epsilon=0.2',
      'point': 'temperature=9',
      'seeds': '1',
      'processes': '2',
      'at_rounds': '3',
      'target_accuracy': '0.5',
    },
  ),
  'theory': (
    theory,
    {},
    {
      'output_dir': 'other',
      'scale': 'smoke',
      'trials': '3',
      'rounds': '4',
      'seed': '1',
      'executor': 'serial',
    },
  ),
}


def define(module):
  """The function that defines the flags of a program."""
  own = getattr(module, '_Flags', None)
  return own.define if own else module.define


@pytest.fixture
def did(monkeypatch, tmp_path):
  """What the programs do, in place of their work."""
  made = []

  def record(name, result=None):
    def call(*args, **kwargs):
      shown = re.sub(' at 0x[0-9a-f]+', '', repr((args, kwargs)))
      made.append((name, shown))
      return result

    return call

  patch = monkeypatch.setattr
  patch(compare, '_check_folders', lambda *args: None)
  patch(compare, '_load', lambda *args: None)
  patch(runs, 'is_complete', lambda *args: True)
  patch(compare, '_write', record('write', ''))
  patch(compare, '_compare_saved', record('saved'))
  patch(sweep, '_write', record('write', ''))
  patch(sweep, '_processes', record('processes', 1))
  patch(reproduce, '_reproduce', record('reproduce'))
  patch(trials, 'run', record('trials'))
  patch(report, 'write', record('report', ''))
  loaded = types.SimpleNamespace(
    model=None,
    input_spec=None,
    task={'activation': 'softmax'},
    metadata={},
    round_number=1,
  )
  patch(run_directory, 'check_is_run', lambda *args: None)
  patch(
    run_directory, 'load', lambda path, *args: (made.append(path), loaded)[1]
  )
  patch(export_lib, 'export', record('export', []))
  patch(
    evaluate,
    '_load',
    lambda path, logits, compiled: (
      None,
      None,
      task.Options(from_logits=logits),
    ),
  )
  patch(evaluate, '_check_trust', record('trust'))
  patch(factories, 'import_objects', record('objects'))
  (tmp_path / 'own.py').write_text('')
  for name in 'ab':
    (tmp_path / name).mkdir()
  x, y = np.zeros((600, 28, 28, 1), np.uint8), np.arange(600) % 10
  names = tuple('0123456789')
  loaded_data = dataset_lib.Dataset('d', x, y, x, y, 10, names)
  patch(registry, 'load', lambda *args: loaded_data)
  result = scores.Scores(1.0, 1.0, 1.0, {}, None, None)
  patch(evaluate, '_score', record('score', result))
  patch(plots, 'partition', lambda *args: args[2].touch())
  monkeypatch.chdir(tmp_path)
  return made


def outcome(module, arguments, did, capsys, folder):
  """What a command line does: calls, output and files, which it removes."""
  did.clear()
  before = programs.snapshot(folder)
  flags = programs.parse(
    define(module), *(f'--{k}={v}' for k, v in arguments.items())
  )
  module.main(flags)
  after = programs.snapshot(folder)
  new = {path: content for path, content in after.items() if path not in before}
  for path in sorted(new, reverse=True):
    full = folder / path
    full.rmdir() if full.is_dir() else full.unlink()
  return list(did), capsys.readouterr().out, new


@pytest.mark.parametrize('name', PROGRAMS)
def test_no_flag_is_left_out(name):
  """A new flag needs a case here."""
  module, _, others = PROGRAMS[name]
  flags = set(programs.parse(define(module)))
  if name in ('compare', 'partition', 'sweep'):
    flags -= SHARED - {'seed', 'output_dir'} if name == 'partition' else SHARED
  if name == 'evaluate':
    flags -= programs.flag_names(data.Data)
  assert flags == set(others)


def test_partition_reads_flags_as_training_does():
  own = programs.flag_names(data.Data)
  own |= programs.flag_names(partition_flags.Partition)
  assert own < SHARED
  assert own < set(programs.parse(partition.define))


@pytest.mark.parametrize(
  'name, flag',
  [(name, flag) for name, case in PROGRAMS.items() for flag in case[2]],
)
def test_every_flag_has_an_effect(name, flag, did, capsys, tmp_path):
  module, base, others = PROGRAMS[name]
  if flag == 'list':
    base = {}
  arguments = {**base, flag: others[flag]}
  changed = outcome(module, arguments, did, capsys, tmp_path)
  if flag == 'list':
    assert 'early_accuracy' in changed[1] and not changed[0]
    return
  plain = outcome(module, base, did, capsys, tmp_path)
  assert outcome(module, base, did, capsys, tmp_path) == plain
  assert changed != plain
