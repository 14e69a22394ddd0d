"""Errors that programs report in one line."""

import re
from typing import Any

_MAX_REASON = 400  # characters; libraries quote whole arrays and signatures


class InputError(ValueError):
  """Invalid user input, described in one line; a `ValueError`.

  Programs end with exit code 2.

  Attributes:
    argument: the argument's name (in a program: the flag's), or the location of
      the error in the data.
    value: the value that was given.
    hint: the allowed values, or the remedy.

  Example:
    ```pycon
    >>> safl_tf.build_safl(epsilon=1.5)
    Traceback (most recent call last):
      ...
    safl_tf.util.errors.InputError: epsilon=1.5: must be a number in [0, 1]
    ```
  """

  def __init__(self, argument: str, value: Any, hint: str):
    self.argument = argument
    self.value = value
    self.hint = hint
    super().__init__(f'{argument}={value}: {hint}')

  def __reduce__(self) -> tuple[Any, ...]:
    return InputError, (self.argument, str(self.value), self.hint)


class RunError(Exception):
  """A failure that is not invalid input, described in one line.

  Programs end with exit code 1: a model that diverged, a file that cannot be
  written. The message says what to do.

  Example:
    ```pycon
    >>> config = safl_tf.LocalConfig(learning_rate=1e30)
    >>> try:
    ...   safl_tf.train(model_fn, clients, config=config, rounds=2)
    ... except safl_tf.RunError as error:
    ...   print(error)
    round 1: no update of the 4 clients is finite, ...
    ```
  """


def one_line(text: str) -> str:
  """Returns text with line breaks and other unprintable characters escaped."""
  return ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def reason(error: Exception) -> str:
  """Returns the line of a library's error message that states the cause."""
  noise = r'\x1b\[\d*m|\{\{.*?\}\}|\[Op:\w+\]( name: )?'  # colours, op names
  plain = re.sub(noise, '', str(error))
  lines = [line.strip() for line in plain.splitlines() if line.strip()]
  causes = [line for line in lines if not line.startswith('Exception enc')]
  line = (causes or lines or [type(error).__name__])[0]
  if len(line) <= _MAX_REASON:
    return line
  return f'{line[:_MAX_REASON].rpartition(" ")[0] or line[:_MAX_REASON]} …'
