import math

import numpy as np
import pytest

from safl_tf.util import errors, validation


def shown(value):
  """Text that looks like a number is shown with quotes."""
  return repr(value) if value in ('1', '2') else value


@pytest.mark.parametrize('value', [0, 0.5, 1, np.float32(0.25), np.int64(1)])
def test_real(value):
  got = validation.real('r', value, 0, 1)
  assert got == value and type(got) is float


@pytest.mark.parametrize(
  'value', [-0.1, 1.1, math.nan, math.inf, True, '1', None, [1]]
)
def test_real_refused(value):
  with pytest.raises(errors.InputError) as caught:
    validation.real('r', value, 0, 1)
  assert str(caught.value) == f'r={shown(value)}: must be a number in [0, 1]'


@pytest.mark.parametrize(
  'bounds, hint',
  [
    ({}, 'must be a number'),
    ({'low': 0}, 'must be a number >= 0'),
    ({'low': 0, 'open_low': True}, 'must be a number > 0'),
    ({'high': 2.5}, 'must be a number <= 2.5'),
    ({'low': 0, 'high': 1, 'open_low': True}, 'must be a number in (0, 1]'),
  ],
)
def test_hint_names_the_interval(bounds, hint):
  with pytest.raises(errors.InputError) as caught:
    validation.real('r', math.nan, **bounds)
  assert caught.value.hint == hint


def test_open_lower_bound():
  assert validation.real('r', 1e-300, 0, open_low=True) == 1e-300
  with pytest.raises(errors.InputError, match=r'^r=0: '):
    validation.real('r', 0, 0, open_low=True)


@pytest.mark.parametrize('value', [1, 5, np.int32(3)])
def test_integer(value):
  got = validation.integer('i', value, 1, 5)
  assert got == value and type(got) is int


@pytest.mark.parametrize('value', [0, 6, 2.0, True, '2', None])
def test_integer_refused(value):
  with pytest.raises(errors.InputError) as caught:
    validation.integer('i', value, 1, 5)
  hint = 'must be a whole number in [1, 5]'
  assert str(caught.value) == f'i={shown(value)}: {hint}'


def test_choice():
  assert validation.choice('c', 'b', ('a', 'b')) == 'b'
  with pytest.raises(errors.InputError) as caught:
    validation.choice('optimizer', 'adma', ('sgd', 'adam', 'rmsprop'))
  assert str(caught.value) == (
    'optimizer=adma: did you mean adam? must be one of sgd, adam, rmsprop'
  )
  with pytest.raises(errors.InputError, match=r'^c=7: must be one of a, b$'):
    validation.choice('c', 7, iter(('a', 'b')))


def test_error_attributes():
  error = errors.InputError('x', 3, 'must be 4')
  assert (error.argument, error.value, error.hint) == ('x', 3, 'must be 4')
  assert isinstance(error, ValueError)


def test_instance():
  assert validation.instance('a', 'b', str, 'text') == 'b'
  assert validation.instance('a', None, str, 'text', optional=True) is None
  for value, text in (
    (None, 'None'),
    (3, '3'),
    ([1], 'list'),
    (str, 'type'),
  ):
    with pytest.raises(errors.InputError) as caught:
      validation.instance('a', value, str, 'text')
    assert str(caught.value) == f'a={text}: must be text'
