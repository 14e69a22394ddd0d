"""Tells the code of installed packages from the user's own."""

import functools
import os
import pathlib

_NAMES = ('site-packages', 'dist-packages')


def is_installed(path: str) -> bool:
  """Returns whether a file belongs to an installed package.

  A process may import packages from several folders: of its environment, of the
  system, of the user (`pip install --user`), or any that pip was told
  (`--target`). Packages installed as editable are the user's own code.
  """
  return _has_packages(os.path.dirname(path))


@functools.cache
def _has_packages(folder: str) -> bool:
  """Returns whether packages are installed to a folder, or one around it."""
  around, name = os.path.split(folder)
  if around != folder and _has_packages(around):
    return True
  return name in _NAMES or any(pathlib.Path(folder).glob('*.dist-info'))
