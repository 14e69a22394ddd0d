"""The runs of each experiment, at each scale.

Every function takes a scale, one of `runs.SCALES`. At the scale cpu the sizes
are such that an experiment takes about 25 minutes.
"""

from collections.abc import Sequence
from typing import Any

from safl_tf.experiments.paper import configs, runs

_PAIR = ('fedavg', 'safl')
_OTHERS = ('fedsgd', 'fedavg', 'astw', 'ida', 'fedma')
_N = (40, 80, 120)
_FEW = (2, 3, 4)
_HALF_OF_100 = {'num_clients': 100, 'fraction': 0.5}
_HALF_OF_FEW = {'num_clients': 4, 'fraction': 0.5}
_UP_TO_50 = '50 rounds in place of 100: up to the one that the paper speaks of.'


def convergence_mnist(scale: str) -> runs.Plan:
  """FedAvg and SAFL on MNIST, for several n."""
  # At the scale cpu each n has the rounds that the paper's sentences need.
  rounds = {'paper': (100, 100, 100), 'cpu': (30, 56, 36)}.get(scale, (3, 3, 3))
  numbers = _FEW if scale == 'smoke' else _N
  sizes = [
    {'num_clients': n, 'rounds': t}
    for n, t in zip(numbers, rounds, strict=True)
  ]
  full = scale != 'smoke'
  return configs.plan(
    'convergence_mnist',
    scale,
    [
      configs.centralized(scale, {}, whole=full),
      *_by_number(scale, sizes, like_paper=full),
    ],
    (
      '30, 56 and 36 rounds for n = 40, 80 and 120, in place of 100.',
      configs.CENTRALIZED_CUT,
    ),
  )


def convergence_speech(scale: str) -> runs.Plan:
  """The same on Google Speech Commands."""
  speech: dict[str, dict[str, Any]] = {
    'paper': configs.SPEECH | {'rounds': 100},
    'cpu': configs.SMALL_SPEECH | {'rounds': 20},
    'smoke': {},
  }
  numbers = {'paper': _N, 'cpu': (2, 4, 6), 'smoke': _FEW}[scale]
  sizes = [speech[scale] | {'num_clients': n} for n in numbers]
  full = scale == 'paper'
  return configs.plan(
    'convergence_speech',
    scale,
    [
      configs.centralized(scale, sizes[-1], whole=full),
      *_by_number(scale, sizes, like_paper=full),
    ],
    (
      'A twentieth of the clients: n = 2, 4 and 6.',
      '20 rounds, which stand for the 100 of the paper.',
      configs.SPEECH_CUT,
      'Accuracy is measured in every fourth round.',
      configs.CENTRALIZED_CUT,
      configs.UNION_CUT,
    ),
  )


def _by_number(
  scale: str, sizes: Sequence[configs.Flags], like_paper: bool
) -> list[runs.Part]:
  """FedAvg and SAFL for each of the paper's n."""
  return [
    configs.part(
      scale,
      {'algorithm': algorithm, 'n': n},
      f'n{flags["num_clients"]}',
      flags,
      100,
      like_paper,
    )
    for n, flags in zip(_N, sizes, strict=True)
    for algorithm in _PAIR
  ]


def early_accuracy(scale: str) -> runs.Plan:
  """FedAvg and SAFL on four data sets."""
  small: dict[str, configs.Flags] = {
    'fashion_mnist': {'model': 'lenet5', 'num_clients': 12},
    'cifar10': {'model': 'lenet5', 'num_clients': 12},
    'speech_commands': configs.SMALL_SPEECH | {'rounds': 20},
  }
  made = []
  for data in ('mnist', *small):
    model = 'lenet5' if data == 'mnist' else 'light_vgg'
    flags: configs.Flags = {'dataset': data, 'model': model, 'rounds': 50}
    full = scale == 'paper' or (scale == 'cpu' and data == 'mnist')
    if scale == 'smoke':
      flags = {}
    elif not full:
      flags = {**flags, **small[data]}
    made.append(configs.centralized(scale, flags, full, data))
    made += [
      configs.part(
        scale,
        {'algorithm': algorithm, 'dataset': data},
        data,
        flags,
        50,
        like_paper=full,
      )
      for algorithm in _PAIR
    ]
  return configs.plan(
    'early_accuracy',
    scale,
    made,
    (
      "MNIST has the paper's size.",
      'Fashion-MNIST and CIFAR-10: 12 clients in place of 80, and LeNet-5 in '
      'place of Light VGG, which takes a hundred times as long.',
      'Speech: 4 clients in place of 80, and 20 rounds, which stand for 50.',
      configs.SPEECH_CUT,
      configs.CENTRALIZED_CUT,
      configs.UNION_CUT,
    ),
    spare=True,
  )


def epsilon_temperature(scale: str) -> runs.Plan:
  """SAFL with several ε and L."""
  full = scale != 'smoke'
  flags = {'num_clients': 50, 'rounds': 50} if full else {}
  made = [
    configs.centralized(scale, flags, whole=full),
    configs.part(scale, {'algorithm': 'fedavg'}, '', flags, 50, full),
  ]
  for epsilon in (0.3, 0.5, 0.7):
    for temperature in (10, 80):
      own = {'epsilon': epsilon, 'temperature': temperature}
      cell = {'algorithm': 'safl', **own}
      name = f'epsilon{epsilon:g}_L{temperature}'
      made.append(configs.part(scale, cell, name, flags | own, 50, full))
  cuts = (configs.CENTRALIZED_CUT,)
  return configs.plan('epsilon_temperature', scale, made, cuts)


def batch_size(scale: str) -> runs.Plan:
  """Several batch sizes, on half and all of the data."""
  flags, examples = {
    'paper': ({'num_clients': 100, 'rounds': 100}, 600),
    'cpu': ({'num_clients': 20, 'rounds': 50}, 600),
    'smoke': ({}, 20),
  }[scale]
  made = [
    configs.part(
      scale,
      {'algorithm': algorithm, 'size': size, 'batch_size': batch},
      f'{size}_b{batch}',
      flags | {'mean_examples': mean, 'batch_size': batch},
      100,
    )
    for size, mean in (('half', examples // 2), ('all', examples))
    for batch in (50, 100, 150, 200)
    for algorithm in _PAIR
  ]
  cuts = (
    '20 clients in place of 100.',
    '50 rounds, which stand for the 100 of the paper.',
  )
  return configs.plan('batch_size', scale, made, cuts)


def fraction(scale: str) -> runs.Plan:
  """Several shares of the clients in a round."""
  flags = {
    'paper': {'num_clients': 100, 'rounds': 100},
    'cpu': {'num_clients': 100, 'rounds': 50},
    'smoke': {'num_clients': 5},
  }[scale]
  made = [
    configs.part(
      scale,
      {'algorithm': algorithm, 'fraction': fraction},
      f'R{fraction:g}',
      flags | {'fraction': fraction},
      100,
      scale != 'smoke',
    )
    for fraction in (0.3, 0.5, 0.7)
    for algorithm in _PAIR
  ]
  return configs.plan('fraction', scale, made, (_UP_TO_50,))


def uploads(scale: str) -> runs.Plan:
  """Extended SAFL with several ν."""
  full = scale != 'smoke'
  flags = _HALF_OF_100 | {'rounds': 80} if full else _HALF_OF_FEW
  nus = (0.1, 0.15, 0.2, 0.3, 0.5) if scale == 'paper' else (0.15, 0.3, 0.5)
  made = [
    configs.part(scale, {'algorithm': algorithm}, '', flags, 80, full)
    for algorithm in _PAIR
  ]
  for nu in nus:
    cell = {'algorithm': 'extended_safl', 'nu': nu}
    own = flags | {'nu': nu}
    made.append(configs.part(scale, cell, f'nu{nu:g}', own, 80, full))
  cuts = (
    'A trial for each seed, in place of 100.',
    'Three values of ν are tried in place of five.',
  )
  trials = tuple(range(100)) if scale == 'paper' else None
  return configs.plan('uploads', scale, made, cuts, trials)


def biased(scale: str) -> runs.Plan:
  """With and without clients that hold one digit only."""
  n = 40 if scale != 'smoke' else 2
  rounds = {'paper': 100, 'cpu': 50, 'smoke': 3}[scale]
  groups = {
    'with': {'num_clients': 2 * n, 'biased_fraction': 0.5},
    'without': {'num_clients': n, 'biased_fraction': 0.0},
  }
  shared = {'partition': 'biased', 'biased_label': 2, 'rounds': rounds}
  made = [
    configs.part(
      scale,
      {'algorithm': algorithm, 'group': group},
      group,
      shared | own,
      100,
      scale != 'smoke',
    )
    for group, own in groups.items()
    for algorithm in (*_PAIR, 'extended_safl')
  ]
  return configs.plan('biased', scale, made, ('50 rounds in place of 100.',))


def techniques(scale: str) -> runs.Plan:
  """SAFL beside other techniques."""
  flags = {
    'paper': _HALF_OF_100 | {'rounds': 100},
    'cpu': _HALF_OF_100 | {'rounds': 50},
    'smoke': _HALF_OF_FEW | {'rounds': 5},  # FedMA takes five
  }[scale]
  made = [
    configs.part(scale, {'algorithm': name}, '', flags, 100, scale != 'smoke')
    for name in (*_OTHERS, 'safl', 'astw_safl', 'ida_safl')
  ]
  return configs.plan('techniques', scale, made, (_UP_TO_50,))


def sensitivity(scale: str) -> runs.Plan:
  """FedAvg and SAFL, with one setting at a time changed."""
  n, others = {
    'paper': (80, (20, 40, 50, 120)),
    'cpu': (12, (24, 50)),
    'smoke': (3, (2,)),
  }[scale]
  momentum = {'optimizer': 'momentum', 'learning_rate': 0.0002}
  varied: list[tuple[str, str, dict[str, Any]]] = [
    ('', 'base', {}),
    *(
      ('rate', f'alpha{alpha:g}', {'learning_rate': alpha})
      for alpha in (0.0005, 0.001, 0.004)
    ),
    *(('n', f'n{k}', {'num_clients': k}) for k in others),
    ('other', 'init_shared', {'init': 'shared'}),
    ('other', 'loss_mean', {'loss_reduction': 'mean'}),
    ('other', 'adam', {'optimizer': 'adam'}),
    ('other', 'momentum', momentum),
  ]
  shared = {'num_clients': n, **({} if scale == 'smoke' else {'rounds': 50})}
  made = [
    configs.part(
      scale,
      {'algorithm': algorithm, 'vary': vary, 'setting': name},
      name,
      shared | own,
      50,
    )
    for vary, name, own in varied
    for algorithm in _PAIR
  ]
  cuts = ('12 clients, and 24 and 50, in place of 80, and 20 to 120.',)
  return configs.plan('sensitivity', scale, made, cuts)
