"""Fixtures of the programs' tests, for attacks on them."""

from tests.binaries.conftest import (  # noqa: F401
  call,
  dense,
  exported,
  finished,
  no_tensorflow,
)
