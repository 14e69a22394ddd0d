"""--help, and --preset in all programs that have it."""

import re

import pytest

import safl_tf
from binaries import partition
from binaries.flags import data, presets, run_config
from safl_tf.data.files import spec
from safl_tf.util import choices, errors
from tests.binaries import programs

TOPICS = [
  'data',
  'partition',
  'model',
  'algorithm',
  'local training',
  'loss and metrics',
  'aggregation',
  'attack',
  'run',
  'evaluation on clients',
  'hardware',
  'Ray',
]
PRESETS = sorted((programs.ROOT / 'binaries' / 'presets').glob('*.flags'))
# Presets of other tasks than the paper's, and their data.
OTHER_TASKS = {
  'diabetes': 'diabetes',
  'multi_label': 'synthetic_multi_label',
  'next_character': 'python_docs',
}
DATASETS = ('mnist', 'fashion_mnist', 'cifar10', 'speech_commands')


def apply(define, *arguments):
  """Returns parsed flags with the chosen preset."""
  flags = programs.parse(define, *arguments)
  presets.apply(flags)
  return flags


def test_help(tmp_path):
  options = ('--help', '-h', '--helpshort', '--helpfull')
  outcomes = programs.call_light(
    [('train', [option], tmp_path) for option in options]
    + [(program, ['--help'], tmp_path) for program in ('export', 'evaluate')]
    + [('sweep', ['--version'], tmp_path)]
  )
  assert all((code, err) == (0, '') for code, _, err in outcomes)
  train_help, *same, export_help, evaluate_help, version = [
    out for _, out, _ in outcomes
  ]
  assert version == f'safl-sweep {safl_tf.__version__}\n'
  assert same == [train_help] * 3
  names = re.findall(r'^  --(?:\[no\])?(\w+): ', train_help, re.MULTILINE)
  wanted = programs.flag_names(run_config.RunConfig) | {'preset'}
  assert (set(names), len(names)) == (wanted, len(wanted))
  letters = 'n R s T E B alpha H eps L nu m sigma^2'
  for letter in letters.split():
    assert f': [{letter}] ' in train_help
  assert '\n  --run: ' in export_help
  assert '\n  --model: ' in evaluate_help
  assert list(tmp_path.iterdir()) == []


def test_topics():
  flags = programs.parse(run_config.RunConfig.define)
  assert list(flags.flags_by_module_dict()) == TOPICS
  [where] = [
    topic
    for topic, members in flags.flags_by_module_dict().items()
    if 'client_store' in {flag.name for flag in members}
  ]
  assert where == 'hardware'


@pytest.mark.parametrize('preset', PRESETS, ids=lambda path: path.stem)
def test_presets(preset):
  """A preset by name has the values of its file."""
  config = programs.config(f'--flagfile={preset}')
  flags = apply(run_config.RunConfig.define, f'--preset={preset.stem}')
  assert run_config.RunConfig.get(flags) == config
  if preset.stem in OTHER_TASKS:
    assert config.dataset == OTHER_TASKS[preset.stem]
    assert config.partition == 'client'
    return
  if preset.stem == 'recommended':
    assert (config.epsilon, config.temperature) == (0.3, 10)
    return
  name, _, size = preset.stem.rpartition('_')
  if size.startswith('n'):
    assert config.num_clients == int(size[1:])
  elif size != 'small':
    name = preset.stem
    assert config.num_clients == 80
  assert config.dataset == name
  assert config.experiment == f'safl_{name}'
  assert config.model == ('lenet5' if name == 'mnist' else 'light_vgg')
  if size != 'small':
    assert (config.rounds, config.mean_examples) == (100, 600)
    assert (config.epsilon, config.temperature) == (0.3, 80)


def test_there_are_presets():
  names = {path.stem for path in PRESETS}
  small = {name for name in names if name.endswith('_small')}
  assert small == {f'{name}_small' for name in DATASETS}
  assert {*DATASETS[1:], 'mnist_n40', 'mnist_n80', 'mnist_n120'} < names


@pytest.mark.parametrize('program', ['train', 'compare', 'sweep', 'partition'])
def test_list_of_presets(program, call):
  outcome = call(program, '--preset=list')
  assert (outcome.code, outcome.err) == (0, '')
  lines = outcome.out.splitlines()
  assert [line.split()[0] for line in lines] == [p.stem for p in PRESETS]
  assert all(len(line.split()) > 5 for line in lines)


@pytest.mark.parametrize('program', ['train', 'compare', 'sweep', 'partition'])
def test_unknown_preset(program, call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  outcome = call(program, '--preset=mnist_80')
  message = '--preset=mnist_80: did you mean mnist_n80 '
  programs.check_refused(outcome, program, message)
  assert list(tmp_path.iterdir()) == []


def test_command_line_overrides_preset():
  """In any order."""
  given = ['--preset=mnist_n80', '--num_clients=5', '--local_epochs=9']
  for arguments in (given, given[::-1]):
    flags = apply(run_config.RunConfig.define, *arguments)
    assert (flags.num_clients, flags.local_epochs) == (5, 9)
    assert flags.dataset == 'mnist'


def test_preset_in_a_flagfile(tmp_path):
  path = tmp_path / 'my.flags'
  path.write_text('--rounds=7\n--preset=mnist_n40\n')
  flags = apply(run_config.RunConfig.define, f'--flagfile={path}')
  assert (flags.rounds, flags.num_clients) == (7, 40)


def test_preset_with_flags_of_another_program(call, tmp_path):
  """safl-partition names the flags that it skips."""
  outcome = call(
    'partition',
    '--preset=mnist_small',
    '--dataset=mnist_sample',
    '--num_clients=3',
    f'--output_dir={tmp_path}',
  )
  assert outcome.code == 0, outcome.err
  note = 'preset mnist_small: skipped flags of safl-train: --model, --rounds\n'
  assert outcome.err == note
  flags = apply(partition.define, '--preset=mnist_n80')
  assert (flags.dataset, flags.mean_examples) == ('mnist', 600)


def test_programs_without_presets():
  presets.apply(programs.parse(lambda flags: None))
  with pytest.raises(errors.InputError, match='preset=no: must be one of'):
    apply(run_config.RunConfig.define, '--preset=no')


@pytest.mark.slow
def test_pandas_after_tensorflow():
  """What Keras does not need at its start is still there for others."""
  script = (
    'import sys; from safl_tf.util import hardware; '
    'hardware.start_tensorflow(); '
    'import keras; assert "pandas" not in sys.modules, "slow"; '
    'assert "sklearn" not in sys.modules, "slow"; import pandas, sklearn; '
    'print(pandas.DataFrame({"a": [1, 2]}).a.sum(), sklearn.__name__)'
  )
  process = programs.start('-c', script)
  out, err = process.communicate(timeout=120)
  assert (process.returncode, out) == (0, '3 sklearn\n'), err


def test_every_data_set_and_option_is_described():
  flags = programs.parse(data.Data.define)
  described = ' '.join(flags['dataset'].help.split())
  for name in (*choices.DATASETS, *choices.DATASET_FORMS):
    assert name in described
  assert set(flags) >= spec.OPTIONS.keys()
