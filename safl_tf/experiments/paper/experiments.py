"""The paper's experiments by name; experiments.json has their texts.

Scale `paper` has the paper's size. `cpu` takes two cores up to an hour per
experiment. `smoke` takes seconds and only shows that everything works.
"""

import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from safl_tf.experiments.paper import plans

Flags = Mapping[str, Any]

# The paper's settings, unless an experiment overrides them.
PAPER: dict[str, Any] = {
  'dataset': 'mnist',
  'model': 'lenet5',
  'num_clients': 80,
  'mean_examples': 600,
  'variance_examples': 100,
  'max_labels': 7,
  'local_epochs': 3,
  'batch_size': 50,
  'learning_rate': 0.002,
  'epsilon': 0.3,
  'temperature': 80,
}
_SMOKE: dict[str, Any] = PAPER | {
  'dataset': 'mnist_sample',
  'num_clients': 4,
  'mean_examples': 20,
  'variance_examples': 4,
  'local_epochs': 1,
  'batch_size': 10,
  'rounds': 3,
  'jit_compile': 'false',
}
_SPEECH = {'dataset': 'speech_commands', 'model': 'light_vgg'}
# As many local steps of the same rate as in the paper, on a fifth of the data.
_SMALL_SPEECH = _SPEECH | {
  'num_clients': 4,
  'mean_examples': 120,
  'speech_words': 'commands',
  'batch_size': 10,
  'learning_rate': 0.01,
  'eval_every': 4,
  'rounds': 20,
}
_MOMENTUM = {'optimizer': 'momentum', 'learning_rate': 0.0002}
_ALL_DATA = {'partition': 'quantity', 'num_clients': 1}
_CENTRALIZED_ROUNDS = {'paper': 20, 'cpu': 5, 'smoke': 3}
_PAIR = ('fedavg', 'safl')
_N = (40, 80, 120)
_SMOKE_N = (2, 3, 4)
_HALF_OF_100 = {'num_clients': 100, 'fraction': 0.5}
_HALF_OF_4 = {'num_clients': 4, 'fraction': 0.5}


def table() -> list[list[str]]:
  """Returns a heading and rows: name, place, title, duration at each scale."""
  rows = [['experiment', 'in the paper', 'title', *plans.SCALES]]
  for e in EXPERIMENTS.values():
    seconds = [e.plan(scale).seconds() for scale in plans.SCALES]
    durations = map(plans.format_duration, seconds)
    rows.append([e.name, e.place, e.title, *durations])
  return rows


def _part(
  scale: str, cell: Flags, suffix: str, flags: Flags, paper_rounds: int | None
) -> plans.Part:
  """Returns a part; `paper_rounds` is None if it has the paper's size."""
  algorithm = cell['algorithm']
  base = _SMOKE if scale == 'smoke' else PAPER
  return plans.Part(
    f'{algorithm}_{suffix}' if suffix else algorithm,
    cell,
    {**base, **flags, 'algorithm': algorithm},
    paper_rounds,
  )


def _parts(
  scale: str,
  shared: Flags,
  variations: Iterable[tuple[Flags, str, Flags]],
  paper_rounds: int | None,
  algorithms: Sequence[str] = _PAIR,
) -> Iterator[plans.Part]:
  """Yields a part per variation (cell, suffix, flags) and algorithm."""
  for cell, suffix, flags in variations:
    for algorithm in algorithms:
      own = {'algorithm': algorithm, **cell}
      yield _part(scale, own, suffix, {**shared, **flags}, paper_rounds)


def _centralized(
  scale: str, flags: Flags, all_data: bool, dataset: str = ''
) -> plans.Part:
  """Returns centralised training, on the clients' data unless `all_data`."""
  rounds = _CENTRALIZED_ROUNDS[scale]
  own = _ALL_DATA if all_data else {'eval_every': rounds}
  cell = {'algorithm': 'centralized'}
  cell |= {'dataset': dataset} if dataset else {}
  flags = {**flags, **own, 'rounds': rounds}
  return _part(scale, cell, dataset, flags, None if all_data else rounds)


def _convergence_mnist(scale: str) -> Iterator[plans.Part]:
  # At the scale cpu, each n has the rounds that the paper's claims need.
  rounds = {'paper': (100, 100, 100), 'cpu': (30, 60, 36), 'smoke': (3, 3, 3)}
  small = scale == 'smoke'
  sizes = zip(_N, _SMOKE_N if small else _N, rounds[scale], strict=True)
  yield _centralized(scale, {}, not small)
  yield from _parts(
    scale,
    {},
    [
      ({'n': n}, f'n{ours}', {'num_clients': ours, 'rounds': T})
      for n, ours, T in sizes
    ],
    100 if small else None,
  )


def _convergence_speech(scale: str) -> Iterator[plans.Part]:
  scales: dict[str, tuple[Flags, tuple[int, ...]]] = {
    'paper': (_SPEECH | {'rounds': 100}, _N),
    'cpu': (_SMALL_SPEECH, (2, 4, 6)),
    'smoke': ({}, _SMOKE_N),
  }
  flags, numbers = scales[scale]
  full_size = scale == 'paper'
  yield _centralized(scale, {**flags, 'num_clients': numbers[-1]}, full_size)
  yield from _parts(
    scale,
    flags,
    [
      ({'n': n}, f'n{ours}', {'num_clients': ours})
      for n, ours in zip(_N, numbers, strict=True)
    ],
    None if full_size else 100,
  )


def _early_accuracy(scale: str) -> Iterator[plans.Part]:
  small: dict[str, Flags] = {
    'mnist': {},
    'fashion_mnist': {'model': 'lenet5', 'num_clients': 12},
    'cifar10': {'model': 'lenet5', 'num_clients': 12},
    'speech_commands': _SMALL_SPEECH,
  }
  for dataset, smaller in small.items():
    model = 'lenet5' if dataset == 'mnist' else 'light_vgg'
    flags: Flags = {'dataset': dataset, 'model': model, 'rounds': 50}
    full_size = scale == 'paper' or (scale == 'cpu' and dataset == 'mnist')
    if scale == 'smoke':
      flags = {}
    elif not full_size:
      flags = {**flags, **smaller}
    yield _centralized(scale, flags, full_size, dataset)
    variations = [({'dataset': dataset}, dataset, flags)]
    yield from _parts(scale, {}, variations, None if full_size else 50)


def _epsilon_temperature(scale: str) -> Iterator[plans.Part]:
  full_size = scale != 'smoke'
  flags = {'num_clients': 50, 'rounds': 50} if full_size else {}
  paper_rounds = None if full_size else 50
  yield _centralized(scale, flags, full_size)
  yield _part(scale, {'algorithm': 'fedavg'}, '', flags, paper_rounds)
  for epsilon in (0.3, 0.5, 0.7):
    for L in (10, 80):
      own = {'epsilon': epsilon, 'temperature': L}
      variations = [(own, f'epsilon{epsilon:g}_L{L}', own)]
      yield from _parts(scale, flags, variations, paper_rounds, ['safl'])


def _batch_size(scale: str) -> Iterator[plans.Part]:
  flags, examples = {
    'paper': ({'num_clients': 100, 'rounds': 100}, 600),
    'cpu': ({'num_clients': 20, 'rounds': 50}, 600),
    'smoke': ({}, 20),
  }[scale]
  variations = [
    (
      {'size': size, 'batch_size': B},
      f'{size}_b{B}',
      {'mean_examples': mean, 'batch_size': B},
    )
    for size, mean in (('half', examples // 2), ('all', examples))
    for B in (50, 100, 150, 200)
  ]
  return _parts(scale, flags, variations, None if scale == 'paper' else 100)


def _fraction(scale: str) -> Iterator[plans.Part]:
  flags = {
    'paper': {'num_clients': 100, 'rounds': 100},
    'cpu': {'num_clients': 100, 'rounds': 50},
    'smoke': {'num_clients': 5},
  }[scale]
  paper_rounds = 100 if scale == 'smoke' else None
  for R in (0.3, 0.5, 0.7):
    own = {'fraction': R}
    for algorithm, temperature in (('fedavg', 80), ('safl', 80), ('safl', 10)):
      cell = {'algorithm': algorithm, **own}
      given = {**flags, **own}
      name = f'R{R:g}'
      if algorithm == 'safl':
        cell['temperature'] = given['temperature'] = temperature
        name += '' if temperature == 80 else f'_L{temperature}'
      yield _part(scale, cell, name, given, paper_rounds)


def _uploads(scale: str) -> Iterator[plans.Part]:
  flags = _HALF_OF_4 if scale == 'smoke' else _HALF_OF_100 | {'rounds': 80}
  paper_rounds = 80 if scale == 'smoke' else None
  nus = (0.1, 0.15, 0.2, 0.3, 0.5) if scale == 'paper' else (0.15, 0.3, 0.5)
  variations = [({'nu': nu}, f'nu{nu:g}', {'nu': nu}) for nu in nus]
  yield from _parts(scale, flags, [({}, '', {})], paper_rounds)
  yield from _parts(scale, flags, variations, paper_rounds, ['extended_safl'])


def _biased(scale: str) -> Iterator[plans.Part]:
  n = 2 if scale == 'smoke' else 40
  rounds = {'paper': 100, 'cpu': 50, 'smoke': 3}[scale]
  flags = {'partition': 'biased', 'biased_label': 2, 'rounds': rounds}
  groups = {
    'with': {'num_clients': 2 * n, 'biased_fraction': 0.5},
    'without': {'num_clients': n, 'biased_fraction': 0.0},
  }
  variations = [({'group': key}, key, own) for key, own in groups.items()]
  paper_rounds = 100 if scale == 'smoke' else None
  algorithms = (*_PAIR, 'extended_safl')
  return _parts(scale, flags, variations, paper_rounds, algorithms)


def _biased_share(scale: str) -> Iterator[plans.Part]:
  n = {'paper': 80, 'cpu': 20, 'smoke': 4}[scale]
  rounds = {'paper': 100, 'cpu': 25, 'smoke': 3}[scale]
  shared = {'partition': 'biased', 'num_clients': n, 'rounds': rounds}
  paper_rounds = None if scale == 'paper' else 100
  cells: list[tuple[dict[str, Any], str, int | None]] = [({'share': 0}, '0', 2)]
  for share in (0.1, 0.25, 0.5):
    for digits, label in (('same digit', 2), ('different digits', None)):
      suffix = f'{100 * share:g}_{digits.split()[0]}'
      cells.append(({'share': share, 'digits': digits}, suffix, label))
  # The gate measures on the training data, or on data held out for it.
  variations: list[tuple[str, str, Flags]] = [
    ('fedavg', '', {}),
    ('safl', '', {'temperature': 80}),
    ('safl', '_L10', {'temperature': 10}),
    ('extended_safl', '', {'holdout': 0}),
    ('extended_safl', '_holdout', {'holdout': 0.2}),
  ]
  for cell, suffix, label in cells:
    flags = {**shared, 'biased_fraction': cell['share']}
    flags |= {} if label is None else {'biased_label': label}
    for algorithm, end, own in variations:
      yield _part(
        scale,
        {'algorithm': algorithm, **own, **cell},
        suffix + end,
        {**flags, **{name: value for name, value in own.items() if value}},
        paper_rounds,
      )


def _learning_rate(scale: str) -> Iterator[plans.Part]:
  sizes: dict[int, Flags] = {
    50: {'num_clients': 50, 'rounds': 50},
    80: {'num_clients': 80, 'rounds': 60},
    100: _HALF_OF_100 | {'rounds': 80},
  }
  if scale == 'smoke':
    sizes = {n: {} for n in sizes}
  if scale == 'paper':
    sizes = {n: {**flags, 'rounds': 100} for n, flags in sizes.items()}
  variations = [
    (
      {'n': n, 'learning_rate': rate},
      f'n{n}_alpha{rate:g}',
      {**flags, 'learning_rate': rate},
    )
    for rate in (0.002, 0.0015)
    for n, flags in sizes.items()
  ]
  return _parts(scale, {}, variations, 80 if scale == 'smoke' else None)


def _techniques(scale: str) -> Iterator[plans.Part]:
  flags = {
    'paper': _HALF_OF_100 | {'rounds': 100},
    'cpu': _HALF_OF_100 | {'rounds': 50},
    'smoke': _HALF_OF_4 | {'rounds': 5},  # FedMA needs five
  }[scale]
  others = ('fedsgd', 'fedavg', 'astw', 'ida', 'fedma')
  algorithms = (*others, 'safl', 'astw_safl', 'ida_safl')
  paper_rounds = 100 if scale == 'smoke' else None
  return _parts(scale, flags, [({}, '', {})], paper_rounds, algorithms)


def _sensitivity(scale: str) -> Iterator[plans.Part]:
  n, others = {
    'paper': (80, (20, 40, 50, 120)),
    'cpu': (12, (24, 50)),
    'smoke': (3, (2,)),
  }[scale]
  rates = (0.0005, 0.001, 0.004)
  settings: list[tuple[str, str, Flags]] = [
    ('', 'base', {}),
    *(('rate', f'alpha{rate:g}', {'learning_rate': rate}) for rate in rates),
    *(('n', f'n{k}', {'num_clients': k}) for k in others),
    ('other', 'init_shared', {'init': 'shared'}),
    ('other', 'loss_mean', {'loss_reduction': 'mean'}),
    ('other', 'adam', {'optimizer': 'adam'}),
    ('other', 'momentum', _MOMENTUM),
  ]
  shared = {'num_clients': n} | ({} if scale == 'smoke' else {'rounds': 50})
  variations = [
    ({'vary': vary, 'setting': name}, name, flags)
    for vary, name, flags in settings
  ]
  return _parts(scale, shared, variations, None if scale == 'paper' else 50)


def _annealing(scale: str) -> Iterator[plans.Part]:
  rounds = 100 if scale == 'paper' else 50
  few = {'num_clients': 12}
  settings: list[tuple[str, str, Flags]] = [
    ('n50', 'n = 50', {'num_clients': 50}),
    ('n80', 'n = 80', {'num_clients': 80}),
    *(
      (f'R{R:g}', f'n = 100, R = {R:g}', {'num_clients': 100, 'fraction': R})
      for R in (0.3, 0.5, 0.7)
    ),
    ('few', 'n = 12', few),
    ('rate', 'n = 12, α = 0.001', {**few, 'learning_rate': 0.001}),
    ('shared', 'n = 12, one initial model', {**few, 'init': 'shared'}),
    ('momentum', 'n = 12, momentum', {**few, **_MOMENTUM}),
    ('adam', 'n = 12, Adam', {**few, 'optimizer': 'adam'}),
    ('fashion', 'n = 12, Fashion-MNIST', {**few, 'dataset': 'fashion_mnist'}),
  ]
  small = scale == 'smoke'
  for suffix, setting, flags in settings:
    given = {} if small else {'rounds': rounds, **flags}
    for algorithm, L in (('fedavg', 80), ('safl', 80), ('safl', 10)):
      cell: dict[str, Any] = {'algorithm': algorithm, 'setting': setting}
      annealed = algorithm == 'safl'
      if annealed:
        cell['temperature'] = L
      yield _part(
        scale,
        cell,
        f'{suffix}_L{L}' if annealed else suffix,
        {**given, 'temperature': L},
        100 if small else None,
      )


_PARTS = {
  'convergence_mnist': _convergence_mnist,
  'convergence_speech': _convergence_speech,
  'early_accuracy': _early_accuracy,
  'epsilon_temperature': _epsilon_temperature,
  'batch_size': _batch_size,
  'fraction': _fraction,
  'uploads': _uploads,
  'biased': _biased,
  'biased_share': _biased_share,
  'learning_rate': _learning_rate,
  'techniques': _techniques,
  'sensitivity': _sensitivity,
  'annealing': _annealing,
}
EXPERIMENTS = {
  name: plans.Experiment(name, _PARTS[name], **texts)
  for name, texts in json.loads(
    importlib.resources.files('safl_tf.experiments.paper')
    .joinpath('experiments.json')
    .read_text('utf-8')
  ).items()
}
