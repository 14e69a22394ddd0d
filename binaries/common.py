"""What all programs share: parsing flags, errors in one line, quiet start."""

import contextlib
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import flags, logging

from safl_tf.util import errors, validation

# Flags defined by the class below belong to the module that calls it.
flags.disclaim_key_flags()

_HELP = frozenset({'--help', '-help', '-h', '--helpshort', '--helpfull'})
# What Python says of a number it can't read, in a user's words.
_PLAIN = (
  (re.compile(r'invalid literal for int\(\).*'), 'must be a whole number'),
  (re.compile(r'could not convert string to float.*'), 'must be a number'),
)


class ExitError(Exception):
  """Ends a program with 1 and one line: no mistake of the user's."""


class Flags(flags.FlagValues):
  """The flags of one program, each checked when the command line is read."""

  def __init__(self) -> None:
    super().__init__()
    self['verbosity'] = flags.FLAGS['verbosity']

  def text(self, name: str, default: str | None, text: str) -> None:
    """Defines a flag for any text."""
    flags.DEFINE_string(name, default, text, flag_values=self)

  def boolean(self, name: str, default: bool | None, text: str) -> None:
    """Defines a flag that is given as --name or --noname."""
    flags.DEFINE_bool(name, default, text, flag_values=self)

  def real(
    self, name: str, default: float | None, text: str, **bounds: Any
  ) -> None:
    """Defines a flag for a number, checked by `validation.real`."""
    flags.DEFINE_float(name, default, text, flag_values=self)
    self._validate(name, lambda value: validation.real(name, value, **bounds))

  def integer(
    self, name: str, default: int | None, text: str, **bounds: Any
  ) -> None:
    """Defines a flag for a whole number, checked by `validation.integer`."""
    flags.DEFINE_integer(name, default, text, flag_values=self)
    self._validate(
      name, lambda value: validation.integer(name, value, **bounds)
    )

  def choice(
    self, name: str, default: str | None, allowed: Sequence[str], text: str
  ) -> None:
    """Defines a flag for one of some names, checked by `validation.choice`."""
    self.text(name, default, f'{text} One of {", ".join(allowed)}.')
    self._validate(name, lambda value: validation.choice(name, value, allowed))

  def folder(self, name: str, default: str | None, text: str) -> None:
    """Defines a flag for a folder that exists."""

    def check(value: str) -> None:
      if not os.path.isdir(os.path.expanduser(value)):
        raise errors.InputError(name, value, 'must be an existing folder')

    self.text(name, default, text)
    self._validate(name, check)

  def own(self, module: str) -> dict[str, Any]:
    """The values of the flags that a module defined, by name."""
    return {f.name: f.value for f in self.flags_by_module_dict()[module]}

  def required(self, name: str) -> str:
    """The value of a flag that has no default: a path."""
    if not self[name].value:
      raise errors.InputError(name, '', 'is required; see --help')
    return os.path.expanduser(self[name].value)

  def _validate(self, name: str, check: Callable[[Any], Any]) -> None:
    def valid(value: Any) -> bool:
      if value is not None:
        try:
          check(value)
        except errors.InputError as error:
          raise flags.ValidationError(error.hint) from error
      return True

    flags.register_validator(name, valid, flag_values=self)


def run(name: str, module: Any, main: Callable[[], None]) -> None:
  """Parses flags and calls `main`; a user's mistake exits with 2.

  Args:
    name: of the program.
    module: where its `FLAGS` are; its docstring is the help's text.
    main: takes no arguments.
  """
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setFormatter(None)
  try:
    if _HELP & set(sys.argv[1:]):
      print(module.__doc__.strip())
      print(module.FLAGS.module_help(module.__name__))
    else:
      _parse(name, module.FLAGS, sys.argv)
      main()
    sys.stdout.flush()
  except errors.InputError as error:
    dashes = '--' if error.argument in module.FLAGS else ''
    _exit(name, f'{dashes}{error}', 2)
  except ExitError as error:
    _exit(name, str(error), 1)
  except KeyboardInterrupt:
    _exit(name, 'stopped; the same command goes on', 130)
  except BrokenPipeError:  # the reader, such as head, had enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


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
  """Lets only errors into the log, while libraries talk of their files."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
  """Hides packages that others import only to see whether they are there."""
  hidden = [name for name in packages if name not in sys.modules]
  sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in hidden:
      del sys.modules[name]


def start_tensorflow() -> None:
  """Imports TensorFlow without its start-up noise.

  Keras would import scikit-learn and pandas for wrappers that nobody needs
  here, at a cost of seconds.
  """
  with quiet(), without('sklearn', 'pandas'):
    import tensorflow as tf

    from safl_tf.util import hardware

    tf.get_logger().setLevel('ERROR')
    hardware.find()  # with what TensorFlow says when it looks for GPUs


def check_keras_file(path: str) -> None:
  """Refuses what can't be a .keras file, before Keras is there to say so."""
  if not os.path.isfile(path):
    raise errors.InputError('model', path, 'there is no such file')
  if not zipfile.is_zipfile(path):
    raise errors.InputError(
      'model', path, 'must be a .keras file as Keras 3 saves it'
    )


def _parse(name: str, known: Flags, argv: Sequence[str]) -> None:
  """Reads the command line into a program's flags, or exits with 2."""
  flags.FLAGS.mark_as_parsed()  # absl's own, which its log asks for
  try:
    rest = known(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    near = str(error).partition('Did you mean: ')[2].removesuffix(' ?')
    hint = f'did you mean --{near.replace(", ", " or --")}? ' if near else ''
    _exit(name, f'{error.flagvalue}: no such flag; {hint}see --help', 2)
  except flags.CantOpenFlagFileError as error:
    cause = error.__context__
    if not isinstance(cause, OSError):
      raise
    _exit(name, f'--flagfile={cause.filename}: {cause.strerror}', 2)
  except UnicodeDecodeError as error:
    _exit(name, f'--flagfile: must be a text file ({error})', 2)
  except flags.Error as error:
    several = re.split(r'^flag |\nflag (?=--)', str(error))
    told = '; '.join(filter(None, several))
    for pattern, words in _PLAIN:
      told = pattern.sub(words, told)
    _exit(name, told, 2)
  if rest:
    _exit(name, f'{rest[0]}: not a flag; flags are written --name=value', 2)


def _exit(name: str, message: str, code: int) -> NoReturn:
  """Ends the program with one line on stderr, whatever is in the message."""
  print(f'{name}: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(code)
