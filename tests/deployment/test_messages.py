"""The bytes of messages: round trips, and what is no message."""

import itertools
import json
import struct

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from safl_tf.deployment import messages

MESSAGE = messages.encode(
  {'kind': 'train', 't': 3},
  {
    'z': np.arange(5, dtype=np.float32),
    'c': np.ones([2, 3], ml_dtypes.bfloat16),
    'n': np.array(7),
  },
)
settings = hypothesis.settings(
  max_examples=300, deadline=None, derandomize=True, database=None
)


def raw(header, arrays, data=b''):
  """A message of a user's own JSON."""
  text = json.dumps({'header': header, 'arrays': arrays}).encode()
  return b'SAFLMSG1' + struct.pack('<I', len(text)) + text + data


@pytest.mark.parametrize(
  'array',
  [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype='>i8'),
    np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    np.arange(10)[::3],
    np.array([np.nan, np.inf, -0.0, 5e-324]),
    np.array([1.5, -2, 3], ml_dtypes.bfloat16),
    np.array([1.5, -2, 3], ml_dtypes.float8_e4m3fn),
    np.array([1.5, 2], np.float16),
    np.array([True, False]),
    np.frombuffer(b'a model', np.uint8),
    np.zeros(0, np.float32),
    np.zeros([3, 0, 2]),
    np.array(2.5),
    np.float32(2.5),
    np.asfortranarray(np.ones([2, 3])),
  ],
)
@pytest.mark.parametrize('after', [0, 3])
def test_array(array, after):
  arrays = {'ä': array, 'after': np.ones(after)}
  _, found = messages.decode(messages.encode({}, arrays))
  assert list(found) == ['ä', 'after']
  assert found['ä'].dtype == array.dtype.newbyteorder('=')
  assert found['ä'].shape == array.shape
  assert found['ä'].tobytes() == array.astype(found['ä'].dtype).tobytes()
  assert not array.size or not found['ä'].flags.writeable


@pytest.mark.parametrize(
  'header',
  [
    {},
    {'a': None, 'b': [1, 2.5, 'x'], 'c': {'d': True}},
    {'name': 'Zürich \u2028 \ud800 \0', '': 2**70},
  ],
)
def test_header(header):
  found, arrays = messages.decode(messages.encode(header))
  assert found == header
  assert arrays == {}


def test_numbers_of_numpy():
  header, _ = messages.decode(messages.encode({'t': np.int64(3)}))
  assert header == {'t': 3} and type(header['t']) is int


def test_equal_messages_have_equal_bytes():
  assert messages.encode({'a': 1, 'b': 2}) == messages.encode({'b': 2, 'a': 1})


def test_below():
  arrays = {'up/a': 1, 'up/b/c': 2, 'down/a': 3, 'a': 4}
  assert messages.below('up/', arrays) == {'a': 1, 'b/c': 2}


def test_what_cannot_be_sent():
  for array in (np.array(['a']), np.array([None]), np.array([1j])):
    with pytest.raises(messages.DamagedError, match='has an array of '):
      messages.decode(messages.encode({}, {'a': array}))


@pytest.mark.parametrize(
  'data, message',
  [
    (b'', 'does not start as a message'),
    (b'SAFLMSG1', 'does not start'),
    (b'SAFLMSG2' + MESSAGE[8:], 'does not start'),
    (MESSAGE[:-1], 'ends within array n'),
    (MESSAGE[:40], 'cannot be parsed'),
    (MESSAGE + b'\0', 'is longer than it says'),
    (raw({}, [], b'1'), 'is longer'),
    (b'SAFLMSG1' + b'\xff' * 4, 'cannot be parsed'),
    (b'SAFLMSG1' + struct.pack('<I', 100000) + b'[' * 100000, 'cannot be pa'),
    (raw([1], []), 'cannot be parsed'),
    (raw({}, 3), 'cannot be parsed'),
    (raw({}, ['a']), 'cannot be parsed'),
    (raw({}, [['a', 'int8', 2]], b'12'), 'cannot be parsed'),
    (raw({}, [['a', 'int8', [-1]]]), 'array a has the shape'),
    (raw({}, [['a', 'int8', [1.0]]], b'1'), 'array a has the shape'),
    (raw({}, [['a', 'int8', [True]]], b'1'), 'array a has the shape'),
    (raw({}, [['a', 'int8', ['1']]], b'1'), 'array a has the shape'),
    (raw({}, [['a', 'int8', [2**70]]]), 'ends within array a'),
    (raw({}, [['a', 'int8', [0, 2**70]]]), 'cannot be parsed'),
    (raw({}, [['a', 'int8', [1] * 100]], b'1'), 'cannot be parsed'),
    (raw({}, [['a', 'object', [1]]], bytes(8)), 'has an array of object'),
    (raw({}, [['a', 'O', [1]]], bytes(8)), 'has an array of O'),
    (raw({}, [['a', 'str', [1]]], bytes(8)), 'has an array of str'),
    (raw({}, [['a', 'void64', [1]]], bytes(8)), 'has an array of void64'),
    (raw({}, [['a', 'datetime64', [1]]], bytes(8)), 'has an array of datet'),
    (raw({}, [['a', 'f4,f4', [1]]], bytes(8)), 'has an array of f4,f4'),
    (raw({}, [['a', 'f4,(', [1]]], bytes(8)), 'has an array of f4,'),
    (raw({}, [['a', '>f4', [1]]], bytes(4)), 'has an array of >f4'),
    (raw({}, [['a', 'finfo', [1]]], bytes(4)), 'has an array of finfo'),
    (raw({}, [['a', 'imag', [1]]], bytes(4)), 'cannot be parsed'),
    (raw({}, [['a', '', [1]]], bytes(4)), 'has an array of '),
    (raw({}, [['a', None, [1]]], bytes(4)), 'has an array of None'),
  ],
  ids=itertools.count(),
)
def test_damaged(data, message):
  with pytest.raises(messages.DamagedError, match=message):
    messages.decode(data)


def check_decodes(data):
  """Bytes are a message or are refused; nothing else is raised."""
  try:
    header, arrays = messages.decode(data)
  except messages.DamagedError as error:
    assert str(error)
    return
  assert type(header) is dict
  assert all(type(array) is np.ndarray for array in arrays.values())


@settings
@hypothesis.given(st.binary(max_size=200), st.booleans())
def test_any_bytes(data, begins):
  check_decodes(b'SAFLMSG1' * begins + data)


@settings
@hypothesis.given(
  st.integers(0, len(MESSAGE) - 1),
  st.binary(max_size=8),
  st.integers(0, 8),
)
def test_changed_bytes(at, new, removed):
  check_decodes(MESSAGE[:at] + new + MESSAGE[at + removed :])


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3)
  ),
  max_leaves=6,
)
KINDS = st.sampled_from(['float32', 'int8', 'bfloat16', 'f4,i8', 'V8', '3f4'])


@settings
@hypothesis.given(
  JSON,
  JSON
  | st.lists(st.tuples(JSON, KINDS | st.text(max_size=6), JSON), max_size=2),
  st.binary(max_size=20),
)
def test_any_json(header, arrays, data):
  check_decodes(raw(header, arrays, data))
