"""Marks of tests' parameters."""

import pytest


def some(values, default):
  """Parameters of a test, slow except for the default ones.

  Args:
    values: a value each, or a tuple for several arguments.
    default: those that are tested by `make test`.
  """
  values = list(values)
  assert all(value in values for value in default)
  return [
    pytest.param(
      *(value if isinstance(value, tuple) else (value,)),
      marks=() if value in default else pytest.mark.slow,
    )
    for value in values
  ]
