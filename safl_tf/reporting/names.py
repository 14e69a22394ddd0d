"""Names to display of algorithms, data sets, models and settings.

Files for programs, such as CSV, keep the names of flags and columns.
"""

from collections.abc import Mapping
from typing import Any

ALGORITHMS = {
  'centralized': 'Centralised',
  'local_only': 'Local only',
  'fedsgd': 'FedSGD',
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx',
  'safl': 'SAFL',
  'extended_safl': 'Extended SAFL',
  'ida': 'IDA',
  'ida_safl': 'IDA-SAFL',
  'astw': 'ASTW',
  'astw_safl': 'ASTW-SAFL',
  'fedma': 'FedMA',
  'scaffold': 'SCAFFOLD',
  'scaffold_safl': 'SCAFFOLD-SAFL',
  'feddyn': 'FedDyn',
  'own': 'own rules',
}
DATASETS = {
  'mnist_sample': 'the MNIST sample',
  'mnist': 'MNIST',
  'fashion_mnist': 'Fashion-MNIST',
  'cifar10': 'CIFAR-10',
  'speech_commands': 'Speech Commands',
  'diabetes': 'diabetes',
  'synthetic_multi_label': 'synthetic labels',
  'python_docs': 'the Python docs',
}
MODELS = {
  'lenet5': 'LeNet-5',
  'light_vgg': 'Light VGG',
  'mlp': 'MLP',
  'char_gru': 'GRU',
}
# The paper's letters, where a flag has one.
SYMBOLS = {
  'num_clients': 'n',
  'fraction': 'R',
  'epsilon': 'ε',
  'temperature': 'L',
  'nu': 'ν',
  'learning_rate': 'α',
  'local_epochs': 'E',
  'batch_size': 'B',
}
_VALUES = {'algorithm': ALGORITHMS, 'dataset': DATASETS, 'model': MODELS}
_IN_TITLES = ('num_clients', 'fraction', 'epsilon', 'temperature', 'nu')


def heading(name: str) -> str:
  """Returns the name of a setting: 'ε', or 'local epochs' without a letter."""
  return SYMBOLS.get(name, name.replace('_', ' '))


def value(name: str, content: Any) -> str:
  """Returns the value of a setting: 'SAFL', '0.3'; - if it is not used."""
  if isinstance(content, str):
    return _VALUES.get(name, {}).get(content, content)
  return plain(content)


def plain(content: Any) -> str:
  """Returns a value as a flag takes it; - for None."""
  if content is None:
    return '-'
  if isinstance(content, bool):
    return str(content).lower()
  text = str(content)
  return text.removesuffix('.0') if isinstance(content, float) else text


def setting(values: Mapping[str, Any]) -> str:
  """Names a setting: 'SAFL', 'SAFL, ε = 0.3, L = 10' or 'init shared'."""
  texts = []
  for name, content in values.items():
    if content is not None:
      text = value(name, content)
      join = ' = ' if name in SYMBOLS else ' '
      is_name = name in _VALUES
      texts.append(text if is_name else f'{heading(name)}{join}{text}')
  return ', '.join(texts) or 'all'


def subtitle(values: Mapping[str, Any]) -> str:
  """Returns what a run trains on, and its n, R, ε, L and ν.

  Args:
    values: settings by the name of their flag; those that are absent, and a
      fraction of 1, are left out.
  """
  model, dataset = (
    value(name, values[name]) if values.get(name) else ''
    for name in ('model', 'dataset')
  )
  where = [' on '.join(filter(None, (model, dataset)))]
  known = {
    name: values[name]
    for name in _IN_TITLES
    if values.get(name) is not None and (name, values[name]) != ('fraction', 1)
  }
  return ', '.join(filter(None, [*where, setting(known) if known else '']))
