"""`ClientData.from_clients` names the client of an invalid data set."""

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data import client_data
from safl_tf.util import errors

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def slices(x, y):
  return tf.data.Dataset.from_tensor_slices((x, y))


def failing(x):
  if x[0] > 4:
    raise ValueError('no such file')
  return x


def unreadable():
  """A data set whose reading fails."""
  read = lambda x, y: (tf.numpy_function(failing, [x], tf.float32), y)
  return slices(X, Y).map(read)


@pytest.mark.parametrize(
  'examples, num_classes, message',
  [
    ((X, Y + 1), 3, 'y=3 in row 2: must be below num_classes=3'),
    (
      lambda: slices(X, Y).repeat(),
      None,
      'data set=infinite: must be finite; leave out repeat()',
    ),
    (unreadable, None, 'data set=given: cannot be read ('),
    (
      lambda: slices(X, {'label': Y}),
      None,
      'data set=y of shape None: must yield single examples with class numbers',
    ),
    (
      lambda: slices(X, Y).batch(2),
      None,
      'data set=y of shape (None,): must yield single examples with class ',
    ),
    ((X, Y[1:]), None, 'x=array of shape [6, 2]: must have one row for each '),
  ],
)
def test_client_is_named(examples, num_classes, message):
  second = examples() if callable(examples) else examples
  with pytest.raises(errors.InputError) as caught:
    client_data.ClientData.from_clients(
      {'ann': (X, Y), 'bob': second}, num_classes
    )
  assert str(caught.value).startswith(f"clients['bob']: {message}")
  assert '\n' not in str(caught.value)


def test_clients_must_have_names():
  with pytest.raises(
    errors.InputError, match=r"^clients=list: must map clients' names to data$"
  ):
    client_data.ClientData.from_clients([(X, Y)])
