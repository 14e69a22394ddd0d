"""Attacks on `ClientData`, partitions, manifests and speech clips from Python.

A call does what was asked, or an `InputError` of one line names the argument.
"""

import json
import os
import types

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf
from absl import logging

from safl_tf.data import client_data, partition
from safl_tf.data.speech_commands import archive, features
from safl_tf.data.speech_commands import loader as speech
from safl_tf.util import bounded_io, errors
from tests.data.speech_commands import make_archive

ClientData = client_data.ClientData

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
PARTS = [[0, 1, 2], [3, 4, 5]]


def refusal(function, *args, **kwargs):
  with pytest.raises(errors.InputError) as caught:
    function(*args, **kwargs)
  assert len(str(caught.value).splitlines()) == 1
  return str(caught.value)


# --- Arrays that are read exactly.
EXACT = {
  'lists': X.tolist(),
  'frame': pd.DataFrame(X),
  'big-endian': X.astype('>f4'),
  'Fortran order': np.asfortranarray(X),
  'not contiguous': np.repeat(X, 2, axis=1)[:, ::2],
  'matrix': np.asmatrix(X),
  'mask without masked values': np.ma.masked_array(X, mask=False),
  'tensor': tf.constant(X),
  'read-only': np.broadcast_to(X, X.shape),
}


@pytest.mark.parametrize('x', EXACT.values(), ids=EXACT)
def test_inputs(x):
  data = ClientData.from_arrays(x, Y, PARTS)
  np.testing.assert_array_equal(data.x, X)
  assert data.x.dtype.isnative
  pairs = data.create_tf_dataset_for_client('1').as_numpy_iterator()
  np.testing.assert_array_equal([x for x, _ in pairs], X[3:])


@pytest.mark.parametrize(
  'y',
  [
    Y.tolist(),
    pd.Series(Y, index=range(9, 3, -1)),
    pd.array(Y, 'Int64'),
    Y.astype('>i8'),
    Y.astype(np.uint64),
    Y[:, None],
    tf.constant(Y),
  ],
)
def test_labels(y):
  data = ClientData.from_arrays(X, y, PARTS)
  assert data.y.tolist() == Y.tolist()
  assert data.y.dtype == np.int32 and data.y.dtype.isnative


# --- Arrays that are refused: what changes, and the beginning of the message.
MASKED = np.ma.masked_array([0, 1, 2] * 2, mask=[0, 0, 1, 0, 0, 0])
REFUSED = {
  'objects': ({'x': X.astype(object)}, 'x=array of object: must hold numbers'),
  'masked': ({'x': np.ma.masked_equal(X, 3)}, 'x=MaskedArray: must have no ma'),
  'masked labels': ({'y': MASKED}, 'y=MaskedArray: must have no masked values'),
  'masked rows': (
    {'partition': [MASKED]},
    'partition=MaskedArray: must have no masked values',
  ),
  'sparse': ({'x': scipy.sparse.csr_matrix(X)}, 'x=csr_matrix: must be an arr'),
  'generator': ({'x': (row for row in X)}, 'x=generator: must be an array'),
  'labels by generator': ({'y': (c for c in Y)}, 'y=generator: must be an arr'),
  'set': ({'y': {0, 1}}, 'y=set: must be an array'),
  'nothing': ({'x': None}, 'x=NoneType: must be an array'),
  'function': ({'x': len}, 'x=builtin_function_or_method: must be an array'),
  'a text': ({'x': 'data.csv'}, 'x=array of <U8: must hold numbers or text'),
  'text that ends with NUL': (
    {'x': ['a\0', *'bcdef']},
    "x='a\\x00' in row 0: must not end with NUL",
  ),
  'text that is no Unicode': ({'x': [*'abcde', '\ud800']}, "x='\\ud800' in r"),
  'bytes that are no text': ({'x': [b'a'] * 5 + [b'\xff']}, 'x=bytes in row 5'),
  'missing value': (
    {'x': pd.DataFrame(X).where(X != 3)},
    "x['1']=NaN or infinity in row 1",
  ),
  'missing label': (
    {'y': pd.array([0, 1, 2, 0, 1, None], 'Int64')},
    'y=IntegerArray: must have no masked values',
  ),
  'missing name': ({'y': [*'abcab', None]}, 'y=a missing value in row 5: '),
  'missing category': (
    {'y': pd.Categorical([*'abcab', None])},
    'y=a missing value in row 5: ',
  ),
  'dates': ({'x': X.astype('M8[s]')}, 'x=array of datetime64[s]: must hold'),
  'durations': ({'x': X.astype('m8[s]')}, 'x=array of timedelta64[s]: must'),
  'complex': ({'x': X + 1j}, 'x=array of complex64: must hold numbers'),
  'records': ({'x': np.zeros(6, 'f4,i4')}, "x=array of [('f0', '<f4'), ('f1'"),
  'long double': ({'x': X.astype('g')}, 'x=array of float128: must be float64'),
  'no features': (
    {'x': X[:, :0]},
    'x=array of shape [6, 0]: must hold numbers',
  ),
  'ragged': (
    {'x': [[1, 2], [1]] * 3},
    'x=rows of different shapes: must be an',
  ),
  'no examples': ({'x': X[:0], 'y': Y[:0]}, 'y=no labels: must hold at least'),
  'infinite targets': ({'y': Y + 1e39}, 'y=NaN or infinity in row 0: '),
  'long targets': ({'y': Y.astype('g')}, 'y=array of float128: must hold '),
  'tokens of 64 bits': (
    {'y': np.stack([Y, Y + 2**40], 1)},
    f'y={2**40} in row 0: must be a number of 32 bits',
  ),
  'names of targets': (
    {'y': Y / 2, 'class_names': 'abc'},
    "class_names='abc': must be a list of names",
  ),
  'names twice': ({'class_names': ['a', 'b', 'a']}, 'class_names=a: must be '),
  'few names': ({'class_names': ['a', 'b']}, 'y=2 in row 2: must be below'),
  'other number of names': (
    {'class_names': list('abc'), 'num_classes': 4},
    'num_classes=4: must be 3 or omitted',
  ),
  'unknown name': (
    {'y': list('abcabd'), 'class_names': list('abc')},
    "y='d' in row 5: must be one of the classes a, b, c",
  ),
  'weights of others': (
    {'sample_weight': [1, 2]},
    'sample_weight=array of shape [2]: must have the shape [6]',
  ),
  'negative weight': (
    {'sample_weight': Y - 1},
    'sample_weight=a negative weight in row 0: ',
  ),
  'no weight': ({'sample_weight': Y * 0}, 'sample_weight=zeros: must hold'),
  'weight of NaN': (
    {'sample_weight': Y * np.nan},
    'sample_weight=NaN or infinity in row 0: ',
  ),
  'negative label': ({'y': Y - 1}, 'y=-1 in row 0: must be a class number'),
  'huge gap': (
    {'y': [0, 1, 10**9, 0, 1, 2]},
    'y=1000000000 in row 2: must be below 1000000; number the classes 0, 1, ..',
  ),
  'huge label': ({'y': Y.astype(np.uint64) + 2**63}, 'y=9223372036854775808 i'),
  'number beyond 64 bits': ({'y': [0, 1, 2, 0, 1, 2**70]}, 'y=array of object'),
  'many classes': (
    {'num_classes': 10**9},
    'num_classes=1000000000: must be a whole number in [1, 1000000]',
  ),
  'classes as a float': ({'num_classes': 3.0}, 'num_classes=3.0: must be a wh'),
  'classes as text': ({'num_classes': '3'}, "num_classes='3': must be a whole"),
  'classes as a boolean': ({'num_classes': True}, 'num_classes=True: must be'),
  'no partition': ({'partition': None}, 'partition=None: must be a function'),
  'partition by name': ({'partition': 'iid'}, 'partition='),
  'dict of rows': ({'partition': {'a': [0], 'b': [1]}}, 'partition='),
  'rows as floats': ({'partition': [[0.0, 1.0]]}, 'partition=float64 [2] for'),
  'row beyond 64 bits': ({'partition': [[0, 2**70]]}, 'partition=object [2] f'),
  'function without parts': (
    {'partition': lambda y, num_classes: None},
    'partition=None: must be a function or a list of index lists',
  ),
  'ids as a number': ({'client_ids': 2}, 'client_ids=2: must be a list of nam'),
  'equal ids': ({'client_ids': [1, '1']}, 'client_ids=1: must be there only'),
  'surrogate': (
    {'client_ids': ['a', '\ud800']},
    "client_ids='\\ud800': must be",
  ),
}


@pytest.mark.parametrize('changes, message', REFUSED.values(), ids=REFUSED)
def test_refused_arrays(changes, message):
  arguments = {'x': X, 'y': Y, 'partition': PARTS, **changes}
  assert refusal(ClientData.from_arrays, **arguments).startswith(message)


@pytest.mark.parametrize(
  'second, message',
  [
    ((X.astype(object), Y), 'x=array of object'),
    ((np.ma.masked_equal(X, 3), Y), 'x=MaskedArray'),
    ((X, [0, 1, 10**9, 0, 1, 2]), 'y=1000000000 in row 2'),
    ((X.astype('>f8'), Y), 'x=rows of float64 [2]'),
    (X, 'value=ndarray'),
    (None, 'value=NoneType'),
    ((X, Y, Y, Y), 'value=tuple'),
    ((X, Y, Y), 'sample_weight=with weights'),
    ('ab', 'value=str'),
  ],
)
def test_refused_clients(second, message):
  clients = {'a': (X, Y), 'b': second}
  text = refusal(ClientData.from_clients, clients)
  assert text.startswith(f"clients['b']: {message}")


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'data_dir': 5}, 'data_dir=5: must be the path of a folder'),
    ({'data_dir': '/dev/null'}, 'data_dir=/dev/null: must be an existing'),
    ({'name': 'a b'}, "dataset=tfds:a b: must be tfds: and a data set's name"),
    ({'name': 5}, 'name=5: must be text'),
  ],
)
def test_refused_tfds(arguments, message):
  arguments = {'name': 'mnist', 'partition': PARTS, **arguments}
  assert refusal(ClientData.from_tfds, **arguments).startswith(message)


@pytest.mark.parametrize(
  'ids',
  [
    ['1', '01', '1.0', ' 1', '1 ', '\uff11'],
    ['a', 'A', 'caf\xe9', 'cafe\u0301', 'a\n', '\xe5'],
    [2**53, 2**53 + 1, -1, 0, 1, 2**62],
  ],
)
def test_client_ids_are_exact(ids):
  data = ClientData.from_arrays(X, Y, partition.by_client(ids))
  assert sorted(data.client_ids) == sorted(map(str, ids))
  assert data.sizes.tolist() == [1] * 6


# --- Partitions that ask for too much.
@pytest.mark.parametrize(
  'make',
  [
    lambda: partition.by_labels(10**6, 2, mean_examples=1e9),
    lambda: partition.iid(10**6, mean_examples=1e9),
    lambda: partition.dirichlet(10**6, mean_examples=1e9),
    lambda: partition.biased(10**6, max_labels=2, mean_examples=1e9),
    lambda: partition.by_labels(10**6, 2),
  ],
)
def test_partitions_beyond_the_memory(make, little_memory):
  message = refusal(make(), np.arange(1000) % 2, 2)
  assert message.startswith('num_clients=1000000: needs ')


# --- Manifests.
@pytest.fixture
def manifest(tmp_path):
  path = tmp_path / 'manifest.json'
  data = ClientData.from_arrays(X, Y, PARTS)
  path.write_text(partition.to_manifest(data, 'a'))
  return path


MANIFESTS = {
  'NaN': ('"num_classes": 3', '"num_classes": NaN', 'is not JSON (NaN is not'),
  'infinity': ('"seed": 0', '"seed": -Infinity', 'is not JSON (-Infinity is'),
  'key twice': (
    '"dataset"',
    '"format"',
    "is not JSON ('format' appears twice)",
  ),
  'client key twice': ('"indices"', '"id"', "is not JSON ('id' appears twice)"),
  'digits': ('[0,1,2]', f'[{"9" * 5000}]', 'is not JSON (Exceeds the limit'),
  'nesting': ('[0,1,2]', '[' * 10**5, 'is not JSON ('),
  'huge index': (
    '[0,1,2]',
    f'[{10**40}]',
    f"client 0 ('0'): index {10**40} mu",
  ),
  'boolean index': ('[0,1,2]', '[0,true,2]', "client 0 ('0'): indices must be"),
  'float index': ('[0,1,2]', '[0,1.0,2]', "client 0 ('0'): indices must be wh"),
  'power': ('[0,1,2]', '[0,1e0,2]', "client 0 ('0'): indices must be whole"),
  'unknown key': ('"dataset"', '"data": 1, "dataset"', "'data' is not a key"),
}


@pytest.mark.parametrize('old, new, message', MANIFESTS.values(), ids=MANIFESTS)
def test_manifests(manifest, old, new, message):
  text = manifest.read_text().replace(
    '"partition": {}', '"partition": {"seed": 0}'
  )
  assert old in text
  manifest.write_text(text.replace(old, new, 1))
  text = refusal(partition.from_manifest, manifest)
  assert text.startswith(f'path={manifest}: {message}')


@pytest.mark.parametrize(
  'kind', ['pipe', 'device', 'folder', 'number', 'large']
)
def test_what_is_no_manifest(tmp_path, kind, monkeypatch):
  path = tmp_path / 'a'
  expected = f'path={path}: cannot be read: is not a regular file'
  if kind == 'pipe':
    os.mkfifo(path)
  elif kind == 'device':
    path.symlink_to('/dev/zero')
  elif kind == 'folder':
    path.mkdir()
  elif kind == 'number':
    path, expected = 5, 'path=5: must be the path of a file'
  else:
    left = types.SimpleNamespace(available=100)
    monkeypatch.setattr(bounded_io.psutil, 'virtual_memory', lambda: left)
    path.write_text(json.dumps([0] * 100))
    expected = f'path={path}: cannot be read: needs 0.0 GB of memory'
  assert refusal(partition.from_manifest, path).startswith(expected)


# --- Clips: each bad one is named, and the others are read.
CLIPS = {
  'cut': (lambda clip: clip[:-10], '15995 samples instead of 16000'),
  'cut header': (lambda clip: clip[:20], 'the header is truncated'),
  'empty': (lambda clip: b'', 'the header is truncated'),
  'no samples': (lambda clip: make_archive.wav([]), 'no samples'),
  'rate': (
    lambda clip: make_archive.wav(make_archive.noise(0), rate=8000),
    '8000 instead of 16000 samples per second',
  ),
  'stereo': (
    lambda clip: make_archive.wav(make_archive.noise(0), channels=2),
    '2 channels instead of 1',
  ),
  'giant': (
    lambda clip: make_archive.wav(np.zeros(5_100_000, '<i2')),
    '10200044 bytes, more than 10000000',
  ),
}


@pytest.mark.parametrize('change, reason', CLIPS.values(), ids=CLIPS)
def test_clips(tmp_path, change, reason):
  path = tmp_path / 'yes' / '012c8314_nohash_0.wav'
  path.parent.mkdir()
  path.write_bytes(change(make_archive.wav(make_archive.noise(0))))
  with pytest.raises(features.ClipError) as caught:
    archive.read(tmp_path, f'yes/{path.name}')
  assert str(caught.value) == reason


def test_skipped_clips_are_named(tmp_path, monkeypatch):
  make_archive.write_folder(tmp_path / 'speech')
  clip = next((tmp_path / 'speech' / 'yes').iterdir())
  clip.write_bytes(b'')
  (clip.parent / 'gone_nohash_0.wav').symlink_to('nowhere')
  os.mkfifo(clip.parent / 'pipe_nohash_0.wav')
  lines = []
  monkeypatch.setattr(logging, 'warning', lambda *args: lines.append(args))
  load = lambda: speech.load(str(tmp_path / 'speech'), cache_dir=str(tmp_path))
  load()
  logged = [line[0] % line[1:] for line in lines]
  for name, reason in (
    (clip.name, 'the header is truncated'),
    ('gone_nohash_0.wav', 'No such file or directory'),
    ('pipe_nohash_0.wav', 'is not a regular file'),
  ):
    assert f'  yes/{name}: {reason}' in logged


def test_words_that_are_no_folders(tmp_path):
  make_archive.write_folder(tmp_path)
  (tmp_path / 'wow').symlink_to('nowhere')
  message = refusal(speech.load, str(tmp_path))
  assert message.startswith(f'speech_dir={tmp_path}: cannot be read: [Errno 2]')
  assert message.endswith("/wow'")


def test_changed_clips_are_read_again(tmp_path):
  """Even if neither their sizes nor their times differ."""
  folder = tmp_path / 'speech'
  make_archive.write_folder(folder)
  load = lambda: speech.load(str(folder), cache_dir=str(tmp_path / 'cache'))
  before = load()
  for clip in (folder / 'yes').iterdir():
    state = clip.stat()
    whole = clip.read_bytes()
    clip.write_bytes(whole[:44] + whole[:43:-1])
    os.utime(clip, ns=(state.st_atime_ns, state.st_mtime_ns))
  assert (load().x_train != before.x_train).any()
