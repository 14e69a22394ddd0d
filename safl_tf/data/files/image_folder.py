"""folder:FOLDER, images in one folder per class.

  FOLDER/cat/1.png          a share of each class is held out for testing
  FOLDER/train/cat/1.png    the same, if there is no FOLDER/test
  FOLDER/test/cat/1.png     test images

A folder called train is a class unless it contains folders. Images are png,
jpeg, gif (the first frame) or bmp, all of one size unless they are resized. If
one image has colours, all get three channels; transparency is dropped. Names
that start with a dot are ignored.
"""

import os
import pathlib

import numpy as np

from safl_tf.data.files import tabular
from safl_tf.util import errors

_SUFFIXES = ('.png', '.jpg', '.jpeg', '.gif', '.bmp')


def scan(path: str) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
  """Lists the training and the test images, sorted by class and name.

  The name of an image's folder is its class. Without a folder of test images,
  the second list is empty.
  """
  root = pathlib.Path(path)
  train, test = root / 'train', root / 'test'
  if not (train.is_dir() and any(p.is_dir() for p in _visible(train))):
    return _list_images(root, root), []
  test_images = _list_images(test, root) if test.is_dir() else []
  return _list_images(train, root), test_images


def read(
  path: str, image_size: tuple[int, int] | None
) -> tuple[tabular.Table, tabular.Table | None]:
  """Reads all images as uint8 [N, height, width, channels]."""
  root = pathlib.Path(path)
  train, test = scan(path)
  images = _read_images([*train, *test], root, image_size)

  def table(files: list[pathlib.Path], x: np.ndarray) -> tabular.Table:
    place = lambda row: str(files[row].relative_to(root))
    return tabular.Table(x, [file.parent.name for file in files], place)

  test_table = table(test, images[len(train) :]) if test else None
  return table(train, images[: len(train)]), test_table


def _list_images(
  folder: pathlib.Path, root: pathlib.Path
) -> list[pathlib.Path]:
  images = []
  classes = [path for path in _visible(folder) if path.is_dir()]
  if not classes:
    where = '' if folder == root else f'{folder.name} has '
    raise tabular.DataError(
      f'{where}no folders of images, which must be one for each class'
    )
  for path in classes:
    files = _visible(path)
    if not files:
      raise tabular.DataError(f'class {path.relative_to(root)} has no image')
    for file in files:
      if file.suffix.lower() not in _SUFFIXES or not file.is_file():
        raise tabular.DataError(
          f'{file.relative_to(root)} is not a png, jpeg, gif or bmp file'
        )
    images += files
  return images


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
  names = sorted(n for n in os.listdir(folder) if not n.startswith('.'))
  return [folder / name for name in names]


def _read_images(
  files: list[pathlib.Path], root: pathlib.Path, size: tuple[int, int] | None
) -> np.ndarray:
  """Reads images into one array, which is allocated once."""
  images = np.empty((0, 0, 0, 0), np.uint8)
  for i, file in enumerate(files):
    name = str(file.relative_to(root))
    image = _decode(file, name, size)
    if i == 0:
      images = np.empty((len(files), *image.shape), np.uint8)
    if image.shape[:2] != images.shape[1:3]:
      (h, w), (first_h, first_w) = image.shape[:2], images.shape[1:3]
      raise tabular.DataError(
        f'{name} has {h} x {w} pixels, but {files[0].relative_to(root)} has '
        f'{first_h} x {first_w}; --image_size=H,W resizes all'
      )
    if image.shape[2] > images.shape[3]:  # the first image in colour
      images = np.repeat(images, 3, axis=3)
    images[i] = image
  return images


def _decode(
  file: pathlib.Path, name: str, size: tuple[int, int] | None
) -> np.ndarray:
  """Returns an image as uint8 [height, width, 1 or 3], resized to `size`."""
  import tensorflow as tf

  try:
    data = file.read_bytes()
    image = tf.io.decode_image(data, expand_animations=False).numpy()
  except Exception as error:
    raise tabular.DataError(
      f'{name} cannot be decoded as an image ({errors.reason(error)})'
    ) from error
  if image.shape[2] in (2, 4):  # with transparency
    image = image[:, :, :-1]
  if size is None or image.shape[:2] == size:
    return image
  resized = tf.image.resize(image, size, antialias=True).numpy()
  return np.clip(np.rint(resized), 0, 255).astype(np.uint8)
