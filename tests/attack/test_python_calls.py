"""Calls of the Python API with values of a wrong type or out of range.

Each is refused with the argument's name and what it takes, before anything is
written.
"""

import math
import re

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.core import process
from safl_tf.util import errors
from tests import tiny

CLIENTS = tiny.clients()
X, Y = tiny.blobs(30)
IID = safl_tf.partition.iid(3)
# argument of `train` -> wrong values
TRAIN = {
  'model': [3, None, 'lenet5', [tiny.dense], lambda: None, keras.layers.Dense],
  'clients': [None, [1], {}, (X, Y), safl_tf.ClientData],
  'algorithm': ['safl', 3, safl_tf.build_safl],
  'config': [{}, 3, {'batch_size': 3}, safl_tf.LocalConfig],
  'test_data': [
    X,
    3,
    'x',
    (X,),
    (X, Y, Y[:3]),
    (X, Y[:3]),
    (X, None),
    (X, Y + 9),
  ],
  'rounds': [True, 0, -1, 1.5, '3', None],
  'seed': ['0', 1.5, None, True, -1, [0]],
  'init': [None, 3, 'zeros', []],
  'executor': [None, 3, 'thread'],
  'jit_compile': [None, True, 'yes'],
  'device': [None, 3, 'tpu'],
  'stack': ['2', 0, 2.5, True],
  'client_store': [None, 3, 'disk'],
  'attack': ['sign_flip', 3, {}, safl_tf.Attack],
  'from_logits': ['yes', 1, 0],
  'loss': [3, 'hinj', [], keras.losses.Huber, lambda y: y],
  'metrics': [3, 'auc', [3], ['aucc'], [keras.metrics.AUC], {'a': 'auc'}],
  'score': [3, 'accuracyy', [], 'accuracy', keras.metrics.AUC],
  'class_weight': [3, {9: 1.0}, {0: -1.0}, {0: 'x'}, {'a': 1.0}, [1.0]],
  'test_clients': [3, (X, Y), [CLIENTS], safl_tf.ClientData],
  'eval_clients_every': [0, '1', None, True, 2],
  'personalize_steps': [-1, '1', None, True, 2],
  'eval_every': [0, '1', None, True],
  'checkpoint_every': [0, 1.5, None],
  'keep_checkpoints': [0, 'a', None],
  'stop_at_accuracy': ['x', 2, -1, True, math.nan],
  'output_dir': [5, b'x', ['a']],
  'export': [None, True, 'h5'],
  'client_table': [None, 1, 'yes'],
  'callbacks': [None, 3, print, [3], [safl_tf.Callback], {}],
  'progress': ['yes', 1, []],
}


@pytest.mark.parametrize(
  'argument, value',
  [(name, value) for name, values in TRAIN.items() for value in values],
)
def test_train(argument, value, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  options = {
    'model': tiny.dense,
    'clients': CLIENTS,
    'output_dir': tmp_path / 'run',
    **({'test_data': (X, Y)} if argument == 'metrics' else {}),
    argument: value,
  }
  with pytest.raises(errors.InputError) as caught:
    safl_tf.train(**options)
  assert re.split(r'[:\[]', caught.value.argument)[0] == argument
  assert '\n' not in str(caught.value)
  assert list(tmp_path.iterdir()) == []


def build(name, **arguments):
  return lambda: getattr(safl_tf, name)(**arguments)


def from_arrays(**arguments):
  arguments = {'x': X, 'y': Y, 'partition': IID, **arguments}
  return lambda: safl_tf.ClientData.from_arrays(**arguments)


# call -> the argument that is refused
CALLS = {
  'clients of a process': (
    lambda: process.FederatedProcess(tiny.dense, X, safl_tf.build_safl()),
    'clients',
  ),
  'no algorithm': (
    lambda: process.FederatedProcess(tiny.dense, CLIENTS, None),
    'algorithm',
  ),
  'a rule that is no function': (
    lambda: process.FederatedProcess(
      tiny.dense,
      CLIENTS,
      safl_tf.Algorithm(3, safl_tf.mix.keep(), safl_tf.gate.always(), None),
    ),
    'select',
  ),
  'a gate that is a function': (
    lambda: process.FederatedProcess(
      tiny.dense,
      CLIENTS,
      safl_tf.Algorithm(
        safl_tf.select.uniform(),
        safl_tf.mix.keep(),
        lambda *args: True,
        safl_tf.aggregate.by_size(),
      ),
    ),
    'gate',
  ),
  'an aggregator that is a function': (
    lambda: process.FederatedProcess(
      tiny.dense,
      CLIENTS,
      safl_tf.Algorithm(
        safl_tf.select.uniform(),
        safl_tf.mix.keep(),
        safl_tf.gate.always(),
        lambda *args: None,
      ),
    ),
    'aggregate',
  ),
  'x without rows': (from_arrays(x=5), 'x'),
  'x of objects': (from_arrays(x=[object()] * 30), 'x'),
  'y of complex numbers': (from_arrays(y=Y + 0.5j), 'y'),
  'y that is one number': (from_arrays(y=5), 'y'),
  'a name as partition': (from_arrays(partition='iid'), 'partition'),
  'a number as partition': (from_arrays(partition=5), 'partition'),
  'no partition': (from_arrays(partition=None), 'partition'),
  'a number as names': (from_arrays(client_ids=5), 'client_ids'),
  'too few names': (from_arrays(client_ids='ab'), 'client_ids'),
  'text as classes': (from_arrays(num_classes='3'), 'num_classes'),
  'clients in a list': (
    lambda: safl_tf.ClientData.from_clients([(X, Y)]),
    'clients',
  ),
  'a client without labels': (
    lambda: safl_tf.ClientData.from_clients({'a': X}),
    "clients['a']: value",
  ),
  'a number as data set': (
    lambda: safl_tf.ClientData.from_tfds(3, IID),
    'name',
  ),
  'a number as folder': (
    lambda: safl_tf.ClientData.from_tfds('mnist', IID, data_dir=3),
    'data_dir',
  ),
  'a number as split': (
    lambda: safl_tf.ClientData.from_tfds('mnist', IID, split=3),
    'split',
  ),
  'epsilon as text': (build('build_safl', epsilon='0.3'), 'epsilon'),
  'temperature 0': (build('build_safl', temperature=0), 'temperature'),
  'nu not a number': (build('build_extended_safl', nu=math.nan), 'nu'),
  'a list as fraction': (build('build_fed_avg', fraction=[1]), 'fraction'),
  'half a client': (
    build('build_fed_avg', clients_per_round=0.5),
    'clients_per_round',
  ),
  'a norm': (build('build_ida', ida_norm=2), 'norm'),
  'text for a no': (
    build('build_astw', astw_layerwise='no'),
    'astw_layerwise',
  ),
  'a number for a no': (
    build('build_astw_safl', astw_layerwise=0),
    'astw_layerwise',
  ),
  'a schedule': (build('build_fed_ma', fedma_schedule=None), 'fedma_schedule'),
  'an inner rule': (
    lambda: safl_tf.aggregate.server_optimizer(inner='size'),
    'inner',
  ),
  'by_size as text': (
    lambda: safl_tf.aggregate.inverse_distance(by_size='no'),
    'by_size',
  ),
  'layerwise as text': (
    lambda: safl_tf.aggregate.temporal(layerwise='no'),
    'layerwise',
  ),
  'clients of a partition': (
    lambda: safl_tf.partition.iid('3'),
    'num_clients',
  ),
  'alpha as text': (
    lambda: safl_tf.partition.dirichlet(3, alpha='1'),
    'alpha',
  ),
  'a manifest': (lambda: safl_tf.partition.from_manifest(3), 'path'),
  'a manifest of a list': (
    lambda: safl_tf.partition.to_manifest([1], 'mnist'),
    'clients',
  ),
  'a kind of attack': (lambda: safl_tf.Attack(3), 'attack'),
  'a share of attackers': (
    lambda: safl_tf.Attack('scale', fraction='all'),
    'attack_fraction',
  ),
  'batches': (lambda: safl_tf.LocalConfig(batch_size='50'), 'batch_size'),
  'an optimizer': (lambda: safl_tf.LocalConfig(optimizer=3), 'optimizer'),
  'a class of optimizers': (
    lambda: safl_tf.LocalConfig(optimizer=keras.optimizers.SGD),
    'optimizer',
  ),
  'a shape': (lambda: safl_tf.lenet5(28), 'input_shape'),
  'a flat shape': (lambda: safl_tf.light_vgg((28, 28)), 'input_shape'),
  'images too small for LeNet-5': (
    lambda: safl_tf.lenet5((8, 8, 1)),
    'input_shape',
  ),
  'no classes': (lambda: safl_tf.lenet5(num_classes=0), 'num_classes'),
  'an activation': (
    lambda: safl_tf.light_vgg(activation='rellu'),
    'activation',
  ),
  'counts of one client': (lambda: CLIENTS.label_counts(0), 'clients'),
}


@pytest.mark.parametrize('run, argument', CALLS.values(), ids=CALLS)
def test_calls(run, argument):
  with pytest.raises(errors.InputError) as caught:
    run()
  assert caught.value.argument == argument
  assert '\n' not in str(caught.value)


def test_the_message_says_what_to_pass():
  with pytest.raises(errors.InputError, match=r'build_safl\(\)$'):
    safl_tf.train(tiny.dense, CLIENTS, 'safl')
  with pytest.raises(errors.InputError, match=r"^rounds='3': must be"):
    safl_tf.train(tiny.dense, CLIENTS, rounds='3')


def test_numbers_of_numpy_are_numbers():
  result = safl_tf.train(
    tiny.dense,
    CLIENTS,
    rounds=np.int64(1),
    seed=np.int32(3),
    stack=np.int8(2),
    executor='vectorized',
  )
  assert result.state.t == 1
