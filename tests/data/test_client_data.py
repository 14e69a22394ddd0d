import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data import client_data, partition
from safl_tf.util import errors

ClientData = client_data.ClientData

X = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
PARTS = [[0, 3], [1, 2, 4], [5, 0]]


def small(**changes):
  return ClientData.from_arrays(
    **{'x': X, 'y': Y, 'partition': PARTS, **changes}
  )


def with_value(array, row, value):
  array = np.array(array)
  array[row] = value
  return array


def as_pairs(dataset):
  return [(x, int(y)) for x, y in dataset.as_numpy_iterator()]


def test_properties():
  data = small()
  assert data.x is X  # held once, not copied
  assert data.y.dtype == np.int32
  assert data.client_ids == ['0', '1', '2']
  assert data.num_clients == len(data) == 3
  assert data.num_classes == 3
  assert data.total_examples == 7
  assert data.sizes.dtype == np.int64
  assert data.sizes.tolist() == [2, 3, 2]
  assert data.indices(1).dtype == np.int32
  assert [data.indices(k).tolist() for k in range(3)] == PARTS
  assert data.num_examples('1') == 3
  assert repr(data) == 'ClientData(3 clients, 7 examples of 6, 3 classes)'


def test_label_counts():
  counts = small(num_classes=4).label_counts()
  assert counts.dtype == np.int64
  assert counts.tolist() == [[2, 0, 0, 0], [0, 2, 1, 0], [1, 0, 1, 0]]


def test_index_lists_cannot_be_changed():
  data = small()
  with pytest.raises(ValueError, match='read-only'):
    data.indices(0)[0] = 1
  with pytest.raises(ValueError, match='read-only'):
    data.sizes[0] = 1


def test_partition_function_gets_checked_labels():
  def halves(y, num_classes):
    assert y.dtype == np.int32 and y.shape == (6,) and num_classes == 5
    return [np.arange(3), np.arange(3, 6)]

  data = small(y=Y[:, None].tolist(), partition=halves, num_classes=5)
  assert data.sizes.tolist() == [3, 3]


def test_client_ids_become_strings():
  data = small(client_ids=['a', 7, 'c'])
  assert data.client_ids == ['a', '7', 'c']
  assert data.num_examples('7') == 3


def test_many_clients_cost_index_lists_only():
  x = np.zeros((1000, 28, 28, 1), np.uint8)
  y = np.arange(1000) % 10
  split = partition.iid(5000, mean_examples=3, variance_examples=0)
  data = ClientData.from_arrays(x, y, split)
  assert data.x is x
  assert data.total_examples == 15_000


@pytest.mark.parametrize('make', [tuple, list, lambda a: dict(enumerate(a))])
def test_several_inputs(make):
  data = small(x=make([X, X[:, 0]]))
  [(first, second), label], _ = [
    (tuple(x.values()) if isinstance(x, dict) else x, y)
    for x, y in as_pairs(data.create_tf_dataset_for_client('2'))
  ]
  np.testing.assert_array_equal(first, X[5])
  np.testing.assert_array_equal(second, X[5, 0])
  assert label == 2


def test_tf_dataset():
  data = small(client_ids='abc')
  pairs = as_pairs(data.create_tf_dataset_for_client('b'))
  assert [y for _, y in pairs] == [1, 2, 1]
  np.testing.assert_array_equal([x for x, _ in pairs], X[[1, 2, 4]])


def test_from_clients_arrays():
  data = ClientData.from_clients({'a': (X[:2], Y[:2]), 9: (X[2:], Y[2:])})
  np.testing.assert_array_equal(data.x, X)
  np.testing.assert_array_equal(data.y, Y)
  assert data.client_ids == ['a', '9']
  assert data.indices(1).tolist() == [2, 3, 4, 5]
  assert data.num_classes == 3


def test_from_clients_datasets():
  inputs = {'image': X, 'row': X[:, 0]}
  slices = lambda rows: tf.data.Dataset.from_tensor_slices(
    ({key: x[rows] for key, x in inputs.items()}, Y[rows])
  )
  data = ClientData.from_clients(
    {'a': slices(slice(0, 2)), 'b': slices(slice(2, 6))}, num_classes=8
  )
  for key, x in inputs.items():
    np.testing.assert_array_equal(data.x[key], x)
  assert data.sizes.tolist() == [2, 4]
  assert data.num_classes == 8


BAD_ARRAYS = {
  'lengths': ({'x': X[:5]}, r'x=array of shape \[5, 2, 2\]: .* 6 labels in y'),
  'second input': ({'x': (X, X[1:])}, r'x\[1\]=array of shape \[5, 2, 2\]: '),
  'named input': ({'x': {'a': X[1:]}}, r"x\['a'\]=array of shape"),
  'scalar': ({'x': 3.0}, r'x=array of shape \[\]: '),
  'empty': ({'x': X[:0], 'y': Y[:0]}, 'y=no labels: '),
  'no inputs': ({'x': ()}, r'x=array of shape \[0\]: '),
  'ragged': ({'x': [[1], [1, 2]] * 3}, 'x=rows of different shapes: '),
  'object': ({'x': X.astype(object)}, 'x=array of object: must hold numbers'),
  'text and none': (
    {'x': np.array(['a', None] * 3, object)},
    'x=a missing value in row 1: ',
  ),
  'nan': ({'x': with_value(X, (4, 1), np.nan)}, 'x=NaN or infinity in row 4: '),
  'infinity': (
    {'x': (X, with_value(X, 2, -np.inf))},
    r'x\[1\]=NaN or infinity in row 2: ',
  ),
  'complex labels': ({'y': Y * 1j}, 'y=array of complex128: .* class numbers'),
  'no target': ({'y': with_value(Y / 2, 1, np.nan)}, 'y=NaN or inf.* row 1: '),
  'classes of targets': (
    {'y': Y / 2, 'num_classes': 3},
    r'num_classes=3: y holds float32 \[N\], not class numbers; leave it out$',
  ),
  'negative': ({'y': with_value(Y, 3, -1)}, 'y=-1 in row 3: '),
  'huge': ({'y': with_value(Y, 1, 2**40)}, f'y={2**40} in row 1: '),
  'too high': ({'num_classes': 2}, 'y=2 in row 2: .* num_classes=2'),
  'classes': (
    {'num_classes': 0},
    r'num_classes=0: .* whole number in \[1, 1000000\]',
  ),
  'no examples': (
    {'partition': [[0], []], 'client_ids': 'ab'},
    'partition=no examples for client b: ',
  ),
  'outside': (
    {'partition': [[0, 1], [2, 6]]},
    r'partition=row 6 for client 1: must be in \[0, 5\]',
  ),
  'below': ({'partition': [[0], [-1]]}, 'partition=row -1 for client 1: '),
  'mask': ({'partition': [Y == 0]}, r'partition=bool \[6\] for client 0: '),
  'not lists': ({'partition': [0, 1]}, r'partition=int64 \[\] for client 0: '),
  'no clients': ({'partition': []}, 'partition=no clients: '),
  'no partition': ({'partition': 3}, 'partition=3: must be a function or '),
  'names twice': ({'client_ids': ['a', 'b', 'a']}, 'client_ids=a: .*once'),
  'few names': ({'client_ids': ['a']}, 'client_ids=1 names: .* 3 clients'),
}


@pytest.mark.parametrize(
  'changes, message', BAD_ARRAYS.values(), ids=BAD_ARRAYS
)
def test_bad_arrays(changes, message):
  with pytest.raises(errors.InputError, match='^' + message) as caught:
    small(**changes)
  assert '\n' not in str(caught.value)


def test_nan_in_a_later_block(monkeypatch):
  monkeypatch.setattr('safl_tf.data.arrays._BLOCK', 8)  # two rows of X
  with pytest.raises(errors.InputError, match='in row 5'):
    small(x=with_value(X, 5, np.nan))
  small()


@pytest.mark.parametrize('dtype', [np.uint8, np.int64, np.bool_, np.float16])
def test_other_dtypes(dtype):
  assert small(x=X.astype(dtype)).x.dtype == dtype


def slices(*parts):
  return tf.data.Dataset.from_tensor_slices(parts)


def failing(x):
  if x[0, 0] > 4:
    raise ValueError('no such file')
  return x


def unreadable():
  read = lambda x, y: (tf.numpy_function(failing, [x], tf.float32), y)
  return slices(X, Y).map(read)


def ragged():
  return tf.data.Dataset.from_generator(
    lambda: iter([([1.0], 0), ([1.0, 2.0], 1)]),
    output_signature=(tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)),
  )


# The data of the second client; the first has X and Y.
BAD_CLIENTS = {
  'value': (X, r'value=ndarray: must be \(x, y\)'),
  'labels': ((X, Y[1:]), r'x=array of shape \[6, 2, 2\]: .* one row for each'),
  'high label': ((X, Y + 1), r'y=3 in row 2: must be below num_classes=3$'),
  'empty': ((X[:0], Y[:0]), 'y=no labels'),
  'shapes': (
    (X[:, 0], Y),
    r'x=rows of float32 \[2\]: .*float32 \[2, 2\]',
  ),
  'dtypes': (
    (X.astype(np.uint8), Y),
    r'x=rows of uint8 \[2, 2\]: .*float32 \[2, 2\]',
  ),
  'inputs': (
    ((X, X), Y),
    r'x=rows of float32 \[2, 2\], float32 \[2, 2\]: ',
  ),
  'known batch': (
    lambda: slices(X, Y).batch(2, drop_remainder=True),
    r'x=rows of float32 \[2, 2, 2\]: ',
  ),
  'one-hot': (
    lambda: slices(X, np.eye(3)[Y]),
    r"y=rows of float32 \[3\]: must be like the first client's: int32 \[\]$",
  ),
  'names': (
    (X, list('abcabc')),
    "y=with names: must be like the first client's, without names$",
  ),
  'weights': (
    lambda: slices(X, Y, Y),
    'sample_weight=with weights: .*, without weights$',
  ),
  'label dict': (
    lambda: slices(X, {'label': Y}),
    r"data set=y of \{'label': .* must yield one dense array$",
  ),
  'no pairs': (
    lambda: tf.data.Dataset.from_tensor_slices(X),
    r'data set=.* must yield \(x, y\) pairs',
  ),
  'no examples': (
    lambda: slices(X, Y).take(0),
    'data set=no examples',
  ),
  'ragged': (ragged, '.*rows of different shapes'),
  'infinite': (
    lambda: slices(X, Y).repeat(),
    r'data set=infinite: must be finite; leave out repeat\(\)$',
  ),
  'unreadable': (unreadable, r'data set=given: cannot be read \('),
}


@pytest.mark.parametrize(
  'examples, message', BAD_CLIENTS.values(), ids=BAD_CLIENTS
)
def test_client_of_bad_data_is_named(examples, message):
  second = examples() if callable(examples) else examples
  with pytest.raises(
    errors.InputError, match=rf"^clients\['b'\]: {message}"
  ) as caught:
    ClientData.from_clients({'a': (X, Y), 'b': second}, num_classes=3)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'clients, message',
  [
    ({}, 'clients=none: '),
    ([(X, Y)], "clients=list: must map clients' names to data$"),
    ({1: (X, Y), '1': (X, Y)}, 'client_ids=1: .*once'),
  ],
)
def test_bad_mappings(clients, message):
  with pytest.raises(errors.InputError, match=f'^{message}'):
    ClientData.from_clients(clients)


def test_unknown_client():
  data = small()
  with pytest.raises(errors.InputError, match=r"^client_id='9': .*0, 1, 2"):
    data.num_examples('9')
  for k in (3, -1):
    with pytest.raises(errors.InputError, match=f'^k={k}: .*in .0, 2.'):
      data.indices(k)
