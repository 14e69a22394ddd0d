"""What all programs share: parsing flags, errors in one line, quiet start."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import app, flags, logging

from safl_tf import checks, errors

# Flags defined by the helpers below belong to the module that calls them.
flags.disclaim_key_flags()

# What Python says of a number it can't read, in a user's words.
_PLAIN = (
  (re.compile(r'invalid literal for int\(\).*'), 'must be a whole number'),
  (re.compile(r'could not convert string to float.*'), 'must be a number'),
)


def run(name: str, module: Any, main: Callable[[], None]) -> None:
  """Parses flags and calls `main`; a user's mistake exits with 2.

  Args:
    name: of the program.
    module: where its flags are defined; its docstring is the help's text.
    main: takes no arguments.
  """

  def parse(argv: Sequence[str]) -> Sequence[str]:
    if {'--help', '-h', '-help', '--helpshort', '--helpfull'} & set(argv[1:]):
      print(module.__doc__.strip())
      print(flags.FLAGS.module_help(module.__name__))
      sys.exit(0)
    try:
      rest = flags.FLAGS(argv)[1:]
      if rest:
        raise errors.InputError(
          'argument', rest[0], 'not known; flags are written --name=value'
        )
    except (flags.Error, errors.InputError, OSError) as error:
      _fail(name, _plain(str(error)))
    return argv

  def guarded(argv: Sequence[str]) -> None:
    del argv
    try:
      main()
    except errors.InputError as error:
      dashes = '--' if error.argument in flags.FLAGS else ''
      _fail(name, f'{dashes}{error}')
    except KeyboardInterrupt:
      print(f'{name}: stopped; the same command goes on', file=sys.stderr)
      sys.exit(130)

  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)
  app.run(guarded, flags_parser=parse)


def real(name: str, default: float | None, text: str, **bounds: Any) -> None:
  """Defines a flag for a number, checked by `checks.real`."""
  flags.DEFINE_float(name, default, text)
  _validate(name, lambda value: checks.real(name, value, **bounds))


def integer(name: str, default: int | None, text: str, **bounds: Any) -> None:
  """Defines a flag for a whole number, checked by `checks.integer`."""
  flags.DEFINE_integer(name, default, text)
  _validate(name, lambda value: checks.integer(name, value, **bounds))


def choice(name: str, default: str, allowed: Sequence[str], text: str) -> None:
  """Defines a flag for one of some names, checked by `checks.choice`."""
  flags.DEFINE_string(name, default, f'{text} One of {", ".join(allowed)}.')
  _validate(name, lambda value: checks.choice(name, value, allowed))


def required(name: str) -> str:
  """The value of a flag that has no default."""
  value = flags.FLAGS[name].value
  if not value:
    raise errors.InputError(name, value, 'is required')
  return value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Hides what native libraries write to stderr while they start."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.stderr.flush()
  kept = os.dup(2)
  null = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(null)


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
  """Lets only errors into the log, while TensorFlow talks of its files."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


def start_tensorflow() -> None:
  """Imports TensorFlow without its start-up noise."""
  with quiet():
    import tensorflow as tf

    from safl_tf import devices

    tf.get_logger().setLevel('ERROR')
    devices.allow_memory_growth()
    tf.config.list_logical_devices()


def _validate(name: str, check: Callable[[Any], Any]) -> None:
  def valid(value: Any) -> bool:
    if value is not None:
      try:
        check(value)
      except errors.InputError as error:
        raise flags.ValidationError(error.allowed) from error
    return True

  flags.register_validator(name, valid)


def _plain(message: str) -> str:
  message = ' '.join(message.split())
  for pattern, words in _PLAIN:
    message = pattern.sub(words, message)
  return message.removeprefix('flag ')


def _fail(name: str, message: str) -> None:
  print(f'{name}: {message}', file=sys.stderr)
  sys.exit(2)
