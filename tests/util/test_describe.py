"""Rules as text: equal for equal rules, different for different ones."""

import dataclasses
import functools
import itertools
import logging
import os
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import algorithm
from safl_tf.util import describe, errors
from tests import tiny

SCALE = 3


def scaled(x):
  return x * SCALE


def double(x):
  return 2 * x


def triple(x):
  return 3 * x


def text(value):
  return describe.describe('mix', value)


def closing_over(value):
  return lambda x: x + value


class Adds:
  def __init__(self, value):
    self.value = value

  def __call__(self, x):
    return x + self.value

  def method(self, x):
    return x - self.value


@dataclasses.dataclass
class Settings:
  rate: float


def factorial(n):
  return 1 if n < 2 else n * factorial(n - 1)


def with_default(x, y=3, *, z=4):
  return x + y + z


# Pairs of a factory and its arguments; all descriptions must differ.
DIFFERENT = {
  'lambda': (lambda: lambda x: x, lambda: lambda x: -x),
  'constant': (lambda: lambda x: x + 1, lambda: lambda x: x + 2),
  'nested constant': (
    lambda: lambda x: [y + 1 for y in x],
    lambda: lambda x: [y + 2 for y in x],
  ),
  'attribute': (lambda: lambda x: x.real, lambda: lambda x: x.imag),
  'set in the code': (
    lambda: lambda x: x in {'a', 'b'},
    lambda: lambda x: x in {'a', 'c'},
  ),
  'closed-over number': (lambda: closing_over(1), lambda: closing_over(2)),
  'closed-over type': (lambda: closing_over(1), lambda: closing_over(1.0)),
  'closed-over array': (
    lambda: closing_over(np.arange(1000)),
    lambda: closing_over(np.arange(1000) + (np.arange(1000) == 500)),
  ),
  'array shape': (
    lambda: closing_over(np.zeros((2, 3))),
    lambda: closing_over(np.zeros((3, 2))),
  ),
  'array type': (
    lambda: closing_over(np.zeros(3, np.int32)),
    lambda: closing_over(np.zeros(3, np.float32)),
  ),
  'tensor': (
    lambda: closing_over(tf.constant([1.0])),
    lambda: closing_over(tf.constant([2.0])),
  ),
  'variable': (
    lambda: closing_over(tf.Variable([1.0])),
    lambda: closing_over(tf.Variable([2.0])),
  ),
  'list': (lambda: closing_over([1, 2]), lambda: closing_over([2, 1])),
  'dict': (lambda: closing_over({'a': 1}), lambda: closing_over({'a': 2})),
  'long text': (
    lambda: closing_over('x' * 500),
    lambda: closing_over('x' * 499 + 'y'),
  ),
  'function': (lambda: closing_over(double), lambda: closing_over(triple)),
  'partial': (
    lambda: functools.partial(double, 1),
    lambda: functools.partial(double, 2),
  ),
  'partial keyword': (
    lambda: functools.partial(with_default, y=1),
    lambda: functools.partial(with_default, y=2),
  ),
  'partial of another': (
    lambda: functools.partial(double, 1),
    lambda: functools.partial(triple, 1),
  ),
  'object': (lambda: Adds(1), lambda: Adds(2)),
  'method': (lambda: Adds(1).method, lambda: Adds(2).method),
  'methods': (lambda: Adds(1).method, lambda: Adds(1).__call__),
  'dataclass': (
    lambda: closing_over(Settings(0.1)),
    lambda: closing_over(Settings(0.2)),
  ),
  'tf.function': (lambda: tf.function(double), lambda: tf.function(triple)),
  'ufunc': (lambda: np.exp, lambda: np.log),
  'library function': (lambda: np.sum, lambda: tf.reduce_sum),
  'schedule': (
    lambda: keras.optimizers.SGD(tiny.ConstantRate(0.1)),
    lambda: keras.optimizers.SGD(tiny.ConstantRate(0.2)),
  ),
  'optimizer': (
    lambda: keras.optimizers.SGD(0.1),
    lambda: keras.optimizers.SGD(0.1, momentum=0.5),
  ),
  'layer weights': (
    lambda: tiny_layer(0.0),
    lambda: tiny_layer(1.0),
  ),
  'pattern': (
    lambda: closing_over(re.compile('a')),
    lambda: closing_over(re.compile('b')),
  ),
  'logger': (
    lambda: closing_over(logging.getLogger('a')),
    lambda: closing_over(logging.getLogger('b')),
  ),
  'dtype': (
    lambda: closing_over(tf.float32),
    lambda: closing_over(tf.float64),
  ),
  'cached function': (
    lambda: closing_over(functools.cache(double)),
    lambda: closing_over(functools.cache(triple)),
  ),
  'class': (lambda: closing_over(Adds), lambda: closing_over(Settings)),
  'network': (lambda: network('tanh'), lambda: network('relu')),
  'name': (
    lambda: describe.named('a', double),
    lambda: describe.named('b', double),
  ),
}


def network(activation):
  layers = [
    keras.Input((2,)),
    keras.layers.Dense(2, activation, kernel_initializer='ones'),
    keras.layers.Dense(1, kernel_initializer='ones'),
  ]
  return closing_over(keras.Sequential(layers))


def tiny_layer(value):
  layer = keras.layers.Dense(1, kernel_initializer='zeros')
  layer.build((None, 2))
  layer.set_weights([np.full((2, 1), value), np.zeros(1)])
  return closing_over(layer)


@pytest.mark.parametrize('kind', DIFFERENT)
def test_equal_and_different_rules(kind):
  one, other = DIFFERENT[kind]
  assert text(one()) == text(one())
  assert text(other()) == text(other())
  assert text(one()) != text(other())


def described():
  pairs = itertools.chain.from_iterable(DIFFERENT.values())
  return [text(make()) for make in pairs]


def test_another_process_describes_rules_alike():
  code = 'from tests.util import test_describe as t; print(t.described())'
  found = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONHASHSEED': '7', 'PYTHONPATH': os.getcwd()},
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  assert found.stdout == f'{described()}\n'


def test_global_variables_count(monkeypatch):
  before = text(lambda x: scaled(x))
  monkeypatch.setattr(sys.modules[__name__], 'SCALE', 4)
  assert text(lambda x: scaled(x)) != before


def test_the_source_of_a_module_counts(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  texts = []
  for content in ('RATE = 1\n', 'RATE = 2\n'):
    (tmp_path / 'own_settings.py').write_text(content)
    sys.modules.pop('own_settings', None)
    import own_settings

    texts.append(text(lambda x, m=own_settings: x * m.RATE))
  assert texts[0] != texts[1]
  assert 'own_settings#' in texts[0]


def test_defaults_count():
  before = text(with_default)
  other = types.FunctionType(
    with_default.__code__, globals(), argdefs=(5,), name='with_default'
  )
  assert text(other) != before


def test_recursion_ends():
  assert 'factorial=<0>' in text(factorial)
  values: list = [1]
  values.append(values)
  assert text(values) == '(1, <0>)'


def test_own_rules_are_readable():
  described = algorithm.describe(safl_tf.build_safl(epsilon=0.25))
  assert described['mix'] == (
    "anneal.mix(epsilon=0.25, granularity='element', temperature=80.0)"
  )


@pytest.mark.parametrize(
  'value',
  [
    np.random.default_rng(0),
    itertools.count(),
    iter([1]),
    (x for x in [1]),
    [].append,
    np.array([object()]),
    object(),
  ],
)
def test_what_has_a_hidden_state_needs_a_name(value):
  rule = closing_over(value)
  changed = dataclasses.replace(safl_tf.build_safl(), mix=rule)
  with pytest.raises(errors.InputError, match=r"safl_tf\.named\('") as caught:
    algorithm.describe(changed)
  assert caught.value.argument == 'mix'
  named = dataclasses.replace(changed, mix=safl_tf.named('mine', rule))
  assert algorithm.describe(named)['mix'] == "named('mine')"


def test_named_gates_and_aggregators_work_as_before():
  gate = safl_tf.named('gap', safl_tf.gate.accuracy_gap())
  assert isinstance(gate, algorithm.Gate) and gate.needs
  assert "named('gap 0')" in algorithm.describe_rule('gate', gate)
  assert safl_tf.named('twice', double)(4) == 8


@pytest.mark.parametrize(
  'name, rule, argument',
  [('', double, 'name'), (3, double, 'name'), ('a', 3, 'rule')],
)
def test_bad_names(name, rule, argument):
  with pytest.raises(errors.InputError) as caught:
    safl_tf.named(name, rule)
  assert caught.value.argument == argument
