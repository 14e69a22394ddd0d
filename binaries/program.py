"""The frame of a program: flags, errors in one line, a quiet start."""

import contextlib
import errno
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO, cast

from absl import flags as absl_flags
from absl import logging

from safl_tf import version
from safl_tf.util import errors

from .flags import group, presets

_HELP = frozenset({'--help', '-help', '-h', '--helpshort', '--helpfull'})
# Replacements for absl's messages.
_MESSAGES = {
  r"\('Non-boolean argument.*": 'must be true or false',
}
# What to do about errors of the system.
_REMEDIES = {
  errno.EACCES: 'change its permissions or choose another folder',
  errno.EDQUOT: 'free some space, then give the same command',
  errno.EFBIG: 'raise the limit of file sizes (ulimit -f)',
  errno.EIO: 'check the disk, then give the same command',
  errno.EMFILE: 'raise the limit of open files (ulimit -n)',
  errno.ENOSPC: 'free some space, then give the same command',
  errno.EROFS: 'choose a folder that can be written to',
}
_LESS = 'use less data, a smaller model or fewer clients at a time.'
# Errors of TensorFlow that come from the system, not from a wrong program.
_TF = (
  'AlreadyExistsError',
  'DataLossError',
  'FailedPreconditionError',
  'NotFoundError',
  'PermissionDeniedError',
  'ResourceExhaustedError',
  'UnavailableError',
  'UnknownError',
)


def run(
  name: str,
  description: str | None,
  define: Callable[[absl_flags.FlagValues], None],
  main: Callable[[absl_flags.FlagValues], None],
) -> None:
  """Parses the command line and calls `main` with the flags of `define`.

  A mistake of the user ends the process with exit code 2 and one line; a full
  disk and other failures that are not a bug with exit code 1 and one line. The
  `description` is the text of --help before the flags. --version prints the
  version.
  """
  _open_standard_files()
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)
  flags = absl_flags.FlagValues()
  flags['verbosity'] = absl_flags.FLAGS['verbosity']
  define(flags)
  try:
    with _output(name):
      if _HELP & set(sys.argv[1:]):
        print(f'{(description or "").strip()}\n{group.help_text(flags)}')
      elif '--version' in sys.argv[1:]:
        print(f'{name} {version.__version__}')
      else:
        _parse(name, flags)
        presets.apply(flags)
        main(flags)
  except errors.InputError as error:
    dashes = '--' if error.argument in flags else ''
    _exit(name, f'{dashes}{error}', 2)
  except KeyboardInterrupt:
    _exit(name, 'stopped; the same command resumes', 130)
  except Exception as error:
    message = describe(error)
    if message is None:
      raise  # a bug
    _exit(name, message, 1)
  finally:
    _drain(sys.stderr)


@contextlib.contextmanager
def locating(path: str | os.PathLike[str]) -> Iterator[None]:
  """Names a folder in errors of the system that have no path of their own."""
  try:
    yield
  except Exception as error:
    error.add_note(os.fspath(path))
    raise


def describe(error: Exception) -> str | None:
  """Describes an error that is not a bug of this package; else None."""
  if isinstance(error, errors.RunError):
    return str(error)
  if isinstance(error, MemoryError):
    return f'not enough memory; {_LESS} {error}'
  place = ''.join(f'{note}: ' for note in getattr(error, '__notes__', [])[:1])
  if isinstance(error, OSError):
    path = error.filename2 or error.filename  # of a rename: the target
    place = place if path is None else f'{path}: '
    remedy = _REMEDIES.get(error.errno or 0)
    cause = error.strerror or error
    return f'{place}{cause}' + (f'; {remedy}' if remedy else '')
  module = type(error).__module__
  if not module.startswith('tensorflow') or type(error).__name__ not in _TF:
    return None
  remedy = ''
  if 'No space' in str(error):
    remedy = f'; {_REMEDIES[errno.ENOSPC]}'
  elif 'OOM' in str(error):
    remedy = f'; {_LESS}'
  return f'{place}{errors.reason(error)}{remedy}'


class _Output:
  """Writes to stdout until that fails; then discards the rest."""

  def __init__(self, stream: TextIO | None):
    self._stream = stream
    self.error = OSError(errno.EBADF, 'is closed') if stream is None else None

  def write(self, text: str) -> int:
    self._call('write', text)
    return len(text)

  def flush(self) -> None:
    self._call('flush')

  def _call(self, method: str, *arguments: str) -> None:
    if self.error is None:
      try:
        getattr(self._stream, method)(*arguments)
      except OSError as error:
        self.error = error

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


@contextlib.contextmanager
def _output(name: str) -> Iterator[None]:
  """Exits with code 1 in the end if not all output could be written.

  Until then the program goes on and writes its files.
  """
  output = _Output(sys.stdout)
  stdout, sys.stdout = sys.stdout, cast(Any, output)
  try:
    yield
  except SystemExit as end:
    if end.code:
      raise
  finally:
    output.flush()
    sys.stdout = stdout
    _drain(stdout)
  if isinstance(output.error, BrokenPipeError):  # as of head: no message
    sys.exit(1)
  if output.error is not None:
    _exit(name, f'stdout: {output.error.strerror}; the output is incomplete', 1)


def _drain(stream: TextIO | None) -> None:
  """Flushes a stream; discards what it cannot write, for a quiet end."""
  if stream is None:
    return
  try:
    stream.flush()
  except OSError:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
    stream.flush()


def _open_standard_files() -> None:
  """Opens closed standard files, so that no other file takes their number."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
  if sys.stderr is None:  # was closed; libraries expect one
    sys.stderr = open(2, 'w', closefd=False)  # noqa: SIM115


def _parse(name: str, flags: absl_flags.FlagValues) -> None:
  """Parses the command line, or exits with code 2."""
  absl_flags.FLAGS.mark_as_parsed()  # absl's logging requires it
  try:
    rest = flags([name, *_flagfiles_first(sys.argv[1:])])[1:]
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
  except ValueError as error:  # --noflag=value
    _exit(name, str(error), 2)
  if rest:
    _exit(name, f'{rest[0]}: not a flag; flags are written --name=value', 2)


def _flagfiles_first(arguments: Sequence[str]) -> list[str]:
  """Puts --flagfile before all others, which so override its flags."""
  files: list[str] = []
  others: list[str] = []
  remaining = iter(arguments)
  for argument in remaining:
    if argument in ('--flagfile', '-flagfile'):
      files += [argument, *itertools.islice(remaining, 1)]
    elif argument.startswith(('--flagfile=', '-flagfile=')):
      files.append(argument)
    else:
      others.append(argument)
  return [*files, *others]


def _exit(name: str, message: str, code: int) -> NoReturn:
  """Ends the process with a message on stderr, joined into one line."""
  with contextlib.suppress(OSError):
    print(f'{name}: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(code)
