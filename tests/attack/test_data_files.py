"""Attacks on npz files, images and paths: damage, bombs, pipes.

A case is read exactly, or refused by an `InputError` of one line that names
the file and the reason.
"""

import os
import time
import tracemalloc

import numpy as np
import pytest

from safl_tf.data.files import loader, spec
from safl_tf.util import bounded_io, errors
from tests.attack import data_files
from tests.binaries import programs

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2] * 2)


# --- npz: members -> part of the message.
GOOD = [('x.npy', data_files.npy(X)), ('y.npy', data_files.npy(Y))]
NPZ = {
  'both names of x': (
    [
      *GOOD,
      ('x_train.npy', data_files.npy(X)),
      ('y_train.npy', data_files.npy(Y)),
    ],
    'has arrays x and x_train; must have one of them',
  ),
  'unknown': ([*GOOD, ('z.npy', data_files.npy(X))], 'array z: '),
  'twice': (
    [*GOOD, ('x.npy', data_files.npy(X))],
    'has arrays x and x; must have one',
  ),
  'absolute path': ([*GOOD, ('/x.npy', data_files.npy(X))], 'array /x: '),
  'parent': ([*GOOD, ('../x.npy', data_files.npy(X))], 'array ../x: '),
  'in a folder': ([('a/x.npy', data_files.npy(X)), *GOOD], 'array a/x: '),
  'newline': ([('x\n.npy', data_files.npy(X)), *GOOD], 'array x\\n: '),
  'no suffix': (
    [('x', data_files.npy(X)), GOOD[1]],
    'array x is not in the format of',
  ),
  'not an array': ([('x.npy', b'1,2'), GOOD[1]], 'array x is not in the form'),
  'empty member': ([('x.npy', b''), GOOD[1]], 'array x is not in the format'),
  'cut': (
    [('x.npy', data_files.npy(X)[:-5]), GOOD[1]],
    'x is damaged: 91 bytes instead',
  ),
  'too long': (
    [('x.npy', data_files.npy(X) + b'1'), GOOD[1]],
    'x is damaged: 97 bytes',
  ),
  'enormous header': (
    [
      ('x.npy', data_files.npy_header(data_files.header((10**12, 10**12)))),
      GOOD[1],
    ],
    'array x is damaged: 0 bytes instead of 4000000000000000000000000',
  ),
  'negative shape': (
    [('x.npy', data_files.npy_header(data_files.header((-6, 4)))), GOOD[1]],
    'array x has shape [-6, 4]; must have rows',
  ),
  'rows of nothing': (
    [
      GOOD[0],
      ('y.npy', data_files.npy_header(data_files.header((10**12,), '<U0'))),
    ],
    'needs 100,000.0 GB of memory, but ',
  ),
  'code in a header': (
    [('x.npy', data_files.npy_header("{'descr': __import__('os')}")), GOOD[1]],
    'array x cannot be read (',
  ),
  'other version': ([('x.npy', b'\x93NUMPY\x09\0' + bytes(99)), GOOD[1]], 'x '),
  'objects': (
    [GOOD[0], ('y.npy', data_files.npy(Y.astype(object)))],
    'array y holds Python objects; must hold numbers or names',
  ),
  'records': (
    [('x.npy', data_files.npy(np.zeros((6, 2), 'f4,i4'))), GOOD[1]],
    "x is an array of [('f0', '<f4'), ('f1', '<i4')] [6, 2]; must hold numbers",
  ),
  'complex': (
    [('x.npy', data_files.npy(X + 1j)), GOOD[1]],
    'x is an array of complex',
  ),
  'dates': (
    [GOOD[0], ('y.npy', data_files.npy(Y.astype('M8[s]')))],
    'y is an array of d',
  ),
  'bytes': (
    [GOOD[0], ('y.npy', data_files.npy(Y.astype('S')))],
    'y is an array of |S',
  ),
  'single number': (
    [GOOD[0], ('y.npy', data_files.npy(3))],
    'array y has shape []; must',
  ),
  'surrogate': (
    [GOOD[0], ('y.npy', data_files.npy(np.array(['a', 'b', '\ud800'] * 2)))],
    'y, row 2: the label is not Unicode text',
  ),
  'client surrogate': (
    [*GOOD, ('client.npy', data_files.npy(np.array(['a', 'b', '\ud800'] * 2)))],
    'client, row 2 is not Unicode text',
  ),
}


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize('members, message', NPZ.values(), ids=NPZ)
def test_npz(tmp_path, members, message):
  assert message in data_files.refusal(
    data_files.write_npz(tmp_path / 'a.npz', members)
  )


@pytest.mark.parametrize('dtype', ['>f4', '>f8', 'f2', 'g', '>i2', '>u8', '?'])
@pytest.mark.parametrize('order', 'CF')
def test_types_and_orders_of_npz(tmp_path, dtype, order):
  x = np.asarray(X, dtype, order=order)
  y = np.array([2**63, 2**63 + 1, 5] * 2, '>u8')
  data = data_files.load(
    data_files.write_npz(
      tmp_path / 'a',
      [('x.npy', data_files.npy(x)), ('y.npy', data_files.npy(y))],
    )
  )
  assert data.class_names == ('5', str(2**63), str(2**63 + 1))
  assert data.y_test.tolist() == [1, 2, 0] * 2
  assert data.x_test.dtype == np.float32 and data.x_test.dtype.isnative
  np.testing.assert_array_equal(data.x_test, x.astype(np.float32))


def test_compressed_bomb(tmp_path, little_memory):
  """40 MB in 40 kB are refused before they are unpacked."""
  path = tmp_path / 'a.npz'
  np.savez_compressed(path, x=np.zeros((10, 10**6), np.float32), y=Y[:10])
  tracemalloc.start()
  hint = data_files.refusal(f'npz:{path}')
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert hint.endswith('GB of memory, but 0.0 GB are available')
  assert peak < 3e6


# --- Images.
@pytest.fixture
def images(tmp_path):
  for name in ('ant', 'bee'):
    data_files.write_png(tmp_path / name / '1.png', (3, 4))
  return tmp_path


def link_loop(path):
  (path / 'cat').symlink_to('cat')


def pipe_as_image(path):
  os.mkfifo(path / 'bee' / '2.png')


def beside_train(path):
  for name in ('ant', 'bee'):
    (path / name).rename(path / f'_{name}')
    (path / 'train').mkdir(exist_ok=True)
    (path / f'_{name}').rename(path / 'train' / name)
  data_files.write_png(path / 'val' / 'ant' / '1.png', (3, 4))


FOLDERS = {
  'giant image': (
    lambda path: data_files.write_png(
      path / 'bee/1.png', (99_999, 99_999), b'1'
    ),
    'bee/1.png cannot be decoded as an image (PNG size too large',
  ),
  'cut image': (
    lambda path: (path / 'bee/1.png').write_bytes(data_files.png(3, 4)[:-20]),
    'bee/1.png cannot be decoded as an image (',
  ),
  'link loop': (
    link_loop,
    'cat cannot be read (Too many levels of symbolic links)',
  ),
  'broken link': (
    lambda path: (path / 'bee' / '2.png').symlink_to('nowhere.png'),
    'bee/2.png cannot be read (No such file or directory)',
  ),
  'pipe': (pipe_as_image, 'bee/2.png is not a png, jpeg, gif or bmp file'),
  'image in no class': (
    lambda path: data_files.write_png(path / '1.png', (3, 4)),
    '1.png must be in the folder of a class',
  ),
  'beside train': (
    beside_train,
    'folder val is neither train nor test; move it elsewhere',
  ),
  'name of bytes': (
    lambda path: (path / 'bee').rename(path / os.fsdecode(b'\xff')),
    '\\udcff/1.png: the label is not Unicode text',
  ),
  'newline': (
    lambda path: data_files.write_png(path / 'c\nd' / '1.txt', (3, 4)),
    'c\\nd/1.txt is not a png, jpeg, gif or bmp file',
  ),
}


@pytest.mark.parametrize('change, message', FOLDERS.values(), ids=FOLDERS)
def test_folders(images, change, message):
  change(images)
  assert message in data_files.refusal(f'folder:{images}')


def test_giant_image_size(images, little_memory):
  name = f'folder:{images}'
  message = '2 images of 99999 x 99999 pixels: needs 140.0 GB of memory, but '
  assert message in data_files.refusal(name, image_size=(99_999, 99_999))
  with pytest.raises(errors.InputError, match='needs 140'):
    loader.inspect(name, spec.Options(image_size=(99_999, 99_999)))


def test_many_images(images, little_memory):
  for name in ('ant', 'bee'):
    data_files.write_png(images / name / '1.png', (300, 300))
  assert '2 images of 300 x 300 pixels: needs' in data_files.refusal(
    f'folder:{images}'
  )


# --- Any file.
@pytest.mark.parametrize('form', ['csv', 'npz'])
@pytest.mark.parametrize('kind', ['folder', 'pipe', 'device'])
def test_what_is_no_file(tmp_path, form, kind):
  path = tmp_path / 'a'
  if kind == 'folder':
    path.mkdir()
  elif kind == 'pipe':
    os.mkfifo(path)
  else:
    path.symlink_to('/dev/zero')
  assert data_files.refusal(f'{form}:{path}') == 'is not a regular file'
  with pytest.raises(OSError, match='is not a regular file'):
    bounded_io.open_regular(path)


def test_unreadable_files(tmp_path, monkeypatch):
  (tmp_path / 'a').write_text('1,0\n')
  monkeypatch.setattr(os, 'access', lambda path, mode: False)
  for form in ('csv', 'npz'):
    hint = data_files.refusal(f'{form}:{tmp_path}/a')
    assert hint == 'cannot be read (Permission denied)'
  assert data_files.refusal(f'csv:{tmp_path}/a\0') == 'there is no such file'
  assert data_files.refusal(f'csv:{tmp_path}/a/b') == 'there is no such file'


@pytest.mark.parametrize('form', ['csv', 'npz', 'folder'])
def test_files_that_change_after_their_digest(tmp_path, images, form):
  path = {'csv': tmp_path / 'a.csv', 'npz': tmp_path / 'a.npz'}.get(form)
  if form == 'csv':
    path.write_text('1,0\n2,1\n')
  elif form == 'npz':
    data_files.write_npz(path, GOOD)
  name = f'{form}:{path or images}'
  digest = loader.inspect(name, spec.Options())[0]
  data_files.load(name, data_sha256=digest)
  changed = path or images / 'bee' / '1.png'
  time.sleep(0.02)  # more than the clock of the file system is coarse
  content = changed.read_bytes()
  state = changed.stat()
  if form == 'folder':
    data_files.write_png(changed, (3, 4), b'\0\1\0\0\0' * 3)
  elif form == 'csv':
    changed.write_text('1,0\n3,1\n')
  else:
    data_files.write_npz(changed, [('x.npy', data_files.npy(X[::-1])), GOOD[1]])
  os.utime(changed, ns=(state.st_atime_ns, state.st_mtime_ns))
  assert changed.read_bytes() != content
  assert data_files.refusal(name, data_sha256=digest) == 'has changed meanwhile'


def test_programs_refuse_without_tensorflow(tmp_path, images):
  """Exit code 2 and one line, before TensorFlow is imported."""
  (tmp_path / 'comma.csv').write_text('1,5;0\n2,5;1\n')
  os.mkfifo(tmp_path / 'pipe')
  data_files.write_npz(tmp_path / 'both.npz', NPZ['both names of x'][0])
  data_files.write_npz(tmp_path / 'huge.npz', NPZ['rows of nothing'][0])
  data_files.write_npz(tmp_path / 'line.npz', NPZ['newline'][0])
  cases = {
    'csv:comma.csv': 'line 1 has as many commas as semicolons',
    'csv:pipe': 'is not a regular file',
    'csv:/dev/zero': 'is not a regular file',
    'npz:both.npz': 'has arrays x and x_train; must have one of them',
    'npz:huge.npz': 'needs 100,000.0 GB of memory',
    'npz:line.npz': 'array x\\n: ',
    'folder:ant': 'no folders of images',
    'folder:comma.csv': 'is not a folder',
  }
  outcomes = programs.call_light(
    [('train', [f'--dataset={name}'], tmp_path) for name in cases]
  )
  for outcome, (name, hint) in zip(outcomes, cases.items(), strict=True):
    programs.check_refused(outcome, 'train', f'--dataset={name}: {hint}')
  assert not (tmp_path / 'runs').exists()


MANIFESTS = {
  'pipe': 'cannot be read: is not a regular file',
  '/dev/zero': 'cannot be read: is not a regular file',
  'ant': 'cannot be read: is not a regular file',
  'nan.json': 'is not JSON (NaN is not a JSON number)',
  'twice.json': "is not JSON ('a' appears twice)",
  'deep.json': 'is not JSON (',
}


def test_programs_refuse_manifests_without_tensorflow(tmp_path, images):
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'nan.json').write_text('{"num_classes": NaN}')
  (tmp_path / 'twice.json').write_text('{"a": 1, "a": 1}')
  (tmp_path / 'deep.json').write_text('[' * 10**5)
  flags = [f'--partition=manifest:{name}' for name in MANIFESTS]
  outcomes = programs.call_light([('train', [f], tmp_path) for f in flags])
  for outcome, flag, hint in zip(
    outcomes, flags, MANIFESTS.values(), strict=True
  ):
    programs.check_refused(outcome, 'train', f'{flag}: {hint}')


@pytest.mark.attack
@pytest.mark.parametrize('case', ['giant image', 'cut image', 'broken link'])
def test_programs_name_bad_images(images, case):
  """In one line, although the decoder prints more if TensorFlow may."""
  change, message = FOLDERS[case]
  change(images)
  process = programs.start(
    *('-m', 'binaries.train', '--dataset=folder:.'), cwd=images
  )
  outcome = programs.Outcome(0, *process.communicate(timeout=100))
  outcome = outcome._replace(code=process.returncode)
  programs.check_refused(outcome, 'train', f'--dataset=folder:.: {message}')
  assert not (images / 'runs').exists()


@pytest.mark.parametrize('program', ['train', 'evaluate'])
def test_a_fraction_of_data_with_test_examples_is_refused(
  call, no_tensorflow, tmp_path, dense, program
):
  path = tmp_path / 'a.npz'
  x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
  np.savez(path, x=x, y=y, x_test=x, y_test=y)
  flags = (f'--dataset=npz:{path}', f'--model={dense}', '--test_fraction=0.5')
  outcome = call(program, *flags)
  programs.check_refused(
    outcome, program, '--test_fraction=0.5: has no effect: npz:'
  )
