"""Readers on generated files: what was written is read, damage is refused.

A mutated file is read as valid data or refused by an `InputError` of one line,
and never takes more than a little memory.
"""

import csv
import json
import tracemalloc

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from safl_tf.data import client_data, partition
from safl_tf.data.files import csv as csv_reader
from safl_tf.data.files import npz, spec, tabular
from safl_tf.data.speech_commands import features
from safl_tf.util import errors
from tests.attack import data_files
from tests.data.speech_commands import make_archive

MEMORY = 30e6  # bytes

EXAMPLES = [
  pytest.param(40, id='sample'),
  pytest.param(600, id='many', marks=pytest.mark.attack),
]


def fuzz(number, test, *strategies):
  """Runs a test on generated values, always the same."""
  settings = hypothesis.settings(
    max_examples=number, derandomize=True, deadline=None, database=None
  )
  settings(hypothesis.given(*strategies)(test))()


# --- What was written is read.
NAMES = st.text(
  st.characters(exclude_categories=['Cs'], exclude_characters='\0\r'),
  min_size=1,
  max_size=8,
).filter(lambda text: text.strip(' \t\n'))
CODES = st.from_regex(r'0[0-9_]{1,4}|[1-9]_[0-9]{1,3}', fullmatch=True)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def whole_numbers(draw):
  """A whole number as text in some notation, and in the usual one."""
  value = draw(st.integers(-(10**20), 10**20))
  form = draw(st.sampled_from(['{}', '{}.0', '{}.', '{}e0', '{}.000E+0']))
  return form.format(value), str(value)


def words(text):
  """A name and the class that it is, unless it is a number."""
  hypothesis.assume(not tabular.looks_like_number(text.strip(' \t\n')))
  return text, text.strip(' \t\n')


LABELS = st.one_of(
  whole_numbers(), CODES.map(lambda t: (t, t)), NAMES.map(words)
)
ROWS = st.lists(
  st.tuples(FLOATS, FLOATS, LABELS, NAMES), min_size=1, max_size=12
)


@pytest.mark.parametrize('number', EXAMPLES)
def test_csv_round_trip(tmp_path, number):
  path = tmp_path / 'a.csv'

  def check(rows, delimiter, newline):
    with path.open('w', newline='', encoding='utf-8') as file:
      writer = csv.writer(file, delimiter=delimiter, lineterminator=newline)
      writer.writerow(['a', 'b', 'label', 'client'])
      writer.writerows([a, b, label, name] for a, b, (label, _), name in rows)
    table = csv_reader.read(str(path), spec.Options())
    values = np.array([row[:2] for row in rows], np.float32)
    np.testing.assert_array_equal(table.x, values)
    ids = [name.strip(' \t\n') for *_, name in rows]
    assert table.client_ids.tolist() == ids
    names = tabular.class_names(table)
    codes = tabular.encode(table, names)
    assert [names[c] for c in codes] == [label for _, _, (_, label), _ in rows]

  newlines = st.sampled_from(['\n', '\r\n'])
  fuzz(number, check, ROWS, st.sampled_from(',;\t'), newlines)


DTYPES = st.one_of(
  np_st.integer_dtypes(endianness='?'),
  np_st.unsigned_integer_dtypes(endianness='?'),
  np_st.floating_dtypes(endianness='?', sizes=(16, 32)),
  st.just(np.dtype(bool)),
)
SHAPES = np_st.array_shapes(min_dims=2, max_dims=4, max_side=4)
ARRAYS = DTYPES.flatmap(lambda dtype: np_st.arrays(dtype, SHAPES))


@pytest.mark.parametrize('number', EXAMPLES)
def test_npz_round_trip(tmp_path, number):
  path = tmp_path / 'a.npz'

  def check(x, order, labels, compress):
    y = np.array([labels[i % len(labels)] for i in range(len(x))])
    save = np.savez_compressed if compress else np.savez
    save(path, x=np.asarray(x, order=order), y=y, client=y)
    table, test = npz.read(str(path))
    assert test is None
    np.testing.assert_array_equal(table.x, x)
    assert table.labels == [str(label) for label in y.tolist()]
    np.testing.assert_array_equal(table.client_ids, y)

  labels = st.lists(NAMES, min_size=1) | st.lists(
    st.integers(-(2**63), 2**63 - 1), min_size=1
  )
  fuzz(number, check, ARRAYS, st.sampled_from('CF'), labels, st.booleans())


@pytest.mark.parametrize('number', EXAMPLES)
def test_manifest_round_trip(tmp_path, number):
  path = tmp_path / 'a.json'

  def check(y, clients):
    rows = [[row % len(y) for row in part] for part in clients.values()]
    data = client_data.ClientData.from_arrays(
      np.zeros((len(y), 1)), y, rows, clients, num_classes=10
    )
    path.write_text(partition.to_manifest(data, 'a', {'seed': 1}))
    manifest = partition.from_manifest(path)
    assert manifest.client_ids == list(clients)
    parts = manifest(data.y, 10)
    assert [part.tolist() for part in parts] == rows

  labels = st.lists(st.integers(0, 9), min_size=1)
  parts = st.lists(st.integers(0, 10**9), min_size=1, max_size=9)
  clients = st.dictionaries(NAMES, parts, min_size=1, max_size=5)
  fuzz(number, check, labels, clients)


# --- Damage is refused, or does not matter.
@st.composite
def mutations(draw):
  """A function that flips, cuts, inserts, repeats or replaces bytes."""
  steps = draw(
    st.lists(
      st.tuples(
        st.sampled_from(['flip', 'cut', 'insert', 'repeat', 'replace', 'end']),
        st.integers(0, 2**20),
        st.integers(1, 40),
        st.binary(min_size=1, max_size=8)
        | st.sampled_from([b'\xff\xff\xff\xff', b'"', b'\n', b',', b'9' * 30]),
      ),
      min_size=1,
      max_size=4,
    )
  )

  def mutate(data):
    for kind, place, length, new in steps:
      i = place % (len(data) + 1)
      if kind == 'flip':
        flipped = bytes(byte ^ (1 << length % 8) for byte in data[i : i + 1])
        data = data[:i] + flipped + data[i + 1 :]
      elif kind == 'cut':
        data = data[:i] + data[i + length :]
      elif kind == 'insert':
        data = data[:i] + new + data[i:]
      elif kind == 'repeat':
        data = data[:i] + data[max(i - length, 0) :]
      elif kind == 'replace':
        data = data[:i] + new + data[i + len(new) :]
      else:
        data = data[:i]
    return data

  return mutate


@pytest.fixture
def bounded(little_memory):
  """Gives a reader little memory, and checks that it takes no more."""
  tracemalloc.start()
  yield
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < MEMORY


def check_mutated(number, path, valid, read, name):
  """Reads mutated files; many are refused, in errors that start with name."""
  refused = 0

  def check(mutate):
    nonlocal refused
    path.write_bytes(mutate(valid))
    try:
      read()
    except errors.InputError as error:
      refused += 1
      assert len(str(error).splitlines()) == 1
      assert str(error).startswith(name)

  path.write_bytes(valid)
  read()
  fuzz(number, check, mutations())
  assert refused > number / 4


def read_data(name, **options):
  """Reads a data set and checks it."""
  data = data_files.load(name, **options)
  assert len(data.class_names) == len(set(data.class_names)) >= 2
  assert 0 <= data.y_test.min() <= data.y_test.max() < len(data.class_names)
  assert len(data.x_test) == len(data.y_test) > 0
  assert np.isfinite(data.x_test).all()


TABLE = 'a,b,label,client\n1,2.5,cat,x\n"3",4e0,dog,"y z"\n5,6,cat,x\n'


@pytest.mark.parametrize('number', EXAMPLES)
def test_mutated_csv(tmp_path, bounded, number):
  path = tmp_path / 'a.csv'
  read = lambda: read_data(f'csv:{path}')
  check_mutated(number, path, TABLE.encode(), read, f'dataset=csv:{path}: ')


@pytest.mark.parametrize('number', EXAMPLES)
@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_mutated_npz(tmp_path, bounded, save, number):
  path = tmp_path / 'a.npz'
  save(
    path,
    x=np.arange(12.0).reshape(6, 2),
    y=np.arange(6) % 3,
    client=np.array(['a', 'b'] * 3),
  )
  read = lambda: read_data(f'npz:{path}')
  check_mutated(number, path, path.read_bytes(), read, f'dataset=npz:{path}: ')


def encoded_images():
  import tensorflow as tf

  from tests.data.files import test_image_folder

  pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
  return {
    'png': tf.io.encode_png(pixels).numpy(),
    'jpg': tf.io.encode_jpeg(pixels).numpy(),
    'bmp': test_image_folder.bmp(pixels),
    'gif': test_image_folder.GIF,
  }


@pytest.mark.parametrize('number', EXAMPLES)
@pytest.mark.parametrize('suffix', ['png', 'jpg', 'bmp', 'gif'])
def test_mutated_images(tmp_path, number, suffix, little_memory):
  data = encoded_images()[suffix]
  for name in ('ant', 'bee'):
    (tmp_path / name).mkdir()
    (tmp_path / name / f'1.{suffix}').write_bytes(data)
  path = tmp_path / 'bee' / f'1.{suffix}'

  read = lambda: read_data(f'folder:{tmp_path}', image_size=(4, 4))
  name = f'dataset=folder:{tmp_path}: bee/1.{suffix} '
  check_mutated(number, path, data, read, name)


@pytest.mark.parametrize('number', EXAMPLES)
def test_mutated_manifest(tmp_path, bounded, number):
  y = np.arange(12) % 3
  data = client_data.ClientData.from_arrays(y[:, None], y, partition.iid(3))
  text = partition.to_manifest(data, 'a', {'seed': 1})
  path = tmp_path / 'a.json'

  def read():
    for part in partition.from_manifest(path)(data.y, 3):
      assert part.dtype == np.int32 and 0 <= part.min() <= part.max() < 12

  check_mutated(number, path, text.encode(), read, f'path={path}: ')


JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats()
  | st.text(max_size=3)
  | st.integers(10**30, 10**40),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=5,
)


@pytest.mark.parametrize('number', EXAMPLES)
def test_manifests_of_wrong_types(tmp_path, number):
  """Any value in any place of a manifest."""
  y = np.arange(12) % 3
  data = client_data.ClientData.from_arrays(y[:, None], y, partition.iid(3))
  text = partition.to_manifest(data, 'a', {'seed': 1})
  path = tmp_path / 'a.json'

  def check(place, value):
    content = json.loads(text)
    if place in content['clients'][1]:
      content['clients'][1][place] = value
    elif place == 'client':
      content['clients'][1] = value
    elif place == 'index':
      content['clients'][1]['indices'][1] = value
    else:
      content[place] = value
    path.write_text(json.dumps(content))
    try:
      partition.from_manifest(path)(data.y, 3)
    except errors.InputError as error:
      assert str(error).startswith(f'path={path}: ')
      assert len(str(error).splitlines()) == 1
    else:
      is_text = place in ('id', 'dataset') and isinstance(value, str)
      assert is_text or (place == 'partition' and isinstance(value, dict))

  places = [
    *json.loads(text),
    *('client', 'index', 'id', 'indices', 'label_counts'),
  ]
  fuzz(number, check, st.sampled_from(places), JSON)


@pytest.mark.parametrize('number', EXAMPLES)
def test_mutated_clips(number, bounded):
  valid = make_archive.wav(np.arange(100, dtype=np.int16))

  def check(mutate):
    try:
      samples = features.decode(mutate(valid))
    except features.ClipError as error:
      assert str(error)
    else:
      assert samples.dtype == np.int16 and samples.ndim == 1 and len(samples)

  fuzz(number, check, mutations())
