"""Flags have an effect or are refused: conditions, and what they stand for."""

import dataclasses
import functools
import inspect
import itertools
import shutil
import types

import keras
import numpy as np
import pytest

from binaries import factories, train
from binaries.flags import run_config, training
from binaries.flags.conditions import Others, When
from binaries.flags.partition import _FLAG_NAMES, Partition
from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import checked, client_config, process
from safl_tf.data import dataset as dataset_lib
from safl_tf.data import partition as partition_lib
from safl_tf.data import registry as data_registry
from safl_tf.training import loop, run_directory
from safl_tf.util import choices, errors, validation
from tests.binaries import programs

FIELDS = {
  field.name: field
  for field in dataclasses.fields(run_config.RunConfig)
  if field.metadata
}
# The options of rules that have no flag.
WITHOUT_FLAGS = {'max_iterations', 'tolerance'}
# Values of flags that are neither numbers nor choices, other than the default.
TEXTS = {
  'dataset': 'mnist',
  'data_dir': '.',
  'speech_dir': '.',
  'label_column': 'b',
  'client_column': 'b',
  'weight_column': 'b',
  'categorical': 'b',
  'image_size': '1,2',
  'partition': 'iid',
  'model': 'light_vgg',
  'custom_objects': 'own.py',
  'activation': 'relu',
  'output_dir': 'other',
  'experiment': 'other',
  'device': 'cpu',
  'ray_address': 'auto',
  'figures': 'svg',
  'loss': 'paper',
  'metrics': 'mse',
  'score': 'binary_accuracy',
  'class_weight': '0:2',
}
# Values of flags that conditions name by their kind.
KINDS = {
  'csv:FILE': 'csv:a.csv',
  'npz:FILE': 'npz:a.npz',
  'FILE.keras': 'own.keras',
}


def conditional(flags, **values):
  """Those of the flags that have an effect with these values."""
  config = run_config.RunConfig(**values)
  return set(flags) - config.unused()


@pytest.mark.parametrize('algorithm', choices.ALGORITHMS)
def test_conditions_are_those_of_the_rules(algorithm):
  groups = (training.Algorithm, training.Aggregation)
  flags = {f.name for group in groups for f in dataclasses.fields(group)}
  flags -= {'algorithm', 'aggregator', 'server_optimizer'}
  flags -= {'anneal_clock', 'holdout', 'fedma_gamma'}  # below
  servers = ('none', *choices.SERVER_OPTIMIZERS)
  for aggregator, server in itertools.product(choices.AGGREGATORS, servers):
    chosen = {'aggregator': aggregator, 'server_optimizer': server}
    try:
      registry.build(algorithm, **chosen)
    except errors.InputError as error:
      config = run_config.RunConfig(algorithm=algorithm, **chosen)
      assert error.argument in config.unused()
      continue
    options = set(registry.arguments(algorithm, **chosen)) - {'fedma_gamma'}
    used = conditional(flags, algorithm=algorithm, **chosen)
    assert used == options - WITHOUT_FLAGS


@pytest.mark.parametrize('algorithm', choices.ALGORITHMS)
def test_conditions_are_those_of_local_training(algorithm):
  rules = registry.build(algorithm)
  one_step = rules.client_work.full_batch
  unused = run_config.RunConfig(algorithm=algorithm).unused()
  for field in dataclasses.fields(client_config.LocalConfig):
    if field.name not in FIELDS:
      continue
    if one_step and field.name == 'loss_reduction':
      continue  # FedSGD's is 'mean', which it accepts; 'sum' is the default
    value = other_value(field.name)
    config = client_config.LocalConfig(**{field.name: value})
    if field.name in unused:
      with pytest.raises(errors.InputError, match=f'^{field.name}='):
        checked.config(rules, config)
    else:
      assert checked.config(rules, config) == dataclasses.replace(
        config, **({'local_epochs': 1} if one_step else {})
      )
  assert ('init' in unused) == rules.shared_start
  assert 'client_store' not in unused
  assert ('anneal_clock' in unused) == ('temperature' in unused)
  assert ('holdout' in unused) == (not rules.measures)


@pytest.mark.parametrize('name', choices.PARTITIONS)
def test_conditions_are_those_of_partitions(name):
  factory = 'by_' + name if name in ('labels', 'client') else name
  parameters = inspect.signature(getattr(partition_lib, factory)).parameters
  arguments = {_FLAG_NAMES.get(p, p) for p in parameters}
  flags = {f.name for f in dataclasses.fields(Partition) if f.metadata}
  flags -= {'partition', 'num_clients'}  # checked by all partitions
  arguments -= {'num_clients', 'seed', 'client'}
  assert conditional(flags, partition=name) == arguments
  manifest = conditional(flags, partition='manifest:a.json')
  assert not manifest


def test_conditions_are_those_of_attacks():
  for kind in choices.ATTACKS[1:]:
    used = conditional(['attack_strength', 'attack_fraction'], attack=kind)
    assert 'attack_fraction' in used
    if 'attack_strength' in used:
      attacks.Attack(kind, strength=2.0)
    else:
      with pytest.raises(errors.InputError, match=r'^attack_strength=2.0: has'):
        attacks.Attack(kind, strength=2.0)
  assert not conditional(['attack_strength', 'attack_fraction'])


def test_conditions_name_flags_and_values_that_exist():
  for field in FIELDS.values():
    when = field.metadata['when']
    for flag, values in itertools.chain(
      *(case.items() for case in (when.cases if when else ()))
    ):
      names = FIELDS[flag].metadata['names']
      assert not names or set(tuple(values)) <= set(names), field.name


def test_hints():
  when = When(a=('x',), b=('1', '2')) | When(a=Others(['y']), c=(None,))
  given = {'a': ('y',), 'b': ('3',), 'c': ('s',)}
  assert when.hint({**given, 'a': ('x', 'z'), 'b': ('1',)}) is None
  assert when.hint({**given, 'a': ('z',), 'c': (None,)}) is None
  assert when.hint(given, {'a': 'letters'}) == (
    'has no effect with --letters=y and --b=3 and --c=s; it is for '
    '--letters=x and --b=1, 2 or --letters other than y and no --c'
  )
  assert str(when) == '--a=x and --b=1, 2 or --a other than y and no --c'


def test_presets_have_no_flags_without_effect():
  folder = programs.ROOT / 'binaries' / 'presets'
  presets = sorted(folder.glob('*.flags'))
  assert presets
  for preset in presets:
    programs.config(f'--flagfile={preset}')  # as if the user gave them


def test_other_flags_than_the_presets_are_the_users():
  """A preset's values are defaults, those on top of it are not."""
  define = run_config.RunConfig.define
  flags = programs.parse(
    define, '--preset=speech_commands_small', '--dataset=mnist'
  )
  from binaries.flags import presets

  presets.apply(flags)
  config = run_config.RunConfig.get(flags)
  assert (config.speech_words, config.num_clients) == (None, 4)
  flags = programs.parse(
    define, '--preset=mnist_n80', '--algorithm=fedavg', '--epsilon=0.3'
  )
  presets.apply(flags)
  with pytest.raises(errors.InputError, match=r'^epsilon=0.3: has no effect'):
    run_config.RunConfig.get(flags)


# Every flag reaches an object.


def other_value(name):
  """A value of a flag other than its default."""
  field = FIELDS[name]
  default, names = field.default, field.metadata['names']
  if names:
    return next(n for n in reversed(names) if n != default)
  if name in validation.LIMITS:
    limits = validation.LIMITS[name]
    if limits.whole:
      return limits.low + 2 if default is None else default + 1
    if default is None:
      return min(limits.high / 2, 50.0)
    return 0.9 * default or 0.5
  if field.type is bool:
    return not default
  return TEXTS[name]


def states():
  """(flag, the flags with which it has an effect), one for each case."""
  for name, field in FIELDS.items():
    when = field.metadata['when']
    for case in when.cases if when else ({},):
      state = {}
      for flag, values in case.items():
        if isinstance(values, Others):
          default = FIELDS[flag].default
          names = FIELDS[flag].metadata['names'] or [default, other_value(flag)]
          value = next(n for n in names if n in values)
        else:
          value = next(iter(values))
        if value is not None:
          state[flag] = KINDS.get(value, value)
      yield pytest.param(name, state, id=f'{name} {state}')


@pytest.fixture
def folder(tmp_path, monkeypatch, dense):
  (tmp_path / 'a.csv').write_text('a,b,label\n' + '1,2,x\n3,4,y\n' * 20)
  x, y = np.zeros((40, 2), np.float32), np.arange(40) % 2
  np.savez(tmp_path / 'a.npz', x=x, y=y)
  shutil.copy(dense, tmp_path / 'own.keras')
  (tmp_path / 'own.py').write_text('')
  monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(monkeypatch):
  """What training is called with, in place of training."""
  made = []

  def record(name, result=None):
    def call(*args, **kwargs):
      made.append((name, args, kwargs))
      return result

    return call

  x = np.zeros((3000, 28, 28, 1), np.uint8)
  y = (np.arange(3000) % 10).astype(np.int32)
  ids = np.minimum(np.arange(3000) // 300, 9)
  ids[0] = 10  # a client with one example
  names = tuple('0123456789')
  data = dataset_lib.Dataset('d', x, y, x, y, 10, names, client_ids=ids)
  flat = x.reshape(3000, -1)
  table = dataclasses.replace(data, x_train=flat, x_test=flat)

  def load(name, data_dir, options):
    is_table = name.startswith('csv:') and options.image_size is None
    return record('load', table if is_table else data)(name, data_dir, options)

  result = loop.Result(None, [], None, None)

  @dataclasses.dataclass
  class Directory(run_directory.RunDirectory):
    def __init__(self, path, flags, keep, argument):
      made.append(('directory', (path, keep), {}))

  patch = monkeypatch.setattr
  patch(data_registry, 'load', load)
  patch(factories, 'import_objects', record('objects'))
  made_process = types.SimpleNamespace(close=lambda: None)
  patch(process, 'FederatedProcess', record('process', made_process))
  patch(loop, 'run', record('run', result))
  patch(run_directory, 'RunDirectory', Directory)
  yield made
  keras.mixed_precision.set_global_policy('float32')


def describe(value):
  """Returns what is built in a form that can be compared."""
  if isinstance(value, algorithm_lib.Algorithm):
    return algorithm_lib.describe(value)
  if isinstance(value, functools.partial):
    policy = keras.mixed_precision.global_policy().name
    return (value.func.__name__, value.args, value.keywords, policy)
  if hasattr(value, 'label_counts') and hasattr(value, 'sizes'):
    rows = [value.indices(k).tolist() for k in range(value.num_clients)]
    return value.client_ids, rows
  if isinstance(value, (list, tuple)) and not hasattr(value, '_fields'):
    return [describe(item) for item in value]
  if isinstance(value, dict):
    return {key: describe(item) for key, item in value.items()}
  if isinstance(value, np.ndarray):
    return value.shape
  return repr(value)


def built(calls, arguments):
  """What a command line builds."""
  calls.clear()
  keras.mixed_precision.set_global_policy('float32')
  config = programs.config(*(f'--{k}={v}' for k, v in arguments.items()))
  train.train(config, config.load())
  kept = [call for call in calls if call[0] != 'run']
  [(_, arguments, _)] = [c for c in calls if c[0] == 'run']
  _, schedule, seed, *_, outputs = arguments
  outputs = dataclasses.replace(outputs, settings={})  # texts of plots
  return describe([*kept, schedule, seed, outputs])


@pytest.mark.parametrize('name, state', list(states()))
def test_every_flag_reaches_an_object(name, state, folder, calls):
  without = built(calls, state)
  assert built(calls, state) == without  # the same again
  if FIELDS[name].type == bool | None:  # one of them may be the default
    true, false = (built(calls, {**state, name: v}) for v in (True, False))
    assert true != false
  else:
    assert built(calls, {**state, name: other_value(name)}) != without


def test_factories_build_what_the_test_above_records():
  assert factories.process is process
