"""Reading npz:FILE, valid and invalid."""

import zipfile

import numpy as np
import pytest

from safl_tf.data import registry
from safl_tf.data.files import spec
from safl_tf.util import errors

X = np.arange(48, dtype=np.uint8).reshape(12, 2, 2, 1)
Y = np.arange(12) % 3


def load(tmp_path, image_size=None, **arrays):
  path = tmp_path / 'data.npz'
  np.savez(path, **arrays)
  options = spec.Options(image_size=image_size, test_fraction=0.25)
  return registry.load(f'npz:{path}', None, options)


def both(data):
  """Returns all examples and labels in the original order."""
  x = np.concatenate([data.x_train, data.x_test])
  y = np.concatenate([data.y_train, data.y_test])
  order = np.argsort(x.reshape(len(x), -1)[:, 0])
  return x[order], y[order]


def test_images(tmp_path):
  data = load(tmp_path, x=X, y=Y)
  assert data.x_train.shape == (9, 2, 2, 1)
  assert data.x_train.dtype == np.uint8
  assert data.class_names == ('0', '1', '2')
  assert np.bincount(data.y_train).tolist() == [3, 3, 3]
  assert np.bincount(data.y_test).tolist() == [1, 1, 1]
  x, y = both(data)
  np.testing.assert_array_equal(x, X)
  np.testing.assert_array_equal(y, Y)


def test_test_arrays_and_names_of_keras(tmp_path):
  data = load(
    tmp_path, x_train=X[:8], y_train=Y[:8], x_test=X[8:], y_test=Y[8:]
  )
  np.testing.assert_array_equal(data.x_train, X[:8])
  np.testing.assert_array_equal(data.y_train, Y[:8])
  np.testing.assert_array_equal(data.x_test, X[8:])
  np.testing.assert_array_equal(data.y_test, Y[8:])


@pytest.mark.parametrize(
  'labels, names',
  [
    (Y * 10 - 10, ('-10', '0', '10')),
    (Y[:, None].astype(np.float64), ('0', '1', '2')),
    (np.array(['ant', 'bee', 'cat'])[Y], ('ant', 'bee', 'cat')),
    (np.array([2, 10, 33], np.uint8)[Y], ('2', '10', '33')),
  ],
)
def test_labels(tmp_path, labels, names):
  data = load(tmp_path, x=X, y=labels)
  assert data.class_names == names
  np.testing.assert_array_equal(both(data)[1], Y)


def test_boolean_labels(tmp_path):
  assert load(tmp_path, x=X, y=Y > 1).class_names == ('0', '1')


@pytest.mark.parametrize(
  'x, size, shape, dtype',
  [
    (X[..., 0], None, (2, 2, 1), np.uint8),
    (X.reshape(12, 4), None, (4,), np.float32),
    (X.reshape(12, 4), (2, 2), (2, 2, 1), np.uint8),
    (X.reshape(12, 4).astype(np.float64), (2, 2), (2, 2, 1), np.uint8),
    (X.astype(np.int64), None, (2, 2, 1), np.float32),
    (X.astype(np.int64), (2, 2), (2, 2, 1), np.uint8),
    (X / 255, None, (2, 2, 1), np.float32),
    (X[..., 0] / 255, None, (2, 2), np.float32),
    (X[..., 0] / 255, (2, 2), (2, 2, 1), np.float32),
    (np.repeat(X, 3, axis=3), None, (2, 2, 3), np.uint8),
  ],
)
def test_inputs(tmp_path, x, size, shape, dtype):
  data = load(tmp_path, size, x=x, y=Y)
  assert data.input_shape == shape
  assert data.x_train.dtype == data.x_test.dtype == dtype
  values = both(data)[0].reshape(12, -1)
  np.testing.assert_allclose(values, x.reshape(12, -1), rtol=1e-6)


def test_clients(tmp_path):
  client = np.array([f'c{i}' for i in range(12)])
  data = load(tmp_path, x=X, y=Y, client=client)
  assert data.client_ids.tolist() == [
    f'c{x // 4}' for x in data.x_train[:, 0, 0, 0]
  ]


NAN = X.astype(np.float32)
NAN[7, 1, 0] = np.nan
HUGE = X.astype(np.float64)
HUGE[3] = 1e300
INVALID = {
  'no labels': ({'x': X}, 'there is no array y; there is x'),
  'no arrays': ({}, 'there is no array x; there is none'),
  'no test labels': (
    {'x': X, 'y': Y, 'x_test': X},
    'there is no array y_test; there is x, y, x_test',
  ),
  'other name': (
    {'x': X, 'y': Y, 'x_tst': X},
    'array x_tst: did you mean x_test or y_test? must be one of x, y, '
    'x_test, y_test, client',
  ),
  'objects': (
    {'x': X, 'y': Y.astype(object)},
    'array y holds Python objects; must hold numbers or names',
  ),
  'text inputs': (
    {'x': X.astype(str), 'y': Y},
    'x is an array of <U3 [12, 2, 2, 1]; must hold numbers, with at least two '
    'axes',
  ),
  'one axis': (
    {'x': X.ravel(), 'y': Y},
    'x is an array of uint8 [48]; must hold numbers, with at least two axes',
  ),
  'lengths': ({'x': X[1:], 'y': Y}, 'x has 11 rows, but y has 12'),
  'test lengths': (
    {'x': X, 'y': Y, 'x_test': X, 'y_test': Y[1:]},
    'x_test has 12 rows, but y_test has 11',
  ),
  'shapes': (
    {'x': X, 'y': Y, 'x_test': X[:, :1], 'y_test': Y},
    'x_test has rows of shape [1, 2, 1], but x of [2, 2, 1]',
  ),
  'pixels and floats': (
    {'x': X, 'y': Y, 'x_test': X / 255, 'y_test': Y},
    'x_test is float64, but x is uint8; save both in the same type and scale',
  ),
  'no examples': ({'x': X[:0], 'y': Y[:0]}, 'x of shape [0, 2, 2, 1] is empty'),
  'no test examples': (
    {'x': X, 'y': Y, 'x_test': X[:0], 'y_test': Y[:0]},
    'x_test of shape [0, 2, 2, 1] is empty',
  ),
  'nan': (
    {'x': NAN, 'y': Y},
    'x has NaN or infinity in row 7; must hold finite numbers',
  ),
  'beyond float32': (
    {'x': HUGE, 'y': Y},
    'x has NaN or infinity in row 3; must hold finite numbers',
  ),
  'nan in test': (
    {'x': X / 255, 'y': Y, 'x_test': NAN, 'y_test': Y},
    'x_test has NaN or infinity in row 7; must hold finite numbers',
  ),
  'one-hot': (
    {'x': X, 'y': np.eye(3)[Y]},
    'y is an array of float64 [12, 3]; must hold one whole number or name per '
    'row; if one-hot, save y.argmax(axis=1), and if these are no classes, give '
    '--task',
  ),
  'fractions': (
    {'x': X, 'y': Y / 2},
    'y, row 1: 0.5 is not a whole number; labels must be whole numbers or '
    'names',
  ),
  'nan label': (
    {'x': X, 'y': np.where(Y == 2, np.nan, Y)},
    'y, row 2: nan is not a whole number; labels must be whole numbers or '
    'names',
  ),
  'label out of range': (
    {'x': X, 'y': Y, 'x_test': X, 'y_test': Y + 1},
    "y_test, row 2: '3' is none of the known labels, 0, 1, 2",
  ),
  'one class': (
    {'x': X, 'y': Y * 0},
    'y, row 0: all labels are 0; there must be at least two',
  ),
  'clients': (
    {'x': X, 'y': Y, 'client': Y[1:]},
    'client is an array of int64 [11]; must hold a whole number or a name for '
    'each of the 12 rows of x',
  ),
}


@pytest.mark.parametrize('arrays, message', INVALID.values(), ids=INVALID)
def test_invalid(tmp_path, arrays, message):
  with pytest.raises(errors.InputError) as caught:
    load(tmp_path, **arrays)
  assert str(caught.value) == f'dataset=npz:{tmp_path}/data.npz: {message}'


def test_damaged_archives(tmp_path):
  load(tmp_path, x=X, y=Y)
  path = tmp_path / 'data.npz'
  whole = path.read_bytes()
  path.write_bytes(whole[:-30])
  with pytest.raises(errors.InputError) as caught:
    registry.load(f'npz:{path}')
  assert str(caught.value).endswith(
    'must be a .npz file as numpy.savez writes it'
  )
  path.write_bytes(whole.replace(X[5:7].tobytes(), bytes(8)))
  with pytest.raises(errors.InputError) as caught:
    registry.load(f'npz:{path}')
  assert '.npz: array x cannot be read (Bad CRC-32' in str(caught.value)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('x.npy', b'not an array')
    archive.writestr('y.npy', b'')
  with pytest.raises(errors.InputError) as caught:
    registry.load(f'npz:{path}')
  assert str(caught.value).endswith('array x is not in the format of NumPy')


def test_other_tasks(tmp_path):
  path = tmp_path / 'a.npz'
  load = lambda task: registry.load(
    f'npz:{path}', None, spec.Options(task=task)
  )
  y = np.random.default_rng(0).normal(size=(12, 2))
  np.savez(path, x=X, y=y, x_test=X, y_test=y)
  data = load('regression')
  np.testing.assert_array_equal(data.y_test, y.astype(np.float32))
  assert data.num_outputs == 2 and data.num_classes is None
  with pytest.raises(
    errors.InputError, match=r'y, row 0, label 0: 0.1.* 0 or 1'
  ):
    load('multi_label')
  np.savez(path, x=X, y=y > 0, x_test=X, y_test=y > 0)
  data = load('multi_label')
  np.testing.assert_array_equal(data.y_test, y > 0)
  assert data.class_names == ('0', '1') and data.y_test.dtype == np.int32
  np.savez(path, x=X, y=np.where(y > 2, np.nan, y[:, :1]), x_test=X, y_test=Y)
  with pytest.raises(errors.InputError, match=r'y_test has rows of shape \[\]'):
    load('regression')
