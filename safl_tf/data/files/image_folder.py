"""folder:FOLDER, images in one folder per class.

  FOLDER/cat/1.png          a share of each class is held out for testing
  FOLDER/train/cat/1.png    the same, if there is no FOLDER/test
  FOLDER/test/cat/1.png     for testing

A folder called train counts as a part only if there are folders in it.

Images are png, jpeg, gif (the first frame) or bmp. All must have one size,
unless they are resized. If any has colours, all get three channels;
transparency is dropped. Names that start with a dot are not looked at.
"""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from safl_tf.data.files import tabular
from safl_tf.util import errors

_SUFFIXES = ('.png', '.jpg', '.jpeg', '.gif', '.bmp')


class Listing(NamedTuple):
  """(class, file) of all images, by class and name.

  Attributes:
    train: for training.
    test: for testing; None if there is no such folder.
  """

  train: list[tuple[str, pathlib.Path]]
  test: list[tuple[str, pathlib.Path]] | None


def scan(path: str) -> Listing:
  """What images there are; looks at names only."""
  root = pathlib.Path(path)
  train_folder = root / 'train'
  is_part = train_folder.is_dir() and any(
    path.is_dir() for path in _visible(train_folder)
  )
  if not is_part:
    return Listing(_classes(root, root), None)
  train = _classes(train_folder, root)
  has_test = (root / 'test').is_dir()
  return Listing(train, _classes(root / 'test', root) if has_test else None)


def read(path: str, image_size: tuple[int, int] | None) -> tabular.Tables:
  """All images: uint8 [N, height, width, channels]."""
  root, listing = pathlib.Path(path), scan(path)
  test = listing.test or []
  images = _images([*listing.train, *test], root, image_size)
  count = len(listing.train)
  return tabular.Tables(
    _table(images[:count], listing.train, root),
    None if listing.test is None else _table(images[count:], test, root),
  )


def _table(
  images: np.ndarray,
  listed: list[tuple[str, pathlib.Path]],
  root: pathlib.Path,
) -> tabular.Table:
  labels = [name for name, _ in listed]
  place = lambda row: str(listed[row][1].relative_to(root))
  return tabular.Table(images, labels, place)


def _classes(
  folder: pathlib.Path, root: pathlib.Path
) -> list[tuple[str, pathlib.Path]]:
  """(class, file) of each image in the folders of a folder."""
  found = []
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
          f'{file.relative_to(root)} is no png, jpeg, gif or bmp file'
        )
      found.append((path.name, file))
  return found


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
  names = sorted(n for n in os.listdir(folder) if not n.startswith('.'))
  return [folder / name for name in names]


def _images(
  listed: list[tuple[str, pathlib.Path]],
  root: pathlib.Path,
  size: tuple[int, int] | None,
) -> np.ndarray:
  """All images in one array, which is allocated once."""
  images = np.empty((0, 0, 0, 0), np.uint8)
  for i, (_, path) in enumerate(listed):
    image = _decode(path, root)
    if size is not None and image.shape[:2] != size:
      image = _resize(image, size)
    if i == 0:
      images = np.empty((len(listed), *image.shape), np.uint8)
    if image.shape[:2] != images.shape[1:3]:
      (h, w), (first_h, first_w) = image.shape[:2], images.shape[1:3]
      raise tabular.DataError(
        f'{path.relative_to(root)} has {h} x {w} pixels, but '
        f'{listed[0][1].relative_to(root)} has {first_h} x {first_w}; '
        '--image_size=H,W resizes all'
      )
    if image.shape[2] > images.shape[3]:  # the first one in colour
      images = np.repeat(images, 3, axis=3)
    images[i] = image
  return images


def _decode(path: pathlib.Path, root: pathlib.Path) -> np.ndarray:
  """An image as uint8 [height, width, 1 or 3]."""
  import tensorflow as tf

  try:
    data = path.read_bytes()
    image = tf.io.decode_image(data, expand_animations=False).numpy()
  except Exception as error:
    raise tabular.DataError(
      f'{path.relative_to(root)} cannot be decoded as an image '
      f'({errors.reason(error)})'
    ) from error
  channels = image.shape[2]
  return image[:, :, : channels - 1] if channels in (2, 4) else image


def _resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Bilinear, smoothed where it shrinks; the aspect is not kept."""
  import tensorflow as tf

  resized = tf.image.resize(image, size, antialias=True).numpy()
  return np.clip(np.rint(resized), 0, 255).astype(np.uint8)
