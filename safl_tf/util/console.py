"""What users see while they wait: progress bars and the log."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from absl import logging


def progress_bar(progress: bool | None = None, **options: Any) -> Any:
  """Returns a tqdm bar, as a widget in a notebook that has ipywidgets.

  Args:
    progress: whether to show it; None shows it in a terminal and a notebook.
    **options: of tqdm.
  """
  with warnings.catch_warnings():  # of notebooks without ipywidgets
    warnings.simplefilter('ignore')
    import tqdm.auto

  disable = None if progress is None else not progress
  if progress is None and in_notebook():
    disable = False
  return tqdm.auto.tqdm(**options, disable=disable)


def in_notebook() -> bool:
  """Returns whether this process is the kernel of a notebook."""
  get_ipython = getattr(sys.modules.get('IPython'), 'get_ipython', None)
  shell = get_ipython() if get_ipython is not None else None
  return 'IPKernelApp' in getattr(shell, 'config', ())


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
  """Limits the log to errors, to hide progress messages of libraries."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)
