"""Targets of any Keras task, weights and names of classes in `ClientData`."""

import pickle

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import safl_tf
from safl_tf import attacks
from safl_tf.data import client_data, examples, partition
from safl_tf.util import errors

ClientData = client_data.ClientData

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
PARTS = [[0, 1, 2], [3, 4, 5]]


def make(y, x=X, parts=PARTS, **options):
  return ClientData.from_arrays(x, y, parts, **options)


@pytest.mark.parametrize(
  'y, dtype, shape',
  [
    (Y / 2, np.float32, (6,)),
    (Y * 1.0, np.float32, (6,)),  # whole, but floats are never classes
    (Y[:, None] / 2, np.float32, (6,)),
    (np.eye(3)[Y], np.float32, (6, 3)),
    (np.zeros((6, 4, 2)), np.float32, (6, 4, 2)),
    (np.eye(3)[Y] > 0, np.int32, (6, 3)),
    (np.stack([Y, Y - 1], 1), np.int32, (6, 2)),
    (pd.DataFrame({'a': Y, 'b': Y / 2}), np.float32, (6, 2)),
  ],
)
def test_targets_without_classes(y, dtype, shape):
  data = make(y)
  assert data.num_classes is None and data.class_names is None
  assert data.y.dtype == dtype and data.y.shape == shape
  np.testing.assert_array_equal(data.y.ravel(), np.asarray(y).ravel())
  with pytest.raises(errors.InputError, match=r'needs class numbers, but y'):
    data.label_counts()


@pytest.mark.parametrize(
  'y, names',
  [
    (list('bcabca'), ['a', 'b', 'c']),
    (np.array([b'b', b'c', b'a'] * 2), ['a', 'b', 'c']),
    (pd.Series(list('bcabca')), ['a', 'b', 'c']),
    (pd.Categorical(list('bcabca'), list('cbax')), ['c', 'b', 'a', 'x']),
    (pd.Series(list('bcabca')).astype('category'), ['a', 'b', 'c']),
  ],
)
def test_names_of_classes(y, names):
  data = make(y)
  assert data.class_names == names and data.num_classes == len(names)
  assert [data.class_names[c] for c in data.y] == list('bcabca')


def test_class_numbers():
  ids = np.array([1000000, 3, 7, 3])
  y, names = safl_tf.class_numbers(ids)
  assert y.tolist() == [2, 0, 1, 0] and names == ['3', '7', '1000000']
  assert y.dtype == np.int32
  again, _ = safl_tf.class_numbers([7, 7], names)
  assert again.tolist() == [1, 1]
  with pytest.raises(errors.InputError, match=r"^y='4' in row 1: .*3, 7, 1000"):
    safl_tf.class_numbers([3, 4], names)


def test_booleans_are_two_classes():
  data = make(Y > 0)
  assert data.y.tolist() == [0, 1, 1, 0, 1, 1] and data.num_classes == 2


def test_clients_with_names():
  data = ClientData.from_clients(
    {'a': (X, list('bcbcbc')), 'b': (X, ['a'] * 6)}
  )
  assert data.class_names == ['a', 'b', 'c']
  assert data.y.tolist() == [1, 2] * 3 + [0] * 6


@pytest.mark.parametrize('batch', [False, True])
def test_clients_of_weighted_datasets(batch):
  inputs = np.array(['a', 'bcd', '', 'e', 'f', 'g'])
  dataset = tf.data.Dataset.from_tensor_slices((inputs, np.eye(3)[Y], Y + 0.5))
  data = ClientData.from_clients({'a': dataset.batch(4) if batch else dataset})
  assert data.x.tolist() == [b'a', b'bcd', b'', b'e', b'f', b'g']
  assert data.sample_weight.tolist() == (Y + 0.5).tolist()
  assert data.y.tolist() == np.eye(3)[Y].tolist()


def test_copies_keep_weights_and_names():
  data = make(list('abcabc'), sample_weight=np.arange(6))
  for kind in ('one_label', 'label_flip'):
    poisoned = attacks.Attack(kind, fraction=0.5).poison(data)
    assert poisoned.class_names == data.class_names
    assert len(poisoned.sample_weight) == len(poisoned.y)
  assert data.pooled().sample_weight is data.sample_weight
  _, _, w = zip(*data.create_tf_dataset_for_client('1'), strict=True)
  assert [float(value) for value in w] == [3, 4, 5]
  assert data.replace(num_classes=9).num_classes == 9


def test_weights_of_tokens():
  tokens = np.stack([Y, Y], 1)
  assert make(tokens, sample_weight=tokens).sample_weight.shape == (6, 2)
  assert make(tokens, sample_weight=Y).sample_weight.shape == (6,)


@pytest.mark.parametrize(
  'x',
  [
    ['a', 'bß', '', 'c', 'd', 'e'],
    np.array(['a', 'bß', '', 'c', 'd', 'e'], object),
    pd.Series(['a', 'bß', '', 'c', 'd', 'e']),
    tf.constant(['a', 'bß', '', 'c', 'd', 'e']),
  ],
)
def test_text(x):
  data = make(Y, x=x)
  assert data.x.dtype == 'S3'
  assert data.x[1].decode() == 'bß'
  assert tf.convert_to_tensor(data.x).numpy()[2] == b''
  assert pickle.loads(pickle.dumps(data)).x.tolist() == data.x.tolist()


def test_frames():
  numbers = pd.DataFrame({'a': Y, 'b': Y / 2, 'c': Y > 0}, index=list('abcdef'))
  data = make(pd.Series(Y, index=list('fedcba')), x=numbers)
  assert data.x.dtype == np.float64 and data.x.shape == (6, 3)
  assert data.x[4].tolist() == [1, 0.5, 1]
  mixed = numbers.assign(colour=list('rgbrgb'), client=[1, 1, 2, 2, 2, 2])
  clients = partition.by_client(mixed['client'])
  data = make(mixed['colour'], x=mixed[['a', 'colour']], parts=clients)
  assert {name: leaf.dtype.kind for name, leaf in data.x.items()} == {
    'a': 'i',
    'colour': 'S',
  }
  assert data.class_names == ['b', 'g', 'r']
  assert data.client_ids == ['1', '2'] and data.sizes.tolist() == [2, 4]


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'x': pd.DataFrame({'a': Y, 'b': [1, 2, 3, None, 5, 6]})},
      "x['b']=NaN or",
    ),
    (
      {'x': pd.DataFrame({'a': Y, 'b': [*'abcde', None]})},
      "x['b']=a missing v",
    ),
    ({'x': pd.DataFrame({'a': Y}).iloc[:5]}, 'x=array of shape [5, 1]: must h'),
    ({'x': pd.DataFrame([[1, 2]] * 6, columns=['a', 'a'])}, "x['a']=two colum"),
    (
      {'y': pd.DataFrame({'a': list('abcdef'), 'b': Y})},
      'y=columns a, b: must',
    ),
    ({'y': pd.Series([1.5, None] * 3)}, 'y=NaN or infinity in row 1'),
    ({'x': pd.DataFrame(index=range(6))}, 'x=array of shape [6, 0]'),
  ],
)
def test_refused_frames(changes, message):
  with pytest.raises(errors.InputError) as caught:
    make(**{'y': Y, **changes})
  assert str(caught.value).startswith(message)


@pytest.mark.parametrize('name', ['by_labels', 'biased', 'dirichlet', 'shards'])
def test_partitions_by_label(name):
  function = getattr(partition, name)(2)
  name = 'labels' if name == 'by_labels' else name
  message = (
    rf'^partition={name}: needs class numbers, but y holds float32 \[N, '
  )
  with pytest.raises(errors.InputError, match=message):
    make(np.eye(3)[Y], parts=function)


@pytest.mark.parametrize(
  'function',
  [
    partition.iid(2),
    partition.quantity(2),
    partition.by_client(list('aabbbb')),
  ],
)
def test_partitions_without_labels(function, tmp_path):
  data = make(np.eye(3)[Y], parts=function)
  assert data.total_examples == 6
  path = tmp_path / 'manifest.json'
  path.write_text(partition.to_manifest(data, 'a'))
  again = make(np.eye(3)[Y], parts=partition.from_manifest(path))
  assert again.sizes.tolist() == data.sizes.tolist()
  with pytest.raises(errors.InputError, match='labels_sha256 does not match'):
    make(np.eye(3)[Y[::-1]], parts=partition.from_manifest(path))


def test_attacks_on_labels():
  message = '^attack=label_flip: needs class numbers, but y holds float32'
  with pytest.raises(errors.InputError, match=message):
    attacks.Attack('label_flip').poison(make(Y / 2))


def test_test_data():
  named = make(list('abcabc'))
  assert examples.read_test((X[:2], ['c', 'a']), named).y.tolist() == [2, 0]
  numbers = make(Y / 2)
  found = examples.read_test((X[:2], [[1.5], [2]], [1, 0]), numbers)
  assert found.y.tolist() == [1.5, 2] and found.sample_weight.tolist() == [1, 0]
  for data, y, message in (
    (named, ['c', 'x'], r"y='x' in row 1: must be one of the classes a, b, c$"),
    (named, [1.0, 2.0], r"y=rows of float32 \[\]: must be like the clients'"),
    (numbers, [1, 2], r"y=rows of int32 \[\]: must be like the clients': flo"),
    (numbers, ['a', 'b'], 'y=names of classes: '),
    (make(Y), [1, 3], 'y=3 in row 1: must be below num_classes=3$'),
  ):
    with pytest.raises(errors.InputError, match=f'^test_data: {message}'):
      examples.read_test((X[:2], y), data)


@pytest.mark.parametrize('weights', [None, np.arange(6)])
def test_messages_carry_weights(weights):
  from safl_tf.core.executors.ray import messages

  data = make(Y, x={'a': X, 'b': X}, sample_weight=weights)
  bare, leaves = messages.split_data(data)
  assert bare.y is None and bare.sample_weight is None
  again = messages.join_data(bare, leaves)
  assert again.x['b'] is X and again.y is data.y
  assert again.sample_weight is data.sample_weight
