"""What a user's mistake raises."""

from typing import Any


class InputError(ValueError):
  """A user's mistake, told in one line.

  Attributes:
    argument: the name of the argument (in a binary: of the flag) or the place
      in the data that is wrong.
    value: what was given.
    allowed: what is allowed, or what to do.
  """

  def __init__(self, argument: str, value: Any, allowed: str):
    self.argument = argument
    self.value = value
    self.allowed = allowed
    super().__init__(f'{argument}={value}: {allowed}')
