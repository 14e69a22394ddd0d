"""safl_tf: simulated-annealing federated learning for Keras models.

Names are imported when they are first used, so that `import safl_tf` costs
nothing until TensorFlow is really needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from safl_tf.errors import InputError
from safl_tf.version import __version__

if TYPE_CHECKING:
  from safl_tf.algorithms import (
    Algorithm,
    build_astw,
    build_astw_safl,
    build_centralized,
    build_extended_safl,
    build_fed_avg,
    build_fed_ma,
    build_fed_sgd,
    build_ida,
    build_ida_safl,
    build_local_only,
    build_safl,
  )
  from safl_tf.attacks import Attack
  from safl_tf.data import partition
  from safl_tf.data.client_data import ClientData
  from safl_tf.local import LocalConfig
  from safl_tf.models.folded import FoldedConvPool2D
  from safl_tf.models.lenet5 import lenet5
  from safl_tf.models.light_vgg import light_vgg
  from safl_tf.process import FederatedProcess
  from safl_tf.rules import fuse, gate, mix, select
  from safl_tf.simulation import Result, train
  from safl_tf.states import FederatedState, RoundMetrics

__all__ = [
  'Algorithm',
  'Attack',
  'ClientData',
  'FederatedProcess',
  'FederatedState',
  'FoldedConvPool2D',
  'InputError',
  'LocalConfig',
  'Result',
  'RoundMetrics',
  '__version__',
  'build_astw',
  'build_astw_safl',
  'build_centralized',
  'build_extended_safl',
  'build_fed_avg',
  'build_fed_ma',
  'build_fed_sgd',
  'build_ida',
  'build_ida_safl',
  'build_local_only',
  'build_safl',
  'fuse',
  'gate',
  'lenet5',
  'light_vgg',
  'mix',
  'partition',
  'select',
  'train',
]

_MODULES = {
  'fuse': 'safl_tf.rules.fuse',
  'gate': 'safl_tf.rules.gate',
  'mix': 'safl_tf.rules.mix',
  'partition': 'safl_tf.data.partition',
  'select': 'safl_tf.rules.select',
}
_ATTRIBUTES = {
  'safl_tf.algorithms': (
    'Algorithm',
    'build_astw',
    'build_astw_safl',
    'build_centralized',
    'build_extended_safl',
    'build_fed_avg',
    'build_fed_ma',
    'build_fed_sgd',
    'build_ida',
    'build_ida_safl',
    'build_local_only',
    'build_safl',
  ),
  'safl_tf.attacks': ('Attack',),
  'safl_tf.data.client_data': ('ClientData',),
  'safl_tf.local': ('LocalConfig',),
  'safl_tf.models.folded': ('FoldedConvPool2D',),
  'safl_tf.models.lenet5': ('lenet5',),
  'safl_tf.models.light_vgg': ('light_vgg',),
  'safl_tf.process': ('FederatedProcess',),
  'safl_tf.simulation': ('Result', 'train'),
  'safl_tf.states': ('FederatedState', 'RoundMetrics'),
}


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(_MODULES[name])
  for module, names in _ATTRIBUTES.items():
    if name in names:
      return getattr(importlib.import_module(module), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return __all__
