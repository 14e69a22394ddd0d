"""What a user's mistake raises."""

import re
from typing import Any


class InputError(ValueError):
  """A user's mistake, told in one line.

  Attributes:
    argument: the name of the argument (in a binary: of the flag) or the place
      in the data that is wrong.
    value: what was given.
    hint: what is allowed, or what to do.
  """

  def __init__(self, argument: str, value: Any, hint: str):
    self.argument = argument
    self.value = value
    self.hint = hint
    super().__init__(f'{argument}={value}: {hint}')


def reason(error: Exception) -> str:
  """The one line of a library's error that says what is wrong."""
  plain = re.sub(r'\x1b\[\d*m|\{\{.*?\}\}', '', str(error))  # colours, op names
  lines = [line.strip() for line in plain.splitlines() if line.strip()]
  told = [line for line in lines if not line.startswith('Exception enc')]
  return (told or lines or [type(error).__name__])[0][:200]
