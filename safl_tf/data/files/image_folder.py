"""folder:FOLDER, images in one folder per class.

  FOLDER/cat/1.png          a share of each class is held out for testing
  FOLDER/train/cat/1.png    the same, if there is no FOLDER/test
  FOLDER/test/cat/1.png     test images

The name of a folder is the name of its class: 007 and 7 are different classes.
A folder called train is a class unless it contains folders; then test is the
only folder that may be beside it. Images are png, jpeg, gif (the first frame)
or bmp, all of one size unless they are resized. If one image has colours, all
get three channels; transparency is dropped. Names that start with a dot are
ignored, and so are files beside the classes that are not images.
"""

import math
import os
import pathlib
import stat

import numpy as np

from safl_tf.data.files import tabular
from safl_tf.util import bounded_io, errors

_SUFFIXES = ('.png', '.jpg', '.jpeg', '.gif', '.bmp')
_RESIZING = 12  # bytes for a pixel of the image that is being resized


def scan(
  path: str, image_size: tuple[int, int] | None
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
  """Lists the training and the test images, sorted by class and name.

  The name of an image's folder is its class. Without a folder of test images,
  the second list is empty. Refuses an `image_size` for which the memory does
  not suffice.
  """
  root = pathlib.Path(path)
  train, test = root / 'train', root / 'test'
  folders = _folders(root)
  if train in folders and _folders(train):
    other = [folder.name for folder in folders if folder not in (train, test)]
    if other:
      raise tabular.DataError(
        f'folder {other[0]} is neither train nor test; move it elsewhere'
      )
    images = _list_images(train, root)
    test_images = _list_images(test, root) if test in folders else []
  else:
    images, test_images = _list_images(root, root), []
  if image_size is not None:
    _check_memory(len(images) + len(test_images), (*image_size, 1))
  return images, test_images


def read(
  path: str, image_size: tuple[int, int] | None
) -> tuple[tabular.Table, tabular.Table | None]:
  """Reads all images as uint8 [N, height, width, channels]."""
  root = pathlib.Path(path)
  train, test = scan(path, image_size)
  images = _read_images([*train, *test], root, image_size)

  def table(files: list[pathlib.Path], x: np.ndarray) -> tabular.Table:
    place = lambda row: str(files[row].relative_to(root))
    labels = [file.parent.name for file in files]
    return tabular.Table(x, labels, place, names_only=True)

  test_table = table(test, images[len(train) :]) if test else None
  return table(train, images[: len(train)]), test_table


def _list_images(
  folder: pathlib.Path, root: pathlib.Path
) -> list[pathlib.Path]:
  images = []
  classes = _folders(folder)
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
      if not (_is_image(file) and stat.S_ISREG(os.stat(file).st_mode)):
        raise tabular.DataError(
          f'{file.relative_to(root)} is not a png, jpeg, gif or bmp file'
        )
    images += files
  return images


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the folders in a folder; refuses images and broken links there."""
  paths = _visible(folder)
  folders = [path for path in paths if stat.S_ISDIR(os.stat(path).st_mode)]
  for path in sorted(set(paths) - set(folders)):
    if _is_image(path) and folders:
      raise tabular.DataError(f'{path.name} must be in the folder of a class')
  return folders


def _is_image(file: pathlib.Path) -> bool:
  return file.suffix.lower() in _SUFFIXES


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
      _check_memory(len(files), image.shape)
      images = np.empty((len(files), *image.shape), np.uint8)
    if image.shape[:2] != images.shape[1:3]:
      (h, w), (first_h, first_w) = image.shape[:2], images.shape[1:3]
      raise tabular.DataError(
        f'{name} has {h} x {w} pixels, but {files[0].relative_to(root)} has '
        f'{first_h} x {first_w}; --image_size=H,W resizes all'
      )
    if image.shape[2] > images.shape[3]:  # the first image in colour
      _check_memory(len(files), image.shape)
      images = np.repeat(images, 3, axis=3)
    images[i] = image
  return images


def _decode(
  file: pathlib.Path, name: str, size: tuple[int, int] | None
) -> np.ndarray:
  """Returns an image as uint8 [height, width, 1 or 3], resized to `size`."""
  import tensorflow as tf

  data = bounded_io.read_bytes(file)
  try:
    image = tf.io.decode_image(data, expand_animations=False).numpy()
  except Exception as error:
    raise tabular.DataError(
      f'{name} cannot be decoded as an image ({errors.reason(error)})'
    ) from error
  if image.size == 0:
    raise tabular.DataError(f'{name} has no pixels')
  if image.shape[2] in (2, 4):  # with transparency
    image = image[:, :, :-1]
  if size is None or image.shape[:2] == size:
    return image
  resized = tf.image.resize(image, size, antialias=True).numpy()
  return np.clip(np.rint(resized), 0, 255).astype(np.uint8)


def _check_memory(number: int, shape: tuple[int, ...]) -> None:
  """Refuses images of a shape, [height, width, channels], if too large."""
  needed = number * math.prod(shape) + _RESIZING * shape[0] * shape[1]
  reason = bounded_io.shortage(needed)
  if reason is not None:
    raise tabular.DataError(
      f'{number} images of {shape[0]} x {shape[1]} pixels: {reason}'
    )
