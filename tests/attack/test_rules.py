"""Rules with mistakes, which are named instead of TensorFlow's."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.util import errors
from tests import tiny, tiny_rounds

Work = safl_tf.client_work.ClientWork
FED_AVG = safl_tf.build_fed_avg()


def after(rounds, *args, **options):
  """A state of a process."""
  return tiny_rounds.run(tiny_rounds.make(*args, **options), rounds)[0][-1]


def mixes(*fields):
  return {'mix': lambda seed, t, z_bar, z: safl_tf.mix.Mixed(*fields)}


def decides(*fields):
  decide = lambda seed, t, metrics: safl_tf.gate.Decision(*fields)
  return {'gate': safl_tf.gate.Gate(decide)}


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
    {'gate': safl_tf.gate.Gate(lambda *a: True)},
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
  'aggregate: no function': (aggregates(7), 'aggregate.apply=int: must be a f'),
  'gate: no function': (
    {'gate': safl_tf.gate.Gate(None)},
    'gate.decide=None: must be a function',
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


def ends(**fields):
  """A client work whose end replaces fields of what it gets."""

  def end(begun, trained):
    new = {name: make(trained) for name, make in fields.items()}
    return trained._replace(**new)

  return {'end': end}


def whole(tensor):
  return tf.cast(tensor, tf.int32)


def zeros(layout):
  return {'c': np.zeros(layout.size, np.float32)}


# The arguments of a client work, and the message after 'client_work.'.
AS_TENSOR = r'must return a tensor as float32 \[8, 5\]'
ARRAYS = 'must return a dict of NumPy arrays'
WORKS = {
  f'{field}: {kind}': ({field: function}, f'{field}={message}')
  for field in ('init', 'receives')
  for kind, function, message in [
    ('nothing', lambda layout: None, f'None: {ARRAYS}'),
    ('an array', lambda layout: np.zeros(3), rf'float64 \[3\]: {ARRAYS}'),
    ('a list', lambda layout: {'c': [0.0]}, f'dict: {ARRAYS}'),
    ('a tensor', lambda layout: {'c': tf.zeros(3)}, f'dict: {ARRAYS}'),
    ('no name', lambda layout: {1: np.zeros(3)}, f'dict: {ARRAYS}'),
    ('the model', lambda layout: {'z': np.zeros(3)}, 'z: is the name of the m'),
    ('a path', lambda layout: {'a/b': np.zeros(3)}, "'a/b': must be a name "),
    ('objects', lambda layout: {'c': np.array([None])}, 'c object .* numbers'),
    ('text', lambda layout: {'c': np.array(['a'])}, 'c str.*: must have num'),
    ('no function', 7, 'int: must be a function$'),
    ('None', None, 'None: must be a function$'),
  ]
}
WORKS |= {
  f'{field}: no function': ({field: 7}, f'{field}=int: must be a function or N')
  for field in ('start', 'gradient', 'project', 'end')
}
WORKS |= {
  'receives: what is not sent': (
    {'receives': zeros},
    'receives=c: aggregate.broadcast has nothing, .* float32',
  ),
}
TENSOR_WORKS = {
  f'{field}: {kind}': ({field: function}, f'{field}=a tensor {message}')
  for field in ('gradient', 'project')
  for kind, function, message in [
    ('nothing', lambda *a: None, f'None: {AS_TENSOR}'),
    ('a shorter one', lambda *a: a[0][1:], rf'float32 \[7, 5\]: {AS_TENSOR}'),
    ('whole numbers', lambda *a: whole(a[0]), f'int32 .*: {AS_TENSOR}'),
    ('a number', lambda *a: 0.0, f'float: {AS_TENSOR}'),
    ('a dict', lambda *a: {'g': a[0]}, f'dict: {AS_TENSOR}'),
  ]
}
TENSOR_WORKS |= {
  f'start: {kind}': ({'start': function}, f'start={message}')
  for kind, function, message in [
    ('nothing', lambda begun: None, 'None: must return tensors by name'),
    ('a tensor', lambda begun: begun.w, 'float32 .* must return tensors by n'),
    ('no name', lambda begun: {1: begun.w}, 'dict: must return tensors by n'),
    ('an empty value', lambda begun: {'v': None}, 'v None: must be a tensor'),
    ('text', lambda begun: {'v': 'a'}, 'v of text: must be a tensor of num'),
    (
      'a shorter vector',
      lambda begun: {'v': begun.w[1:]},
      r'float32 \[62\]: must have the length of z, 63, or of what is trained',
    ),
    ('a matrix', lambda begun: {'v': begun.w[None]}, r'v float32 \[1, 63\]: '),
  ]
}
WORKS |= {  # found before training
  f'end: {kind}': (work, f'end={message}')
  for kind, work, message in [
    ('nothing', {'end': lambda *a: None}, 'None: must return a Trained'),
    ('a tuple', {'end': lambda b, t: tuple(t)}, 'tuple: must return a Trained'),
    ('the model', {'end': lambda b, t: t.z}, 'float32 .*: must return a Trai'),
    ('keeps nothing', ends(kept=lambda t: None), 'None: must return tensors'),
    (
      'keeps another name',
      ends(kept=lambda t: {'d': t.z}),
      r'd float32 \[63\]: keeps d, which client_work.init does not name',
    ),
    (
      'keeps a shorter model',
      ends(kept=lambda t: {'z': t.z[1:]}),
      r'z float32 \[62\]: must return z as float32 \[63\]',
    ),
    ('keeps integers', ends(kept=lambda t: {'z': whole(t.z)}), 'z int32'),
    (
      'keeps another shape',
      {'init': zeros} | ends(kept=lambda t: {'c': t.z[None]}),
      r'c float32 \[1, 63\]: must return c as float32 \[63\]',
    ),
    ('no uploads', ends(upload=lambda t: None), 'None: must return tensors'),
    ('an empty upload', ends(upload=lambda t: {}), 'upload of nothing: must h'),
    ('no z', ends(upload=lambda t: {'d': t.z}), 'upload of d: must have z'),
    (
      'a shorter upload',
      ends(upload=lambda t: {'z': t.z[1:]}),
      r'z float32 \[62\]: must return z as',
    ),
    (
      'text to upload',
      ends(upload=lambda t: {'z': t.z, 'd': tf.constant('a')}),
      'd of text: must be a tensor of numbers',
    ),
    ('no metrics', ends(metrics=lambda t: None), 'None: must return tensors'),
    (
      'a vector as metric',
      ends(metrics=lambda t: {'norm': t.z}),
      r'norm float32 \[63\]: must return norm as float32 \[\]',
    ),
    (
      'integers as metric',
      ends(metrics=lambda t: {'norm': tf.constant(1)}),
      r'norm int32 \[\]: must return norm as float32',
    ),
    *(
      (
        f'the metric {name}',
        ends(metrics=lambda t, name=name: {name: t.steps}),
        f'{name}: is a metric that clients have anyway; rename it',
      )
      for name in ('accuracy', 'global_loss', 'train_loss', 'distance')
    ),
  ]
}


def check_refused(arguments, message, executor='threads'):
  algorithm = dataclasses.replace(FED_AVG, client_work=Work(**arguments))
  message = rf'^client_work\.{message}'
  with pytest.raises(errors.InputError, match=message) as caught:
    tiny_rounds.run(tiny_rounds.make(algorithm, executor=executor), 1)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('arguments, message', WORKS.values(), ids=WORKS)
def test_client_work(arguments, message):
  check_refused(arguments, message)


def test_no_client_work():
  algorithm = dataclasses.replace(FED_AVG, client_work={})
  with pytest.raises(errors.InputError, match=r'^client_work=dict: '):
    safl_tf.FederatedProcess(tiny.dense, tiny_rounds.CLIENTS, algorithm)


@pytest.mark.parametrize('executor', ['threads', 'vectorized'])
@pytest.mark.parametrize(
  'arguments, message', TENSOR_WORKS.values(), ids=TENSOR_WORKS
)
def test_client_work_on_tensors(executor, arguments, message):
  check_refused(arguments, message, executor)


@pytest.mark.parametrize(
  'sent, message',
  [
    (np.zeros(3, np.float32), r'float32 \[3\], .* float32 \[63\]'),
    (np.zeros(63), r'float64 \[63\], .* float32 \[63\]'),
  ],
)
def test_client_work_receives_something_else(sent, message):
  server = safl_tf.aggregate.Aggregator(MEAN, broadcast=lambda m: {'c': sent})
  algorithm = dataclasses.replace(
    FED_AVG, client_work=Work(receives=zeros), aggregate=server
  )
  message = rf'^client_work\.receives=c: aggregate.broadcast has {message}'
  with pytest.raises(errors.InputError, match=message):
    after(1, algorithm)


def test_a_broadcast_that_nobody_receives():
  server = safl_tf.aggregate.Aggregator(
    MEAN, init=zeros, broadcast=lambda memory: memory
  )
  algorithm = dataclasses.replace(FED_AVG, aggregate=server)
  message = r'^client_work\.receives=c: .*, client_work.receives nothing'
  with pytest.raises(errors.InputError, match=message):
    after(1, algorithm)


@pytest.mark.parametrize(
  'later, message',
  [
    ({}, 'c nothing: must stay float32'),
    ({'c': np.zeros(3, np.float32)}, r'c float32 \[3\]: must stay float32'),
    ({'c': [0.0]}, 'dict: must return'),
  ],
)
def test_a_broadcast_that_changes(later, message):
  def broadcast(memory):
    return later if memory['late'] else {'c': memory['c']}

  server = safl_tf.aggregate.Aggregator(
    lambda m, *a: (MEAN(m, *a).z_bar, {**m, 'late': np.array(True)}),
    init=lambda layout: {**zeros(layout), 'late': np.array(False)},
    broadcast=broadcast,
  )
  algorithm = dataclasses.replace(
    FED_AVG, client_work=Work(receives=zeros), aggregate=server
  )
  with pytest.raises(
    errors.InputError, match=rf'^aggregate\.broadcast={message}'
  ):
    after(1, algorithm)


class OwnError(Exception):
  """An error of a user's code."""


@pytest.mark.parametrize('executor', ['threads', 'vectorized'])
@pytest.mark.parametrize(
  'field', ['init', 'receives', 'start', 'gradient', 'project', 'end']
)
def test_client_work_that_raises(field, executor):
  def fails(*args):
    raise OwnError('of a user')

  algorithm = dataclasses.replace(FED_AVG, client_work=Work(**{field: fails}))
  with pytest.raises(OwnError, match='of a user'):
    after(1, algorithm, executor=executor)
  if field == 'gradient':
    after(1, FED_AVG, executor=executor)  # nothing is left locked


def test_client_work_may_return_numbers():
  work = Work(
    start=lambda begun: {'half': 0.5},
    gradient=lambda g, w, values, weight: (
      values['half'] * g + values['half'] * g
    ),
    end=lambda begun, trained: trained._replace(metrics={'one': 1.0}),
  )
  algorithm = dataclasses.replace(FED_AVG, client_work=work)
  new = after(2, algorithm)
  np.testing.assert_allclose(new.z_bar, after(2, FED_AVG).z_bar, rtol=1e-5)
