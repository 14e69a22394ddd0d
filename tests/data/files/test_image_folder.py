"""Reading folder:FOLDER, valid and invalid."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.data import registry
from safl_tf.data.files import spec
from safl_tf.util import errors

ENCODE = {
  '.png': tf.io.encode_png,
  '.jpg': lambda image: tf.io.encode_jpeg(image, quality=100),
}


def image(value, shape=(4, 6, 1)):
  return np.full(shape, value, np.uint8)


def write(path, pixels):
  path.parent.mkdir(parents=True, exist_ok=True)
  encoded = ENCODE[path.suffix.lower()](pixels)
  path.write_bytes(encoded.numpy())


def bmp(pixels):
  """A colour image as a BMP file's bytes, rows from the bottom."""
  h, w, _ = pixels.shape
  padding = bytes(-3 * w % 4)
  rows = b''.join(row[:, ::-1].tobytes() + padding for row in pixels[::-1])
  numbers = lambda *values: b''.join(v.to_bytes(4, 'little') for v in values)
  info = numbers(40, w, h) + b'\1\0\x18\0' + numbers(0, len(rows), 0, 0, 0, 0)
  return b'BM' + numbers(54 + len(rows), 0, 54) + info + rows


FRAME = '2c000000000100010000 0202{}0100'  # of one pixel
GIF = bytes.fromhex(  # white, then black
  '47494638396101000100 800000 ffffff 000000'
  + FRAME.format('44')
  + FRAME.format('4c')
  + '3b'
)


@pytest.fixture
def animals(tmp_path):
  for i in range(5):
    write(tmp_path / 'ant' / f'{i}.png', image(i))
    write(tmp_path / 'bee' / f'{i}.PNG', image(100 + i))
  return tmp_path


def load(path, **options):
  return registry.load(f'folder:{path}', None, spec.Options(**options))


def test_classes_and_held_out_images(animals):
  (animals / '.DS_Store').write_text('')
  (animals / 'ant' / '.hidden').write_text('')
  (animals / 'README.txt').write_text('beside the classes')
  data = load(animals)
  assert data.name == animals.name
  assert data.class_names == ('ant', 'bee')
  assert data.x_train.shape == (8, 4, 6, 1)
  assert data.x_test.shape == (2, 4, 6, 1)
  assert data.x_train.dtype == np.uint8
  for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
    np.testing.assert_array_equal(x[:, 0, 0, 0] >= 100, y)
    assert (x == x[:, :1, :1, :1]).all()


def into_train(path):
  (path / 'train').mkdir()
  for name in ('ant', 'bee'):
    (path / name).rename(path / 'train' / name)


def test_train_and_test(animals):
  into_train(animals)
  assert len(load(animals).x_test) == 2  # held out of train
  write(animals / 'test' / 'bee' / 'a.png', image(77))
  data = load(animals)
  assert len(data.x_train) == 10
  assert data.x_test[:, 0, 0, 0].tolist() == [77]
  assert data.y_test.tolist() == [1]


def test_train_may_be_a_class(animals):
  (animals / 'ant').rename(animals / 'train')
  assert load(animals).class_names == ('bee', 'train')


def test_numbers_as_classes(animals):
  (animals / 'ant').rename(animals / '10')
  (animals / 'bee').rename(animals / '9')
  assert load(animals).class_names == ('9', '10')


def test_formats_and_colours(tmp_path):
  colour = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
  alpha = np.concatenate([colour, image(9, (2, 2, 1))], axis=2)
  write(tmp_path / 'a' / '1.png', image(50, (2, 2, 1)))
  write(tmp_path / 'a' / '2.png', colour)
  write(tmp_path / 'a' / '3.png', alpha)
  write(tmp_path / 'b' / '1.png', image(60, (2, 2, 2)))
  write(tmp_path / 'b' / '2.jpg', image(70, (2, 2, 3)))
  (tmp_path / 'b' / '3.bmp').write_bytes(bmp(colour))
  x = load(tmp_path, test_fraction=1).x_test
  assert x.shape == (6, 2, 2, 3)
  np.testing.assert_array_equal(x[0], image(50, (2, 2, 3)))
  for i in (1, 2, 5):
    np.testing.assert_array_equal(x[i], colour)
  np.testing.assert_array_equal(x[3], image(60, (2, 2, 3)))
  np.testing.assert_allclose(x[4], 70, atol=2)


def test_gif_yields_its_first_frame(tmp_path):
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
    (tmp_path / name / '1.gif').write_bytes(GIF)
  x = load(tmp_path, test_fraction=1).x_test
  assert x.shape == (2, 1, 1, 3)
  assert (x == 255).all()


def test_resized(animals):
  write(animals / 'ant' / 'large.png', image(200, (8, 9, 1)))
  data = load(animals, image_size=(4, 6), test_fraction=1)
  assert data.x_test.shape == (11, 4, 6, 1)
  assert data.x_test.dtype == np.uint8
  np.testing.assert_array_equal(data.x_test[5], image(200))
  ramp = np.linspace(0, 255, 8).astype(np.uint8)
  write(animals / 'ant' / 'large.png', np.tile(ramp[:, None, None], (1, 9, 1)))
  small = load(animals, image_size=(4, 6), test_fraction=1).x_test[5, :, 0, 0]
  np.testing.assert_allclose(small, ramp.reshape(4, 2).mean(axis=1), atol=12)


def no_classes(path):
  for name in ('ant', 'bee'):
    shutil.rmtree(path / name)


def no_image(path):
  shutil.rmtree(path / 'bee')
  (path / 'bee').mkdir()


def empty_test(path):
  into_train(path)
  (path / 'test').mkdir()


def unknown_test_class(path):
  into_train(path)
  write(path / 'test' / 'cat' / '1.png', image(0))


INVALID = {
  'no classes': (
    no_classes,
    'no folders of images, which must be one for each class',
  ),
  'no test classes': (
    empty_test,
    'test has no folders of images, which must be one for each class',
  ),
  'empty class': (no_image, 'class bee has no image'),
  'other file': (
    lambda path: (path / 'bee' / 'notes.txt').write_text('a'),
    'bee/notes.txt is not a png, jpeg, gif or bmp file',
  ),
  'folder in a class': (
    lambda path: (path / 'bee' / 'more.png').mkdir(),
    'bee/more.png is not a png, jpeg, gif or bmp file',
  ),
  'sizes': (
    lambda path: write(path / 'bee' / '9.png', image(1, (4, 7, 1))),
    'bee/9.png has 4 x 7 pixels, but ant/0.png has 4 x 6; --image_size=H,W '
    'resizes all',
  ),
  'one class': (
    lambda path: shutil.rmtree(path / 'bee'),
    'ant/0.png: all labels are ant; there must be at least two',
  ),
  'unknown test class': (
    unknown_test_class,
    "test/cat/1.png: 'cat' is none of the known labels, ant, bee",
  ),
}


@pytest.mark.parametrize('change, message', INVALID.values(), ids=INVALID)
def test_invalid(animals, change, message):
  change(animals)
  with pytest.raises(errors.InputError) as caught:
    load(animals)
  assert str(caught.value) == f'dataset=folder:{animals}: {message}'


@pytest.mark.parametrize('data', [b'', b'no image', b'\x89PNG\r\n\x1a\nbroken'])
def test_undecodable_image(animals, data):
  (animals / 'bee' / '3.png').write_bytes(data)
  with pytest.raises(errors.InputError) as caught:
    load(animals)
  message = str(caught.value)
  start = f'dataset=folder:{animals}: bee/3.png cannot be decoded as an image ('
  assert message.startswith(start)
  assert '\n' not in message
