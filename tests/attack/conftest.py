"""Fixtures of the programs' tests, for attacks on them, and of attacks."""

import types

import pytest

from safl_tf.util import bounded_io
from tests.binaries.conftest import (  # noqa: F401
  call,
  dense,
  exported,
  finished,
  no_tensorflow,
)


@pytest.fixture
def little_memory(monkeypatch):
  """A machine with 1 MB left."""
  left = types.SimpleNamespace(available=10**6)
  monkeypatch.setattr(bounded_io.psutil, 'virtual_memory', lambda: left)
