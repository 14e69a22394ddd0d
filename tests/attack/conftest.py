"""Fixtures of the programs' tests, for attacks on them, and of attacks."""

import signal
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


@pytest.fixture(autouse=True)
def ctrl_c():
  """SIGINT reaches programs; in the background of a shell it is ignored."""
  handler = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, handler)


@pytest.fixture
def little_memory(monkeypatch):
  """A machine with 1 MB left."""
  left = types.SimpleNamespace(available=10**6)
  monkeypatch.setattr(bounded_io.psutil, 'virtual_memory', lambda: left)
