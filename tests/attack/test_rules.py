"""Rules with mistakes, which are named instead of TensorFlow's."""

import dataclasses

import pytest
import tensorflow as tf

import safl_tf
from safl_tf.util import errors
from tests import tiny_rounds

FED_AVG = safl_tf.build_fed_avg()


def after(rounds, *args, **options):
  """A state of a process."""
  return tiny_rounds.run(tiny_rounds.make(*args, **options), rounds)[0][-1]


def mixes(*fields):
  return {'mix': lambda seed, t, z_bar, z: safl_tf.mix.Mixed(*fields)}


def decides(*fields):
  decide = lambda seed, t, g, k: safl_tf.gate.Decision(*fields)
  return {'gate': safl_tf.gate.Gate(decide, needs_accuracy=False)}


def aggregates(function):
  return {'aggregate': safl_tf.aggregate.Aggregator(function)}


MEAN = safl_tf.aggregate.by_size().apply
RULES = {
  'select: none': ({'select': lambda *a: None}, 'select=None: '),
  'select: nobody': ({'select': lambda *a: []}, 'select='),
  'select: a float': ({'select': lambda *a: [0.0, 1.0]}, 'select='),
  'select: a table': ({'select': lambda *a: [[0, 1]]}, 'select='),
  'select: ragged': ({'select': lambda *a: [[0], [1, 2]]}, 'select='),
  'select: too many': ({'select': lambda *a: [0, 6]}, 'select=.* below 6'),
  'select: negative': ({'select': lambda *a: [-1, 0]}, 'select='),
  'select: twice': ({'select': lambda *a: [1, 1]}, 'select=.* different'),
  'select: unsorted': ({'select': lambda *a: [2, 1]}, 'select=.* sorted'),
  'mix: none': ({'mix': lambda *a: None}, 'mix=None: must return a Mixed'),
  'mix: w alone': ({'mix': lambda *a: a[-1]}, r'mix=float32 .* a Mixed'),
  'mix: a tuple': ({'mix': lambda *a: (a[-1], 0.0, 0.0)}, 'mix=tuple: '),
  'mix: a shorter w': (
    {'mix': lambda s, t, g, z: safl_tf.mix.Mixed(z[1:], 0.0, 0.0)},
    r'mix=w float32 \[62\]: must return w as float32 \[63\]',
  ),
  'mix: w of whole numbers': (
    {'mix': lambda s, t, g, z: safl_tf.mix.Mixed(tf.cast(z, 'int32'), 0, 0)},
    'mix=w int32',
  ),
  'mix: no w': (mixes(None, 0.0, 0.0), 'mix=w None: '),
  'mix: p of text': (
    {'mix': lambda s, t, g, z: safl_tf.mix.Mixed(z, 'p', 0.0)},
    'mix=p str: ',
  ),
  'mix: p for each element': (
    {'mix': lambda s, t, g, z: safl_tf.mix.Mixed(z, z, 0.0)},
    r'mix=p float32 \[63\]: ',
  ),
  'gate: a bool': (
    {'gate': safl_tf.gate.Gate(lambda *a: True, needs_accuracy=False)},
    'gate=bool: must return a Decision',
  ),
  'gate: a number': (decides(1, 1.0, 0.0), 'gate=sent int: '),
  'gate: no q': (decides(True, None, 0.0), 'gate=q None: '),
  'gate: two answers': (decides([True, False], 1.0, 0.0), 'gate=sent list: '),
  'aggregate: none': (
    aggregates(lambda *a: None),
    'aggregate=None: must return an Aggregated',
  ),
  'aggregate: z_bar alone': (
    aggregates(lambda *a: MEAN(*a).z_bar),
    'aggregate=float32 ',
  ),
  'aggregate: a shorter z_bar': (
    aggregates(lambda *a: (MEAN(*a).z_bar[1:], {})),
    r'aggregate=float32 \[62\]: must return a z_bar of float32 \[63\]',
  ),
  'aggregate: float64': (
    aggregates(lambda *a: (MEAN(*a).z_bar.astype(float), {})),
    r'aggregate=float64 \[63\]: ',
  ),
  'aggregate: a list': (
    aggregates(lambda *a: (MEAN(*a).z_bar.tolist(), {})),
    'aggregate=list: ',
  ),
  'aggregate: no memory': (
    aggregates(lambda *a: (MEAN(*a).z_bar, None)),
    'aggregate=None: its memory must be a dict',
  ),
  'aggregate: numbers in memory': (
    aggregates(lambda *a: (MEAN(*a).z_bar, {'t': 1})),
    'aggregate=dict: its memory must be a dict of NumPy arrays',
  ),
  'aggregate: no initial memory': (
    {'aggregate': safl_tf.aggregate.Aggregator(MEAN, init=lambda layout: None)},
    'aggregate=None: its memory',
  ),
  'aggregate: uploads of half an element': (
    {
      'aggregate': safl_tf.aggregate.Aggregator(
        MEAN, uploads=lambda layout, t: 0.5
      )
    },
    'aggregate.uploads=0.5: ',
  ),
}


@pytest.mark.parametrize('executor', ['threads', 'vectorized'])
@pytest.mark.parametrize('rules, message', RULES.values(), ids=RULES)
def test_rules(executor, rules, message):
  algorithm = dataclasses.replace(FED_AVG, **rules)
  with pytest.raises(errors.InputError, match=f'^{message}'):
    after(1, algorithm, executor=executor)


def test_rules_may_return_plain_numbers():
  algorithm = dataclasses.replace(
    FED_AVG,
    select=lambda seed, t, n: [0, 2, 5],
    mix=lambda seed, t, z_bar, z: safl_tf.mix.Mixed(z_bar, 0, 0.0),
    **decides(True, 1.0, 0),
  )
  expected = dataclasses.replace(FED_AVG, select=algorithm.select)
  tiny_rounds.check_same(after(2, algorithm), after(2, expected))
