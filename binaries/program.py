"""The frame of a program: flags, errors in one line, a quiet start."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import errors

from .flags import group, presets

_HELP = frozenset({'--help', '-help', '-h', '--helpshort', '--helpfull'})
# Replacements for Python's messages about numbers.
_MESSAGES = {
  r'invalid literal for int\(\).*': 'must be a whole number',
  r'could not convert string to float.*': 'must be a number',
}


class ExitError(Exception):
  """Ends a program with exit code 1 and one line; not the user's mistake."""


def run(
  name: str,
  description: str | None,
  define: Callable[[absl_flags.FlagValues], None],
  main: Callable[[absl_flags.FlagValues], None],
) -> None:
  """Parses the command line and calls `main` with the flags of `define`.

  A mistake of the user ends the process with exit code 2 and one line. The
  `description` is the text of --help before the flags.
  """
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)
  flags = absl_flags.FlagValues()
  flags['verbosity'] = absl_flags.FLAGS['verbosity']
  define(flags)
  try:
    if _HELP & set(sys.argv[1:]):
      print(f'{(description or "").strip()}\n{group.help_text(flags)}')
    else:
      _parse(name, flags)
      presets.apply(flags)
      main(flags)
    sys.stdout.flush()
  except errors.InputError as error:
    dashes = '--' if error.argument in flags else ''
    _exit(name, f'{dashes}{error}', 2)
  except (ExitError, errors.RunError) as error:
    _exit(name, str(error), 1)
  except KeyboardInterrupt:
    _exit(name, 'stopped; the same command resumes', 130)
  except BrokenPipeError:  # the reader, such as head, has closed the pipe
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def start_tensorflow() -> None:
  """Imports TensorFlow without its messages.

  scikit-learn and pandas are hidden meanwhile, since Keras would spend seconds
  on importing them. Afterwards they can be imported as usual.
  """
  with _quiet(), _hidden('sklearn', 'pandas'):
    import tensorflow as tf

    from safl_tf.util import hardware

    tf.get_logger().setLevel('ERROR')
    hardware.find()  # TensorFlow writes messages when it looks for GPUs


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
  """Limits the log to errors, to hide progress messages of libraries."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Discards the stderr output of native libraries."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.stderr.flush()
  stderr = os.dup(2)
  null = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(null)


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
  """Makes imports of packages fail, unless they are imported already."""
  hidden = [name for name in packages if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]


def _parse(name: str, flags: absl_flags.FlagValues) -> None:
  """Parses the command line, or exits with code 2."""
  absl_flags.FLAGS.mark_as_parsed()  # absl's logging requires it
  try:
    rest = flags(sys.argv)[1:]
  except absl_flags.UnrecognizedFlagError as error:
    near = str(error).partition('Did you mean: ')[2].removesuffix(' ?')
    hint = f'did you mean --{near.replace(", ", " or --")}? ' if near else ''
    _exit(name, f'{error.flagvalue}: no such flag; {hint}see --help', 2)
  except absl_flags.CantOpenFlagFileError as error:
    cause = error.__context__
    if not isinstance(cause, OSError):
      raise
    _exit(name, f'--flagfile={cause.filename}: {cause.strerror}', 2)
  except UnicodeDecodeError as error:
    _exit(name, f'--flagfile: must be a text file ({error})', 2)
  except absl_flags.Error as error:
    parts = re.split(r'^flag |\nflag (?=--)', str(error))
    message = '; '.join(filter(None, parts))
    for pattern, replacement in _MESSAGES.items():
      message = re.sub(pattern, replacement, message)
    _exit(name, message, 2)
  if rest:
    _exit(name, f'{rest[0]}: not a flag; flags are written --name=value', 2)


def _exit(name: str, message: str, code: int) -> NoReturn:
  """Ends the process with a message on stderr, joined into one line."""
  print(f'{name}: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(code)
