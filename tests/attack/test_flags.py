"""Flags: nothing given is ignored, and no value ends in a traceback."""

import dataclasses
import math
import string

import hypothesis
import pytest
from absl import flags as absl_flags
from hypothesis import strategies as st

from binaries import compare, program
from binaries.flags import run_config
from safl_tf.util import errors, validation
from tests.binaries import programs

HUGE = 10**12

# (program, command line, beginning of the message): a flag that the user gave
# and that has no effect with the others.
NO_EFFECT = [
  ('--algorithm=fedavg --nu=0.2', '--nu=0.2: has no effect with --algorithm='),
  ('--nu=0.5', '--nu=0.5: has no effect with --algorithm=safl; it is for --al'),
  ('--holdout=0.2', '--holdout=0.2: has no effect with --algorithm=safl; '),
  ('--algorithm=fedavg --epsilon=0.3', '--epsilon=0.3: has no effect with '),
  ('--algorithm=ida --temperature=9', '--temperature=9.0: has no effect with '),
  ('--algorithm=fedma --anneal_clock=step', '--anneal_clock=step: has no '),
  ('--algorithm=astw --mix_granularity=model', '--mix_granularity=model: has'),
  ('--algorithm=centralized --fraction=1', '--fraction=1.0: has no effect '),
  ('--algorithm=centralized --clients_per_round=3', '--clients_per_round=3: '),
  ('--algorithm=fedsgd --init=shared', '--init=shared: has no effect with '),
  ('--algorithm=fedsgd --local_epochs=3', '--local_epochs=3: has no effect '),
  ('--algorithm=fedsgd --optimizer=adam', '--optimizer=adam: has no effect '),
  ('--algorithm=fedsgd --loss_reduction=sum', '--loss_reduction=sum: has no '),
  ('--algorithm=fedsgd --proximal_mu=1', '--proximal_mu=1.0: has no effect '),
  ('--algorithm=local_only --proximal_mu=1', '--proximal_mu=1.0: has no '),
  ('--algorithm=local_only --aggregator=krum', '--aggregator=krum: has no '),
  ('--algorithm=centralized --aggregator=median', '--aggregator=median: has '),
  ('--algorithm=fedma --aggregator=size', '--aggregator=size: has no effect '),
  ('--algorithm=fedma --server_optimizer=adam', '--server_optimizer=adam: ha'),
  ('--algorithm=local_only --server_optimizer=sgd', '--server_optimizer=sgd: '),
  ('--trim_fraction=0.1', '--trim_fraction=0.1: has no effect with --aggrega'),
  ('--aggregator=median --trim_fraction=0.1', '--trim_fraction=0.1: has no '),
  ('--num_byzantine=1', '--num_byzantine=1: has no effect with --aggregator='),
  ('--aggregator=krum --num_selected=2', '--num_selected=2: has no effect '),
  (
    '--ida_norm=l1',
    '--ida_norm=l1: has no effect with --aggregator=auto and --algorithm=safl; '
    'it is for --aggregator=ida or --algorithm=ida, ida_safl',
  ),
  ('--algorithm=ida --aggregator=krum --ida_norm=l1', '--ida_norm=l1: has no '),
  ('--ida_reference=size', '--ida_reference=size: has no effect with '),
  ('--algorithm=ida --astw_base=2', '--astw_base=2.0: has no effect with '),
  ('--astw_layerwise', '--astw_layerwise=True: has no effect with '),
  ('--noastw_layerwise', '--astw_layerwise=False: has no effect with '),
  ('--fedma_matching=bbp', '--fedma_matching=bbp: has no effect with --algor'),
  ('--fedma_schedule=oneshot', '--fedma_schedule=oneshot: has no effect '),
  ('--fedma_average=map', '--fedma_average=map: has no effect with '),
  (
    '--algorithm=fedma --fedma_gamma=3',
    '--fedma_gamma=3.0: has no effect with --fedma_matching=hungarian; it is '
    'for --fedma_matching=bbp',
  ),
  ('--server_learning_rate=1', '--server_learning_rate=1.0: has no effect '),
  ('--server_optimizer=sgd --server_beta_1=0.5', '--server_beta_1=0.5: has '),
  ('--server_optimizer=adagrad --server_beta_2=0', '--server_beta_2=0.0: has'),
  ('--server_optimizer=momentum --server_tau=1', '--server_tau=1.0: has no '),
  ('--attack_fraction=0.5', '--attack_fraction=0.5: has no effect with --atta'),
  ('--attack=label_flip --attack_strength=2', '--attack_strength=2.0: has no '),
  ('--attack=nonfinite --attack_strength=2', '--attack_strength=2.0: has no '),
  ('--dirichlet_alpha=0.1', '--dirichlet_alpha=0.1: has no effect with --part'),
  ('--partition=shards --mean_examples=9', '--mean_examples=9.0: has no '),
  ('--partition=client --variance_examples=9', '--variance_examples=9.0: has'),
  ('--partition=iid --max_labels=3', '--max_labels=3: has no effect with '),
  ('--shards_per_client=3', '--shards_per_client=3: has no effect with '),
  ('--quantity_sigma=1', '--quantity_sigma=1.0: has no effect with '),
  ('--biased_fraction=0.1', '--biased_fraction=0.1: has no effect with '),
  ('--biased_label=1', '--biased_label=1: has no effect with --partition='),
  ('--min_examples=2', '--min_examples=2: has no effect with --partition='),
  (
    '--data_dir=.',
    '--data_dir=.: has no effect with --dataset=mnist_sample; it is for ',
  ),
  ('--dataset=csv:a.csv --data_dir=.', '--data_dir=.: has no effect with '),
  (
    '--dataset=speech_commands --speech_dir=. --data_dir=.',
    '--data_dir=.: has no effect with ',
  ),
  ('--dataset=mnist --speech_dir=.', '--speech_dir=.: has no effect with '),
  ('--speech_words=all', '--speech_words=all: has no effect with --dataset='),
  ('--label_column=a', '--label_column=a: has no effect with --dataset='),
  ('--client_column=a', '--client_column=a: has no effect with --dataset='),
  ('--test_fraction=0.3', '--test_fraction=0.3: has no effect with --dataset='),
  ('--image_size=2,2', '--image_size=2,2: has no effect with --dataset='),
  ('--executor=threads --stack=2', '--stack=2: has no effect with --executor='),
  ('--model=a.keras --activation=relu', '--activation=relu: has no effect '),
  ('--model=a.keras --mixed_precision=none', '--mixed_precision=none: has no '),
  ('--preset=mnist_n80 --algorithm=fedavg --nu=1', '--nu=1.0: has no effect '),
  ('--flagfile=nu.flags --algorithm=fedavg', '--nu=0.2: has no effect with '),
]
# Of other programs.
ELSEWHERE = [
  (
    'compare',
    '--algorithms=fedavg,safl --nu=0.2',
    '--nu=0.2: has no effect with --algorithms=fedavg,safl; it is for '
    '--algorithms=extended_safl',
  ),
  ('compare', '--server_tau=1', '--server_tau=1.0: has no effect with '),
  ('compare', '--data_dir=.', '--data_dir=.: has no effect with --dataset='),
  ('compare', '--seeds=1_0', '--seeds=1_0: must be a whole number in [0, '),
  ('compare', '--seeds=0,٣', '--seeds=٣: must be a whole number in [0, '),
  ('compare', f'--seeds={2**63}', f'--seeds={2**63}: must be a whole number '),
  ('compare', '--at_rounds=0x1', '--at_rounds=0x1: must be a whole number in '),
  ('compare', '--target_accuracy=1e3', '--target_accuracy=1000.0: must be a '),
  ('partition', '--dirichlet_alpha=1', '--dirichlet_alpha=1.0: has no effect '),
  ('partition', '--data_dir=.', '--data_dir=.: has no effect with --dataset='),
  ('partition', f'--num_clients={HUGE}', f'--num_clients={HUGE}: must be a '),
  ('partition', f'--seed={2**64}', f'--seed={2**64}: must be a whole number '),
  (
    'evaluate',
    '--model=. --dataset=mnist_sample --data_dir=.',
    '--data_dir=.: has no effect with --dataset=mnist_sample; it is for ',
  ),
  (
    'evaluate',
    '--model=. --dataset=mnist --label_column=a',
    '--label_column=a: has no effect with --dataset=mnist; it is for ',
  ),
  (
    'reproduce',
    '--experiment=uploads --scale=smoke --data_dir=.',
    '--data_dir=.: no run of --experiment=uploads --scale=smoke reads it',
  ),
  ('reproduce', '--experiment=uploads --seeds=+1_0', '--seeds=+1_0: must be '),
  ('theory', f'--trials={HUGE}', f'--trials={HUGE}: must be a whole number in'),
  ('theory', '--rounds=1e3', '--rounds=1e3: must be a whole number'),
]
# Values that are absurd, or not what they look like.
VALUES = [
  (f'--num_clients={HUGE}', 'must be a whole number in [1, 1000000]'),
  (f'--clients_per_round={HUGE}', 'must be a whole number in [1, '),
  (f'--batch_size={10**20}', 'must be a whole number in [1, 1000000]'),
  (f'--local_epochs={HUGE}', 'must be a whole number in [1, 100000]'),
  (f'--rounds={10**30}', 'must be a whole number in [1, 1000000]'),
  (f'--rounds=1{"0" * 5000}', 'must be a whole number'),
  (f'--seed={2**63}', 'must be a whole number in [0, '),
  (f'--eval_every={10**30}', 'must be a whole number in [1, '),
  (f'--keep_checkpoints={HUGE}', 'must be a whole number in [1, '),
  (f'--stack={HUGE}', 'must be a whole number in [1, 1000000]'),
  ('--learning_rate=1e+308', 'must be a number in (0, 1e+38]'),
  ('--learning_rate=1e999', 'is too large'),
  ('--mean_examples=1e+300', 'must be a number in (0, 1000000000.0]'),
  ('--variance_examples=1e+300', 'must be a number in [0, '),
  ('--rounds=1_000', 'must be a whole number'),
  ('--rounds=٣', 'must be a whole number'),
  ('--rounds=１０', 'must be a whole number'),
  ('--rounds=0x10', 'must be a whole number'),
  ('--rounds=0b1', 'must be a whole number'),
  ('--rounds=5.0', 'must be a whole number'),
  ('--rounds=--5', 'must be a whole number'),
  ('--epsilon=1_0', 'must be a number'),
  ('--epsilon=٠.٣', 'must be a number'),
  ('--epsilon=0,3', 'must be a number'),
  ('--epsilon=infinity', 'must be a number'),
  ('--client_table=yes', 'must be true or false'),
  ('--client_table=2', 'must be true or false'),
  ('--experiment=--rounds=3', 'is a flag, not a value'),
  ('--export=BOTH', 'must be one of'),
]
# Command lines as a whole: (arguments, message).
LINES = [
  (['--norounds'], '--norounds: no such flag; did you mean --rounds? see'),
  (['--noclient_table=1'], '--noclient_table=1 does not take an argument'),
  (['--rounds= 5'], '--rounds= 5: must be a whole number'),
  (['--rounds=5 '], '--rounds=5 : must be a whole number'),
  (['--rounds', '--seed=1'], '--rounds=--seed=1: must be a whole number'),
  (['--output_dir', '--seed=1'], '--output_dir=--seed=1: is a flag, not a '),
  (['--client_table', 'false'], 'false: not a flag; flags are written '),
  (['--', '--rounds=3'], '--rounds=3: not a flag; flags are written '),
  (['--flagfile'], '--flagfile with no argument'),
  (['--flagfile=unknown.flags'], '--rouns=3: no such flag; did you mean '),
]

CASES = [
  *(('train', line.split(), message) for line, message in NO_EFFECT),
  *((name, line.split(), message) for name, line, message in ELSEWHERE),
  *(('train', [flag], f'{flag}: {hint}') for flag, hint in VALUES),
  *(('train', line, ' '.join(message.split())) for line, message in LINES),
]


def fill(folder):
  (folder / 'a.csv').write_text('x,label\n' + '1,a\n2,b\n' * 10)
  (folder / 'a.keras').write_bytes(b'PK\5\6' + bytes(18))
  (folder / 'nu.flags').write_text('--nu=0.2\n')
  (folder / 'unknown.flags').write_text('--rouns=3\n')
  return programs.snapshot(folder)


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
  folder = tmp_path_factory.mktemp('flags')
  before = fill(folder)
  results = programs.call_light([(p, a, folder) for p, a, _ in CASES])
  assert programs.snapshot(folder) == before  # nothing is written
  return results


@pytest.mark.parametrize(
  'number', range(len(CASES)), ids=[' '.join(c[1])[:60] for c in CASES]
)
def test_refused_without_tensorflow(outcomes, number):
  name, _, message = CASES[number]
  # A line has single spaces, also where the value has several.
  programs.check_refused(outcomes[number], name, message)


def test_the_command_line_overrides_flagfiles(tmp_path, monkeypatch):
  """Wherever the flagfile stands; and the last of equal flags counts."""
  monkeypatch.chdir(tmp_path)
  fill(tmp_path)
  for order in (1, -1):
    arguments = ['--flagfile=nu.flags', '--nu=0.7'][::order]
    arguments = program._flagfiles_first([*arguments, '--rounds=3'])
    flags = programs.parse(run_config.RunConfig.define, *arguments)
    assert (flags.nu, flags.rounds) == (0.7, 3)
    assert flags['nu'].present and not flags['seed'].present
  given = ['-flagfile', 'nu.flags', 'x', '--flagfile']
  assert program._flagfiles_first(given) == [*given[:2], '--flagfile', 'x']
  flags = programs.parse(
    run_config.RunConfig.define, '--rounds=3', '--rounds=5'
  )
  assert flags.rounds == 5


def test_a_run_of_a_comparison_has_only_what_it_uses():
  flags = programs.parse(
    compare.define,
    '--nu=0.2',
    '--epsilon=0.4',
    '--algorithms=fedavg,safl,extended_safl',
  )
  runs = {run.algorithm: run for run in compare.comparison_of(flags).runs}
  assert [run.nu for run in runs.values()] == [0.5, 0.5, 0.2]
  assert [run.epsilon for run in runs.values()] == [0.3, 0.4, 0.4]
  assert runs['fedavg'].to_dict().keys() == runs['safl'].to_dict().keys()
  plain = programs.parse(compare.define, '--algorithms=fedavg')
  [fedavg] = compare.comparison_of(plain).runs
  assert fedavg == runs['fedavg']


# Random values.

settings = hypothesis.settings(
  max_examples=100, deadline=None, derandomize=True
)
FLAGS = absl_flags.FlagValues()
run_config.RunConfig.define(FLAGS)
NUMBERS = {n: limits for n, limits in validation.LIMITS.items() if n in FLAGS}
TYPED = st.one_of(
  st.integers().map(str),
  st.floats().map(str),
  st.text(string.digits + '+-._ eE', max_size=8),
  st.text(max_size=8),
)


def parse(name, typed):
  """Returns the value of a flag, or None if it is refused by name."""
  flags = absl_flags.FlagValues()
  run_config.RunConfig.define(flags)
  try:
    flags(['program', f'--{name}={typed}'])
  except absl_flags.Error as error:
    assert str(error).removeprefix('flag ').startswith(f'--{name}=')
    return None
  return flags[name].value


def test_all_numbers_have_limits():
  fields = {
    f.name
    for f in dataclasses.fields(run_config.RunConfig)
    if f.metadata and FLAGS[f.name].flag_type() in ('int', 'float')
  }
  assert fields == set(NUMBERS) and len(fields) > 30
  assert all(math.isfinite(r.high) for r in validation.LIMITS.values())


@settings
@hypothesis.given(st.sampled_from(sorted(NUMBERS)), TYPED)
def test_random_numbers(name, typed):
  """A number is accepted as it was typed, or refused by name."""
  value, limits = parse(name, typed), NUMBERS[name]
  if value is not None:
    assert typed.isascii() and not set(typed) & set('_ \t\n')
    assert limits.low <= value <= limits.high
    assert value == (int(typed) if limits.whole else float(typed))


@settings
@hypothesis.given(st.sampled_from(sorted(NUMBERS)), st.data())
def test_numbers_within_limits_are_accepted(name, data):
  low, high, whole, open_low, open_high = NUMBERS[name]
  if whole:
    number = data.draw(st.integers(low, high))
  else:
    ends = {'exclude_min': open_low, 'exclude_max': open_high}
    number = data.draw(st.floats(low, high, **ends))
  assert parse(name, str(number)) == number


@settings
@hypothesis.given(TYPED)
def test_random_lists(typed):
  """--seeds: the numbers that were typed, or refused by name."""
  flags = programs.parse(compare.define)
  flags['seeds'].value = typed
  try:
    runs = compare.comparison_of(flags).runs
  except errors.InputError as error:
    assert error.argument == 'seeds'
  else:
    seeds = [run.seed for run in runs if run.algorithm == 'safl']
    assert typed.isascii() and '_' not in typed
    assert [int(item) for item in typed.split(',')] == seeds


@settings
@hypothesis.given(st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True))
def test_lists_are_read_as_typed(seeds):
  flags = programs.parse(
    compare.define, '--algorithms=safl', f'--seeds={",".join(map(str, seeds))}'
  )
  assert [run.seed for run in compare.comparison_of(flags).runs] == seeds


@settings
@hypothesis.given(st.text(max_size=10), st.sampled_from(sorted(FLAGS)))
def test_random_text(typed, name):
  """Of any flag: accepted as it was typed, or refused by name."""
  value = parse(name, typed)
  if value is not None and isinstance(value, str):
    assert value == typed
